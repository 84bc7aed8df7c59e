"""Transactions in a workload: who stages, finishes, commits and aborts, on the record.

:class:`Desk` makes the calls for a :class:`~tests.crash.world.World` and writes the notes.
It also watches, record by record, that a commit is never seen in part by a running store,
and that no staged file goes without a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from quiver.errors import Busy, StageNotFound, StorageFault
from quiver.format.segment.stage import STAGES, StageKey
from quiver.ids import BundleRef
from quiver.transaction.stage import Stage
from tests.crash import notes as o
from tests.crash.invariants import Violation, same_slots
from tests.crash.oracle import Put, Slots
from tests.support.oplog import Unlink

if TYPE_CHECKING:
    from tests.crash.disk import Record
    from tests.crash.world import World

SEEN_TOGETHER: Final = "seen_together"
STAGE_KEPT: Final = "finished_kept"


class Desk:
    """One world's transactions."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._names = 0
        self._calling: tuple[str, int] | None = None
        """The transaction that a call in progress may remove stages of."""
        self._broken: Violation | None = None
        self.open: dict[StageKey, Stage] = {}

    def restarted(self) -> None:
        """Another process: what was not finished is gone."""
        self.open = {}
        self._calling = None

    # Calls

    def stage(self, app: str, version: int, bundles: Sequence[Slots]) -> StageKey | None:
        """Begin an attempt and put into it."""
        world = self._world
        self._names += 1
        key = StageKey(app, version, f"a{self._names}.{len(world.oracle.puts)}")
        world.note(o.Begun(key))
        try:
            stage = world.store.stage(*key)
        except (Busy, StorageFault):
            world.note(o.StageGone(key))
            return None
        self.open[key] = stage
        for slots in bundles:
            self._put(stage, slots)
        return key

    def _put(self, stage: Stage, slots: Slots) -> None:
        world = self._world
        number = max(world.oracle.puts, default=-1) + 1
        world.note(o.StagedPut(stage.key, Put(number, slots, None, {})))
        try:
            stage.put(slots)
        except (Busy, StorageFault, StageNotFound):
            world.note(o.Failed(number))
        self._done()

    def finish(self, key: StageKey) -> None:
        world, stage = self._world, self.open[key]
        world.note(o.Finishing(key))
        try:
            staged = stage.finish()
        except StageNotFound:  # it has expired
            del self.open[key]
            world.note(o.StageGone(key))
        except (Busy, StorageFault):
            pass
        else:
            del self.open[key]
            world.note(o.StageFinished(key, world.clock.now_ns()))
            expected = len(world.oracle.bundles_of(key))
            if staged.bundles != expected:
                raise Violation(STAGE_KEPT, f"{key} has {staged.bundles} bundles, not {expected}")
        self._done()

    def discard(self, key: StageKey) -> None:
        world = self._world
        world.note(o.StageLeaving(key))
        self._calling = (key.app, key.version)
        try:
            self.open.pop(key).discard()
        except (Busy, StorageFault):
            return
        finally:
            self._done()
        world.note(o.StageGone(key))

    def commit(self, app: str, version: int, attempts: tuple[str, ...]) -> None:
        """Commit; what was committed before must say so, and nothing else may."""
        world, transaction = self._world, (app, version)
        before = world.oracle.committed(app)
        asked = world.oracle.commitments.get(transaction)
        world.note(o.CommitAsked(transaction, attempts))
        self._calling = transaction
        try:
            answer = world.store.commit(app, version, attempts)
        except StageNotFound as error:
            keys = [StageKey(*transaction, name) for name in attempts]
            if all(world.oracle.attempts[key].is_kept for key in keys):
                raise Violation(STAGE_KEPT, str(error)) from error
            world.note(o.CommitFailed(transaction))
            return
        except Busy:
            if asked is None or asked.phase != "asked":
                world.note(o.CommitFailed(transaction))
            return
        except StorageFault:
            return
        finally:
            self._done()
        repeated = before is not None and version <= before
        if answer.repeated is not repeated and not (asked is not None and asked.phase == "asked"):
            raise Violation(
                "versions_remembered", f"{transaction} behind {before} was answered {answer}"
            )
        if not repeated:
            world.note(o.CommitAnswered(transaction))
            self._done()

    def abort(self, app: str, version: int) -> None:
        world = self._world
        keys = [k for k in world.oracle.attempts if (k.app, k.version) == (app, version)]
        committed = world.oracle.committed(app)
        for key in keys:
            world.note(o.StageLeaving(key))
        self._calling = (app, version)
        try:
            world.store.abort(app, version)
        except (Busy, StorageFault):
            return
        finally:
            self._done()
        if committed is None or version > committed:
            for key in keys:
                self.open.pop(key, None)
                world.note(o.StageGone(key))

    # What the running store does

    def _done(self) -> None:
        self._calling = None
        self._world.after()
        if self._broken is not None:
            raise self._broken

    def after(self) -> None:
        """Note where a commit's bundles went, and which stages have expired."""
        world = self._world
        for transaction, commitment in world.oracle.commitments.items():
            if commitment.phase == "answered" and not commitment.placed:
                self._place(transaction)
        there = {(i.app, i.version, i.attempt) for i in world.store.stages()}
        for key, attempt in list(world.oracle.attempts.items()):
            if attempt.phase == "leaving" and key not in there and attempt.expired:
                self.open.pop(key, None)
                world.note(o.StageGone(key))

    def _place(self, transaction: tuple[str, int]) -> None:
        found = self._segments_of(transaction)
        numbers = self._world.oracle.winners_of(transaction)
        if sum(found.values()) != len(numbers):
            return
        segments, names = self._world.store._parts.segments, self._world.store._parts.slots.names
        left = {number: self._world.oracle.puts[number] for number in numbers}
        places: dict[int, tuple[BundleRef, int, int]] = {}
        for seq in sorted(found):
            reader = segments.reader(seq)
            for index in range(len(reader)):
                slots = {names[slot]: batch for slot, batch in reader.read(index).items()}
                same = [n for n, put in left.items() if same_slots(slots, put.slots)]
                if not same:
                    raise Violation("no_phantom", f"{seq}.{index} is nothing that was staged")
                meta = reader.meta(index)
                ref = BundleRef(seq, index)
                places[same[0]] = (ref, meta.sequence or 0, meta.ingestion_ts_ns or 0)
                del left[same[0]]
        self._world.note(o.CommitPlaced(transaction, places))

    def _segments_of(self, transaction: tuple[str, int]) -> dict[int, int]:
        """Segments of a transaction that can be seen, with their bundles."""
        store = self._world.store
        infos = {info.seq: info for info in store._parts.segments.infos()}
        return {
            seq: count
            for seq, count in store.segments()
            if seq in infos and infos[seq].transaction == transaction
        }

    def watch(self, record: Record) -> None:
        """Told of each record before it counts."""
        if isinstance(record, Unlink) and record.path.startswith(f"{STAGES}/"):
            self._removed(record.path)
        for transaction, commitment in self._world.oracle.commitments.items():
            if commitment.phase in ("asked", "answered") and not commitment.placed:
                seen = sum(self._segments_of(transaction).values())
                whole = len(self._world.oracle.winners_of(transaction))
                if seen not in (0, whole):
                    self._broken = self._broken or Violation(
                        SEEN_TOGETHER, f"{seen} of {whole} bundles of {transaction} are seen"
                    )

    def _removed(self, path: str) -> None:
        world = self._world
        name = path.rpartition("/")[2]
        for key, attempt in list(world.oracle.attempts.items()):
            if not name.startswith(key.id.hex()) or not attempt.is_kept:
                continue
            if (key.app, key.version) == self._calling or world.oracle.is_over(key):
                continue
            ttl = world.config.transactions.stage_ttl * 1e9
            if world.clock.now_ns() - attempt.since > ttl:
                world.note(o.StageLeaving(key, expired=True))
            else:
                self._broken = self._broken or Violation(
                    STAGE_KEPT, f"{key} is removed before its time"
                )
