"""What a staged file says of itself: whose it is, and which part of it.

A *transaction* is named by an app and a version.  Each writer of it stages its bundles
under an *attempt* name of its own, in one file or several; the last one says that it is
the last, so an attempt is finished when all files up to that one are there.

A file's name is made of the hash of these three, so that any text can be one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from blake3 import blake3

STAGES: Final = "stages"
SUFFIX: Final = ".qstage"
ID_SIZE: Final = 16
MAX_VERSION: Final = 2**63 - 1

_NAME: Final = re.compile(r"([0-9a-f]{32})-([0-9]{1,10})\.qstage", re.ASCII)


class Transaction(NamedTuple):
    """Who commits, and what in its own order: versions of one app only rise."""

    app: str
    version: int


class StageKey(NamedTuple):
    """One attempt to write a part of a transaction."""

    app: str
    version: int
    attempt: str

    @property
    def transaction(self) -> Transaction:
        return Transaction(self.app, self.version)

    @property
    def id(self) -> bytes:
        """What its files are called by."""
        digest = blake3()
        for part in (self.app.encode(), str(self.version).encode(), self.attempt.encode()):
            digest.update(len(part).to_bytes(4, "little") + part)
        return digest.digest()[:ID_SIZE]


@dataclass(frozen=True, slots=True)
class StageLabel:
    """Which part of which attempt a file is; ``ts`` is when it was written.

    ``merged``: small files of several attempts put together for a commit.  Without its
    commit it means nothing, since the files it was made from are still there.
    """

    app: str
    version: int
    attempt: str
    number: int
    last: bool
    ts: int
    merged: bool = False

    @property
    def key(self) -> StageKey:
        return StageKey(self.app, self.version, self.attempt)


_KINDS: Final = {
    "app": str,
    "version": int,
    "attempt": str,
    "number": int,
    "last": bool,
    "ts": int,
    "merged": bool,
}


def read_label(value: Any) -> StageLabel | None:
    """A label as it stands in a file; ``ValueError`` for anything else."""
    if value is None:
        return None
    if not isinstance(value, dict) or any(type(value.get(n)) is not k for n, k in _KINDS.items()):
        raise ValueError("not the label of a staged file")
    (value["app"] + value["attempt"]).encode()  # JSON may name characters that are none
    return StageLabel(**{name: value[name] for name in _KINDS})


def read_transaction(value: Any) -> Transaction | None:
    """The transaction a segment came from; ``ValueError`` for anything else."""
    if value is None:
        return None
    if not isinstance(value, list) or [type(one) for one in value] != [str, int]:
        raise ValueError("not the name of a transaction")
    return Transaction(*value)


def stage_name(stage_id: bytes, number: int) -> str:
    """The name of an attempt's file."""
    return f"{stage_id.hex()}-{number}{SUFFIX}"


def stage_path(stage_id: bytes, number: int) -> str:
    """Its path below the store's root."""
    return f"{STAGES}/{stage_name(stage_id, number)}"


def parse_stage_name(name: str) -> tuple[bytes, int] | None:
    """What a name stands for; ``None`` for any other name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    stage_id, number = bytes.fromhex(found[1]), int(found[2])
    return (stage_id, number) if stage_name(stage_id, number) == name else None
