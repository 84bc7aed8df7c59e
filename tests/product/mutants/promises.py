"""Faults in what is promised besides: commits, second copies, repair, policies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from quiver.format.keys import KeyRecord, KeyRun
from quiver.format.state import AppRecord
from quiver.offline import mend
from quiver.record.key_runs import KeyRuns
from quiver.recovery import stages as restaging
from quiver.segment import salvage
from quiver.transaction.commit import Committing
from quiver.transaction.stage import Staging
from quiver.upkeep.checkpoint_files import Records
from quiver.upkeep.healing import Healing
from quiver.upkeep.sweeping import Sweeping
from quiver.wal.contents import LogEntry
from tests.crash.mutants.tools import instead
from tests.product.mutants.tools import mutant


@mutant("a commit again", "commits", by=("commit_once",))
def a_commit_is_never_a_repeat() -> AbstractContextManager[Any]:
    """The same batch commits twice: no version counts as committed."""
    return instead(Committing, "_repeat", lambda self, transaction: None)


@mutant("a commit again", "clock", by=("commit_once",))
def versions_follow_the_wall_clock() -> AbstractContextManager[Any]:
    """The same batch commits twice after a jump of the clock, by which its version has aged."""

    def record(self: Committing, app: str) -> AppRecord | None:
        parts = self._parts
        with parts.lock:
            return parts.ingest.transactions.find(app, parts.clock.now_ns())

    return instead(Committing, "_record", record)


@mutant("stages", "commits", by=("stages_kept",))
def aborted_can_be_committed() -> AbstractContextManager[Any]:
    """An abort removes nothing."""
    return instead(Staging, "drop", lambda self, key: False)


@mutant("stages", "commits", by=("stages_kept",))
def finished_attempts_forgotten() -> AbstractContextManager[Any]:
    """A start removes attempts that were finished."""
    return instead(restaging, "_is_finished", lambda files: False)


@mutant("a second copy", "rot", by=("damage_bounded",))
def the_log_is_not_asked() -> AbstractContextManager[Any]:
    """A segment that is found damaged while serving is not rebuilt from the log."""
    return instead(Healing, "_in_log", lambda self, seq: {})


@mutant("a second copy", "rot", by=("damage_bounded",))
def tables_are_not_mended() -> AbstractContextManager[Any]:
    """One damaged place in a segment's tables costs the segment."""
    return instead(salvage, "mend", lambda *_: None)


@mutant("a repair", "rot_log", by=("names_kept",))
def bundles_without_names() -> AbstractContextManager[Any]:
    """The log's bundles don't say what their slots are called: one damaged entry costs the name."""
    return instead(LogEntry, "slot_names", lambda self: {})


@mutant("a repair", "rot_log", by=("keys_kept",))
def repair_forgets_keys() -> AbstractContextManager[Any]:
    """`repair` writes a checkpoint that lists no keys."""

    class Forgetful(KeyRuns):
        def cover(self, records: Sequence[KeyRecord]) -> tuple[KeyRun, ...]:
            return super().cover(())

    return instead(mend, "KeyRuns", Forgetful)


@mutant("damage after damage", "rot", by=("no_false_damage",))
def after_damage_the_floor_stays() -> AbstractContextManager[Any]:
    """Once a store has had damage, the floor does not say any more which segments are deleted."""
    original = Records.keep_floor

    def keep_floor(self: Records, *, log_first: int | None = None) -> None:
        if log_first is not None or not self._parts.disk.listdir("quarantine"):
            original(self, log_first=log_first)

    return instead(Records, "keep_floor", keep_floor)


@mutant("a policy", "age", by=("durable_present",))
def too_old_without_a_record() -> AbstractContextManager[Any]:
    """What an age limit drops is not put on record."""
    return instead(Sweeping, "_put_on_record", lambda self, evictions: None)
