"""Through a record, point by point: the states at each, and what was promised by then."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Final
from zlib import crc32

from quiver.format.wal.header import HEADER_SIZE
from quiver.wal.files import ACTIVE
from tests.crash.disk import Fold
from tests.crash.oracle import Oracle
from tests.crash.states import State, states
from tests.crash.world import Epoch, take
from tests.support.oplog import Sync

FLIPS: Final = 0.2
"""Share of the synced groups before which a bit is flipped."""

_ENTRY: Final = struct.Struct("<I9xQ12xQ")
"""Length, sequence and ``synced_before`` of a log entry."""


def draw(where: str) -> float:
    """A number from 0 to 1 that belongs to this place, in every run."""
    return crc32(where.encode()) / 2**32


def walk(
    epochs: list[Epoch], place: str, sector: int, oracle: Oracle | None = None
) -> Iterator[tuple[str, State, Oracle]]:
    """All states of a record in order, each with its number and what was promised."""
    promised = oracle if oracle is not None else Oracle()
    point = 0
    for epoch in epochs:
        fold = Fold(epoch.files, epoch.directories)
        notes = iter(epoch.notes)
        upcoming = next(notes, None)
        for done in range(len(epoch.records) + 1):
            if done:
                fold.take(epoch.records[done - 1])
            while upcoming is not None and upcoming[0] <= done:
                take(promised, upcoming[1])
                upcoming = next(notes, None)
            rng = random.Random(f"{place}:{point}")
            for index, state in enumerate(states(fold, rng, sector)):
                yield f"{place}:{point}:{index}", state, promised
            point += 1


def flips(epochs: list[Epoch], place: str) -> Iterator[tuple[str, State, Oracle]]:
    """States in which one bit of a log entry is wrong, though a later one proves it synced."""
    promised = Oracle()
    for number, epoch in enumerate(epochs):
        fold = Fold(epoch.files, epoch.directories)
        notes = iter(epoch.notes)
        upcoming = next(notes, None)
        for done, record in enumerate(epoch.records, start=1):
            fold.take(record)
            while upcoming is not None and upcoming[0] <= done:
                take(promised, upcoming[1])
                upcoming = next(notes, None)
            where = f"{place}:flip:{number}:{done}"
            if not isinstance(record, Sync) or draw(where) >= FLIPS:
                continue
            files = fold.image()
            data = bytearray(files.get(ACTIVE, b""))
            proven = proven_end(data)
            if proven <= HEADER_SIZE:
                continue
            rng = random.Random(where)
            data[rng.randrange(HEADER_SIZE, proven)] ^= 1 << rng.randrange(8)
            yield where, State({**files, ACTIVE: bytes(data)}, fold.directories()), promised


def proven_end(log: bytes | bytearray) -> int:
    """Where the entries of a log file end that a later one in it proves to be synced."""
    at = HEADER_SIZE
    entries: list[tuple[int, int, int]] = []
    while at + _ENTRY.size <= len(log):
        length, sequence, synced = _ENTRY.unpack_from(log, at)
        # In a file written over, what an earlier lap left behind the end is no entry of this one.
        follows = not entries or sequence == entries[-1][1] + 1
        if not length or at + length + 8 > len(log) or not follows:
            break
        entries.append((at, sequence, synced))
        at += length + 8
    newest = max((synced for _, _, synced in entries), default=0)
    return next((start for start, sequence, _ in entries if sequence >= newest), at)
