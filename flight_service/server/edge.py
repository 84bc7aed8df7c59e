"""The edge: whatever goes wrong inside leaves the server as a typed error, and only that.

A client learns the code, the message and the details that the error was made with.  What
nobody foresaw is logged here, with its traceback and a number, and answered ``internal``
with that number: tracebacks, secrets and payloads never leave the server.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow.flight as flight

from flight_service.protocol.errors import ServiceError, to_flight
from flight_service.server.events import CALL_FAILED, get_logger
from quiver.errors import (
    OutOfResources,
    QuiverError,
    check_memory,
)

_log = get_logger()
# Absolute paths and the like are the operator's, not the caller's.
_PRIVATE_DETAILS = frozenset({"path", "host", "pid", "started"})


def service_error(error: BaseException, where: str = "") -> ServiceError:
    """Any exception as an error for the wire; the unforeseen is logged here."""
    if isinstance(error, ServiceError):
        return error
    try:
        check_memory(error)
    except OutOfResources as lack:
        error = lack
    if isinstance(error, QuiverError):
        return ServiceError(
            error.code, str(error), retryable=error.retryable, details=_plain(error.details)
        )
    incident = secrets.token_hex(6)
    _log.error(CALL_FAILED, where=where, incident=incident, exc_info=error)
    return ServiceError(
        "internal",
        f"something went wrong in the server (incident {incident}, see its log).",
        details={"incident": incident},
    )


def _plain(details: Mapping[str, object]) -> dict[str, Any]:
    """Details as JSON values."""
    plain: dict[str, Any] = {}
    for key, value in details.items():
        if key in _PRIVATE_DETAILS:
            continue
        if isinstance(value, tuple):
            plain[key] = [part if isinstance(part, int) else str(part) for part in value]
        elif isinstance(value, str | int | float | bool | None):
            plain[key] = value
        else:
            plain[key] = str(value)
    return plain


@contextmanager
def edge(where: str) -> Iterator[None]:
    """Around every handler: errors become Flight errors."""
    try:
        yield
    except flight.FlightError:
        raise
    except Exception as error:
        raise to_flight(service_error(error, where)) from None
