"""Which files hold which bundle, key and version: what damage touches, and what it can't have
cost.

Where damage lies is worked out from the bytes before it and from where each entry or message
began: not from what the engine still reads afterwards, which is what is judged.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from quiver.disk.disk import Disk
from quiver.errors import QuiverError
from quiver.format.keys import KEYS, decode_named_run
from quiver.format.state import STATE_NAME, decode_state
from quiver.ids import BundleRef
from quiver.wal.contents import LogEntry
from quiver.wal.files import ACTIVE
from quiver.wal.reader import read_log
from tests.product.facts import Mark, Put
from tests.support.memory_disk import MemoryDisk

Image = Mapping[str, bytes]

MENDED: Final = 4096
"""Bytes in one place of a segment's tables that the rest of the file can restore."""


@dataclass(frozen=True, slots=True)
class Place:
    """An entry of the log, as it lies there."""

    path: str
    offset: int
    end: int
    sequence: int
    ref: BundleRef | None
    commit: tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class Log:
    """The sound entries of a log, and what they prove."""

    places: tuple[Place, ...]
    proven: int
    """Every sequence below it was synced, some entry says."""

    def has(self, ref: BundleRef | None) -> bool:
        return ref is not None and any(place.ref == ref for place in self.places)


def log_of(image: Image) -> Log:
    """All sound entries of the log."""
    places: list[Place] = []
    proven = 0

    def visit(entry: LogEntry) -> None:
        nonlocal proven
        proven = max(proven, int.from_bytes(entry.body[29:37], "little"))
        end = entry.offset + len(entry.body) + 8
        commit = entry.commit()
        named = None if commit is None else (commit.app, commit.version)
        places.append(Place(entry.path, entry.offset, end, entry.sequence, entry.ref, named))

    logs = {path: data for path, data in image.items() if path.startswith("wal/")}
    with suppress(QuiverError):
        disk = Disk(MemoryDisk.from_image(logs, ["wal"]))
        read_log(disk, layout_hash=None, visit=visit, salvage=True)
    return Log(tuple(places), proven)


@dataclass(slots=True)
class Cost:
    """What a change of one file may cost."""

    touched: set[int] = field(default_factory=set)
    """Puts without an intact copy elsewhere."""
    halved: set[int] = field(default_factory=set)
    """Puts whose segment is damaged here, and which the log still has."""
    unprovable: set[int] = field(default_factory=set)
    """Of those touched: their loss can't be told from a write that a crash tore."""
    loose: bool = False
    """Whether it hit what holds a segment's bundles together: a second time costs all of them."""


def cost(
    path: str, before: Image, after: Image, puts: Sequence[Put], marks: Mapping[str, Mark]
) -> Cost:
    """What this change may cost, given the damage that is there already (``marks``)."""
    if path.startswith("wal/"):
        return _cost_in_log(path, before, after, puts, marks)
    if path.endswith((".qseg", ".qstage")):
        return _cost_in_segment(path, before, after, puts, marks.get(path))
    return Cost()


def _cost_in_segment(
    path: str, before: Image, after: Image, puts: Iterable[Put], mark: Mark | None
) -> Cost:
    """A flipped bit costs the bundle whose message it is in; elsewhere, nothing.  So does a cut
    of the tables' end, up to what they can restore; a longer one costs all.  A staged file
    is sound or not."""
    held = [put for put in puts if in_file(before[path], put)]
    gone = {put.number for put in held if not in_file(after[path], put)}
    found = Cost(loose=not gone)
    cut = len(before[path]) - len(after[path])
    again = found.loose and mark is not None and mark.loose
    if path.endswith(".qstage") or cut > MENDED or (cut and gone) or again:
        gone = {put.number for put in held}
    if gone:
        log = log_of(before)
        found.halved = {put.number for put in held if put.number in gone and log.has(put.ref)}
    found.touched = gone - found.halved
    return found


def _cost_in_log(
    path: str, before: Image, after: Image, puts: Sequence[Put], marks: Container[str]
) -> Cost:
    """A flipped bit costs the entry it is in, a cut those behind it.  In the last group, which
    nothing proves, everything from there on looks as if it had never been written."""
    log = log_of(before)
    places = [place for place in log.places if place.path == path]
    at = first_difference(before[path], after[path])
    if len(after[path]) < len(before[path]):
        hit = unprovable = [place for place in places if place.end > at]
    else:
        hit = [place for place in places if place.offset <= at < place.end]
        unprovable = [place for place in hit if place.sequence >= log.proven]
        if unprovable:
            hit = unprovable = [place for place in places if place.end > at]
    if path != ACTIVE:
        unprovable = []
    by_ref = {put.ref: put for put in puts if put.ref is not None}
    found = Cost()
    for place in hit:
        put = None if place.ref is None else by_ref.get(place.ref)
        if put is not None and not sealed_copies(before, put, marks):
            found.touched.add(put.number)
            if place in unprovable:
                found.unprovable.add(put.number)
        if place.commit is not None:
            parts = [one for one in puts if one.transaction == place.commit]
            lost = {one.number for one in parts if not sealed_copies(before, one, marks)}
            found.touched |= lost
            found.unprovable |= lost if place in unprovable else set()
    return found


def first_difference(before: bytes, after: bytes) -> int:
    """Where two versions of a file part."""
    return next(
        (at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other),
        min(len(before), len(after)),
    )


def needles(put: Put) -> list[bytes]:
    """The bytes of its messages, as log and segments have them."""
    if not put.needles:
        put.needles = [batch.serialize().to_pybytes() for batch in put.slots.values()]
    return put.needles


def in_file(data: bytes, put: Put) -> bool:
    """Whether all its messages are in these bytes."""
    return all(needle in data for needle in needles(put))


def sealed_copies(image: Image, put: Put, marks: Container[str]) -> list[str]:
    """The segments that hold it and are not damaged."""
    return [
        path
        for path, data in image.items()
        if path.startswith("segments/") and path.endswith(".qseg") and path not in marks
        if in_file(data, put)
    ]


def forgotten_keys(image: Image, puts: Iterable[Put], marks: Container[str]) -> set[int]:
    """Keyed puts that nothing intact remembers: neither log, nor a run, nor a segment."""
    log, runs = log_of(image), _keys_in_runs(image)
    return {
        put.number
        for put in puts
        if put.key is not None and put.key not in runs and not log.has(put.ref)
        if not sealed_copies(image, put, marks)
    }


def _keys_in_runs(image: Image) -> set[str]:
    """Keys in the sound runs: those that the checkpoint lists, or all if it is damaged."""
    found: set[str] = set()
    try:
        listed = {run.path for run in decode_state(image[STATE_NAME]).keys}
    except (QuiverError, KeyError):
        listed = {path for path in image if path.startswith(f"{KEYS}/")}
    for path in listed:
        with suppress(QuiverError, KeyError, ValueError):
            name = path.removeprefix(f"{KEYS}/")
            found |= {record.key for record in decode_named_run(image[path], name)}
    return found


def known_versions(image: Image, puts: Iterable[Put], marks: Container[str]) -> dict[str, int]:
    """The last version of each app that checkpoint, log or segments tell of."""
    found: list[tuple[str, int]] = [one.commit for one in log_of(image).places if one.commit]
    with suppress(QuiverError, KeyError):
        records = decode_state(image[STATE_NAME]).transactions
        found += [(record.app, record.version) for record in records]
    for put in puts:
        if put.transaction and put.state == "durable" and sealed_copies(image, put, marks):
            found.append(put.transaction)
    return dict(sorted(found))
