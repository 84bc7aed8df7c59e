"""Who is calling: bearer tokens and client certificates.

The file named by ``auth.file``::

    principals:
      exporter:
        token: sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824
        grants:
          - {verbs: [read, subscribe], streams: ["telemetry*"]}
      spark:
        certificate: spark.internal        # the certificate's name, with mutual TLS
        grants:
          - {verbs: [put], streams: ["*"]}

A token is at least 32 random characters (``quiver token`` makes one); only its SHA-256 is
kept.  It comes as the header ``authorization: Bearer <token>``.  The file is read again
when it has changed, without a restart; a file that can't be read changes nothing, and
says so in the log and in ``health``.

Without ``auth.file`` a verified client certificate may do everything, and where no
certificate is asked for, so may anybody (:mod:`~flight_service.server.settings` lets that
happen on loopback only, unless told).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.flight as flight
import yaml

from flight_service.protocol.errors import ServiceError
from flight_service.server.authz import ALL_VERBS, Grant
from flight_service.server.events import TOKENS_BROKEN, TOKENS_RELOADED, get_logger
from quiver.clock import Clock
from quiver.errors import ConfigError

MAX_AUTH_FILE: Final = 4 << 20
MAX_TOKEN: Final = 4_096
MIN_TOKEN: Final = 32
MIDDLEWARE: Final = "quiver-caller"

_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
_log = get_logger()


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who may call, and what for."""

    name: str
    grants: tuple[Grant, ...]


ANYBODY: Final = Principal("anybody", (Grant(ALL_VERBS, ("*",)),))


def hash_token(token: str) -> str:
    """What the file keeps instead of a token."""
    if not MIN_TOKEN <= len(token) <= MAX_TOKEN:
        raise ValueError(f"a token has {MIN_TOKEN} to {MAX_TOKEN:,} characters")
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Principals:
    """Everybody who is known."""

    tokens: dict[str, Principal]
    certificates: dict[str, Principal]

    def by_token(self, token: str) -> Principal | None:
        """Looks at every digest, so that time tells nothing about which came close."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
        found = None
        for known, principal in self.tokens.items():
            if hmac.compare_digest(known, digest):
                found = principal
        return found


def read_principals(path: str) -> Principals:
    """The principals in a file; a ``ConfigError`` says what is wrong with it."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_AUTH_FILE + 1)
        if len(data) > MAX_AUTH_FILE:
            raise ValueError(f"it has more than {MAX_AUTH_FILE:,} bytes")
        body = yaml.safe_load(data.decode("utf-8")) or {}
        if not isinstance(body, dict) or set(body) != {"principals"}:
            raise ValueError("it must hold principals, and nothing else")
        return _principals({} if body["principals"] is None else body["principals"])
    except OSError as error:
        raise ConfigError(
            f"auth.file {path} can't be read: {error.strerror}.", setting="auth.file"
        ) from None
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"auth.file {path}: {error}.", setting="auth.file") from None


def _principals(principals: Any) -> Principals:
    if not isinstance(principals, dict):
        raise ValueError("principals must be a mapping of name to principal")
    tokens: dict[str, Principal] = {}
    certificates: dict[str, Principal] = {}
    for name, said in principals.items():
        if not isinstance(said, dict) or not set(said) <= {"token", "certificate", "grants"}:
            raise ValueError(f"{name!r} may have token, certificate and grants")
        principal = Principal(str(name), _grants(str(name), said.get("grants") or []))
        if "token" in said:
            match = _DIGEST.fullmatch(str(said["token"]))
            if match is None:
                raise ValueError(f"the token of {name!r} must be sha256: and 64 hex digits")
            if match[1] in tokens:
                raise ValueError(f"{name!r} has the token of {tokens[match[1]].name!r}")
            tokens[match[1]] = principal
        if "certificate" in said:
            certificates[str(said["certificate"])] = principal
    return Principals(tokens, certificates)


def _grants(name: str, said: Any) -> tuple[Grant, ...]:
    if not isinstance(said, list):
        raise ValueError(f"grants of {name!r} must be a list")
    try:
        return tuple(Grant.read(one) for one in said)
    except ValueError as error:
        raise ValueError(f"grants of {name!r}: {error}") from None


class Authenticator:
    """Says who a call comes from."""

    def __init__(
        self, path: str | None, *, certificates: bool, reload: float, clock: Clock
    ) -> None:
        self._path = path
        self._certificates = certificates
        self._reload = reload
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None
        self._next_look = 0.0
        self.problem: str | None = None
        self._principals = Principals({}, {})
        if path is not None:
            self._principals = read_principals(path)
            self._seen = _stamp(path)

    def principal(self, authorization: str | None, identity: str) -> Principal:
        """The caller by its token, or by its certificate; ``unauthenticated`` if neither."""
        if self._path is None:
            if self._certificates and not identity:
                raise ServiceError("unauthenticated", "a client certificate is needed.")
            return ANYBODY
        self._look()
        principals = self._principals
        if authorization is not None:
            scheme, _, token = authorization.partition(" ")
            if scheme.lower() == "bearer" and token and len(token) <= MAX_TOKEN:
                found = principals.by_token(token.strip())
                if found is not None:
                    return found
            raise ServiceError("unauthenticated", "the token is not known.")
        if self._certificates and identity in principals.certificates:
            return principals.certificates[identity]
        raise ServiceError("unauthenticated", "a token is needed: authorization: Bearer …")

    def _look(self) -> None:
        """Read the file again if it has changed."""
        now = self._clock.monotonic()
        if now < self._next_look or self._path is None:
            return
        with self._lock:
            if now < self._next_look:
                return
            self._next_look = now + self._reload
            stamp = _stamp(self._path)
            if stamp == self._seen:
                return
            self._seen = stamp
            try:
                self._principals = read_principals(self._path)
                self.problem = None
                _log.info(TOKENS_RELOADED, principals=len(self._principals.tokens))
            except ConfigError as error:
                self.problem = str(error)
                _log.error(TOKENS_BROKEN, error=str(error))


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


class CallerFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # untyped
    """Makes a :class:`Caller` for every call."""

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> Caller:
        found = [values for name, values in headers.items() if name.lower() == "authorization"]
        values = [value for one in found for value in one]
        # Two headers are one too many: an empty one is refused like a wrong one.
        return Caller(values[0] if len(values) == 1 else "" if values else None)


class Caller(flight.ServerMiddleware):  # type: ignore[misc]  # untyped
    """What came with a call, and what to do when it has ended, data stream and all."""

    def __init__(self, authorization: str | None) -> None:
        super().__init__()
        self.authorization = authorization
        self.at_end = ExitStack()

    def call_completed(self, exception: BaseException | None) -> None:
        self.at_end.close()
