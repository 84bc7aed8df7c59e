"""The legal states at one point of the record: what a power cut there may leave.

The rules are those of :mod:`tests.support.oplog`.  Names: every subset of the pending
changes if they are few, otherwise prefixes (a journal's way), all but one, and one alone.
Bytes: the same for the pending changes of each file, and every write torn at sector
boundaries, what is missing being old bytes, zeros or garbage.  All files together would be
too many, so one file is varied while the others have lost everything, or nothing; and a
few states are drawn in which everything varies.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Final, Literal, TypeVar

from tests.crash.disk import Fold
from tests.support.oplog import EntryOp, Rename, Write, enter, linked, overlay, parent, settle

ALL_SUBSETS_UP_TO: Final = 4
"""Pending changes of which every subset is tried; of more, those with one exception."""
MAX_TORN: Final = 40
"""Torn versions of one write that are tried; of more, a seeded choice."""
MAX_TORN_UNNAMED: Final = 3
"""The same for files in the making: nobody believes their contents."""
RANDOM_MIXES: Final = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class State:
    """A disk after a crash."""

    files: dict[str, bytes]
    directories: list[str]


def states(fold: Fold, rng: random.Random, sector: int) -> Iterator[State]:
    """Every state tried at this point, always in the same order for the same seed."""
    names = _name_choices(fold.pending_entries)
    at_risk = sorted({*fold.pending, *fold.limbo})
    versions = {inode: _versions(fold, inode, rng, sector) for inode in at_risk}
    newest = {inode: kept[1] for inode, kept in versions.items()}
    oldest = {inode: kept[0] for inode, kept in versions.items()}
    for entries in names:
        yield _state(fold, newest, entries)
        if versions:
            yield _state(fold, oldest, entries)
    for inode, kept in versions.items():
        for content in kept[2:]:
            for others in (newest, oldest) if len(versions) > 1 else (newest,):
                for entries in names[:2]:
                    yield _state(fold, {**others, inode: content}, entries)
    for _ in range(RANDOM_MIXES if len(versions) + len(fold.pending_entries) > 2 else 0):
        mixed = {inode: rng.choice(kept) for inode, kept in versions.items()}
        chosen = [op for op in fold.pending_entries if rng.random() < 0.5]
        yield _state(fold, mixed, chosen)


def _state(fold: Fold, contents: dict[int, bytes], entries: Sequence[EntryOp]) -> State:
    return State(fold.image(contents=contents, entries=entries), fold.directories(entries))


# Names


def _name_choices(pending: Sequence[EntryOp]) -> list[list[EntryOp]]:
    """Which changes of names got through: all first, then none, then the others."""
    choices: list[list[EntryOp]] = [list(pending)]
    if pending:
        choices += [chosen for chosen in _subsets(pending) if len(chosen) < len(pending)]
    for at, op in enumerate(pending):
        if isinstance(op, Rename) and parent(op.source) != parent(op.target):
            choices.append([*pending[:at], linked(op), *pending[at + 1 :]])
    return choices


def _subsets(items: Sequence[T]) -> list[list[T]]:
    """Subsets in their order, the empty one first; the whole is one of them."""
    count = len(items)
    if count <= ALL_SUBSETS_UP_TO:
        return [list(c) for size in range(count + 1) for c in combinations(items, size)]
    prefixes = [list(items[:size]) for size in range(count + 1)]
    without = [[*items[:at], *items[at + 1 :]] for at in range(count)]
    alone = [[item] for item in items]
    return [*prefixes, *without, *alone]


# Bytes


def _versions(fold: Fold, inode: int, rng: random.Random, sector: int) -> list[bytes]:
    """Contents a file may have: nothing pending arrived, everything did, and the rest."""
    pending = fold.pending.get(inode, [])
    bases = [fold.contents[inode]]
    if inode in fold.limbo:
        bases.append(fold.limbo[inode])
    found = [bases[0], settle(bases[-1], pending)]
    tears: list[tuple[int, Tear]] = []
    for at, op in enumerate(pending):
        if isinstance(op, Write):
            grows = op.offset + len(op.data) > len(settle(bases[0], pending[:at]))
            tears += [(at, tear) for tear in _tears(len(_sectors(op, sector)), grows)]
    most = MAX_TORN if _is_read(fold, inode) else MAX_TORN_UNNAMED
    if len(tears) > most:
        tears = [tears[at] for at in sorted(rng.sample(range(len(tears)), most))]
    for base in bases:
        found += [settle(base, chosen) for chosen in _subsets(pending)]
        for at, tear in tears:
            op = pending[at]
            assert isinstance(op, Write)
            found.append(_torn(settle(base, pending[:at]), _sectors(op, sector), tear, rng))
    return [*found[:2], *dict.fromkeys(c for c in found if c not in found[:2])]


def _is_read(fold: Fold, inode: int) -> bool:
    """Whether the file has, or may get, a name that anybody reads it by."""
    names = dict(fold.entries)
    held = {path for path, found in names.items() if found == inode}
    for op in fold.pending_entries:
        enter(names, op)
        held |= {path for path, found in names.items() if found == inode}
    return any(not path.endswith((".tmp", ".new")) for path in held)


# Torn writes


@dataclass(frozen=True, slots=True)
class Tear:
    """Which sectors arrived; what stands where the file grew and none did.

    ``fill``: zeros, garbage, or (``none``) the file did not grow beyond what arrived.
    """

    arrived: tuple[int, ...]
    fill: Literal["none", "zeros", "garbage"]


def _tears(count: int, grows: bool) -> list[Tear]:
    """All ways tried to tear a write of so many sectors."""
    every = tuple(range(count))
    heads = [every[:size] for size in range(count)]
    tails = [every[size:] for size in range(1, count)]
    without = [every[:at] + every[at + 1 :] for at in range(count)]
    alone = [(at,) for at in every]
    tears: list[Tear] = []
    for arrived in dict.fromkeys([*heads, *tails, *without, *alone]):
        if arrived and (not grows or arrived[-1] + 1 < count):
            tears.append(Tear(arrived, "none"))
        if grows:
            tears += [Tear(arrived, "zeros"), Tear(arrived, "garbage")]
    return tears


def _sectors(op: Write, sector: int) -> list[tuple[int, bytes]]:
    """A write cut where sectors begin, as offset and bytes."""
    end = op.offset + len(op.data)
    cuts = [op.offset, *range((op.offset // sector + 1) * sector, end, sector), end]
    return [
        (start, op.data[start - op.offset : stop - op.offset]) for start, stop in pairwise(cuts)
    ]


def _torn(
    before: bytes, pieces: Sequence[tuple[int, bytes]], tear: Tear, rng: random.Random
) -> bytes:
    data = bytearray(before)
    end = pieces[-1][0] + len(pieces[-1][1])
    growth = end - len(data)
    if tear.fill != "none" and growth > 0:
        data.extend(bytes(growth) if tear.fill == "zeros" else rng.randbytes(growth))
    for at in tear.arrived:
        overlay(data, *pieces[at])
    return bytes(data)
