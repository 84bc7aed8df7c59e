"""Bundles made ready for the wire, some at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_service.protocol.exchange import BundleInfos
from flight_service.protocol.get import BundleInfo
from flight_service.protocol.names import Ref
from flight_service.protocol.wrapper import unwrap, unwrap_batch
from flight_service.server import bundles
from flight_service.server.bundles import View, ready_next
from flight_service.server.claims import DeliveredBundle, info_fields
from quiver import BundleMeta, BundleRef
from quiver.clock import ManualClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.errors import NotFound
from quiver.store.store import Store
from tests.support.memory_disk import MemoryDisk

ALL = View()
WORDS = pa.record_batch({"w": pa.array(["a", "b"]).dictionary_encode()})


def logs(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": [number], "m": [-number]})


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    with Store(Disk(MemoryDisk()), Config.load(env={}), where="mem", clock=clock) as opened:
        yield opened


def put(store: Store, count: int) -> list[BundleRef]:
    """Two slots, two, none, one, two, …"""
    slots: list[dict[str, pa.RecordBatch]] = []
    for number in range(count):
        every = {"Logs": logs(number), "Words": WORDS}
        slots.append(dict(list(every.items())[: (2, 2, 0, 1)[number % 4]]))
    return [store.put(one).wait().ref for one in slots]


def rows(batch: pa.RecordBatch) -> list[tuple[Any, bytes | None, pa.RecordBatch]]:
    return [(one.slot, one.fingerprint, unwrap_batch(one)) for one in unwrap(batch)]


@pytest.mark.parametrize("view", [ALL, View(("Logs",)), View(None, {"Logs": ("m",)})])
def test_bundles_wrapped_together_are_those_wrapped_singly(store: Store, view: View) -> None:
    """Scenario: bundles with one slot, two and none are made ready together, from memory
    and from a file. Guarantee: each has the rows and the metadata that it has alone."""
    refs = put(store, 7)
    for _ in range(2):
        ready = ready_next(store, refs, view, {})
        for ref, one in zip(refs, ready.each(), strict=True):
            (alone,) = ready_next(store, [ref], view, {}).each()
            assert one.info == alone.info
            assert rows(one.batch) == rows(alone.batch)
            one.batch.validate(full=True)
        whole = ready.together()
        told = BundleInfos.decode(whole.info.to_pybytes()).bundles
        assert [BundleInfo.decode(one.info.to_pybytes()) for one in ready.each()] == list(told)
        assert [len(one.slots) for one in told] == list(ready.rows)
        assert whole.batch == pa.concat_batches([one.batch for one in ready.each()])
        store.flush()


def test_a_group_ends_by_its_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: bundles larger than a group may be. Guarantee: they come one at a time, and
    none is left out."""
    refs = put(store, 3)
    monkeypatch.setattr(bundles, "AT_ONCE_BYTES", 1)
    assert [len(ready_next(store, refs[at:], ALL, {}).rows) for at in range(2)] == [1, 1]


def test_a_group_ends_by_what_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: attributes of 800 bytes in 200 characters, where a group has 1,000 bytes.
    Guarantee: bytes count, so that no message is longer than its reader takes."""
    refs = [store.put({}, attributes={"k": "\U0001f600" * 200}).wait().ref for _ in range(5)]
    monkeypatch.setattr(bundles, "AT_ONCE_BYTES", 1_000)
    assert len(ready_next(store, refs, ALL, {}).rows) == 2


def test_what_comes_before_a_missing_bundle_is_sent(store: Store) -> None:
    """Scenario: the third bundle of a group is not there. Guarantee: the two before it come;
    asked for first, it is refused."""
    refs = put(store, 2)
    missing = [*refs, BundleRef(refs[0].segment_seq, 99), *refs]
    assert len(ready_next(store, missing, ALL, {}).rows) == 2
    with pytest.raises(NotFound):
        ready_next(store, missing[2:], ALL, {})


class _Handle:
    """As much of a claimed bundle as is told."""

    def __init__(self, ref: BundleRef, meta: BundleMeta, slots: tuple[str, ...]) -> None:
        self.ref, self.meta, self._slots = ref, meta, slots

    def keys(self) -> tuple[str, ...]:
        return self._slots


numbers = st.integers(0, 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    ref=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    meta=st.builds(
        BundleMeta,
        sequence=st.none() | numbers,
        ingestion_ts_ns=st.none() | numbers,
        key=st.none() | texts.filter(bool),
        attributes=st.dictionaries(texts, texts, max_size=3),
        event_time=st.none() | st.tuples(numbers, numbers).map(lambda pair: tuple(sorted(pair))),
        rows=numbers,
        nbytes=numbers,
    ),
    slots=st.lists(texts, max_size=3).map(tuple),
    delivery=st.none() | st.integers(1, 9),
    reason=texts,
)
def test_what_is_told_is_a_bundle_info(
    ref: tuple[int, int],
    meta: BundleMeta,
    slots: tuple[str, ...],
    delivery: int | None,
    reason: str,
) -> None:
    """Scenario: any metadata, any text in it, handed out or not. Guarantee: byte for byte
    what the message itself writes, and it reads back."""
    at = BundleRef(*ref)
    handle: Any = _Handle(at, meta, slots)
    delivered = None if delivery is None else DeliveredBundle(handle, delivery, reason)
    said = f'{{"v":1,{info_fields(at, meta, slots, delivered)}}}'.encode()
    if delivered is not None:
        assert said == delivered.info().encode()
    told = BundleInfo.decode(said)
    assert told.encode() == said
    assert (told.ref, told.rows, told.nbytes, told.slots) == (
        Ref(*ref),
        meta.rows,
        meta.nbytes,
        slots,
    )
