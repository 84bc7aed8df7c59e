"""The checkpoint: what outlives the log, who the store is, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest

from quiver.clock import ManualClock
from quiver.disk.disk import Disk
from quiver.errors import BundleGone, KeyConflict, StateCorrupt, UnsupportedVersion
from quiver.events import BUNDLE_RESENT
from quiver.format.crc import crc32
from quiver.format.floor import FLOOR_PATH, Floor, decode_floor, encode_floor, gone_below
from quiver.format.keys import KEYS, KeyRun
from quiver.format.state import (
    STATE_NAME,
    Adoption,
    AppRecord,
    Checkpoint,
    Gap,
    Loss,
    decode_state,
    encode_state,
)
from quiver.format.wal.commit import Commit
from quiver.ids import BundleRef
from quiver.metrics import INGEST_DUPLICATES, INGEST_RESENT
from quiver.offline.mend import mend
from quiver.offline.repair import RepairPlan
from quiver.offline.verify import verify
from quiver.record.app_versions import record_of
from quiver.record.ledger import Ledger
from quiver.segment.info import segment_path
from quiver.wal.reader import read_log
from tests.support.memory_disk import MemoryDisk
from tests.support.stores import World, batch, flipped, payload

FAR: Final = 1 << 40
SMALL: Final[dict[str, Any]] = {
    "wal": {"rotation_target": 2048, "max_size": 24576, "max_rotated_files": 9},
    "segment": {"target_size": 4096, "max_bundles": 4},
    "limits": {"max_bundle": 2048, "max_unsynced": 4096},
}
FULL: Final = Checkpoint(
    through=9,
    last_ts=8,
    uuid="00" * 16,
    store_time={"store_ns": 5, "wall_ns": 6},
    slots={"Logs": 0},
    subscribers=("a",),
    losses=(
        Loss(1, 2, 3, "damaged", 4, {"a": 2}, ((0, 1), (4, 5)), exact=False),
        Loss(2, 3, 4, "size", 5, {}),
        Loss(3, 1, 4, "damaged", 5, {}, ()),
    ),
    loss_totals={"size.bundles": 3},
    adoption=Adoption(3, (4, 5)),
    transactions=(AppRecord("app", 7, 1, 2, 3, 4, 5, 6, ("Logs", "Spans"), (5, 3)),),
    keys=(KeyRun(1, 4, 3), KeyRun(5, 8, 4)),
    producers=({"name": "p", "epoch": 1, "sequence": 2},),
    gaps=(Gap((10, FAR), (3, FAR), "restore"),),
    bundle_counts={0: 3, 1: 1, 4: 2},
)


def with_document(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A checkpoint whose JSON was changed, with a checksum that fits."""
    document = json.loads(data[40:-4])
    change(document)
    text = json.dumps(document).encode()
    body = data[:32] + len(text).to_bytes(4, "little") + data[36:40] + text
    return body + crc32(body).to_bytes(4, "little")


def state_of(world: World) -> Checkpoint:
    return decode_state(world.raw.image()[STATE_NAME])


# The file


def test_everything_comes_back() -> None:
    """Scenario: a checkpoint with every member, those included that only a later version uses.
    Guarantee: what is decoded is what was encoded."""
    assert decode_state(encode_state(FULL)) == FULL
    assert decode_state(encode_state(Checkpoint())) == Checkpoint()


def test_unknown_members_are_ignored_and_unknown_needs_refused() -> None:
    """Scenario: a later version adds a member, and names it in `needs` or doesn't. Guarantee:
    unnamed it is ignored; named it is refused by that name, and is no damage."""
    data = encode_state(FULL)
    assert decode_state(with_document(data, lambda d: d.update(later=[1]))) == FULL
    with pytest.raises(UnsupportedVersion, match="'branches'"):
        decode_state(with_document(data, lambda d: d.update(later=[1], needs=["branches"])))
    body = data[:8] + (3).to_bytes(2, "little") + data[10:-4]
    with pytest.raises(UnsupportedVersion, match="version 3"):
        decode_state(body + crc32(body).to_bytes(4, "little"))


@pytest.mark.parametrize("name", [*json.loads(encode_state(FULL)[40:-4])])
def test_a_member_of_another_kind_is_damage(name: str) -> None:
    """Scenario: a member is missing, or of another kind, under a good checksum. Guarantee:
    `StateCorrupt`."""
    data = encode_state(FULL)
    wrong: tuple[Any, ...] = (7, "text", True, {"a": "b"}, [[]], [7.5], {"a": None})
    for value in wrong:
        changed = with_document(data, partial(dict.update, **{name: value}))
        with pytest.raises(StateCorrupt):
            decode_state(changed)
    with pytest.raises(StateCorrupt):
        decode_state(with_document(data, lambda d: d.pop(name)))


