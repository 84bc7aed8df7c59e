"""What it takes to make a damaged store open again, decided but not done.

Nothing is guessed away.  What is sound is kept under its own refs; what is lost goes on
record, in the ledger and with each subscriber; and every file that is replaced or removed
is kept in ``quarantine/``.

==========================  =======================================================
damaged or missing          what is done
==========================  =======================================================
log                         sound bundles that are only in it are written into
                            segments; the log is set aside, a new one begins
log of the Rust crate       the same, with anything else that is wrong there
segment                     written again from the log if that has it; bundles that
                            are lost leave a gap that nobody is given
segment floor               worked out from segments, log and progress
checkpoint                  worked out from segments, log and key runs: names, keys, and
                            of the ledger those losses that left a gap in a segment
staged file                 set aside: its attempt has to be written again; of one that
                            is committed, the loss goes on record
cursor                      removed: it is a hint
progress                    that subscriber starts again at the earliest bundle
==========================  =======================================================
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from quiver.disk.disk import Disk
from quiver.errors import Damage, QuiverError, SegmentDamage, StateCorrupt, WalCorrupt
from quiver.format.floor import FLOOR_PATH, Floor
from quiver.format.keys import KeyRun
from quiver.format.progress import Progress
from quiver.format.state import STATE_NAME, Checkpoint
from quiver.ids import MAX_SLOTS, BundleRef
from quiver.offline.inventory import BundleAt, Inventory, LostBundle, spans
from quiver.offline.look import Look, Watch, look
from quiver.offline.taking import take_inventory
from quiver.offline.verify import check_batches, find_problems
from quiver.recovery.consistency import contradictions
from quiver.recovery.fates import Fate
from quiver.recovery.rust.alignment import Sealed
from quiver.recovery.survey import Waiting
from quiver.segment.info import SegmentInfo, segment_path
from quiver.segment.staged_file import StageFile
from quiver.subscriber.progress import progress_file
from quiver.wal.files import CURSOR


@dataclass(frozen=True, slots=True)
class RepairStep:
    """One thing to be done, for people."""

    file: str
    why: str
    what: str

    def describe(self) -> str:
        return f"{self.file}: {self.why}. {self.what}"


class RepairPlan:
    """What is wrong, and what to do about it; :mod:`quiver.offline.mend` does it."""

    def __init__(self, disk: Disk, watch: Watch | None = None) -> None:
        self.found: Look = look(disk, watch=watch)
        if self.found.newer:
            raise self.found.newer[0]
        files = self.found.files
        for seq in files.sound:
            # A segment with a good checksum that Arrow can't read is damaged all the same.
            if any(True for _ in check_batches(files.open(seq))):
                files.damaged[seq] = SegmentDamage(f"{segment_path(seq)}: Arrow can't read it.")
        self.inventory: Inventory = take_inventory(self.found)

    # What is wrong

    @cached_property
    def set_log_aside(self) -> bool:
        """Whether to go on with a new log."""
        found = self.found
        if not found.log.files:
            return isinstance(found.basics.floor, Floor) and found.basics.floor.has_log
        if found.foreign:
            return self.is_needed
        reasons = contradictions(found, self.inventory.fates)
        wrong = any(isinstance(one, WalCorrupt) for one in reasons)
        return wrong or bool(found.log.damage or found.replay.unreadable)

    @cached_property
    def is_needed(self) -> bool:
        """Whether there is anything to repair at all."""
        damaged = self.found.files.damaged.keys() - self.unfinished - self._deleted
        return bool(damaged) or any(True for _ in find_problems(self.found, self.inventory))

    @cached_property
    def _deleted(self) -> set[int]:
        """Numbers that rightly have no file; one that is left is removed by the next open."""
        fates = self.inventory.fates.values()
        return {one.seq for one in fates if one.fate is Fate.DELETED}

    @cached_property
    def unfinished(self) -> set[int]:
        """Segments the Rust crate was still writing: not damage, but in the way."""
        paths = set(self.inventory.unfinished)
        return {seq for seq in self.found.files.damaged if segment_path(seq) in paths}

    @cached_property
    def to_set_aside(self) -> list[int]:
        """Segment files that can't stay."""
        return sorted(self.found.files.damaged)

    @cached_property
    def staged_damage(self) -> dict[str, Damage]:
        """Staged files that can't stay, and why."""
        files, waiting = self.found.stages.files, self.found.waiting.values()
        damaged = {path: one for path, one in files.items() if isinstance(one, Damage)}
        return damaged | {one.file.path: one.error for one in waiting if one.error is not None}

    @cached_property
    def to_publish(self) -> list[Waiting]:
        """Committed files to be made segments, since the log that says so is set aside."""
        if not self.set_log_aside:
            return []
        return [one for one in self.found.waiting.values() if one.error is None]

    @cached_property
    def readable(self) -> dict[int, dict[int, BundleAt]]:
        """Bundles of segments without a sound file, by segment and index."""
        found: dict[int, dict[int, BundleAt]] = defaultdict(dict)
        for held in self.inventory.bundles:
            if not isinstance(held.source, Sealed):
                found[held.ref.segment_seq][held.ref.bundle_index] = held
        return found

    @cached_property
    def to_write(self) -> list[int]:
        """Segments to be written again, with what can be read of them."""
        if self.set_log_aside:
            return sorted(self.readable)
        lossy = {one.seq for one in self.inventory.fates.values() if one.fate is Fate.DAMAGED}
        return sorted(self.readable.keys() & (lossy | self.found.files.damaged.keys()))

    @cached_property
    def gaps(self) -> dict[int, list[int]]:
        """Bundles that are lost, by segment."""
        return {one.seq: one.lost for one in self.inventory.fates.values() if one.lost}

    @property
    def _missing(self) -> list[int]:
        """Segments that are not whole any more and have no file, damaged or staged."""
        fates = self.inventory.fates.values()
        staged = self.found.waiting
        return [
            one.seq
            for one in fates
            if one.fate is Fate.DAMAGED and one.error is None and one.seq not in staged
        ]

    @cached_property
    def kept(self) -> set[int]:
        """Segments whose files stay as they are."""
        return self.found.files.sound.keys() - self._deleted

    @cached_property
    def infos(self) -> dict[int, SegmentInfo]:
        """What every segment file says of itself, as far as its tables can be read or mended."""
        files = self.found.files
        known = ((seq, files.known_info(seq)) for seq in files.numbers)
        return {seq: info for seq, info in known if info is not None}

    @cached_property
    def names(self) -> dict[str, int]:
        """All slot names that anything here knows.

        The log entry that gave a slot its name may be among what is lost, and an id that data is
        kept under must not be given to another name: so segments, staged files and the log's own
        bundles are asked as well.
        """
        found = self.found
        names = {**found.basics.known_state.slots, **found.replay.names}
        ids = set(names.values())
        for name, slot in self._names_in_files():
            if name not in names and slot not in ids:
                names[name] = slot
                ids.add(slot)
        return names

    def _names_in_files(self) -> Iterator[tuple[str, int]]:
        """The names that files give their slots, committed ones first."""
        found = self.found
        for seq, info in self.infos.items():
            yield from info.slots if seq not in self._deleted else ()
        for seq, waiting in found.waiting.items():
            known = waiting.info or found.files.known_info(seq)
            yield from known.slots if known is not None else ()
        for stage in found.stages.files.values():
            yield from stage.slots if isinstance(stage, StageFile) else ()

    @cached_property
    def nameless(self) -> list[int]:
        """Slots of bundles that are only in a log of 0.1.0, which named them in an entry that is
        lost; or they never had a name, or the slot table is declared."""
        known = set(self.names.values())
        unnamed = self.found.replay.not_self_named
        return [s for s in range(MAX_SLOTS) if unnamed >> s & 1 and s not in known]

    @property
    def unnamed(self) -> list[LostBundle]:
        """Losses of the log that can't be put down to a segment."""
        return [
            lost
            for lost in self.inventory.lost
            if lost.sequences is not None and lost.bundles != len(lost.refs)
        ]

    @cached_property
    def broken_progress(self) -> dict[str, str]:
        """Subscribers whose place is not known any more, and why."""
        broken = {}
        for name, progress in self.found.basics.progress.items():
            if not isinstance(progress, Progress):
                broken[name] = progress.message.rstrip(".")
        return broken

    @cached_property
    def damaged_runs(self) -> dict[KeyRun, StateCorrupt]:
        """Key runs that the checkpoint lists and that can't be read."""
        runs = self.found.basics.runs
        return {run: one for run, one in runs.items() if isinstance(one, StateCorrupt)}

    @cached_property
    def rebuild_floor(self) -> Damage | None:
        return self._refused(FLOOR_PATH, self.found.basics.floor)

    @cached_property
    def rebuild_state(self) -> Damage | None:
        return self._refused(STATE_NAME, self.found.basics.state)

    def _refused(self, path: str, small: Floor | Checkpoint | Damage | None) -> Damage | None:
        if isinstance(small, Damage):
            return small
        for problem in contradictions(self.found, self.inventory.fates):
            if small is None and problem.details.get("file") == path:
                return problem
        return None

    # In words

    @cached_property
    def actions(self) -> list[RepairStep]:
        """All of it, in the order it is done; nothing if the store is sound."""
        return list(self._actions()) if self.is_needed else []

    def _actions(self) -> Iterator[RepairStep]:
        damaged = self.found.files.damaged
        for seq in self.to_set_aside:
            yield RepairStep(segment_path(seq), _why(damaged[seq]), self._segment_action(seq))
        for path, error in self.staged_damage.items():
            yield RepairStep(path, _why(error), "Set it aside.")
        for seq in self._missing:
            yield RepairStep(segment_path(seq), "the file is missing", self._segment_action(seq))
        if self.set_log_aside:
            yield from self._log_actions()
        if isinstance(self.found.basics.cursor, QuiverError):
            yield RepairStep(CURSOR, _why(self.found.basics.cursor), "Set it aside.")
        if self.rebuild_floor is not None:
            what = "Work it out again from segments, log and progress."
            yield RepairStep(FLOOR_PATH, _why(self.rebuild_floor), what)
        if self.rebuild_state is not None:
            what = (
                "Work out names, keys, committed versions and the losses that segments show"
                " again; other entries of the loss ledger are lost, and the store gets a new uuid."
            )
            yield RepairStep(STATE_NAME, _why(self.rebuild_state), what)
        yield from self._run_actions()
        for name, why in self.broken_progress.items():
            what = f"Subscriber {name!r} starts again at the earliest bundle; some come twice."
            yield RepairStep(progress_file(name), why, what)

    def _run_actions(self) -> Iterator[RepairStep]:
        for run, error in self.damaged_runs.items():
            what = (
                f"Set it aside. Its {run.count:,} idempotency keys (sequences {run.first:,} to"
                f" {run.last:,}) are forgotten, except those that segments, the log or other runs"
                " have: a repeat of one of them is stored as a new bundle."
            )
            yield RepairStep(run.path, _why(error), what)

    def _segment_action(self, seq: int) -> str:
        if seq in self.unfinished:
            return "Set it aside: its bundles are in the log."
        if seq in self._deleted:
            return "Set it aside: it was deleted already."
        gaps = [BundleRef(seq, index) for index in self.gaps.get(seq, [])]
        aside = "Set it aside. " if seq in self.found.files.damaged else ""
        if seq not in self.to_write:
            most = "" if self.inventory.fates[seq].exact else "at most "
            lost = f"{most}{len(gaps):,} bundles" if gaps else "what was in it"
            return f"{aside}Record {lost} as lost."
        if gaps:
            return f"{aside}Write what is left of it again; {spans(gaps)} are lost."
        return f"{aside}Write it again from the log, whole."

    def _log_actions(self) -> Iterator[RepairStep]:
        bundles = sum(len(self.readable[seq]) for seq in self.to_write)
        files = len(self.found.log.files)
        what = (
            f"Write {bundles:,} bundles that are only in it into segments, set its"
            f" {files:,} file{'s' * (files != 1)} aside, begin a new one."
        )
        costs = [lost for lost in self.inventory.lost if lost.sequences is not None]
        if not costs:
            yield RepairStep("wal", "the log can't be gone on with", what)
        for lost in costs:
            where = lost.file if lost.offset is None else f"{lost.file} byte {lost.offset:,}"
            yield RepairStep(where, f"{lost.reason}; {lost.what()}", what)
            what = "As above."
        if self.nameless and costs:
            slots = ", ".join(f"slot{slot}" for slot in self.nameless)
            why = "slots have no name in what is left of the log"
            yield RepairStep(
                "wal", why, f"Unless the slot table declares them, they read as {slots}."
            )


def _why(error: QuiverError) -> str:
    return error.message.replace(" Nothing was changed.", "").rstrip(".")
