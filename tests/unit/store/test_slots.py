"""Slot names and their ids: given once, kept for ever, or declared and checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from quiver import OTAP_SLOTS
from quiver.disk.disk import Disk
from quiver.errors import (
    InvalidBundle,
    InvalidName,
    KeyConflict,
    LayoutMismatch,
    LimitExceeded,
    WalCorrupt,
)
from quiver.format.state import STATE_NAME, decode_state, encode_state
from quiver.offline.mend import mend
from tests.support.memory_disk import MemoryDisk
from tests.support.stores import World, batch, flipped, number_of

LOG = "wal/quiver.wal"
HEAD = 64
"""Bytes of a log file before its first entry."""


@pytest.mark.parametrize("end", ["restart", "kill", "power_cut"])
def test_names_keep_their_ids(world: World, end: str) -> None:
    """Scenario: two names get ids as they come, the store ends, others come. Guarantee:
    the first two still read under their names, and nobody gets their ids."""
    ref = world.store.put({"B": batch(1), "A": batch(2)}).wait().ref
    getattr(world, end)()
    later = world.store.put({"C": batch(3), "A": batch(4)}).wait().ref
    assert {s: number_of(b) for s, b in world.store.read(ref).items()} == {"B": 1, "A": 2}
    assert {s: number_of(b) for s, b in world.store.read(later).items()} == {"C": 3, "A": 4}


def test_names_outlive_log_and_segments(world: World) -> None:
    """Scenario: everything is finished and deleted, the log retired by a clean close.
    Guarantee: a name's id is still taken."""
    world.store.put({"A": batch(1)}).wait()
    world.store.flush()
    for bundle in world.store.subscribe("x", follow=False):
        bundle.ack()
    world.store.maintain()
    world.restart()
    ref = world.store.put({"B": batch(2)}).wait().ref
    assert set(world.store.read(ref, slots=[1])) == {"B"}, "id 0 belongs to A"


def repaired(world: World) -> None:
    """What an operator does when an open refuses."""
    world.raw.locked.clear()
    mend(Disk(world.raw), world.clock, where="mem")
    world.open()


def without_the_name_entry() -> World:
    """A killed store whose log has lost its first entry, the one that named the slot."""
    world = World()
    world.store.put({"Traces": batch(1)}, key="k").wait()
    world.put_durable(2)  # says that what was before it had been synced
    world.change(LOG, lambda data: flipped(data, HEAD))
    world.raw.locked.clear()
    with pytest.raises(WalCorrupt):
        world.open()
    return world


def test_a_bundle_keeps_its_name_without_the_entry_that_gave_it() -> None:
    """Scenario: one byte of the log rots, in the entry that named a slot; the log is repaired.
    Guarantee: the bundle behind it, which was not touched, is read under the name it was put
    under, and the name's id is not given to another."""
    world = without_the_name_entry()
    repaired(world)
    assert set(world.store.read((0, 0))) == {"Traces"}
    later = world.store.put({"Metrics": batch(3)}).wait().ref
    assert set(world.store.read(later)) == {"Metrics"}
    assert world.store.losses == (), "no bundle is lost"


def test_a_resend_after_a_repair_does_not_conflict_with_itself() -> None:
    """Scenario: the same, and the producer sends the bundle again under its key. Guarantee: a
    duplicate of what can be read, not a conflict."""
    world = without_the_name_entry()
    repaired(world)
    again = world.store.put({"Traces": batch(1)}, key="k").wait()
    assert (again.duplicate, again.ref) == (True, (0, 0))


def test_a_staged_file_keeps_its_names_through_a_repair() -> None:
    """Scenario: a transaction has staged a file; the log entry that named its slot rots, and the
    log is repaired; another name comes; the transaction is staged again or committed. Guarantee:
    its bundles are read under the name they were staged under."""
    world = World()
    with world.store.stage("app", 1, "a") as stage:
        stage.put({"Traces": batch(1)})
        stage.finish()
    world.put_durable(2)
    world.change(LOG, lambda data: flipped(data, HEAD))
    repaired(world)
    world.store.put({"Metrics": batch(3)}).wait()
    world.store.commit("app", 1, ["a"])
    names = {
        number_of(found): name
        for seq, count in world.store.segments()
        for index in range(count)
        for name, found in world.store.read((seq, index)).items()
    }
    assert names == {1: "Traces", 2: "Logs", 3: "Metrics"}


def staged_in_traces() -> World:
    """A finished attempt in slot ``Traces``, of whose name the log knows no more: its entry was
    in the last group, which nothing proves, and rotted.  The open took it for a torn write."""
    world = World()
    with world.store.stage("app", 1, "a") as stage:
        stage.put({"Traces": batch(1)})
        stage.finish()
    world.change(LOG, lambda data: flipped(data, HEAD + 30))
    world.raw.locked.clear()
    assert world.open().report.torn_tails
    return world


def names_of_all(world: World) -> dict[int, str]:
    """The slot of every batch that can be read, by its number."""
    return {
        number_of(found): name
        for seq, count in world.store.segments()
        for index in range(count)
        for name, found in world.store.read((seq, index)).items()
    }


