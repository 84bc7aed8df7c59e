"""The engine with one fault each: a tester that doesn't notice is no tester.

A mutant changes one thing in the running process: a sync left out, two steps in the
other order, something forgotten at the start.  The explorer must then find a state that
breaks the promise.  :func:`hunt` tells by which invariant, and after how many states.

Four changes look like faults and are none that a crash can show; they are not listed:

- a segment's directory not synced after its rename, in a store with a log: the log still
  has the bundles, and the floor, which is written before any log file goes, lies in the
  same directory and syncs it.  (Without a log it is listed: ``segment_name_unsynced``.)
- a torn tail not cut off at the start, as long as a terminator is put behind the last
  sound entry: the file is never appended to again.  (With neither it is listed.)
- the cursor written late, early or never: it is a hint for the Rust crate.
- the reserve's file not synced: nothing rests on it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Final
from unittest.mock import patch

from quiver import adoption, engine, ingest, recovery, survey
from quiver.disk.disk import Disk, File
from quiver.format import wal_scan
from quiver.format.progress import Progress, encode_progress
from quiver.format.wal_entry import seal_bundle
from quiver.records import Records
from quiver.sealing import Sealing
from quiver.segment.info import SEGMENTS
from quiver.segment.writer import write_segment
from quiver.subscriber import progress, subscriber
from quiver.sweeping import Sweeping
from quiver.tail import Tail
from quiver.wal import active, reader, repair
from quiver.wal.active import LogFiles
from quiver.wal.files import ACTIVE, DIRECTORY, rotated_path
from quiver.window import KeyWindow
from tests.crash.explorer import Explorer
from tests.crash.workloads import PROFILES, quiet

BUDGET: Final = 6000
"""States after which a mutant counts as not noticed."""
PER_WORKLOAD: Final = 200
"""States of one workload: a fault shows sooner in another workload than in more of one."""
WORKLOADS: Final = 24
"""Workloads tried of each profile that a mutant is likely to show in."""

_OWN_FAULTS: Final = ("TypeError", "AttributeError", "NameError")
"""A patch that doesn't fit any more would be noticed too, for no good reason."""

Applied = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault, and the profiles in which it should show."""

    name: str
    apply: Applied
    profiles: tuple[str, ...] = ("plain", "laps")


@dataclass(frozen=True, slots=True)
class Kill:
    """How a mutant was noticed, or (``invariant`` empty) that it was not."""

    mutant: str
    invariant: str
    states: int
    place: str
    what: str


MUTANTS: list[Mutant] = []


def mutant(*profiles: str) -> Callable[[Applied], Applied]:
    """List a mutant under its function's name."""

    def add(apply: Applied) -> Applied:
        MUTANTS.append(Mutant(apply.__name__, apply, profiles or ("plain", "laps")))
        return apply

    return add


def hunt(one: Mutant, seed: int = 7, budget: int = BUDGET) -> Kill:
    """Explore with a fault until it is noticed."""
    quiet()
    numbers = [
        (number, next(i for i, p in enumerate(PROFILES) if p.name == name))
        for number in range(WORKLOADS)
        for name in one.profiles
    ]
    explorer = Explorer(seed, budget=budget, per_workload=PER_WORKLOAD, stop_early=True)
    with one.apply():
        for number, profile in numbers:
            explorer.run(number, profile)
            if explorer.finished:
                break
    tally = explorer.tally
    if not tally.findings:
        return Kill(one.name, "", tally.states, "", "")
    found = tally.findings[0]
    if any(error in found.what for error in _OWN_FAULTS):
        raise RuntimeError(f"the mutant {one.name} does not fit the engine: {found.what}")
    return Kill(one.name, found.invariant, tally.states, found.place, found.what)


# Tools


def _instead(owner: object, name: str, function: object) -> AbstractContextManager[Any]:
    return patch.object(owner, name, function)


def _skip_file_sync(call: str, wanted: Callable[[str], bool]) -> AbstractContextManager[Any]:
    original = getattr(File, call)

    def sync(self: File) -> None:
        if not wanted(self.path):
            original(self)

    return _instead(File, call, sync)


def _skip_dir_sync(*directories: str) -> AbstractContextManager[Any]:
    original = Disk.fsync_dir

    def fsync_dir(self: Disk, path: str) -> None:
        if path not in directories:
            original(self, path)

    return _instead(Disk, "fsync_dir", fsync_dir)


