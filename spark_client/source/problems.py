"""What went wrong while reading, told where it is seen: which stream, what, what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flight_service.client.errors import ClientError
from spark_client.url import Target

_ADVICE: Final[Mapping[str, str]] = {
    "unavailable": "Is the server running, and is the url right? How long it is tried is set by"
    " connectTimeout at the start and by retryTimeout later.",
    "unauthenticated": "Give the right token with the option token or tokenFile, or with"
    " QUIVER_TOKEN.",
    "forbidden": "Its token needs the verb read on this stream, and subscribe for readStream.",
    "unknown_stream": "Is the url right? Else create the stream, or put something into it first.",
    "expired": "A DataFrame reads the bundles that were there when it was first used: load it"
    " again, have a subscriber hold what you need, or go on without it with"
    " failOnDataLoss=false.",
}


class ReadError(Exception):
    """A read that can't go on; ``code`` is the server's, where it has one."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def explained(error: ClientError, target: Target) -> ReadError:
    """A client's error for people who see nothing but Spark's."""
    advice = _ADVICE.get(error.code, "")
    parts = (f"{target}: {error.message}", advice)
    return ReadError(error.code, " ".join(part for part in parts if part))


def data_loss(target: Target, what: str) -> ReadError:
    """Bundles that should be there are not."""
    return ReadError(
        "data_loss",
        f"{target}: {what} To go on without them, set failOnDataLoss=false: what is skipped is"
        " written to the log.",
    )
