"""Which files hold which bundle: what damage touches, and what it can't have cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from quiver.disk.disk import Disk
from quiver.disk.memory import MemoryDisk
from quiver.errors import QuiverError
from quiver.ids import BundleRef
from quiver.wal.contents import LogEntry
from quiver.wal.reader import read_log
from tests.product.facts import Put

Image = Mapping[str, bytes]


def in_log(image: Image) -> dict[BundleRef, list[tuple[str, int, int]]]:
    """Where the log has each bundle: file, first byte, end."""
    found: dict[BundleRef, list[tuple[str, int, int]]] = {}

    def visit(entry: LogEntry) -> None:
        ref = entry.ref
        if ref is not None:
            end = entry.offset + len(entry.body) + 8
            found.setdefault(ref, []).append((entry.path, entry.offset, end))

    logs = {path: data for path, data in image.items() if path.startswith("wal/")}
    disk = Disk(MemoryDisk.from_image(logs, ["wal"]))
    try:
        read_log(disk, layout_hash=None, visit=visit, salvage=True)
    except QuiverError:
        return found
    return found


def is_proven(image: Image, ref: BundleRef) -> bool:
    """Whether an entry of the log says that this bundle's entry was synced before it."""
    proven, sequences = 0, {}

    def visit(entry: LogEntry) -> None:
        nonlocal proven
        proven = max(proven, int.from_bytes(entry.body[29:37], "little"))
        if entry.ref is not None:
            sequences[entry.ref] = entry.sequence

    logs = {path: data for path, data in image.items() if path.startswith("wal/")}
    with suppress(QuiverError):
        disk = Disk(MemoryDisk.from_image(logs, ["wal"]))
        read_log(disk, layout_hash=None, visit=visit, salvage=True)
    return sequences.get(ref, proven) < proven


def needles(put: Put) -> list[bytes]:
    """The bytes of its messages, as log and segments have them."""
    return [batch.serialize().to_pybytes() for batch in put.slots.values()]


def hit(path: str, before: Image, after: Image, puts: Iterable[Put]) -> set[int]:
    """Puts that a change of this file may cost: those whose copy in it is gone.

    A second copy does not save them for good: nobody has noticed yet, and the log may be
    retired meanwhile.  If the change hit no bundle's bytes but what holds them together (a
    head, a directory, a manifest), it may cost all that the file holds.  So may a segment's
    cut: its tables and all checksums are at its end, and bytes without one are not served.
    """
    held = {put.number for put in puts if path in _copies(before, put)}
    if path.endswith(".qseg") and len(after[path]) < len(before[path]):
        return held
    kept = {put.number for put in puts if path in _copies(after, put)}
    return held - kept or held


def _segment_copies(image: Image, put: Put) -> set[str]:
    wanted = needles(put)
    return {
        path
        for path, data in image.items()
        if path.endswith((".qseg", ".qstage")) and all(needle in data for needle in wanted)
    }


def _copies(image: Image, put: Put) -> set[str]:
    found = _segment_copies(image, put)
    if put.ref is not None:
        found |= {one[0] for one in in_log(image).get(put.ref, [])}
    return found
