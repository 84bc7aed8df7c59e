"""Errors over the wire.

A refused call ends with a Flight error whose ``extra_info`` is JSON::

    {"v":1, "code":"backpressure", "message":"…", "retryable":true,
     "details":{"reason":"disk","retry_after_ms":500}}

``code`` is for programs and never changes its meaning; ``message`` is for people;
``retryable`` says whether the same request can succeed later.  The Flight error class
follows from the code:

==============================  =====================================================
``FlightUnauthenticatedError``  ``unauthenticated``
``FlightUnauthorizedError``     ``forbidden``
``FlightUnavailableError``      what passes by itself: ``backpressure`` (``details``:
                                ``reason``, ``retry_after_ms``), ``storage_full``,
                                ``busy``, ``too_many_calls``, ``recovering``,
                                ``draining``, ``store_locked``, ``out_of_resources``
``FlightTimedOutError``         ``timeout``
``FlightCancelledError``        ``cancelled``
``FlightInternalError``         the server's or its disk's fault: ``internal``,
                                ``io_fault``, ``poisoned``, ``stream_damaged`` and
                                every kind of damage
``FlightServerError``           the request's fault: all others (``bad_request``,
                                ``invalid_name``, ``unknown_stream``, ``expired`` …)
==============================  =====================================================

Errors about one bundle of a DoPut don't end the call: they come as receipts with the
same codes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as flight

MAX_MESSAGE: Final = 1_000
"""Errors travel in HTTP/2 trailers, which hold about 8 KiB in all."""
MAX_DETAILS: Final = 2_000

UNAVAILABLE_CODES: Final = frozenset(
    {
        "backpressure",
        "storage_full",
        "busy",
        "too_many_calls",
        "recovering",
        "draining",
        "store_locked",
        "out_of_resources",
        "out_of_turn",
        "unavailable",
    }
)
INTERNAL_CODES: Final = frozenset(
    {
        "internal",
        "error",
        "storage_fault",
        "io_fault",
        "poisoned",
        "stream_damaged",
        "damaged",
        "wal_corrupt",
        "progress_corrupt",
        "state_corrupt",
        "unsupported_version",
        "layout_mismatch",
        "segment_damaged",
        "segment_truncated",
        "segment_bad_magic",
        "segment_checksum",
        "segment_invalid_ipc",
        "stream_not_found",
    }
)
RETRYABLE_CODES: Final = UNAVAILABLE_CODES | {"timeout", "cancelled"}

_CLASSES: Final[Mapping[str, type[flight.FlightError]]] = {
    "unauthenticated": flight.FlightUnauthenticatedError,
    "forbidden": flight.FlightUnauthorizedError,
    "timeout": flight.FlightTimedOutError,
    "cancelled": flight.FlightCancelledError,
    **dict.fromkeys(UNAVAILABLE_CODES, flight.FlightUnavailableError),
    **dict.fromkeys(INTERNAL_CODES, flight.FlightInternalError),
}
# What an error means that carries no extra_info: the server's edge was never reached.
_BARE: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (flight.FlightUnauthenticatedError, "unauthenticated"),
    (flight.FlightUnauthorizedError, "forbidden"),
    (flight.FlightTimedOutError, "timeout"),
    (flight.FlightCancelledError, "cancelled"),
    (flight.FlightUnavailableError, "unavailable"),
)


class ServiceError(Exception):
    """An error as it goes over the wire; what clients raise and servers answer."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = code in RETRYABLE_CODES if retryable is None else retryable
        self.details: dict[str, Any] = dict(details or {})

    @property
    def retry_after_ms(self) -> int | None:
        """How long to wait before trying again, if the server said."""
        wait = self.details.get("retry_after_ms")
        return wait if type(wait) is int and wait >= 0 else None

    def __repr__(self) -> str:
        return f"ServiceError({self.code!r}, {self.message!r})"


def error_class(code: str) -> type[flight.FlightError]:
    """The Flight error class a code travels as."""
    return _CLASSES.get(code, flight.FlightServerError)


def to_flight(error: ServiceError) -> flight.FlightError:
    """What a server raises: the class for the code, all the rest in ``extra_info``."""
    message = _cut(error.message, MAX_MESSAGE)
    body = {
        "v": 1,
        "code": error.code,
        "message": message,
        "retryable": error.retryable,
        "details": error.details,
    }
    encoded = json.dumps(body, default=str)
    if len(encoded) > MAX_MESSAGE + MAX_DETAILS:
        encoded = json.dumps({**body, "details": {"cut": True}})
    return error_class(error.code)(message, encoded.encode())


def from_flight(error: BaseException) -> ServiceError:
    """What a client makes of anything a Flight call raised."""
    if isinstance(error, ServiceError):
        return error
    said = _parse(getattr(error, "extra_info", None))
    if said is not None:
        return said
    message = _cut(str(error), MAX_MESSAGE)
    for kind, code in _BARE:
        if isinstance(error, kind):
            return ServiceError(code, message)
    if isinstance(error, flight.FlightError | pa.ArrowException | OSError):
        # Arrow reports a lost connection as one of many classes; all may pass.
        return ServiceError("internal", message, retryable=isinstance(error, OSError))
    return ServiceError("internal", message)


def _parse(extra: object) -> ServiceError | None:
    if not isinstance(extra, bytes) or not extra:
        return None
    try:
        said = json.loads(extra)
        return ServiceError(
            str(said["code"]),
            str(said["message"]),
            retryable=bool(said["retryable"]),
            details=dict(said.get("details") or {}),
        )
    except (ValueError, TypeError, KeyError):
        return None


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
