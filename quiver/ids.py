"""Names and numbers that everything else uses, checked once, where they come in."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, NewType

from quiver.errors import InvalidName

Sequence = NewType("Sequence", int)
SubscriberId = NewType("SubscriberId", str)
StreamName = NewType("StreamName", str)

MAX_SLOTS: Final = 64
MAX_BUNDLES_PER_SEGMENT: Final = 65_536
MAX_NAME_LENGTH: Final = 64

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
# Device names that Windows resolves in every directory: a store made here must be
# copyable there.
_RESERVED = frozenset(
    {"con", "prn", "aux", "nul"}
    | {f"com{n}" for n in range(1, 10)}
    | {f"lpt{n}" for n in range(1, 10)}
)


class BundleRef(NamedTuple):
    """Where a bundle is: ``(segment_seq, bundle_index)``. Orders as the bundles came."""

    segment_seq: int
    bundle_index: int

    def __str__(self) -> str:
        return f"{self.segment_seq}.{self.bundle_index}"


def _checked(kind: str, name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        shown = repr(name)[:80]
        raise InvalidName(
            f"{shown} is not a valid {kind} name.",
            advice=f"Use 1 to {MAX_NAME_LENGTH} of A-Z a-z 0-9 _ and -.",
            kind=kind,
        )
    if name.lower() in _RESERVED:
        raise InvalidName(
            f"{name!r} is reserved by some operating systems.",
            advice=f"Choose another {kind} name.",
            kind=kind,
        )
    return name


def subscriber_id(name: object) -> SubscriberId:
    """Check a subscriber's name: it becomes part of a file name."""
    return SubscriberId(_checked("subscriber", name))


def stream_name(name: object) -> StreamName:
    """Check a stream's name: it becomes a directory name."""
    return StreamName(_checked("stream", name))


def slot_name(name: object) -> str:
    """Check a slot's name, by the same rules, so that it can stand in URLs and files."""
    return _checked("slot", name)
