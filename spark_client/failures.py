"""Failures of a put, as the person at the driver needs them: what, whose, and what to do.

Spark carries an executor's exception to the driver as text, below its own.  So everything has
to be in the message, and :func:`from_spark` finds it there again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from flight_service.client.errors import Disconnected
from flight_service.protocol.errors import ServiceError
from spark_client.url import Target

ADVICE: Final[Mapping[str, str]] = {
    "key_conflict": (
        "This task was run before and sent other rows under the same keys: its partitions are not"
        " the same each time, so a repeat can't be told from new data. Make them deterministic"
        ' (sort, checkpoint), or write with df.write.format("quiver"), which is exactly once'
        " for any task."
    ),
    "unauthenticated": "Give a token with the option token or tokenFile, or with QUIVER_TOKEN.",
    "forbidden": "Ask for the right to put into this stream, or use another token.",
    "unknown_stream": (
        "Create it first (client.create_stream), or let the server do so (server.auto_create)."
    ),
    "limit_exceeded": "Make bundles smaller with the option bundleBytes.",
    "invalid_bundle": "Select columns that the stream can hold; docs/spark.md has the types.",
    "storage_full": "Make room on the server's disk; the job can then be run again.",
    "backpressure": (
        "Let the subscribers catch up, or wait longer with the option retryTimeout; the job can"
        " be run again."
    ),
}
GONE: Final = (
    "Start the server, or correct the url; how long a task waits is set by connectTimeout at its"
    " start and by retryTimeout later. The job can be run again."
)


class PutFailed(Exception):
    """A put that could not be done; the message says why and what to do."""


def explained(error: ServiceError, target: Target) -> PutFailed:
    """What to tell the driver."""
    advice = GONE if isinstance(error, Disconnected) else ADVICE.get(error.code, "")
    said = error.message.rstrip(".")
    return PutFailed(f"put into {target} failed ({error.code}): {said}. {advice}".rstrip())


_MINE: Final = re.compile(r"PutFailed: (put into .*)")


def from_spark(error: BaseException) -> PutFailed | None:
    """Ours, inside one of Spark's."""
    found = _MINE.search(str(error))
    return None if found is None else PutFailed(found[1].strip())
