"""Who we are: a token, and certificates for TLS; by option or by environment, never shown.

=====================  ==================  ===============================================
option                 variable            meaning
=====================  ==================  ===============================================
``token``              ``QUIVER_TOKEN``    the token itself
``tokenFile``          ``QUIVER_TOKEN_FILE``  a file that holds it
``tlsCa``              ``QUIVER_CA``       trust servers that these have signed (PEM file)
``tlsCert``            ``QUIVER_CERT``     our certificate (PEM file)
``tlsKey``             ``QUIVER_KEY``      its private key (PEM file)
=====================  ==================  ===============================================

An option wins over a variable.  The driver reads them, files included, and what it read
travels to the executors inside the serialised function: plans, logs and ``explain()`` don't
show that.  A token file that an executor has as well is read again before each call, so
tokens may change during a long job.  A driver without a token leaves it to the variables of
the executors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flight_service.client.errors import BadRequest
from flight_service.client.retry import Retry
from flight_service.client.session import CONNECT_WAIT, Client, connect
from spark_client.url import Target

TOKEN: Final = "QUIVER_TOKEN"
TOKEN_FILE: Final = "QUIVER_TOKEN_FILE"
CA: Final = "QUIVER_CA"
CERT: Final = "QUIVER_CERT"
KEY: Final = "QUIVER_KEY"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a connection needs to know about us; made on the driver, used anywhere."""

    token: str | None = field(default=None, repr=False)
    token_file: str | None = field(default=None, repr=False)
    ca: bytes | None = field(default=None, repr=False)
    cert: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    hostname: str | None = field(default=None, repr=False)
    insecure: bool = False

    @classmethod
    def gather(
        cls,
        *,
        token: str | None = None,
        token_file: str | None = None,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        tls_hostname: str | None = None,
        insecure: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> Credentials:
        """From options, and where they say nothing from the environment."""
        given = os.environ if env is None else env
        if token is None and token_file is None:
            token, token_file = given.get(TOKEN) or None, given.get(TOKEN_FILE) or None
        if token is None and token_file is not None:
            token = _read(token_file, "tokenFile").decode().strip()
        return cls(
            token=token,
            token_file=token_file,
            ca=_pem(tls_ca or given.get(CA), "tlsCa"),
            cert=_pem(tls_cert or given.get(CERT), "tlsCert"),
            key=_pem(tls_key or given.get(KEY), "tlsKey"),
            hostname=tls_hostname,
            insecure=insecure,
        )

    def connect(
        self, target: Target, *, retry: Retry | None = None, wait: float = CONNECT_WAIT
    ) -> Client:
        """A client of the target's server, as whom these say."""
        return connect(
            target.address,
            token=self._token(),
            tls_ca=self.ca,
            tls_cert=self.cert,
            tls_key=self.key,
            tls_hostname=self.hostname,
            insecure=self.insecure,
            retry=retry,
            wait=wait,
        )

    def _token(self) -> str | Callable[[], str] | None:
        if self.token is None:
            return os.environ.get(TOKEN) or None
        if self.token_file is None:
            return self.token
        return _Rereading(self.token_file, self.token)


class _Rereading:
    """The token in a file, or the one it held on the driver where there is no such file."""

    def __init__(self, path: str, token: str) -> None:
        self._path = Path(path)
        self._token = token

    def __call__(self) -> str:
        try:
            return self._path.read_text().strip() or self._token
        except OSError:
            return self._token


def _pem(path: str | None, option: str) -> bytes | None:
    return _read(path, option) if path else None


def _read(path: str, option: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadRequest(
            "bad_request",
            f"{option}: {path} can't be read on the driver ({error.strerror}).",
        ) from None
