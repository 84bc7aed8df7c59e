"""Every byte of a store, and whether its files fit together.

Log entries, segments and small files each carry a checksum; beyond those, every batch is
taken apart by Arrow, and the files are held against each other: a file that vanished has
no checksum to fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa

from quiver.disk.disk import Disk
from quiver.disk.quarantine import QUARANTINE
from quiver.errors import Damage, QuiverError, WalCorrupt, check_memory
from quiver.format.keys import KEYS
from quiver.format.progress import Progress
from quiver.format.segment.stage import STAGES
from quiver.offline.inventory import Inventory
from quiver.offline.look import Look, Watch
from quiver.offline.taking import look_and_take
from quiver.record.app_versions import committed_versions
from quiver.recovery.consistency import contradictions
from quiver.recovery.fates import Fate
from quiver.recovery.stages import Attempt, AttemptState, attempts
from quiver.segment.info import SEGMENTS, TMP_SUFFIX, segment_path
from quiver.segment.reader import SegmentReader
from quiver.subscriber.progress import progress_file

_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class Finding:
    """Damage: where, what, and what it means for the data."""

    file: str
    what: str
    affects: str
    offset: int | None = None

    def describe(self) -> str:
        """For people, in one line."""
        where = self.file if self.offset is None else f"{self.file} byte {self.offset:,}"
        return f"{where}: {self.what}; {self.affects}"


@dataclass(frozen=True, slots=True)
class Beside:
    """What is wrong with the files that a server keeps beside a store."""

    problems: tuple[Finding, ...] = ()
    newer: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verified:
    """The result. ``notes`` are worth knowing and no damage; ``newer`` are files that only a
    newer version can read: they are not damaged, and nothing is known of what is in them."""

    problems: tuple[Finding, ...]
    notes: tuple[str, ...]
    newer: tuple[str, ...]
    segments: int
    log_files: int
    bundles: int
    lost_bundles: int
    nbytes: int

    @property
    def sound(self) -> bool:
        return not (self.problems or self.newer)

    def with_files_beside(self, beside: Beside) -> Verified:
        """The same with what is wrong beside the store, in a server's root."""
        return replace(
            self,
            problems=(*self.problems, *beside.problems),
            newer=(*self.newer, *beside.newer),
        )


def verify(disk: Disk, *, watch: Watch | None = None) -> Verified:
    """Check everything; changes nothing and needs no lock."""
    found, inventory = look_and_take(disk, watch=watch)
    problems = [*find_problems(found, inventory), *_unreadable_batches(found)]
    log_bytes = sum(file.size for file in found.log.files)
    return Verified(
        tuple(problems),
        tuple(find_notes(found, inventory)),
        tuple(find_newer(found)),
        segments=len(found.files.numbers),
        log_files=len(found.log.files),
        bundles=len(inventory.bundles),
        lost_bundles=inventory.lost_bundles,
        nbytes=log_bytes + sum(info.file_bytes for info in found.files.infos.values()),
    )


def find_problems(found: Look, inventory: Inventory) -> Iterator[Finding]:
    """All damage that can be seen without decoding batches."""
    for lost in inventory.lost:
        yield Finding(lost.file, lost.reason, lost.what(), lost.offset)
    for damage in contradictions(found, inventory.fates):
        if not isinstance(damage, WalCorrupt):  # those are among what is lost
            yield _small(damage, "the store refuses to open until it is repaired")
    if isinstance(found.basics.cursor, QuiverError):
        affects = "bundles may come twice" if found.foreign else "nothing: it is a hint"
        yield Finding("wal/quiver.wal.cursor", found.basics.cursor.message.rstrip("."), affects)
    for name, progress in found.basics.progress.items():
        if isinstance(progress, QuiverError):
            yield _small(progress, f"where subscriber {name!r} stood is not known")
        else:
            yield from _marks_beyond(name, progress, inventory)
    for path, error in found.stages.files.items():
        if isinstance(error, Damage):
            affects = "the attempt it belongs to can't be committed"
            yield Finding(path, error.message.rstrip("."), affects)
    yield from _overlaps(found)


def _small(damage: QuiverError, affects: str) -> Finding:
    what = damage.message.replace(" Nothing was changed.", "").rstrip(".")
    return Finding(str(damage.details.get("file", "")), what, affects)


