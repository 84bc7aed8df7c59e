"""Putting a bundle: an answer at once, durable after waiting, back as it was."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiver import BundleRef
from quiver.errors import StoreClosed, UnknownBundle, WaitTimeout
from quiver.metrics import INGEST_BUNDLES, INGEST_BYTES, INGEST_ROWS
from tests.support.stores import World, batch, number_of


def test_a_put_is_answered_at_once_with_its_ref(world: World) -> None:
    """Scenario: three puts, nothing waited for. Guarantee: each has its own ref and a
    rising sequence already, and none claims to be durable."""
    receipts = [world.put(n) for n in range(3)]
    assert [r.ref for r in receipts] == [BundleRef(0, 0), BundleRef(0, 1), BundleRef(0, 2)]
    assert receipts[0].sequence < receipts[1].sequence < receipts[2].sequence
    assert not any(r.durable for r in receipts)


def test_waiting_makes_it_durable_for_a_power_cut(world: World) -> None:
    """Scenario: one put waited for, one not, then the power goes. Guarantee: the first is
    there under its ref, the second is not, and nobody was told that it would be."""
    kept = world.put(1).wait()
    lost = world.put(2)
    assert kept.durable
    assert not lost.durable
    world.power_cut()
    assert world.number_at(kept.ref) == 1
    with pytest.raises(UnknownBundle):
        world.store.read(lost.ref)


def test_one_wait_serves_all_that_were_put_before(world: World) -> None:
    """Scenario: ten puts, the last one waited for. Guarantee: one sync made all durable."""
    receipts = [world.put(n) for n in range(10)]
    before = len(world.faulty.calls)
    receipts[-1].wait()
    assert all(r.durable for r in receipts)
    assert [op for op, _ in world.faulty.calls[before:]] == ["pwritev", "fdatasync"]


def test_what_is_accepted_but_not_durable_can_not_be_seen(world: World) -> None:
    """Scenario: a put that nobody waited for is read by its ref. Guarantee: it isn't there
    yet, since a crash could still take it back; after the sync it is."""
    receipt = world.put(7)
    with pytest.raises(UnknownBundle):
        world.store.read(receipt.ref)
    with pytest.raises(UnknownBundle):
        world.store.meta(receipt.ref)
    world.store.sync()
    assert world.number_at(receipt.ref) == 7


def test_metadata_travels_with_the_bundle(world: World) -> None:
    """Scenario: key and attributes are given. Guarantee: they come back from memory, from
    the segment, and after a crash."""
    receipt = world.put(1, key="job/1", attributes={"host": "a", "ü": "é"}).wait()
    for step in (lambda: None, world.store.flush, world.power_cut):
        step()
        meta = world.store.meta(receipt.ref)
        assert (meta.key, dict(meta.attributes)) == ("job/1", {"host": "a", "ü": "é"})
        assert (meta.sequence, meta.rows) == (receipt.sequence, 3)
        assert meta.ingestion_ts_ns == receipt.ingestion_ts_ns == world.clock.now_ns()


def test_up_to_64_slots_and_absent_ones_stay_absent(world: World) -> None:
    """Scenario: a bundle with 64 slots, one with a single one, one with none.
    Guarantee: each comes back with just those, before and after its segment is written."""
    full = {f"s{n}": batch(n) for n in range(64)}
    refs = [world.store.put(slots).wait().ref for slots in (full, {"s7": batch(7)}, {})]
    for _ in range(2):
        found = [world.store.read(ref) for ref in refs]
        assert [set(f) for f in found] == [set(full), {"s7"}, set()]
        assert all(number_of(found[0][f"s{n}"]) == n for n in range(64))
        world.store.flush()


def test_ipc_streams_are_kept_as_they_came(world: World) -> None:
    """Scenario: a producer sends a slot as an Arrow IPC stream, with a fingerprint of its
    own. Guarantee: it is taken, and reads back equal."""
    wanted = batch(3)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, wanted.schema) as writer:
        writer.write_batch(wanted)
    ref = (
        world.store.put_ipc({"Logs": sink.getvalue()}, fingerprints={"Logs": b"f" * 32}).wait().ref
    )
    assert world.store.read(ref)["Logs"].equals(wanted, check_metadata=True)
    world.store.flush()
    assert world.store.read(ref)["Logs"].equals(wanted, check_metadata=True)


def test_accepted_bundles_rows_and_bytes_are_counted(world: World) -> None:
    """Scenario: two puts. Guarantee: the counters say two bundles, six rows, their bytes."""
    receipts = [world.put(n) for n in range(2)]
    values = {s.metric: s.value for s in world.store.metrics.snapshot()}
    assert values[INGEST_BUNDLES] == 2
    assert values[INGEST_ROWS] == 6
    assert values[INGEST_BYTES] == sum(r.nbytes for r in receipts)


def test_wait_durable_by_sequence(world: World) -> None:
    """Scenario: somebody knows a sequence and not its receipt. Guarantee: waiting for it
    makes it durable; a sequence never given out is a timeout, not a hang."""
    receipt = world.put(1)
    world.store.wait_durable(receipt.sequence)
    assert receipt.durable
    with pytest.raises(WaitTimeout):
        world.store.wait_durable(receipt.sequence + 100)


def test_a_closed_store_takes_and_gives_nothing(world: World) -> None:
    """Scenario: a store is used after its end. Guarantee: a clear error, and closing it
    twice is fine."""
    ref = world.put(1).ref
    store = world.store
    store.close()
    store.close()
    for use in (
        lambda: store.put({"Logs": batch()}),
        lambda: store.read(ref),
        store.flush,
        store.maintain,
        lambda: store.subscribe("x"),
    ):
        with pytest.raises(StoreClosed):
            use()