def test_a_store_with_an_unknown_need_is_left_alone(world: World) -> None:
    """Scenario: a directory whose checkpoint needs something of a later version. Guarantee:
    opening and verifying refuse it by name, and no byte is changed."""
    world.put_durable(1)
    world.restart()
    world.store.close()
    world.change(STATE_NAME, lambda data: with_document(data, lambda d: d.update(needs=["x"])))
    before = world.raw.image()
    with pytest.raises(UnsupportedVersion, match="'x'"):
        world.open()
    assert "'x'" in verify(Disk(world.raw)).newer[0]
    after = world.raw.image()
    assert {k: v for k, v in after.items() if k != "LOCK"} == {
        k: v for k, v in before.items() if k != "LOCK"
    }


def test_a_commit_is_remembered_with_its_slots() -> None:
    """Scenario: a commit names its slots, as those of a later version may. Guarantee: the record
    that outlives its log entry names them too."""
    record = record_of(Commit("app", 3, 7, 123, 5, (), ("Logs", "Spans")))
    assert record.slots == ("Logs", "Spans")
    state = Checkpoint(transactions=(record,))
    assert decode_state(encode_state(state)) == state


# Who the store is


@pytest.mark.parametrize("durability", ["wal", "segment_only"])
@pytest.mark.parametrize("end", ["restart", "kill", "power_cut"])
def test_a_store_has_one_uuid_for_life(end: str, durability: str) -> None:
    """Scenario: a store ends in any way, is used, ends again. Guarantee: its uuid was durable
    before the first put and stays; another store has another."""
    world = World(durability=durability)
    first = world.open().uuid
    assert len(bytes.fromhex(first)) == 16
    getattr(world, end)()
    world.put_durable(1)
    assert world.store.uuid == first
    getattr(world, end)()
    assert world.store.uuid == first
    assert World().open().uuid != first


def test_the_uuid_outlives_repair_and_the_end_of_the_log(world: World) -> None:
    """Scenario: a store goes on without its log; another is repaired. Guarantee: the uuid stays;
    only where the checkpoint itself is lost there is a new one."""
    world.put_durable(1)
    first = world.store.uuid
    assert world.kill(durability="segment_only").uuid == first
    world.store.close()
    world.change(FLOOR_PATH, lambda data: None)
    mend(Disk(world.raw), ManualClock(), where="mem")
    assert world.open().uuid == first
    world.store.close()
    world.change(STATE_NAME, flipped)
    assert any("new uuid" in action.what for action in RepairPlan(Disk(world.raw)).actions)
    mend(Disk(world.raw), ManualClock(), where="mem")
    other = world.open().uuid
    assert other
    assert other != first
    assert world.restart().uuid == other


# What goes with the log


def test_a_name_that_comes_during_a_checkpoint_stays_in_the_log() -> None:
    """Scenario: while the checkpoint is being written, a put brings a new slot name: its entry
    is the last of the old log file, its bundle the first of the next. Then the old file could
    be retired, since all its bundles are in segments. Guarantee: after a crash the bundle has
    its name."""
    world = World(**SMALL)
    store = world.store
    disk = store._parts.disk
    put: list[BundleRef] = []
    replace_file = disk.replace

    def during(path: str, data: Any) -> None:
        if path == STATE_NAME and not put:
            put.append(store.put({"Traces": payload(1300, 7)}).wait().ref)
        replace_file(path, data)

    disk.replace = during  # type: ignore[method-assign]
    for n in range(2):  # each takes most of a log file: a name fits behind it, a bundle doesn't
        store.put({"Logs": payload(1300, n)}).wait()
    store.flush()
    assert put
    world.power_cut()
    assert set(world.store.read(put[0])) == {"Traces"}


def test_a_key_is_not_retired_before_its_run(world: World) -> None:
    """Scenario: keyed puts over many log files, each acked and retired, the machine cut at the
    end. Guarantee: few run files, all named by the checkpoint, and every key is known."""
    world.open(**SMALL)
    refs = {}
    for n in range(40):
        refs[n] = world.put(n, key=f"k{n}").wait().ref
        world.store.flush()
        world.drain()
        world.store.maintain()
    listed = state_of(world).keys
    assert sum(run.count for run in listed) >= 30
    assert world.files(f"{KEYS}/") == [run.path for run in listed]
    assert len(listed) <= 7
    world.power_cut()
    assert {n: world.put(n, key=f"k{n}").ref for n in range(40)} == refs


