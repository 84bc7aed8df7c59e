"""What is in a store, in numbers: a quick look that reads the log and the tables of the
segments, and leaves the rest of their bytes to ``verify``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quiver.clock import Clock
from quiver.disk.disk import Disk
from quiver.disk.quarantine import QUARANTINE
from quiver.errors import QuiverError
from quiver.format.floor import FLOOR_PATH
from quiver.format.keys import KEYS
from quiver.format.progress import Progress
from quiver.format.segment.stage import STAGES
from quiver.format.state import STATE_NAME, AppRecord, Loss
from quiver.ids import BundleRef
from quiver.offline.inventory import BundleAt, Inventory, outcome
from quiver.offline.look import Look
from quiver.offline.taking import look_and_take
from quiver.offline.verify import find_newer, find_notes, find_problems, staged_attempts
from quiver.record.app_versions import committed_versions
from quiver.recovery.fates import Fate, SegmentFate
from quiver.segment.info import SEGMENTS
from quiver.subscriber.progress import progress_file
from quiver.wal.files import DIRECTORY


@dataclass(frozen=True, slots=True)
class FileRow:
    file: str
    bytes: int


@dataclass(frozen=True, slots=True)
class LogRow:
    """A log file. ``state``: sealed, open, torn, damaged."""

    file: str
    bytes: int
    entries: int
    bundles: int
    first_sequence: int | None
    next_sequence: int
    state: str


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A segment. ``state``: sealed, damaged, in log, deleted, committed (not a file yet)."""

    segment: int
    state: str
    bundles: int
    rows: int | None
    bytes: int
    first_sequence: int | None
    last_sequence: int | None
    first_ts_ns: int | None
    last_ts_ns: int | None


@dataclass(frozen=True, slots=True)
class StageRow:
    """An attempt that waits for its commit. ``state``: finished, writing."""

    app: str
    version: int
    attempt: str
    state: str
    bundles: int
    rows: int
    bytes: int
    written_ns: int


