"""Two exporters on one store: the design's walk-through of its segment 120, step by step."""

from __future__ import annotations

import pytest

from quiver.format.progress import decode_progress
from tests.support.stores import World, batch, number_of


@pytest.fixture
def world() -> World:
    """A store that is about to begin segment 120."""
    world = World()
    for _ in range(120):
        world.sealed(0)
        for bundle in world.store.subscribe("setup", follow=False):
            bundle.ack()
        world.store.maintain()
    world.store.unregister("setup")
    return world


def test_the_walk_through(world: World) -> None:
    """Scenario: three bundles, two exporters, a nack that is retried, a crash. Guarantee:
    each step of the walk-through: from the log into segment 120; both are notified; each
    drains in order and acks for itself; maintain() writes progress files that say
    `oldest_incomplete = 121` with no entries; only when both are done does the segment go;
    and a crash is recovered from the progress files alone."""
    store = world.store
    parquet = store.subscribe("parquet_exporter")
    otlp = store.subscribe("otlp_exporter")

    # 1: into the log and the open segment, then finalized
    refs = [store.put({"Logs": batch(n)}).wait().ref for n in range(3)]
    assert [ref.segment_seq for ref in refs] == [120, 120, 120]
    store.flush()
    assert world.files("segments/0") == ["segments/0000000000000120.qseg"]

    # 2 and 3: both are told, and drain in order; the first acks all
    for index, ref in enumerate(refs):
        bundle = parquet.next_bundle()
        assert bundle is not None
        assert (bundle.ref, number_of(bundle["Logs"])) == (ref, index)
        bundle.ack()

    # a nack is the exporter's own affair: it gives the bundle back and tries again later
    nacked = otlp.next_bundle()
    assert nacked is not None
    nacked.defer(30)
    for ref in refs[1:]:
        bundle = otlp.next_bundle()
        assert bundle is not None
        assert bundle.ref == ref
        bundle.ack()

    # 4: progress is written by maintain(); the segment stays for the one that isn't done
    store.maintain()
    done = decode_progress(world.raw.image()["quiver.sub.parquet_exporter"])
    assert (done.oldest_incomplete, dict(done.entries)) == (121, {})
    waiting = decode_progress(world.raw.image()["quiver.sub.otlp_exporter"])
    assert waiting.oldest_incomplete == 120
    assert waiting.entries[120].done == 0b110
    assert store.segment_sequences() == [120]

    # 6: a crash; the progress files alone bring each back to where it was
    world.power_cut()
    store = world.store
    assert store.subscribe("parquet_exporter").next_bundle() is None
    again = store.subscribe("otlp_exporter").next_bundle()
    assert again is not None
    assert again.ref == refs[0]
    again.ack()

    # 5: now every subscriber is past it, and it goes
    store.maintain()
    assert store.segment_sequences() == []
    for name in ("parquet_exporter", "otlp_exporter"):
        progress = decode_progress(world.raw.image()[f"quiver.sub.{name}"])
        assert (progress.oldest_incomplete, dict(progress.entries)) == (121, {})
    assert world.put(9).ref.segment_seq == 121


def test_only_final_outcomes_reach_the_files(world: World) -> None:
    """Scenario: a bundle is deferred many times, then given up. Guarantee: until then the
    progress file knows nothing of it; then it says `dropped`."""
    reader = world.store.subscribe("otlp_exporter")
    world.sealed(1)
    for _ in range(5):
        bundle = reader.next_bundle()
        assert bundle is not None
        bundle.defer(1)
        world.store.maintain()
        progress = decode_progress(world.raw.image()["quiver.sub.otlp_exporter"])
        assert progress.oldest_incomplete == 120
        assert not progress.entries
        world.clock.advance(1)
    bundle = reader.next_bundle()
    assert bundle is not None
    bundle.reject("gave up")
    reader.flush()
    entry = decode_progress(world.raw.image()["quiver.sub.otlp_exporter"]).entries[120]
    assert (entry.done, entry.dropped) == (1, 1)