@pytest.mark.parametrize("end", ["restart", "kill", "power_cut"])
def test_a_staged_file_keeps_its_names_when_the_log_is_cut(end: str) -> None:
    """Scenario: the entry that named a staged file's slot is cut off the log; another name comes,
    the attempt is committed, the store ends. Guarantee: its bundles are read under the name they
    were staged under, before and after."""
    world = staged_in_traces()
    world.store.put({"Metrics": batch(2)}).wait()
    world.store.commit("app", 1, ["a"])
    world.store.flush()
    assert names_of_all(world) == {1: "Traces", 2: "Metrics"}
    getattr(world, end)()
    world.store.put({"Events": batch(3)}).wait()
    assert names_of_all(world) == {1: "Traces", 2: "Metrics", 3: "Events"}


def test_a_commit_keeps_its_names_when_the_log_is_cut() -> None:
    """Scenario: the same, and the process dies before anything but the commit was written; then
    another name comes. Guarantee: the committed bundle has its name, and keeps it."""
    world = staged_in_traces()
    world.store.commit("app", 1, ["a"])
    world.kill()
    world.store.put({"Metrics": batch(2)}).wait()
    assert names_of_all(world) == {1: "Traces", 2: "Metrics"}
    world.kill()
    assert names_of_all(world) == {1: "Traces", 2: "Metrics"}


def test_a_damaged_staged_file_keeps_its_names() -> None:
    """Scenario: a commit of two bundles whose slot only the staged file names, and that file is
    damaged before it becomes a segment. Guarantee: what is intact of it has its name."""
    world = World()
    with world.store.stage("app", 1, "a") as stage:
        stage.put({"Traces": batch(1)})
        stage.put({"Traces": batch(2)})
        stage.finish()
    world.change(LOG, lambda data: flipped(data, HEAD + 30))
    world.raw.locked.clear()
    assert world.open().report.torn_tails
    before = world.raw.image()
    world.store.commit("app", 1, ["a"])
    log = {path: data for path, data in world.raw.image().items() if path.startswith("wal/")}
    world = World(MemoryDisk.from_image(before | log, world.raw.directories()))
    (path,) = world.files("stages/")
    at = before[path].index((2000).to_bytes(8, "little"))
    world.change(path, lambda data: flipped(data, at))
    later = world.store.put({"Metrics": batch(3)}).wait().ref
    assert set(world.store.read((0, 0))) == {"Traces"}
    assert set(world.store.read(later)) == {"Metrics"}


def test_a_file_that_names_an_id_otherwise_is_no_reason_to_refuse() -> None:
    """Scenario: a staged file names an id that the checkpoint gives to another slot; the store is
    opened, and repaired. Guarantee: the checkpoint counts, and the store opens both times."""
    world = World()
    with world.store.stage("app", 1, "a") as stage:
        stage.put({"Traces": batch(1)})
        stage.finish()
    world.restart()
    ref = world.store.put({"Metrics": batch(2)}).wait().ref
    world.store.close()
    state = decode_state(world.raw.image()[STATE_NAME])
    assert state.slots == {"Traces": 0, "Metrics": 1}
    changed = replace(state, slots={"Others": 0, "Metrics": 1})
    for path in world.files("wal/"):
        world.change(path, lambda data: None)
    world.change(STATE_NAME, lambda data: encode_state(changed))
    repaired(world)
    assert set(world.store.read(ref)) == {"Metrics"}
    assert world.store.put({"Others": batch(3)}).wait().ref is not None
    world.kill()
    assert set(world.store.read(ref)) == {"Metrics"}