@dataclass(frozen=True, slots=True)
class SubscriberRow:
    """A subscriber, and how far it is behind."""

    name: str
    acked: int
    dropped: int
    lag_bundles: int
    lag_rows: int
    lag_bytes: int
    lag_seconds: float | None
    oldest_pending: BundleRef | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """Everything ``quiver inspect`` shows."""

    written_by: str
    bundles: int
    lost_bundles: int
    rows: int
    bytes: int
    slots: dict[str, int]
    log: tuple[LogRow, ...]
    segments: tuple[SegmentRow, ...]
    stages: tuple[StageRow, ...]
    transactions: tuple[AppRecord, ...]
    """The last commit of each app."""
    subscribers: tuple[SubscriberRow, ...]
    losses: tuple[Loss, ...]
    files: tuple[FileRow, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    newer: tuple[str, ...]

    @property
    def sound(self) -> bool:
        return not (self.problems or self.newer)


def summarize(disk: Disk, clock: Clock) -> StoreSummary:
    """Look and count."""
    found, inventory = look_and_take(disk, check=False)
    sizes = {held.ref: _size(held) for held in inventory.bundles}
    files = tuple(_files(disk))
    return StoreSummary(
        written_by="the Rust crate" if found.foreign else "Quiver",
        bundles=len(inventory.bundles),
        lost_bundles=inventory.lost_bundles,
        rows=sum(rows for rows, _ in sizes.values()),
        bytes=sum(row.bytes for row in files),
        slots={**found.basics.known_state.slots, **found.replay.names},
        log=tuple(_log(found)),
        segments=tuple(_segments(found, inventory, sizes)),
        stages=tuple(_stages(found)),
        transactions=committed_versions(
            found.basics.known_state.transactions, found.replay.commits
        ),
        subscribers=tuple(
            _subscriber(name, progress, inventory, sizes, clock)
            for name, progress in found.basics.progress.items()
        ),
        losses=found.basics.known_state.losses,
        files=files,
        problems=tuple(problem.describe() for problem in find_problems(found, inventory)),
        notes=tuple(find_notes(found, inventory)),
        newer=tuple(find_newer(found)),
    )


def _size(held: BundleAt) -> tuple[int, int]:
    """Rows and bytes of a bundle; what can't be read counts as nothing."""
    try:
        meta = held.meta()
        return meta.rows, meta.nbytes
    except (QuiverError, FileNotFoundError):
        return 0, 0


def _files(disk: Disk) -> Iterator[FileRow]:
    for folder in ("", DIRECTORY, SEGMENTS, STAGES, KEYS, QUARANTINE):
        for name in disk.listdir(folder):
            path = f"{folder}/{name}" if folder else name
            size = disk.stat_size(path)
            if size is not None and (folder or _is_ours(name)):
                yield FileRow(path, size)


def _is_ours(name: str) -> bool:
    return name in ("LOCK", STATE_NAME, FLOOR_PATH) or name.startswith(("quiver.", "LOCK"))


def _log(found: Look) -> Iterator[LogRow]:
    damaged = {damage.file for damage in found.log.damage}
    torn = {tail.file for tail in found.log.torn_tails}
    for file in found.log.files:
        state = "sealed" if file.sealed or file.number is not None else "open"
        if file.path in torn:
            state = "torn"
        if file.path in damaged:
            state = "damaged"
        yield LogRow(
            file.path,
            file.size,
            file.entries,
            file.bundles,
            file.header.first_sequence,
            file.next_sequence,
            state,
        )


def _stages(found: Look) -> Iterator[StageRow]:
    for one in staged_attempts(found):
        yield StageRow(
            *one.key,
            str(one.state),
            sum(file.bundles for file in one.files),
            sum(file.rows for file in one.files),
            sum(file.length for file in one.files),
            one.files[-1].label.ts,
        )


def _segments(
    found: Look, inventory: Inventory, sizes: dict[BundleRef, tuple[int, int]]
) -> Iterator[SegmentRow]:
    rows: dict[int, list[BundleAt]] = {}
    for held in inventory.bundles:
        rows.setdefault(held.ref.segment_seq, []).append(held)
    for seq in sorted({*rows, *found.files.numbers}):
        bundles = rows.get(seq, [])
        info = found.files.infos.get(seq)
        sequences = [held.sequence for held in bundles if held.sequence is not None]
        times = [held.ingestion_ts_ns for held in bundles if held.ingestion_ts_ns is not None]
        yield SegmentRow(
            seq,
            _state(inventory.fates.get(seq)),
            len(bundles),
            sum(sizes[held.ref][0] for held in bundles),
            info.file_bytes if info else sum(sizes[held.ref][1] for held in bundles),
            min(sequences, default=None),
            max(sequences, default=None),
            min(times, default=None),
            max(times, default=None),
        )


def _state(fate: SegmentFate | None) -> str:
    if fate is None or fate.error is not None:
        return "damaged"
    return "in log" if fate.fate is Fate.REBUILD else str(fate.fate)


def _subscriber(
    name: str,
    progress: Progress | QuiverError,
    inventory: Inventory,
    sizes: dict[BundleRef, tuple[int, int]],
    clock: Clock,
) -> SubscriberRow:
    standing = [(held, outcome(progress, held.ref)) for held in inventory.bundles]
    pending = [held for held, what in standing if what == "pending"]
    first = next((h.ingestion_ts_ns for h in pending if h.ingestion_ts_ns is not None), None)
    return SubscriberRow(
        name,
        sum(what == "acked" for _, what in standing),
        sum(what == "dropped" for _, what in standing),
        len(pending),
        sum(sizes[held.ref][0] for held in pending),
        sum(sizes[held.ref][1] for held in pending),
        None if first is None else max(0.0, (clock.now_ns() - first) / 1e9),
        pending[0].ref if pending else None,
        f"{progress_file(name)} is damaged" if isinstance(progress, QuiverError) else None,
    )