# Syncs left out


@mutant()
def ack_before_sync() -> AbstractContextManager[Any]:
    """A group is called durable although it is only written."""
    return _skip_file_sync("fdatasync", lambda path: path == ACTIVE)


@mutant()
def new_log_file_unsynced() -> AbstractContextManager[Any]:
    """A log file gets its name before its first group is synced."""
    return _skip_file_sync("fsync", lambda path: path.endswith((".new", ".spare")))


@mutant()
def log_directory_unsynced() -> AbstractContextManager[Any]:
    """A log file's name may be lost."""
    return _skip_dir_sync(DIRECTORY)


@mutant("segment_only")
def segment_name_unsynced() -> AbstractContextManager[Any]:
    """Without a log: a segment's bundles are durable, its name is not."""
    return _skip_dir_sync(SEGMENTS)


@mutant("consumers")
def root_directory_unsynced() -> AbstractContextManager[Any]:
    """Progress and checkpoint may fall back after they were called durable."""
    return _skip_dir_sync("")


@mutant("segment_only", "laps")
def segment_unsynced() -> AbstractContextManager[Any]:
    """A segment gets its name before its bytes are synced."""
    return _skip_file_sync("fsync", lambda path: path.endswith(".qseg.tmp"))


@mutant("consumers")
def progress_unsynced() -> AbstractContextManager[Any]:
    """A progress file gets its name before its bytes are synced."""
    return _skip_file_sync("fsync", lambda path: path.startswith("quiver.sub."))


@mutant()
def floor_unsynced() -> AbstractContextManager[Any]:
    """The segment floor gets its name before its bytes are synced."""
    return _skip_file_sync("fsync", lambda path: path.endswith("segment.seq.tmp"))


@mutant()
def checkpoint_unsynced() -> AbstractContextManager[Any]:
    """The checkpoint gets its name before its bytes are synced."""
    return _skip_file_sync("fsync", lambda path: path == "quiver.state.tmp")


@mutant("consumers")
def progress_in_place() -> AbstractContextManager[Any]:
    """Progress is written over the old file instead of beside it."""

    def replace(disk: Disk, name: str, value: Any) -> None:
        path = progress.progress_file(name)
        data = encode_progress(value)
        file = disk.open(path, write=True) if disk.stat_size(path) else disk.create(path)
        with file:
            file.truncate(0)
            file.write_all([data], 0)
            file.fsync()
        disk.fsync_dir("")

    return _instead(subscriber, "keep_progress", replace)


# A failed sync, a failed write


@mutant("bad_fsync")
def fsync_tried_again() -> AbstractContextManager[Any]:
    """A failed fsync is tried once more, and believed."""

    def sync(self: File, op: str, call: Callable[[], None]) -> None:
        try:
            call()
        except OSError:
            call()

    return _instead(File, "_sync", sync)


@mutant("bad_fsync")
def fsync_error_ignored() -> AbstractContextManager[Any]:
    """A failed fsync is taken for a good one."""

    def sync(self: File, op: str, call: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):
            call()

    return _instead(File, "_sync", sync)


@mutant("disk_full")
def rollback_without_truncate() -> AbstractContextManager[Any]:
    """What a failed write left behind stays in the file."""

    def roll_back(self: LogFiles, error: Exception) -> None:
        if self._active is not None:
            self._active.end = self._active.good

    return _instead(LogFiles, "roll_back", roll_back)


@mutant("disk_full")
def rollback_forgets_the_tail() -> AbstractContextManager[Any]:
    """The log takes a failed group back, the segment in memory keeps it."""
    return _instead(Tail, "rollback", lambda self, sequence: None)


@mutant("disk_full")
def rollback_forgets_the_keys() -> AbstractContextManager[Any]:
    """The key of a failed put is remembered: its retry is taken for a repeat."""
    return _instead(KeyWindow, "forget_from", lambda self, sequence: None)


# Order


@mutant("laps")
def log_retired_early() -> AbstractContextManager[Any]:
    """A log file goes while its newest segment is still in memory."""

    @property  # type: ignore[misc]
    def oldest(self: Tail) -> int:
        return self.next_segment

    return _instead(Tail, "oldest", oldest)


