"""A claimed bundle in the user's hands."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pyarrow as pa
import pytest

from quiver.errors import InvalidInput, IoFault, SlotNotInBundle
from quiver.format.record import BundleMeta
from quiver.ids import BundleRef
from quiver.subscriber.handle import ClaimedBundle
from quiver.subscriber.state import Outcome

REF = BundleRef(3, 1)
META = BundleMeta(sequence=17, ingestion_ts_ns=5, key="k", attributes={"a": "b"})


class Store:
    """A resolver that writes down what it is asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.batches = {
            "Logs": pa.record_batch({"x": [1, 2]}),
            "LogAttrs": pa.record_batch({"y": [3]}),
        }
        self.answer: Outcome | None = None

    def slots(self, ref: BundleRef) -> Sequence[str]:
        self.calls.append(("slots", ref))
        return list(self.batches)

    def read(self, ref: BundleRef, slot: str) -> pa.RecordBatch:
        self.calls.append(("read", ref, slot))
        return self.batches[slot]

    def ack(self, ref: BundleRef) -> Outcome:
        self.calls.append(("ack", ref))
        return self.answer or Outcome.ACKED

    def reject(self, ref: BundleRef, reason: str) -> Outcome:
        self.calls.append(("reject", ref, reason))
        return Outcome.DROPPED

    def hand_over(self, ref: BundleRef, where: str) -> Outcome:
        self.calls.append(("hand_over", ref, where))
        return Outcome.DROPPED

    def defer(self, ref: BundleRef, delay: float) -> Outcome:
        self.calls.append(("defer", ref, delay))
        return Outcome.PENDING

    def abandon(self, ref: BundleRef) -> None:
        self.calls.append(("abandon", ref))


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def bundle(store: Store) -> ClaimedBundle:
    return ClaimedBundle(store, REF, META)


def test_reads_when_asked_and_once(store: Store, bundle: ClaimedBundle) -> None:
    """A handle costs no read until a slot is asked for, and a slot is read only once."""
    assert store.calls == []
    assert bundle["Logs"] is bundle["Logs"]
    assert bundle.get("Logs") is bundle["Logs"]
    assert store.calls == [("slots", REF), ("read", REF, "Logs")]


def test_looks_like_a_mapping(store: Store, bundle: ClaimedBundle) -> None:
    """Iteration, membership, length, items and dict() work as one expects."""
    assert list(bundle) == ["Logs", "LogAttrs"]
    assert "Logs" in bundle
    assert "Metrics" not in bundle
    assert len(bundle) == 2
    assert dict(bundle) == dict(bundle.items()) == store.batches


def test_a_slot_that_is_not_there(bundle: ClaimedBundle) -> None:
    """`get` gives the default; indexing says which slots there are."""
    assert bundle.get("Metrics") is None
    assert bundle.get("Metrics", 7) == 7
    with pytest.raises(SlotNotInBundle, match=r"no slot 'Metrics'.*Logs, LogAttrs"):
        bundle["Metrics"]


def test_a_bundle_without_slots_is_true(store: Store, bundle: ClaimedBundle) -> None:
    """A bundle may have no slots at all; it is still a bundle."""
    store.batches = {}
    assert len(bundle) == 0
    assert bundle


def test_says_what_it_is(bundle: ClaimedBundle) -> None:
    """Ref, sequence, time, key and attributes need no read."""
    assert (bundle.ref, bundle.sequence, bundle.ingestion_ts_ns) == (REF, 17, 5)
    assert (bundle.key, bundle.attributes) == ("k", {"a": "b"})
    assert repr(bundle) == "<ClaimedBundle 3.1 claimed>"


def test_outcome_is_sent_once(store: Store, bundle: ClaimedBundle) -> None:
    """The first outcome is the one; later calls just say what it was."""
    assert bundle.ack() is Outcome.ACKED
    assert bundle.reject("late") is Outcome.ACKED
    assert bundle.defer() is Outcome.ACKED
    assert store.calls == [("ack", REF)]


def test_reject_carries_its_reason(store: Store, bundle: ClaimedBundle) -> None:
    """The reason reaches the store; an ack afterwards doesn't change it."""
    assert bundle.reject("not parseable") is Outcome.DROPPED
    assert bundle.ack() is Outcome.DROPPED
    assert store.calls == [("reject", REF, "not parseable")]


def test_ack_learns_that_it_was_dropped(store: Store, bundle: ClaimedBundle) -> None:
    """Retention was faster: ack doesn't pretend."""
    store.answer = Outcome.DROPPED
    assert bundle.ack() is Outcome.DROPPED


def test_defer_ends_the_handle(store: Store, bundle: ClaimedBundle) -> None:
    """Given back means given back: somebody else may have it now."""
    assert bundle.defer(1.5) is Outcome.PENDING
    bundle.defer(9.0)
    for call in (bundle.ack, bundle.reject):
        with pytest.raises(InvalidInput, match="given back"):
            call()
    assert store.calls == [("defer", REF, 1.5)]


def test_lost_handle_goes_back(store: Store) -> None:
    """A handle that disappears without an outcome gives its bundle back, without a lock."""
    ClaimedBundle(store, REF, META)
    gc.collect()
    assert store.calls == [("abandon", REF)]


@pytest.mark.parametrize("end", ["ack", "reject", "defer"])
def test_finished_handle_is_not_given_back(store: Store, end: str) -> None:
    """With an outcome there is nothing to give back."""
    getattr(ClaimedBundle(store, REF, META), end)()
    gc.collect()
    assert [call[0] for call in store.calls] == [end]


def test_block_without_outcome_gives_back(store: Store) -> None:
    """Leaving the block, by its end or by an error, gives back what got no outcome."""
    with ClaimedBundle(store, REF, META):
        pass
    with pytest.raises(RuntimeError), ClaimedBundle(store, REF, META):
        raise RuntimeError
    with ClaimedBundle(store, REF, META) as bundle:
        bundle.ack()
    assert [call[0] for call in store.calls] == ["defer", "defer", "ack"]


def test_failed_outcome_can_be_tried_again(store: Store, bundle: ClaimedBundle) -> None:
    """An outcome that couldn't be recorded leaves the bundle claimed by this handle."""
    working = store.ack

    def broken(ref: BundleRef) -> Outcome:
        raise IoFault("no")

    store.ack = broken  # type: ignore[method-assign]
    with pytest.raises(IoFault):
        bundle.ack()
    assert bundle.outcome is Outcome.CLAIMED
    store.ack = working  # type: ignore[method-assign]
    assert bundle.ack() is Outcome.ACKED
