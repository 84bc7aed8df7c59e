"""Looking without claiming: by range, by time, by ref, and live.

Nothing here changes anything on the server, so it can be repeated freely: a read that
loses its connection goes on behind the last bundle it gave out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from flight_service.client.bundle import Bundle, read_bundle
from flight_service.client.connection import Connection
from flight_service.client.errors import ClientError
from flight_service.client.retry import Backoff, Retry
from flight_service.protocol.get import FlightMeta, ReadCommand
from flight_service.protocol.names import Ref

PAGE_BUNDLES: Final = 1_024
PAGE_BYTES: Final = 64 << 20
POLL_FIRST: Final = 0.05
POLL_LONGEST: Final = 0.5
NS: Final = 1_000_000_000

When = datetime | int
"""A time zone aware datetime, or nanoseconds since the epoch."""
Where = str | Ref | tuple[int, int] | datetime | int
"""``earliest``, ``latest``, a ref, or a time."""


def to_ns(when: When) -> int:
    """Nanoseconds since the epoch."""
    if isinstance(when, int):
        return when
    if when.tzinfo is None:
        raise ValueError("a time needs a time zone: datetime.now(tz=UTC), for example")
    return int(when.timestamp() * 1_000_000) * 1_000


def to_start(where: Where) -> str | Ref | int:
    """As the protocol writes it."""
    if isinstance(where, tuple):
        return Ref(*where)
    return to_ns(where) if isinstance(where, datetime) else where


@dataclass(frozen=True, slots=True)
class Range:
    """Which bundles: everything, unless narrowed. Ends are excluded."""

    start: Ref | None = None
    end: Ref | None = None
    since: When | None = None
    until: When | None = None

    def fields(self) -> dict[str, Any]:
        """For a ReadCommand."""
        return {
            "start": None if self.start is None else Ref(*self.start),
            "end": None if self.end is None else Ref(*self.end),
            "since_ns": None if self.since is None else to_ns(self.since),
            "until_ns": None if self.until is None else to_ns(self.until),
        }

    def behind(self, ref: Ref) -> Range:
        """The rest of it after ``ref``."""
        segment, index = ref
        return replace(self, start=Ref(segment, index + 1))


class Reading:
    """Reads of one stream."""

    def __init__(self, connection: Connection, stream: str, retry: Retry) -> None:
        self._connection = connection
        self._stream = stream
        self._retry = retry

    def bundles(
        self,
        span: Range,
        slots: Sequence[str] | None = None,
        projection: Mapping[str, Sequence[str]] | None = None,
    ) -> Iterator[Bundle]:
        """All bundles of a range, in order, a page at a time."""
        form = {
            "slots": None if slots is None else tuple(slots),
            "projection": None
            if projection is None
            else {slot: tuple(columns) for slot, columns in projection.items()},
        }
        backoff = Backoff(self._retry)
        more = True
        while more:
            try:
                more = False
                command = self._command(span, form)
                info = self._connection.info(command.descriptor())
                more = FlightMeta.decode(info.app_metadata).more
                for bundle in self._fetch(info):
                    backoff.reset()
                    span = span.behind(bundle.ref)
                    yield bundle
            except ClientError as error:
                self._connection.pause(backoff.after(error))
                more = True

    def by_ref(self, refs: Sequence[tuple[int, int]]) -> Iterator[Bundle]:
        """These bundles, in this order."""
        for first in range(0, len(refs), PAGE_BUNDLES):
            page = tuple(Ref(*ref) for ref in refs[first : first + PAGE_BUNDLES])
            command = ReadCommand(stream=self._stream, refs=page, max_bundles=PAGE_BUNDLES)
            yield from self._fetch(self._connection.info(command.descriptor()))

    def batches(
        self, span: Range, slot: str, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """One slot's batches in their own schema, straight from the server's files."""
        form = {
            "mode": "slot",
            "slot": slot,
            "columns": None if columns is None else tuple(columns),
        }
        while True:
            info = self._connection.info(self._command(span, form).descriptor())
            meta = FlightMeta.decode(info.app_metadata)
            for endpoint in info.endpoints:
                for chunk in self._connection.get(endpoint.ticket):
                    yield chunk.data
            if not meta.more or not meta.refs:
                return
            span = span.behind(meta.refs[-1])

    def follow(self, span: Range, slots: Sequence[str] | None = None) -> Iterator[Bundle]:
        """All bundles of a range and then those that come, for ever.

        It asks again and again: unlike a subscriber it leaves no trace on the server.
        """
        wait = POLL_FIRST
        while True:
            for bundle in self.bundles(span, slots):
                span = span.behind(bundle.ref)
                wait = POLL_FIRST
                yield bundle
            self._connection.pause(wait)
            wait = min(wait * 2, POLL_LONGEST)

    def _command(self, span: Range, form: Mapping[str, Any]) -> ReadCommand:
        return ReadCommand(
            stream=self._stream,
            max_bundles=PAGE_BUNDLES,
            max_bytes=PAGE_BYTES,
            **span.fields(),
            **form,
        )

    def _fetch(self, info: Any) -> Iterator[Bundle]:
        for endpoint in info.endpoints:
            for chunk in self._connection.get(endpoint.ticket):
                yield read_bundle(chunk)