@mutant("laps")
def log_retired_without_checkpoint() -> AbstractContextManager[Any]:
    """Keys and slot names go with the log file that held them."""
    return _instead(Records, "is_stale", property(lambda self: False))


@mutant("laps", "consumers")
def floor_not_kept() -> AbstractContextManager[Any]:
    """Nothing says which numbers are used up and which segments are gone."""
    return _instead(Records, "keep_floor", lambda self, **_: None)


@mutant("laps")
def files_swapped_in_one_go() -> AbstractContextManager[Any]:
    """Both renames of a rotation before one sync of the directory."""

    def take_over(self: LogFiles, path: str) -> None:
        aside = rotated_path(self._next_number)
        if self._active is not None or (self._held and self._held[-1].path == ACTIVE):
            self._disk.rename(ACTIVE, aside)
        self._disk.rename(path, ACTIVE)
        self._disk.fsync_dir(DIRECTORY)

    return _instead(LogFiles, "_take_over", take_over)


@mutant("laps", "kept")
def log_purged_in_any_order() -> AbstractContextManager[Any]:
    """Several log files go before one sync of the directory."""
    original = LogFiles.retire_oldest

    def retire_oldest(self: LogFiles, *args: int) -> int | None:
        with patch.object(self._disk, "fsync_dir", lambda path: None):
            return original(self, *args)

    return _instead(LogFiles, "retire_oldest", retire_oldest)


@mutant("consumers", "kept")
def deleted_before_progress() -> AbstractContextManager[Any]:
    """A finished segment goes before the acks that finished it are durable."""
    original = Sweeping._carry_out

    def carry_out(self: Sweeping, evictions: Any) -> Any:
        with patch.object(self._records, "flush_progress", lambda names=None: 0):
            return original(self, evictions)

    stack = contextlib.ExitStack()
    stack.enter_context(_instead(Sweeping, "_carry_out", carry_out))
    stack.enter_context(_instead(Records, "flush_progress", _only_when_asked))
    return stack


def _only_when_asked(self: Records, names: tuple[str, ...] | None = None) -> int:
    return self._parts.registry.flush(names) if names is not None else 0


@mutant("consumers", "kept")
def deleted_before_floor() -> AbstractContextManager[Any]:
    """A segment's file goes before the floor says that it may."""
    original = Sweeping._carry_out

    def carry_out(self: Sweeping, evictions: Any) -> Any:
        kept = self._records.keep_floor
        later: list[Any] = []
        with patch.object(self._records, "keep_floor", lambda **how: later.append(how)):
            done = original(self, evictions)
        for how in later:
            kept(**how)
        return done

    return _instead(Sweeping, "_carry_out", carry_out)


@mutant("drop_oldest")
def dropped_without_ledger() -> AbstractContextManager[Any]:
    """What the size cap takes is not written down."""
    return _instead(Sweeping, "_drop", _drop_quietly)


def _drop_quietly(self: Sweeping, eviction: Any, bundles: int, nbytes: int) -> None:
    self._parts.registry.drop_segment(eviction.seq, bundles)


@mutant("drop_oldest")
def ledger_written_late() -> AbstractContextManager[Any]:
    """A loss is noted in memory only, until something else writes the checkpoint."""
    original = Sweeping._carry_out

    def carry_out(self: Sweeping, evictions: Any) -> Any:
        with patch.object(self._records, "checkpoint", lambda **_: None):
            return original(self, evictions)

    return _instead(Sweeping, "_carry_out", carry_out)


@mutant("consumers")
def unregistered_without_sync() -> AbstractContextManager[Any]:
    """A subscriber that left may come back."""

    def remove(disk: Disk, name: str) -> None:
        disk.unlink(progress.progress_file(name), missing_ok=True)

    return _instead(subscriber, "remove_progress", remove)


@mutant("consumers")
def registered_without_file() -> AbstractContextManager[Any]:
    """A new subscriber's file is written with its first ack."""
    original = subscriber.Subscriber.flush

    def flush(self: subscriber.Subscriber, open_segment: int) -> bool:
        if self.status is subscriber.Status.KNOWN:
            return False
        return original(self, open_segment)

    return _instead(subscriber.Subscriber, "flush", flush)