def test_runs_that_nothing_names_are_removed(world: World) -> None:
    """Scenario: files of an interrupted checkpoint lie in `keys/`. Guarantee: the next open
    deletes them and keeps what the checkpoint lists."""
    world.put(1, key="k").wait()
    world.restart()
    world.store.close()
    listed = world.files(f"{KEYS}/")
    files = world.raw.image()
    stray = KeyRun(7, 9, 2).path
    files |= {stray: files[listed[0]], f"{stray}.tmp": b"half"}
    world.raw = MemoryDisk.from_image(files, world.raw.directories())
    world.open()
    assert world.files(f"{KEYS}/") == listed
    assert world.put(1, key="k").duplicate


@pytest.mark.parametrize("edit", [flipped, lambda data: None, lambda data: data[:30]])
def test_a_damaged_run_refuses_until_it_is_repaired(
    world: World, edit: Callable[[bytes], bytes | None]
) -> None:
    """Scenario: a run of 20 keys is damaged, cut or missing; the bundles of some are gone, those
    of others are still in segments. Guarantee: the open refuses and changes nothing, `verify`
    names the file, `repair` sets it aside, says what is forgotten, and finds what segments know."""
    world.open(segment={"max_bundles": 10})
    refs = [world.put(n, key=f"k{n}").wait().ref for n in range(10)]
    world.store.flush()
    world.drain()
    world.store.maintain()
    refs += [world.put(n, key=f"k{n}").wait().ref for n in range(10, 20)]
    world.restart()
    world.store.close()
    [run] = state_of(world).keys
    assert run.count == 20
    world.change(run.path, edit)
    before = world.raw.image()
    with pytest.raises(StateCorrupt, match=run.name):
        world.open()
    assert world.raw.image().keys() == before.keys()
    assert [problem.file for problem in verify(Disk(world.raw)).problems] == [run.path]
    world.raw.locked.clear()
    [action] = RepairPlan(Disk(world.raw)).actions
    assert action.file == run.path
    assert "20 idempotency keys" in action.what
    mend(Disk(world.raw), ManualClock(), where="mem")
    assert verify(Disk(world.raw)).sound
    store = world.open()
    assert [world.put(n, key=f"k{n}").ref for n in range(10, 20)] == refs[10:]
    assert not world.put(0, key="k0").duplicate
    assert store.report.lost == ()


# What was lost comes back


def lose_segment(world: World) -> BundleRef:
    """A keyed bundle in a segment that is damaged and that the log has no more."""
    world.store.subscribe("reader")
    ref = world.put(1, key="k").wait().ref
    world.store.flush()
    world.restart()
    world.store.close()
    world.change(segment_path(ref.segment_seq), lambda data: flipped(data, body_of(data)))
    world.open()
    with pytest.raises(BundleGone):
        world.store.read(ref)
    return ref


def body_of(segment: bytes) -> int:
    """Where the values of the one batch in a segment are."""
    message = batch(1).serialize().to_pybytes()
    return segment.index(message) + len(message) - 64