def _marks_beyond(name: str, progress: Progress, inventory: Inventory) -> Iterator[Finding]:
    for seq, entry in progress.entries.items():
        fate = inventory.fates.get(seq)
        count = fate.count if fate is not None and fate.exact else None
        if count and entry.done >> count:
            mark = entry.done.bit_length() - 1
            yield Finding(
                progress_file(name),
                f"it marks bundle {seq}.{mark}, but the segment has {count:,}",
                f"where subscriber {name!r} stood is not known",
            )


def _overlaps(found: Look) -> Iterator[Finding]:
    """Sequences rise with segment numbers: anything else is a file under another's name."""
    infos = found.files.infos.values()
    known = [info for info in infos if info.first_sequence is not None]
    for before, after in pairwise(known):
        together = before.transaction is not None and before.transaction == after.transaction
        last, first = before.last_sequence or 0, after.first_sequence or 0
        if last > first or (last == first and not together):
            yield Finding(
                segment_path(after.seq),
                f"its sequences begin at {after.first_sequence}, before the end of segment"
                f" {before.seq}",
                "bundles are there twice, or in the wrong order",
            )


def _unreadable_batches(found: Look) -> Iterator[Finding]:
    for seq in found.files.sound:
        yield from check_batches(found.files.open(seq))


def check_batches(reader: SegmentReader) -> Iterator[Finding]:
    """Bundles that Arrow can't take apart."""
    for index in range(len(reader)):
        try:
            for batch in reader.read(index).values():
                batch.validate()
        except (Damage, *_ARROW_ERRORS) as error:
            check_memory(error)
            what = error.message.rstrip(".") if isinstance(error, Damage) else str(error)
            yield Finding(reader.path, what, f"bundle {reader.seq}.{index} can't be read")


def find_notes(found: Look, inventory: Inventory) -> Iterator[str]:
    """What is worth knowing and no damage."""
    for torn in found.log.torn_tails:
        yield (
            f"{torn.file} byte {torn.offset:,}: {torn.reason}; it was never called durable, and"
            f" the next open sets its {torn.length:,} bytes aside"
        )
    for path in inventory.unfinished:
        yield f"{path}: half written by the Rust crate; its bundles are in the log"
    if inventory.maybe_doubled is not None:
        yield f"some bundles may come twice: {inventory.maybe_doubled}"
    yield from _staged_notes(found)
    for seq, fate in inventory.fates.items():
        if fate.fate is Fate.DELETED and seq in found.files.numbers:
            yield f"{segment_path(seq)}: deleted already; the next open removes the file"
    for folder in ("", SEGMENTS, STAGES, KEYS):
        for name in found.disk.listdir(folder):
            if name.endswith(TMP_SUFFIX):
                yield (
                    f"{folder}/{name}".lstrip("/")
                    + ": left over from a crash; the next open removes it"
                )
    aside = found.disk.listdir(QUARANTINE)
    if aside:
        yield f"{QUARANTINE}/ holds {len(aside):,} file{'s' * (len(aside) != 1)} set aside earlier"


def find_newer(found: Look) -> Iterator[str]:
    """Files that only a newer version can read."""
    for error in found.newer:
        yield f"{error.details.get('file', '')}: written by a newer Quiver: {error.message}"


def staged_attempts(found: Look) -> list[Attempt]:
    """Attempts that wait for their commit, or are still being written."""
    records = committed_versions(found.basics.known_state.transactions, found.replay.commits)
    versions = {record.app: record.version for record in records}
    return [
        one
        for one in attempts(found.stages, versions.get)
        if one.state is not AttemptState.OVER and not one.files[-1].label.merged
    ]


def _staged_notes(found: Look) -> Iterator[str]:
    finished = [one for one in staged_attempts(found) if one.state is AttemptState.FINISHED]
    if finished:
        bundles = sum(file.bundles for one in finished for file in one.files)
        yield f"{len(finished):,} staged writes ({bundles:,} bundles) wait for their commit"
    for waiting in found.waiting.values():
        if waiting.error is None:
            yield f"{waiting.file.path}: committed; the next open makes it segment {waiting.seq}"
