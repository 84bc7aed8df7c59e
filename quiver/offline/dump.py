"""Bundles out of a directory, into plain Arrow files that anything can read.

::

    OUT/<segment>.<index>/<slot>.arrows    one Arrow IPC stream per slot
    OUT/manifest.json                      every bundle, in order; written last
    OUT/lost.json                          what could not be saved, if there is such a thing

What comes from a log is written out byte by byte as it lies there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from quiver.disk.disk import Disk
from quiver.errors import Damage, InvalidInput, QuiverError
from quiver.offline.index import LogPlace
from quiver.offline.inventory import BundleAt, Inventory, LostBundle, outcome
from quiver.offline.look import Look, Watch, holds_a_store, no_store
from quiver.offline.taking import look_and_take
from quiver.offline.verify import find_newer

MANIFEST: Final = "manifest.json"
LOST: Final = "lost.json"
MAX_ROUNDS: Final = 100
"""New looks at a store whose log moves on while it is dumped; each round saves more."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of a bundle, saved."""

    slot: int
    fingerprint: str
    rows: int
    file: str


@dataclass(frozen=True, slots=True)
class Saved:
    """A line of the manifest."""

    ref: tuple[int, int]
    sequence: int | None
    ingestion_ts_ns: int | None
    slots: tuple[Slot, ...]
    subscribers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Dump:
    """What a dump did."""

    saved: tuple[Saved, ...]
    lost: tuple[LostBundle, ...]
    damage: tuple[str, ...]
    torn: tuple[str, ...]
    maybe_doubled: str | None
    newer: tuple[str, ...]
    """Files that were skipped, since only a newer version can read them."""

    @property
    def sound(self) -> bool:
        return not (self.lost or self.damage or self.newer)


def dump(
    disk: Disk,
    out: Disk,
    *,
    force: bool = False,
    watch: Watch | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Dump:
    """Save every sound bundle of ``disk`` into ``out``; reads only, takes no lock.

    ``progress`` is told how many bundles of how many are saved.
    """
    if not holds_a_store(disk):
        raise no_store()
    _prepare(out, force)
    return _Dumping(disk, out, progress).run(watch)


def _prepare(out: Disk, force: bool) -> None:
    if out.listdir("") and not force:
        raise InvalidInput(
            "the directory to dump into is not empty.",
            advice="Name a new one, or add --force to write into it all the same.",
        )
    out.mkdir("")
    # A manifest says that the dump it lists is complete.
    out.unlink(MANIFEST, missing_ok=True)
    out.unlink(LOST, missing_ok=True)


class _Dumping:
    def __init__(self, disk: Disk, out: Disk, progress: Callable[[int, int], None] | None) -> None:
        self._disk = disk
        self._out = out
        self._progress = progress
        self._saved: dict[tuple[int, int], Saved] = {}
        self._unreadable: list[LostBundle] = []

    def run(self, watch: Watch | None) -> Dump:
        for _ in range(MAX_ROUNDS):
            found, inventory = look_and_take(self._disk, watch=watch)
            if self._save_all(found, inventory):
                break
            watch = None  # the log moved on: see where it is now
        return self._finish(found, inventory)

    def _save_all(self, found: Look, inventory: Inventory) -> bool:
        """Save what isn't yet; whether nothing moved away meanwhile."""
        self._unreadable.clear()
        complete = True
        for held in inventory.bundles:
            if held.ref in self._saved:
                continue
            try:
                slots = self._save(held)
            except FileNotFoundError:
                complete = False
                continue
            except Damage as damage:
                if isinstance(held.source, LogPlace):
                    complete = False  # written over since the look, or damaged: look again
                self._unreadable.append(_lost(held, damage))
                continue
            standing = {name: outcome(p, held.ref) for name, p in found.basics.progress.items()}
            self._saved[held.ref] = Saved(
                held.ref, held.sequence, held.ingestion_ts_ns, slots, standing
            )
            if self._progress is not None:
                self._progress(len(self._saved), len(inventory.bundles))
        return complete

    def _save(self, held: BundleAt) -> tuple[Slot, ...]:
        folder = str(held.ref)
        pieces: list[tuple[int, bytes, int, list[Any]]]
        if isinstance(held.source, LogPlace):
            blocks = held.source.bundle().slots
            pieces = [(b.slot, b.fingerprint, b.rows, [b.payload]) for b in blocks]
        else:
            slots = held.slots()
            pieces = [(s.slot, s.fingerprint, s.batch.rows, s.batch.buffers()) for s in slots]
        self._out.mkdir(folder)
        saved = []
        for slot, fingerprint, rows, data in sorted(pieces, key=lambda piece: piece[0]):
            path = f"{folder}/{slot}.arrows"
            self._out.unlink(path, missing_ok=True)
            with self._out.create(path) as file:
                file.write_all(data, 0)
            saved.append(Slot(slot, fingerprint.hex(), rows, path))
        return tuple(saved)

    def _finish(self, found: Look, inventory: Inventory) -> Dump:
        saved = tuple(self._saved[ref] for ref in sorted(self._saved))
        lost = (*inventory.lost, *self._unreadable)
        result = Dump(
            saved,
            lost,
            tuple(str(damage.message) for damage in small_damage(found)),
            tuple(
                f"{torn.file} byte {torn.offset:,}: {torn.reason}" for torn in found.log.torn_tails
            ),
            inventory.maybe_doubled,
            tuple(find_newer(found)),
        )
        if not result.sound:
            report = {
                "lost": [asdict(one) for one in lost],
                "damage": list(result.damage),
                "newer": list(result.newer),
            }
            self._out.replace(LOST, _json(report))
        self._out.replace(MANIFEST, _json([asdict(one) for one in saved]))
        return result


def small_damage(found: Look) -> list[QuiverError]:
    """Damage of the small files: no bundle is lost by it, but its meaning may be."""
    basics = found.basics
    small = [basics.floor, basics.state, basics.cursor, *basics.progress.values()]
    return [one for one in small if isinstance(one, QuiverError)]


def _lost(held: BundleAt, damage: Damage) -> LostBundle:
    offset = damage.details.get("offset")
    return LostBundle(
        str(damage.details.get("file", "")),
        damage.message.rstrip("."),
        offset if isinstance(offset, int) else None,
        bundles=1,
        refs=(held.ref,),
    )


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
