"""What the client raises, as one tree; every error says whether trying again can help.

::

    ClientError                 (a ServiceError: code, message, retryable, details)
    ├── Unavailable             not now: the server can't be reached or can't take more
    │   ├── Disconnected        nobody answered, or the connection was lost on the way
    │   └── Backpressure        the server said no for now; ``retry_after_ms`` says how long
    ├── Timeout                 the wait ended before the thing waited for
    ├── AccessDenied            who you are, or what you may do: ``unauthenticated``, ``forbidden``
    ├── NotFound                no such stream, subscriber or bundle
    │   └── Expired             it was there: ``details`` say what became of it
    ├── BadRequest              it can never be taken as it is
    │   └── Rejected            … said of one or more bundles that were put
    ├── ServerFault             the server's fault or its disk's
    ├── Closed                  this client, writer or subscription has been closed
    └── Forked                  it belongs to the process that this one was forked from
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow.flight as flight

from flight_service.protocol.errors import (
    INTERNAL_CODES,
    UNAVAILABLE_CODES,
    ServiceError,
    from_flight,
)

MAX_SHOWN: Final = 5
"""Rejections that are spelt out in one message; the others are counted."""


class ClientError(ServiceError):
    """Root of everything the client raises on purpose."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code!r}, {self.message!r})"


class Unavailable(ClientError):
    """Not now; the same request can succeed later."""


class Disconnected(Unavailable):
    """Nobody answered, or the connection was lost: what was sent may have arrived or not."""


class Backpressure(Unavailable):
    """The server is there and said no for now."""


class Timeout(ClientError):
    """The wait ended before the thing waited for."""


class AccessDenied(ClientError):
    """The token, the certificate or the rights don't reach."""


class NotFound(ClientError):
    """It isn't here."""


class Expired(NotFound):
    """It was here; ``details`` say what became of it."""


class BadRequest(ClientError):
    """It can never be taken as it is."""


class Rejected(BadRequest):
    """One or more bundles were refused for good; the others are safe."""

    def __init__(self, rejections: Sequence[Rejection], count: int | None = None) -> None:
        total = len(rejections) if count is None else count
        shown = "; ".join(str(one) for one in rejections[:MAX_SHOWN])
        more = f" … and {total - MAX_SHOWN:,} more" if total > MAX_SHOWN else ""
        what = "a bundle was" if total == 1 else f"{total:,} bundles were"
        code = rejections[0].code if rejections else "rejected"
        super().__init__(code, f"{what} rejected: {shown}{more}", retryable=False)
        self.rejections = tuple(rejections)
        self.count = total


class ServerFault(ClientError):
    """The server failed; its log says more."""


class Closed(ClientError):
    """It has been closed on this side."""

    def __init__(self, what: str) -> None:
        super().__init__("closed", f"{what} has been closed.", retryable=False)


class Forked(ClientError):
    """A forked child used Flight after its parent had: gRPC does not survive a fork."""

    def __init__(self, what: str, owner: int) -> None:
        super().__init__(
            "forked",
            f"this {what} was forked from process {owner}, which had connected to a server:"
            " gRPC does not work here. Fork before the first connection is made, or start"
            " processes with multiprocessing's 'spawn' method, and connect in the child.",
            retryable=False,
        )


class Rejection:
    """Why one bundle was refused for good."""

    __slots__ = ("code", "key", "reason")

    def __init__(self, key: str | None, code: str, reason: str) -> None:
        self.key = key
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.key}: {self.reason} ({self.code})"

    def __repr__(self) -> str:
        return f"Rejection({self.key!r}, {self.code!r}, {self.reason!r})"


_KINDS: Final[Mapping[str, type[ClientError]]] = {
    **dict.fromkeys(UNAVAILABLE_CODES, Backpressure),
    **dict.fromkeys(INTERNAL_CODES, ServerFault),
    "unavailable": Disconnected,
    "cancelled": Disconnected,
    "timeout": Timeout,
    "unauthenticated": AccessDenied,
    "forbidden": AccessDenied,
    "not_found": NotFound,
    "unknown_stream": NotFound,
    "unknown_subscriber": NotFound,
    "unknown_bundle": NotFound,
    "stage_not_found": NotFound,
    "expired": Expired,
    "bundle_gone": Expired,
}


def typed(error: BaseException) -> ClientError:
    """Anything a call raised, as one of ours.

    Quiver's servers put their word into every error they answer.  A Flight error without
    one comes from the way between: gRPC reports a lost connection under several names.
    """
    if isinstance(error, ClientError):
        return error
    said = from_flight(error)
    message = said.message
    if not isinstance(error, ServiceError) and not getattr(error, "extra_info", None):
        message = _tidy(message)
        if said.code == "internal" and isinstance(error, flight.FlightError | OSError):
            return lost(message)
    return by_code(said.code, message, retryable=said.retryable, details=said.details)


def _tidy(message: str) -> str:
    """What gRPC had to say, without telling it twice."""
    said = message.partition(". gRPC client debug context")[0]
    return said.partition("with message: ")[2] or said


def lost(message: str) -> Disconnected:
    """The connection broke."""
    return Disconnected("unavailable", message or "the connection was lost.", retryable=True)


def by_code(
    code: str,
    message: str,
    *,
    retryable: bool | None = None,
    details: Mapping[str, Any] | None = None,
) -> ClientError:
    """The error a code stands for."""
    kind = _KINDS.get(code, BadRequest)
    return kind(code, message, retryable=retryable, details=details)