@mutant("bad_fsync", "plain")
def delivered_before_durable() -> AbstractContextManager[Any]:
    """Subscribers see what is staged."""
    original = ingest.Ingest._place

    def place(self: ingest.Ingest, prepared: Any) -> Any:
        receipt = original(self, prepared)
        self._wal.on_durable(receipt.sequence + 1)  # type: ignore[union-attr]
        return receipt

    return _instead(ingest.Ingest, "_place", place)


@mutant("disk_full")
def sealed_before_logged() -> AbstractContextManager[Any]:
    """A segment is written while its newest group is only staged."""

    def next_closed(self: Sealing) -> Any:
        closed = self._parts.tail.closed
        return closed[0] if closed else None

    return _instead(Sealing, "_next_closed", next_closed)


# The log's own claims


@mutant()
def claims_to_be_synced() -> AbstractContextManager[Any]:
    """Entries say that everything before them was synced: a torn tail looks like damage."""
    original = seal_bundle

    def seal(body: Any, sequence: int, synced_before: int, *rest: Any) -> Any:
        return original(body, sequence, sequence, *rest)

    return _instead(ingest, "seal_bundle", seal)


@mutant()
def checksum_not_compared() -> AbstractContextManager[Any]:
    """Half an entry at the end of the log is taken for an entry."""
    return _instead(wal_scan, "crc32", lambda data, value=0: wal_scan.RESIDUE)


@mutant()
def damage_cut_off() -> AbstractContextManager[Any]:
    """An entry that was synced and is bad is cut off like a torn tail."""
    return _instead(reader._Log, "_damage_at_stop", lambda self, index, scan: None)


@mutant("laps")
def no_terminator() -> AbstractContextManager[Any]:
    """In a file written over, the old lap's bytes follow the new end."""
    return _instead(active, "TERMINATOR", b"")


# Recovery


@mutant("plain", "restarts")
def tail_not_rewritten() -> AbstractContextManager[Any]:
    """What a killed process left in the page cache is served before it is synced."""
    return _instead(repair, "_rewrite", lambda disk, last, proven_end: 0)


@mutant("plain", "restarts")
def torn_tail_left() -> AbstractContextManager[Any]:
    """A torn tail is reported, and neither cut off nor closed with a terminator."""
    stack = contextlib.ExitStack()
    stack.enter_context(_instead(repair, "_cut", lambda disk, path, end: 0))
    stack.enter_context(_instead(repair, "TERMINATOR", b""))
    return stack


@mutant("laps")
def replay_without_dedupe() -> AbstractContextManager[Any]:
    """The log rebuilds segments that have a file, or had one."""
    return _instead(survey.SealedSegments, "__call__", lambda self, seq: False)


@mutant("consumers", "kept")
def replay_forgets_deletions() -> AbstractContextManager[Any]:
    """The log rebuilds segments that everyone has finished and that were deleted."""
    return _instead(survey.SealedSegments, "__call__", lambda self, seq: seq in self._catalog)


@mutant("consumers", "kept")
def deletions_not_finished() -> AbstractContextManager[Any]:
    """A segment whose deletion was decided, but not carried out, is served again."""
    return _instead(recovery._Recovery, "_finish_deletions", lambda self, found: None)


@mutant("consumers", "kept")
def numbers_from_files_only() -> AbstractContextManager[Any]:
    """The next segment's number is one above what lies there."""
    return _instead(
        recovery,
        "first_free_segment",
        lambda found, live: max(
            [0, *(seq + 1 for seq in live), *(s.seq + 1 for s in found.replay.segments)]
        ),
    )


@mutant()
def keys_forgotten() -> AbstractContextManager[Any]:
    """The idempotency window starts empty."""
    return _instead(
        recovery._Recovery,
        "_window",
        lambda self, *_: KeyWindow(self._config.idempotency.window_count, 10**18),
    )


@mutant("laps")
def keys_from_log_only() -> AbstractContextManager[Any]:
    """Keys in the checkpoint are not read back."""

    def window(self: Any, found: Any, *_: Any) -> KeyWindow:
        kept = KeyWindow(self._config.idempotency.window_count, 10**18)
        kept.extend(found.replay.keys)
        return kept

    return _instead(recovery._Recovery, "_window", window)


@mutant()
def keys_from_checkpoint_only() -> AbstractContextManager[Any]:
    """Keys that are still in the log are not read back."""

    def window(self: Any, found: Any, *_: Any) -> KeyWindow:
        kept = KeyWindow(self._config.idempotency.window_count, 10**18)
        kept.extend(found.basics.known_state.window)
        return kept

    return _instead(recovery._Recovery, "_window", window)


