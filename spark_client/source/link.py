"""The way to the stream: configuration that travels, a connection that doesn't."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from flight_service.client.errors import ClientError
from flight_service.client.retry import Retry, call
from flight_service.client.session import Client
from flight_service.client.stream import Stream
from spark_client.credentials import Credentials
from spark_client.source.problems import explained
from spark_client.url import Target

T = TypeVar("T")


class Link:
    """A stream, connected to when it is first asked something."""

    def __init__(
        self, target: Target, credentials: Credentials, *, connect: float, patience: float
    ) -> None:
        self.target = target
        self._credentials = credentials
        self._connect = min(connect, patience)
        self._patience = patience
        self._client: Client | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def impatient(self) -> Link:
        """The same for a driver that somebody is waiting for: a wrong address shows soon."""
        return Link(self.target, self._credentials, connect=self._connect, patience=self._connect)

    @property
    def stream(self) -> Stream:
        """The stream; connects if need be."""
        if self._client is None:
            self._client = self._credentials.connect(
                self.target, retry=self._retry, wait=self._connect
            )
        return self._client.stream(self.target.stream)

    @property
    def _retry(self) -> Retry:
        return Retry(give_up_after=self._patience)

    def ask(self, question: Callable[[Stream], T]) -> T:
        """An answer, however often it takes to get one; errors say what to do about them."""
        try:
            return call(lambda: question(self.stream), self._retry, threading.Event().wait)
        except ClientError as error:
            raise explained(error, self.target) from None

    def close(self) -> None:
        """Hang up; fine to call twice, and asking again connects anew."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