def forgotten_slots(*names: str) -> World:
    """A repaired store that remembers the keys of deleted bundles, and none of their slots: the
    checkpoint that had the ids rotted.  Each bundle has the key of its slot."""
    world = World()
    world.store.register("r")
    for number, name in enumerate(names):
        world.store.put({name: batch(number)}, key=name).wait()
    world.store.put({one: batch(9) for one in names}, key="all").wait()
    world.store.flush()
    for bundle in world.store.subscribe("r", follow=False):
        bundle.ack()
    world.store.maintain()
    assert world.store.segments() == []
    world.store.close()
    assert world.files("keys/")
    world.change(STATE_NAME, lambda data: flipped(data, len(data) // 2))
    repaired(world)
    return world


def test_a_retry_is_no_conflict_when_its_slot_has_another_id_by_now() -> None:
    """Scenario: the checkpoint rots, and a repair keeps the keys of deleted bundles; their slots
    come again in another order, and so have other ids. Guarantee: a retry of the same content is
    a duplicate; other content, and the same rows in another slot, are a conflict."""
    world = forgotten_slots("A", "B", "C")
    for number, name in ((2, "C"), (1, "B"), (0, "A")):
        assert world.store.put({name: batch(number)}, key=name).wait().duplicate
    again = {one: batch(9) for one in ("C", "A", "B")}
    assert world.store.put(again, key="all").wait().duplicate
    with pytest.raises(KeyConflict):
        world.store.put({"A": batch(5)}, key="A")
    with pytest.raises(KeyConflict):
        world.store.put({"B": batch(0)}, key="A")


def test_a_retry_by_number_is_a_duplicate_when_the_number_has_a_name_by_now(world: World) -> None:
    """Scenario: a keyed bundle is put by number, consumed and deleted; after a restart a new name
    is given that number. Guarantee: a retry by number is a duplicate, by that name as well."""
    world.store.register("r")
    world.store.put({0: batch(1)}, key="k").wait()
    world.store.flush()
    for bundle in world.store.subscribe("r", follow=False):
        bundle.ack()
    world.store.maintain()
    world.restart()
    ref = world.store.put({"A": batch(2)}).wait().ref
    assert set(world.store.read(ref, slots=[0])) == {"A"}
    assert world.store.put({0: batch(1)}, key="k").wait().duplicate
    assert world.store.put({"A": batch(1)}, key="k").wait().duplicate
    with pytest.raises(KeyConflict):
        world.store.put({0: batch(2)}, key="k")


def test_a_declared_table_is_all_there_is() -> None:
    """Scenario: OTAP's table is declared. Guarantee: its names have its ids, any other name
    is refused, and nothing of the refused bundle is kept."""
    world = World(slots=OTAP_SLOTS)
    ref = world.store.put({"Logs": batch(1), "LogAttrs": batch(2)}).wait().ref
    assert set(world.store.read(ref, slots=[30])) == {"Logs"}
    with pytest.raises(InvalidBundle):
        world.store.put({"Logs": batch(), "Nope": batch()})
    assert world.store.segments() == [(0, 1)]


def test_another_table_refuses_the_log() -> None:
    """Scenario: a directory is opened with another declared table. Guarantee: refused with
    advice, and the first table still opens it with everything in it."""
    world = World(slots={"Logs": 1})
    world.put_durable(5)
    with pytest.raises(LayoutMismatch) as caught:
        world.kill(slots={"Logs": 2})
    assert caught.value.advice
    world.kill(slots={"Logs": 1})
    assert world.drain() == [5]


def test_a_slot_may_be_given_by_number(world: World) -> None:
    """Scenario: slots by number, next to names. Guarantee: they don't collide, unnamed
    ones are shown by number, and giving one twice is refused."""
    mixed: dict[str | int, Any] = {"A": batch(1), 0: batch(2), 63: batch(3)}
    ref = world.store.put(mixed).wait().ref
    found = {s: number_of(b) for s, b in world.store.read(ref).items()}
    assert found == {"slot0": 2, "A": 1, "slot63": 3}
    with pytest.raises(InvalidBundle, match="twice"):
        world.store.put({**mixed, 1: batch(2)})


@pytest.mark.parametrize("name", ["", "a/b", "x" * 65, "con"])
def test_bad_names_are_refused(world: World, name: str) -> None:
    """Scenario: a slot name that could not stand in a file name. Guarantee: refused."""
    with pytest.raises(InvalidName):
        world.store.put({name: batch()})


@pytest.mark.parametrize("slot", [-1, 64, True, None, 1.5])
def test_bad_numbers_are_refused(world: World, slot: object) -> None:
    """Scenario: a slot id out of range, or no id at all. Guarantee: refused, typed."""
    with pytest.raises((InvalidBundle, LimitExceeded)):
        world.store.put({slot: batch()})  # type: ignore[arg-type]


def test_the_65th_name_is_refused(world: World) -> None:
    """Scenario: 64 names are taken, one more comes. Guarantee: a typed error that names
    the limit; the 64 go on working."""
    world.store.put({f"s{n}": batch() for n in range(64)}).wait()
    with pytest.raises(LimitExceeded, match="64"):
        world.store.put({"one-more": batch()})
    world.store.put({"s3": batch()}).wait()


def test_a_refused_bundle_uses_up_no_id(world: World) -> None:
    """Scenario: bundles with new names are refused for their size, for a bad attribute and
    for a bad hash. Guarantee: none of the names got an id."""
    big = world.store.config.limits.max_attributes_bytes + 1
    for n, options in enumerate(
        ({"attributes": {"a": "x" * big}}, {"key": ""}, {"fingerprints": {f"bad{2}": b"short"}})
    ):
        with pytest.raises((LimitExceeded, InvalidBundle)):
            world.store.put({f"bad{n}": batch()}, **options)  # type: ignore[arg-type]
    ref = world.store.put({"first": batch(9)}).wait().ref
    assert set(world.store.read(ref, slots=[0])) == {"first"}


def test_many_schemas_in_one_slot(world: World) -> None:
    """Scenario: a slot's schema changes inside a segment and back. Guarantee: one segment
    holds them all, and each reads back as it was put."""
    batches = [
        pa.record_batch({"a": pa.array([1], pa.int32())}),
        pa.record_batch({"a": pa.array([1], pa.int64()), "b": ["x"]}),
        pa.record_batch({"a": pa.array([2], pa.int32())}),
    ]
    refs = [world.store.put({"Logs": b}).wait().ref for b in batches]
    world.store.flush()
    assert {ref.segment_seq for ref in refs} == {0}
    for ref, wanted in zip(refs, batches, strict=True):
        assert world.store.read(ref)["Logs"].equals(wanted, check_metadata=True)