@mutant("segment_only")
def sequences_start_over() -> AbstractContextManager[Any]:
    """Without a log, the next sequence is not above those of the segments."""
    return _instead(recovery, "known_sequence", lambda basics, segments: 0)


@mutant("jumpy")
def time_goes_back() -> AbstractContextManager[Any]:
    """The newest ingestion time is not read back."""
    return _instead(recovery._Recovery, "_last_ts", lambda self, found: 0)


@mutant("consumers")
def progress_forgotten() -> AbstractContextManager[Any]:
    """Subscribers start over."""
    return _instead(
        survey,
        "scan_progress",
        lambda disk, known=(): {name: Progress(0, {}) for name in _scan(disk, known)},
    )


_scan = progress.scan_progress


@mutant("restarts", "plain")
def names_not_made_durable() -> AbstractContextManager[Any]:
    """A rotation that a kill cut short is ended before the names it left are synced."""

    def recover(disk: Disk, *args: Any, **kwargs: Any) -> Any:
        with _skip_first_syncs(disk):
            return _recover(disk, *args, **kwargs)

    return _instead(engine, "recover", recover)


_recover = recovery.recover


@contextlib.contextmanager
def _skip_first_syncs(disk: Disk) -> Iterator[None]:
    """Directory syncs are left out until the first other change."""
    original = disk.fsync_dir
    changed = False

    def fsync_dir(path: str) -> None:
        if changed or path == "":
            original(path)

    def change(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal changed
            changed = True
            return call(*args, **kwargs)

        return wrapped

    with (
        patch.object(disk, "fsync_dir", fsync_dir),
        patch.object(disk, "rename", change(disk.rename)),
        patch.object(disk, "unlink", change(disk.unlink)),
    ):
        yield


@mutant("foreign")
def adopted_twice() -> AbstractContextManager[Any]:
    """The refs given to a Rust log's bundles are not written down before they are used."""
    return _instead(adoption._Adopting, "_keep_adoption", lambda self, adoption: None)


@mutant("foreign")
def adopted_log_removed_first() -> AbstractContextManager[Any]:
    """A Rust log goes before its bundles are in segments."""
    original = adoption._Adopting._write

    def write(self: Any, segments: Any) -> None:
        self._remove_log(keep=False)
        original(self, segments)

    return _instead(adoption._Adopting, "_write", write)


@mutant("switch")
def log_ended_before_sealed() -> AbstractContextManager[Any]:
    """A store that goes on without its log lets it go before its segments are written."""

    def seal_without_log(self: Any, found: Any) -> Any:
        segments = found.replay.segments
        if self._without_log:
            self._remove_log()
            for segment in segments:
                info = write_segment(self._disk, segment, self._slots.names)
                self._catalog.add(info)
            return []
        return segments

    return _instead(recovery._Recovery, "_seal_without_log", seal_without_log)


@mutant()
def strays_left() -> AbstractContextManager[Any]:
    """Half-written files stay."""
    return _instead(recovery, "_remove_leftovers", lambda disk: None)


def hunt_named(name: str) -> Kill:
    """As :func:`hunt`, for another process: a patch can't be sent there."""
    return hunt(next(one for one in MUTANTS if one.name == name))


def hunt_all(processes: int) -> list[Kill]:
    """Every mutant, each in a process that knows no other."""
    names = [one.name for one in MUTANTS]
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=8) as pool:
        return pool.map(hunt_named, names, chunksize=1)


def as_json(kills: Sequence[Kill], seconds: float) -> dict[str, Any]:
    """For ``make prove``: plain values."""
    return {
        "what": "mutants",
        "tried": len(kills),
        "seconds": round(seconds, 1),
        "failed": sum(not kill.invariant for kill in kills),
        "kills": [asdict(kill) for kill in kills],
    }


def report(kills: Sequence[Kill]) -> Iterator[str]:
    """The table, line by line."""
    width = max(len(kill.mutant) for kill in kills)
    for kill in kills:
        by = kill.invariant or "NOT NOTICED"
        yield f"{kill.mutant:<{width}}  {by:<20} {kill.states:>6,} states  {kill.place}"
