"""Names and refs.

A stream, subscriber or slot name is 1 to 64 of ``A-Z a-z 0-9 _ -`` and not a device name
that some operating systems reserve (``con``, ``nul``, ``com1`` …).  These are the store's
rules; they are written down here once more because the protocol must not import it (a
test holds the two together).

A ref names a bundle: ``[segment, index]``, two whole numbers, ordered as the bundles came.
In lists of refs, ``[segment, first, count]`` stands for ``count`` bundles in a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from flight_service.protocol.errors import ServiceError

MAX_NAME_LENGTH: Final = 64
MAX_SLOTS: Final = 64
MAX_REFS: Final = 65_536
"""Most refs in one message, counted one by one."""
MAX_SEGMENT: Final = 2**63 - 1
MAX_INDEX: Final = 2**32 - 1

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_RESERVED: Final = frozenset(
    {"con", "prn", "aux", "nul"}
    | {f"com{n}" for n in range(1, 10)}
    | {f"lpt{n}" for n in range(1, 10)}
)


class Ref(NamedTuple):
    """Where a bundle is; stays the same from ``durable`` on."""

    segment: int
    bundle: int

    def __str__(self) -> str:
        return f"{self.segment}.{self.bundle}"


def check_name(kind: str, name: object) -> str:
    """The name, if it is one; ``kind`` is ``stream``, ``subscriber`` or ``slot``."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ServiceError(
            "invalid_name",
            f"{repr(name)[:80]} is not a valid {kind} name: use 1 to {MAX_NAME_LENGTH}"
            " of A-Z a-z 0-9 _ and -.",
            details={"kind": kind},
        )
    if name.lower() in _RESERVED:
        raise ServiceError(
            "invalid_name",
            f"{name!r} is reserved by some operating systems: choose another {kind} name.",
            details={"kind": kind},
        )
    return name


def read_ref(value: Any, where: str) -> Ref:
    """A ref out of JSON."""
    if isinstance(value, list) and len(value) == 2 and _fits(value[0], value[1]):
        return Ref(value[0], value[1])
    raise ServiceError("bad_request", f"{where} must be a ref: [segment, index].")


def read_refs(value: Any, where: str) -> tuple[Ref, ...]:
    """A list of refs and runs of refs out of JSON, runs written out."""
    if not isinstance(value, list) or len(value) > MAX_REFS:
        raise ServiceError("bad_request", f"{where} must be a list of at most {MAX_REFS:,} refs.")
    refs: list[Ref] = []
    for item in value:
        segment, first, count = _run(item, where)
        if len(refs) + count > MAX_REFS:
            raise ServiceError(
                "limit_exceeded",
                f"{where} names more than {MAX_REFS:,} bundles.",
                details={"limit": "refs in a message", "maximum": MAX_REFS},
            )
        refs += [Ref(segment, index) for index in range(first, first + count)]
    return tuple(refs)


def read_runs(value: Any, where: str) -> tuple[tuple[int, int, int], ...]:
    """A list of runs of refs out of JSON, as they are."""
    if not isinstance(value, list) or len(value) > MAX_REFS:
        raise ServiceError("bad_request", f"{where} must be a list of at most {MAX_REFS:,} runs.")
    return tuple(_run(item, where) for item in value)


def _run(item: Any, where: str) -> tuple[int, int, int]:
    if isinstance(item, list) and len(item) in (2, 3) and _fits(item[0], item[1]):
        count = item[2] if len(item) == 3 else 1
        if type(count) is int and 1 <= count <= MAX_INDEX + 1 - item[1]:
            return item[0], item[1], count
    raise ServiceError(
        "bad_request", f"{where} must hold [segment, index] or [segment, first, count]."
    )


def write_refs(refs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Refs for JSON, runs taken together; their order is kept."""
    runs: list[list[int]] = []
    for segment, index in refs:
        last = runs[-1] if runs else None
        if last is not None and last[0] == segment and last[1] + last[2] == index:
            last[2] += 1
        else:
            runs.append([segment, index, 1])
    return [run if run[2] > 1 else run[:2] for run in runs]


def _fits(segment: Any, index: Any) -> bool:
    return (
        type(segment) is int
        and type(index) is int
        and 0 <= segment <= MAX_SEGMENT
        and 0 <= index <= MAX_INDEX
    )
