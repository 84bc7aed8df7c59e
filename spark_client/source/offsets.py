"""Positions in a stream: as options say them, and as a query's checkpoint keeps them.

A position is ``(segment, bundle)``, and lies before the bundle of that ref.  In options it is
written ``12.0`` (as refs are shown everywhere) or ``[12, 0]``.  An offset of a streaming query
is a position, the name of the query's subscriber, and where the query began::

    {"segment": 12, "bundle": 0, "subscriber": "spark-3f…", "begin": [3, 0]}

So the checkpoint knows under whose name its data is held.  Spark doesn't keep a query's first
position: if its first batch is cut short it asks for it again, and would get another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from flight_service.client.errors import BadRequest
from flight_service.protocol.errors import ServiceError
from flight_service.protocol.names import Ref, check_name, read_ref

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Where = str | Ref
"""``earliest``, ``latest``, or a position."""

_SHOWN: Final = re.compile(r"([0-9]{1,19})\.([0-9]{1,10})")
_MILLISECONDS: Final = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class Span:
    """A range as options say it: by positions, or by times in ns where those are given."""

    start: Where = EARLIEST
    end: Where = LATEST
    since_ns: int | None = None
    until_ns: int | None = None

    @property
    def first(self) -> Ref | None:
        """Where it begins, if by position."""
        return self.start if isinstance(self.start, Ref) else None

    @property
    def last(self) -> Ref | None:
        """Where it ends, if by position."""
        return self.end if isinstance(self.end, Ref) else None


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a streaming query is."""

    position: Ref
    subscriber: str
    begin: Ref | None = None
    """Where it began; not in the first offset, which is never in a checkpoint."""

    def write(self) -> dict[str, Any]:
        """For Spark's checkpoint."""
        segment, bundle = self.position
        said = {"segment": segment, "bundle": bundle, "subscriber": self.subscriber}
        return said if self.begin is None else {**said, "begin": list(self.begin)}

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Offset:
        """From Spark's checkpoint."""
        try:
            position = read_ref([said["segment"], said["bundle"]], "offset")
            begin = said.get("begin")
            return cls(
                position,
                check_name("subscriber", said["subscriber"]),
                None if begin is None else read_ref(begin, "begin"),
            )
        except (KeyError, TypeError, AttributeError, ServiceError):
            raise BadRequest(
                "bad_request",
                f"the checkpoint holds an offset that is none of a quiver source:"
                f" {json.dumps(said)[:200]}. It belongs to another source: start with a new"
                " checkpointLocation.",
            ) from None

    def reached(self, position: Ref) -> Offset:
        """The same query, further on."""
        return Offset(position, self.subscriber, self.begin or self.position)


def read_where(option: str, given: str) -> Where:
    """A position out of an option."""
    text = given.strip()
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    shown = _SHOWN.fullmatch(text)
    try:
        if shown is not None:
            return read_ref([int(shown[1]), int(shown[2])], option)
        said = json.loads(text)
        if isinstance(said, dict):
            said = [said["segment"], said["bundle"]]
        return read_ref(said, option)
    except (ValueError, KeyError, ServiceError):
        raise BadRequest(
            "bad_request",
            f"{option} takes earliest, latest, or a position such as 12.0, not {given[:80]!r}.",
        ) from None


def read_time(option: str, given: str) -> int:
    """Nanoseconds since the epoch out of an option: milliseconds as in Kafka's, or ISO 8601."""
    text = given.strip()
    if _MILLISECONDS.fullmatch(text):
        return int(text) * 1_000_000
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise BadRequest(
            "bad_request",
            f"{option} takes milliseconds since 1970, or a time with its zone such as"
            f" 2024-05-01T12:00:00Z, not {given[:80]!r}.",
        )
    since = time - datetime.fromtimestamp(0, UTC)
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1_000