def test_a_repeat_of_a_lost_bundle_is_stored(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario: a segment is damaged and its bundles go on record as lost; the producer sends
    one of them again under its key. Guarantee: it is stored, `ok` with a new ref, delivered, and
    counted; a further repeat is a duplicate of the new one, also after a crash; other content
    under the key is still refused."""
    lost = lose_segment(world)
    with pytest.raises(KeyConflict):
        world.put(2, key="k")
    again = world.put(1, key="k").wait()
    assert not again.duplicate
    assert again.ref != lost
    assert world.store.metrics.counter(INGEST_RESENT).value == 1
    assert world.store.metrics.counter(INGEST_DUPLICATES).value == 0
    assert any(BUNDLE_RESENT in record.getMessage() for record in caplog.records)
    assert world.put(1, key="k").ref == again.ref
    world.power_cut()
    assert world.put(1, key="k").ref == again.ref
    assert world.drain() == [1]
    world.restart()
    assert world.put(1, key="k").ref == again.ref


def test_what_a_policy_dropped_does_not_come_back() -> None:
    """Scenario: `drop_oldest` deletes a segment that a subscriber has not finished, on record; a
    late retry of one of its bundles comes. Guarantee: it is a repeat: the policy decided."""
    ledger = Ledger([Loss(4, 3, 9, "size", 1, {"a": 3})])
    assert ledger.covers(BundleRef(4, 1))
    assert not ledger.has_lost(BundleRef(4, 1))


def test_the_ledger_names_bundles() -> None:
    """Scenario: several rows for one segment, some with ranges, one that names none. Guarantee:
    exactly what they name is covered."""
    ledger = Ledger(
        [
            Loss(4, 3, 0, "damaged", 1, {}, ((0, 2), (5, 6))),
            Loss(4, 1, 0, "damaged", 2, {}, ((8, 9),)),
            Loss(5, 9, 0, "damaged", 3, {}),
            Loss(6, 9, 0, "damaged", 3, {}, ()),
        ]
    )
    assert [i for i in range(10) if ledger.covers(BundleRef(4, i))] == [0, 1, 5, 8]
    assert [i for i in range(10) if ledger.has_lost(BundleRef(4, i))] == [0, 1, 5, 8]
    assert all(ledger.covers(BundleRef(5, i)) for i in range(10))
    assert not any(ledger.covers(BundleRef(seq, 0)) for seq in (3, 6))


# A restore's gap


@pytest.mark.parametrize("floored", [True, False], ids=["the floor ends behind it", "before it"])
def test_a_gap_of_a_restore_is_no_loss(floored: bool) -> None:
    """Scenario: a directory as a restore writes it: segments, no log, and a gap of 2^40 numbers
    behind them in which the old host may have gone on. A segment before it is missing, too.
    Guarantee: it opens and verifies, the gap counts for nothing, the missing segment for its own
    bundles, and what is put comes behind the gap; again after a crash."""
    world = World(durability="segment_only")
    refs = world.sealed(1, 2) + world.sealed(3)
    lost = world.sealed(4, 5)
    world.store.close()
    files = world.raw.image()
    state = decode_state(files[STATE_NAME])
    floor = decode_floor(files[FLOOR_PATH])
    used = {int(path[9:25]) for path in files if path.endswith(".qseg")}
    end = max(used) + 1
    gap = Gap((state.through, state.through + FAR), (end, end + FAR), "restore")
    files[STATE_NAME] = encode_state(replace(state, gaps=(gap,)))
    at = end + FAR if floored else end
    files[FLOOR_PATH] = encode_floor(
        replace(floor, next_segment=at, replay_floor=at, gone=gone_below(at, used))
    )
    del files[segment_path(lost[0].segment_seq)]
    world.raw = MemoryDisk.from_image(files, world.raw.directories())
    assert len(verify(Disk(world.raw)).problems) == 1
    world.raw.locked.clear()
    store = world.open()
    assert [(loss.segment_seq, loss.bundles) for loss in store.report.lost] == [
        (lost[0].segment_seq, 2)
    ]
    assert [world.number_at(ref) for ref in refs] == [1, 2, 3]
    new = world.put(6).wait()
    assert new.ref.segment_seq >= end + FAR
    assert new.sequence >= state.through + FAR
    world.power_cut(durability="wal")
    assert world.store.report.lost == ()
    after = world.put(7).wait()
    assert after.sequence > new.sequence
    world.power_cut()
    assert world.drain() == [1, 2, 3, 6, 7]
    assert state_of(world).gaps == (gap,)


@pytest.mark.parametrize("ahead", [-1, 0, 7])
def test_a_gap_behind_a_log(ahead: int) -> None:
    """Scenario: a restore adds its gap to a directory with a log that ends in the gap, at it or
    some sequences before it. Guarantee: it opens, what is put comes behind the gap, and after
    crashes and restarts everything is there and verifies."""
    world = World()
    world.sealed(0, 1)
    world.put_durable(2)
    world.store.close()
    files = world.raw.image()
    state = decode_state(files[STATE_NAME])
    end = read_log(Disk(world.raw), layout_hash=None).next_sequence
    gap = Gap((end + ahead, end + FAR), (2, 2 + FAR), "restore")
    files[STATE_NAME] = encode_state(replace(state, gaps=(gap,)))
    world = World(MemoryDisk.from_image(files, world.raw.directories()))
    new = world.put(3).wait()
    assert new.sequence >= end + FAR
    assert new.ref.segment_seq >= 2 + FAR
    world.power_cut()
    world.put_durable(4)
    world.power_cut()
    assert verify(Disk(world.raw)).sound
    world.restart()
    assert world.drain() == [0, 1, 2, 3, 4]
    assert world.store.status().losses == ()


def test_missing_numbers_of_a_floor_with_gaps() -> None:
    """Scenario: gaps that lie before, across and behind deleted ranges. Guarantee: only numbers
    in neither are missing, and no gap is counted through."""
    floor = Floor(40, 30, ((5, 10), (20, 25)))
    assert floor.missing([0, 1, 2, 3, 4, 10]) == [*range(11, 20), *range(25, 30)]
    gaps = [(8, 12), (18, 22), (28, FAR)]
    assert floor.missing([0, 1, 2, 3, 4], gaps) == [*range(12, 18), 25, 26, 27]
