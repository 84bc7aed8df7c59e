"""Idempotency keys through a repair: what can be read is still known, what is lost can be sent
again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quiver.disk.disk import Disk
from quiver.format.keys import decode_run
from quiver.format.state import STATE_NAME, decode_state, encode_state
from quiver.ids import BundleRef
from quiver.ingest.receipt import DuplicateReceipt
from quiver.offline.mend import mend
from quiver.record.key_runs import KeyRuns
from quiver.segment.info import segment_path
from tests.support.segments import data_of
from tests.support.stores import World, ack_all, flipped

Refs = dict[int, BundleRef]


def keyed(*segments: int, subscriber: bool = True, **settings: Any) -> tuple[World, Refs]:
    """A store that was killed, with so many keyed bundles in each segment."""
    world, refs = World(**settings), Refs()
    if subscriber:
        world.store.subscribe("s", follow=False)
    for count in segments:
        receipts = [world.put(n, key=f"k{n}") for n in range(len(refs), len(refs) + count)]
        world.store.flush()
        for receipt in receipts:
            refs[len(refs)] = receipt.wait().ref
    world.kill()
    world.raw.locked.clear()
    return world, refs


def repair(world: World) -> None:
    world.raw.locked.clear()
    mend(Disk(world.raw), world.clock, where="mem")


def rot(world: World, path: str, at: int) -> None:
    world.change(path, lambda data: flipped(data, at))


def stored_again(world: World, refs: Refs) -> list[int]:
    """Send everything again: those that were stored, not known; the others have their refs."""
    world.open()
    again = []
    for number, ref in refs.items():
        receipt = world.put(number, key=f"k{number}")
        receipt.wait()
        if isinstance(receipt, DuplicateReceipt):
            assert receipt.ref == ref
        else:
            again.append(number)
    return again


def place_in_log(world: World, number: int) -> int:
    """Where the log has the rows of a bundle."""
    return world.raw.image()["wal/quiver.wal"].index((number * 1000).to_bytes(8, "little"))


def test_without_a_log_segments_have_the_newest_keys() -> None:
    """Scenario: a store without a log is killed, then a byte of its second segment rots.
    Guarantee: a repair remembers every key but that of the bundle that is lost."""
    world, refs = keyed(3, 3, durability="segment_only")
    rot(world, segment_path(1), data_of(Disk(world.raw), 1, 0))
    repair(world)
    assert stored_again(world, refs) == [3]


def test_a_key_whose_log_entry_is_damaged() -> None:
    """Scenario: a byte of a log entry rots, its bundle is in a segment already. Guarantee: a
    repair takes the key from the segment."""
    world, refs = keyed(3, 3)
    rot(world, "wal/quiver.wal", place_in_log(world, 1))
    repair(world)
    assert stored_again(world, refs) == []


def test_keys_of_a_segment_that_is_written_again() -> None:
    """Scenario: a key run and a byte of a segment's tables rot. Guarantee: a repair takes the
    keys from what is intact of the segment, which is everything."""
    world, refs = keyed(3, 3)
    world.open().close()
    (run,) = world.files("keys/")
    world.change(run, flipped)
    size = len(world.raw.image()[segment_path(0)])
    rot(world, segment_path(0), size - 1200)
    repair(world)
    assert stored_again(world, refs) == []


def test_a_wide_window_is_kept() -> None:
    """Scenario: more keys are remembered than a window has by default. Guarantee: a repair that
    is due to something else keeps them all."""
    wide = 70_000
    world, refs = keyed(1, durability="segment_only", idempotency={"window_count": wide})
    world.open().close()
    disk = Disk(world.raw)
    state = decode_state(disk.read(STATE_NAME))
    (record,) = decode_run(disk.read(state.keys[0].path), state.keys[0])
    records = [record._replace(key=f"k{n}", sequence=n) for n in range(wide)]
    state = replace(state, keys=KeyRuns(disk, ()).cover(records), through=wide)
    disk.replace(STATE_NAME, encode_state(state))
    world.change("segments/quiver.segment.seq", flipped)
    repair(world)
    world.open()
    for number in (0, wide - 1):
        receipt = world.put(0, key=f"k{number}")
        assert isinstance(receipt, DuplicateReceipt)
        assert receipt.ref == refs[0]


def test_keys_of_deleted_segments_outlive_the_checkpoint() -> None:
    """Scenario: everything is finished and deleted, then the checkpoint rots. Guarantee: a
    repair reads the key runs, though nothing lists them any more."""
    world, refs = keyed(3, 3)
    world.open()
    ack_all(world.store, "s")
    world.store.close()
    assert not world.files("segments/0")
    world.change(STATE_NAME, flipped)
    repair(world)
    assert stored_again(world, refs) == []


def in_log_only() -> tuple[World, Refs]:
    """Four keyed bundles that only the log has, and a checkpoint that has all their keys."""
    world, refs = keyed(2)
    world.open()
    refs |= {n: world.put(n, key=f"k{n}").wait().ref for n in (2, 3)}
    world.store.subscribe("later", follow=False)
    return world, refs


def test_a_key_whose_bundle_is_lost_with_the_end_of_the_log() -> None:
    """Scenario: the newest log entry rots; nothing is behind it, so no row can name the bundle,
    but the checkpoint has its key. Guarantee: after a repair the producer can send it again."""
    world, refs = in_log_only()
    rot(world, "wal/quiver.wal", place_in_log(world, 3))
    repair(world)
    assert stored_again(world, refs) == [3]


def test_a_key_whose_bundle_was_finished() -> None:
    """Scenario: the same, but all subscribers had finished the bundle. Guarantee: it is not lost,
    and a repeat is still known."""
    world, refs = in_log_only()
    for name in ("s", "later"):
        ack_all(world.store, name)
    world.store.flush_progress()
    rot(world, "wal/quiver.wal", place_in_log(world, 3))
    repair(world)
    assert stored_again(world, refs) == []
