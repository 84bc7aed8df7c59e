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
checkpoint                  worked out from segments and log: names, keys; the
                            ledger of earlier losses is lost with it
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

from quiver.contradictions import contradictions
from quiver.disk.disk import Disk
from quiver.errors import Damage, QuiverError, UnsupportedVersion, WalCorrupt
from quiver.format.floor import FLOOR_PATH, Floor
from quiver.format.progress import Progress
from quiver.format.state import STATE_NAME, Checkpoint
from quiver.fsck.held import Holdings, Lost, spans
from quiver.fsck.holdings import hold
from quiver.fsck.index import Place
from quiver.fsck.look import Look, Watch, look
from quiver.fsck.staged import Waiting
from quiver.fsck.verify import check_batches, find_problems
from quiver.ids import BundleRef
from quiver.segment.info import segment_path
from quiver.subscriber.progress import progress_file
from quiver.wal.files import CURSOR


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to be done, for people."""

    file: str
    why: str
    what: str

    def describe(self) -> str:
        return f"{self.file}: {self.why}. {self.what}"


class Plan:
    """What is wrong, and what to do about it; :mod:`quiver.fsck.mend` does it."""

    def __init__(self, disk: Disk, watch: Watch | None = None) -> None:
        self.found: Look = look(disk, watch=watch)
        for seq in list(self.found.segments.infos):
            self._check_batches(seq)
        self.holdings: Holdings = hold(self.found)
        self._refuse_newer()

    def _check_batches(self, seq: int) -> None:
        """A segment with a good checksum that Arrow can't read is damaged all the same."""
        segments = self.found.segments
        reader = segments.sound(seq)
        if reader is not None and any(True for _ in check_batches(reader)):
            segments.damaged[seq] = WalCorrupt(f"{reader.path}: Arrow can't read all of it.")

    def _refuse_newer(self) -> None:
        basics = self.found.basics
        for one in (basics.floor, basics.state, *basics.progress.values()):
            if isinstance(one, UnsupportedVersion):
                raise one
        for damage in self.found.segments.damaged.values():
            if isinstance(damage, UnsupportedVersion):
                raise damage

    # What is wrong

    @cached_property
    def set_log_aside(self) -> bool:
        """Whether to go on with a new log."""
        found = self.found
        if not found.log.files:
            return isinstance(found.basics.floor, Floor) and found.basics.floor.has_log
        if found.foreign:
            return self.is_needed
        infos = list(found.segments.infos.values())
        wrong = any(isinstance(one, WalCorrupt) for one in contradictions(found, infos))
        return wrong or bool(found.log.damage or found.index.unreadable) or self._holes_in_log

    @cached_property
    def _holes_in_log(self) -> bool:
        """Whether a segment that is only in the log lacks some of its bundles."""
        return any(
            seq not in self.to_set_aside and seq not in self._lost_staged and gaps
            for seq, gaps in self.gaps.items()
        )

    @cached_property
    def is_needed(self) -> bool:
        """Whether there is anything to repair at all."""
        damaged = self.found.segments.damaged.keys() - self.unfinished
        return bool(damaged) or any(True for _ in find_problems(self.found, self.holdings))

    @cached_property
    def unfinished(self) -> set[int]:
        """Segments the Rust crate was still writing: not damage, but in the way."""
        paths = set(self.holdings.unfinished)
        return {seq for seq in self.found.segments.damaged if segment_path(seq) in paths}

    @cached_property
    def to_set_aside(self) -> list[int]:
        """Segment files that can't stay."""
        return sorted(self.found.segments.damaged)

    @cached_property
    def staged_damage(self) -> dict[str, QuiverError]:
        """Staged files that can't stay, and why."""
        damaged = {
            path: one
            for path, one in self.found.stages.files.items()
            if isinstance(one, QuiverError)
        }
        return damaged | {
            one.file.path: one.error for one in self.holdings.waiting if one.error is not None
        }

    @cached_property
    def to_publish(self) -> list[Waiting]:
        """Committed files to be made segments, since the log that says so is set aside."""
        if not self.set_log_aside:
            return []
        return [one for one in self.holdings.waiting if one.error is None]

    @cached_property
    def in_log(self) -> dict[int, dict[int, Place]]:
        """Bundles that have to be read from the log, by segment and index."""
        places: dict[int, dict[int, Place]] = defaultdict(dict)
        for held in self.holdings.bundles:
            if isinstance(held.source, Place):
                places[held.ref.segment_seq][held.ref.bundle_index] = held.source
        return places

    @cached_property
    def to_write(self) -> list[int]:
        """Segments to be written from the log."""
        if self.set_log_aside:
            return sorted(self.in_log)
        return sorted(seq for seq in self.in_log if seq in self.found.segments.damaged)

    @cached_property
    def gaps(self) -> dict[int, list[int]]:
        """Bundles that are lost, by segment: what was there and isn't held."""
        held: dict[int, set[int]] = defaultdict(set)
        for seq, index in (*(one.ref for one in self.holdings.bundles), *self.holdings.voids):
            held[seq].add(index)
        gaps = {
            seq: [index for index in range(count) if index not in held[seq]]
            for seq, count in self.holdings.counts.items()
        }
        return {seq: missing for seq, missing in sorted(gaps.items()) if missing}

    @cached_property
    def vanished(self) -> list[int]:
        """Segments of which nothing is left."""
        lost = {*self.to_set_aside, *self.gaps, *self.holdings.vanished} - set(self.to_write)
        return sorted(seq for seq in lost if seq not in self.kept and seq not in self.unfinished)

    @cached_property
    def _lost_staged(self) -> set[int]:
        return {one.seq for one in self.holdings.waiting if one.error is not None}

    @cached_property
    def kept(self) -> set[int]:
        """Segments whose files stay as they are."""
        return self.found.segments.infos.keys() - self.found.segments.damaged.keys()

    @property
    def unnamed(self) -> list[Lost]:
        """Losses of the log that can't be put down to a segment."""
        return [
            lost
            for lost in self.holdings.lost
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
    def rebuild_floor(self) -> Damage | None:
        return self._refused(FLOOR_PATH, self.found.basics.floor)

    @cached_property
    def rebuild_state(self) -> Damage | None:
        return self._refused(STATE_NAME, self.found.basics.state)

    def _refused(self, path: str, small: Floor | Checkpoint | Damage | None) -> Damage | None:
        if isinstance(small, Damage):
            return small
        infos = list(self.found.segments.infos.values())
        for problem in contradictions(self.found, infos):
            if small is None and problem.details.get("file") == path:
                return problem
        return None

    # In words

    @cached_property
    def actions(self) -> list[Action]:
        """All of it, in the order it is done; nothing if the store is sound."""
        return list(self._actions()) if self.is_needed else []

    def _actions(self) -> Iterator[Action]:
        damaged = self.found.segments.damaged
        for seq in self.to_set_aside:
            yield Action(segment_path(seq), _why(damaged[seq]), self._segment_action(seq))
        for path, error in self.staged_damage.items():
            yield Action(path, _why(error), "Set it aside.")
        for seq in self.vanished:
            if seq not in damaged:
                count = len(self.gaps.get(seq, ()))
                what = f"Record {f'its {count:,} bundles' if count else 'it'} as lost."
                yield Action(segment_path(seq), "the file is missing", what)
        if self.set_log_aside:
            yield from self._log_actions()
        if isinstance(self.found.basics.cursor, QuiverError):
            yield Action(CURSOR, _why(self.found.basics.cursor), "Set it aside.")
        if self.rebuild_floor is not None:
            what = "Work it out again from segments, log and progress."
            yield Action(FLOOR_PATH, _why(self.rebuild_floor), what)
        if self.rebuild_state is not None:
            what = (
                "Work out names, keys and committed versions again, from what is left; earlier"
                " entries of the loss ledger are lost."
            )
            yield Action(STATE_NAME, _why(self.rebuild_state), what)
        for name, why in self.broken_progress.items():
            what = f"Subscriber {name!r} starts again at the earliest bundle; some come twice."
            yield Action(progress_file(name), why, what)

    def _segment_action(self, seq: int) -> str:
        if seq in self.unfinished:
            return "Set it aside: its bundles are in the log."
        gaps = [BundleRef(seq, index) for index in self.gaps.get(seq, [])]
        if seq not in self.to_write:
            lost = f"its {len(gaps):,} bundles" if gaps else "what was in it"
            return f"Set it aside and record {lost} as lost."
        if gaps:
            return f"Set it aside, write what the log has of it; {spans(gaps)} are lost."
        return "Set it aside and write it again from the log, whole."

    def _log_actions(self) -> Iterator[Action]:
        bundles = sum(len(self.in_log[seq]) for seq in self.to_write)
        files = len(self.found.log.files)
        what = (
            f"Write {bundles:,} bundles that are only in it into segments, set its"
            f" {files:,} file{'s' * (files != 1)} aside, begin a new one."
        )
        costs = [lost for lost in self.holdings.lost if lost.sequences is not None]
        if not costs:
            yield Action("wal", "the log can't be gone on with", what)
        for lost in costs:
            where = lost.file if lost.offset is None else f"{lost.file} byte {lost.offset:,}"
            yield Action(where, f"{lost.reason}; {lost.what()}", what)
            what = "As above."


def _why(error: QuiverError) -> str:
    return error.message.replace(" Nothing was changed.", "").rstrip(".")
