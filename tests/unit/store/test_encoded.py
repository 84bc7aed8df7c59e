"""Bundles as messages, for those who send them on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
import pytest

from quiver.clock import ManualClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.errors import UnknownBundle
from quiver.ids import BundleRef
from quiver.store.store import Store
from tests.support.memory_disk import MemoryDisk

LOGS = pa.record_batch({"x": [1, 2]})
WORDS = pa.record_batch({"w": pa.array(["a", "b"]).dictionary_encode()})


def test_a_bundle_comes_out_as_messages() -> None:
    """Scenario: a bundle in memory and then in its file. Guarantee: the same slots,
    fingerprints and batches both times; of the slots named, those it has."""
    with Store(Disk(MemoryDisk()), Config.load(env={}), where="mem", clock=ManualClock()) as store:
        ref = store.put({"Logs": LOGS, "Words": WORDS}, fingerprints={"Logs": b"f" * 32}).wait().ref
        for _ in range(2):
            found = store.encoded(ref)
            assert list(found) == ["Logs", "Words"]
            assert found["Logs"].fingerprint == b"f" * 32
            assert found["Logs"].batch.decode().equals(LOGS)
            assert found["Words"].batch.decode().equals(WORDS)
            assert list(store.encoded(ref, ["Words", "Other"])) == ["Words"]
            store.flush()


def test_one_slot_of_many_bundles() -> None:
    """Scenario: refs over several segments, in memory and written, some without the slot.
    Guarantee: the same batches as one by one, in the refs' order; a ref that never was is
    refused as ever."""
    store = Store(Disk(MemoryDisk()), Config.load(env={}), where="mem", clock=ManualClock())
    with store:
        refs = []
        for n in range(6):
            slot = "Words" if n % 3 == 2 else "Logs"
            refs.append(store.put({slot: WORDS if slot == "Words" else LOGS}).wait().ref)
            if n in (1, 3):
                store.flush()
        refs.reverse()
        found = list(store.read_slot(refs, "Logs"))
        single = [store.read(ref, ["Logs"]).get("Logs") for ref in refs]
        assert [one is None for one in found] == [one is None for one in single]
        assert all(a.equals(b) for a, b in zip(found, single, strict=True) if a is not None)
        assert list(store.read_slot(refs[:1], "Nothing")) == [None]
        (narrow,) = store.read_slot([refs[-1]], "Logs", [])
        assert narrow is not None
        assert narrow.num_columns == 0
        with pytest.raises(UnknownBundle):
            list(store.read_slot([BundleRef(refs[0].segment_seq, 99)], "Logs"))


def test_many_bundles_come_out_as_one_by_one() -> None:
    """Scenario: refs over several segments, in memory and written, in any order.
    Guarantee: the same messages and the same metadata as asked for singly; a ref that
    never was is refused when it is met, after those before it."""
    store = Store(Disk(MemoryDisk()), Config.load(env={}), where="mem", clock=ManualClock())
    with store:
        refs = []
        for n in range(6):
            refs.append(store.put({"Words": WORDS, "Logs": LOGS}, key=f"k{n}").wait().ref)
            if n in (1, 3):
                store.flush()
        refs = [*refs[3:], *refs[:3]]
        for ref, (meta, found) in zip(refs, store.bundles(refs), strict=True):
            single = store.encoded(ref)
            assert meta == store.meta(ref)
            assert list(found) == list(single) == ["Words", "Logs"]
            assert all(
                found[name].batch.buffers() == single[name].batch.buffers() for name in found
            )
        assert [list(found) for _, found in store.bundles(refs[:1], ["Logs"])] == [["Logs"]]
        rest = store.bundles([refs[0], BundleRef(refs[0].segment_seq, 99)])
        next(rest)
        with pytest.raises(UnknownBundle):
            next(rest)


def test_what_is_not_durable_is_not_among_many() -> None:
    """Scenario: a durable bundle and one that was just put, asked for together. Guarantee:
    the second is nowhere to be found before it is durable, and then it is."""
    store = Store(Disk(MemoryDisk()), Config.load(env={}), where="mem", clock=ManualClock())
    with store:
        first = store.put({"Logs": LOGS}).wait().ref
        staged = store.put({"Logs": LOGS})
        refs = [first, staged.ref]
        asks: list[Callable[[list[BundleRef]], Iterable[object]]] = [
            store.bundles,
            store.metas,
            lambda refs: store.read_slot(refs, "Logs"),
        ]
        for ask in asks:
            with pytest.raises(UnknownBundle):
                list(ask(refs))
        staged.wait()
        assert [len(list(ask(refs))) for ask in asks] == [2, 2, 2]
