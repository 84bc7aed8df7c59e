"""Subscribers: where they start, how they come back, and that they hold their data."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from quiver import BundleRef, Outcome
from quiver.errors import InvalidInput, InvalidName, ProgressCorrupt, UnknownSubscriber
from tests.support.stores import World, flipped, number_of


def test_a_new_one_starts_at_the_earliest(world: World) -> None:
    """Scenario: nobody says where to start. Guarantee: everything that is there comes."""
    world.sealed(1)
    world.put_durable(2)
    assert world.drain("r") == [1, 2]


@pytest.mark.parametrize("end", [None, "kill", "power_cut", "restart"])
def test_latest_skips_what_is_there(world: World, end: str | None) -> None:
    """Scenario: a subscriber at `latest`, in the middle of the open segment; perhaps a
    crash. Guarantee: it gets what comes after, and nothing from before."""
    world.sealed(1)
    world.put_durable(2)
    world.store.register("r", "latest")
    if end is not None:
        getattr(world, end)()
    world.put_durable(3)
    assert world.drain("r") == [3]


def test_a_time_is_exact(world: World) -> None:
    """Scenario: bundles a second apart, in files and in memory; a start at each time.
    Guarantee: the bundle of that very moment is the first; a time ahead of all is latest."""
    start = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=world.clock.now_ns() // 1000)
    for n in range(6):
        world.put_durable(n)
        if n % 2:
            world.store.flush()
        world.clock.advance(1)
    world.put_durable(6)
    for n in range(7):
        moment = start + timedelta(seconds=n)
        for name, at, first in (("exact", moment, n), ("past", moment + timedelta(0, 0, 1), n + 1)):
            reader = world.store.subscribe(f"{name}{n}", at, follow=False)
            assert [number_of(b["Logs"]) for b in reader] == list(range(first, 7))


def test_a_time_needs_a_zone(world: World) -> None:
    """Scenario: a time without a zone. Guarantee: refused, not guessed."""
    with pytest.raises(InvalidInput, match="zone"):
        world.store.subscribe("r", datetime(2024, 1, 1))  # noqa: DTZ001 - that is the point


def test_a_ref_is_where_it_starts(world: World) -> None:
    """Scenario: a start at a ref in a file, as a ref and as a plain pair. Guarantee: that
    bundle is the first."""
    refs = [*world.sealed(0, 1, 2), *world.sealed(3)]
    assert refs[2] == BundleRef(0, 2)
    for name, start in (("a", refs[2]), ("b", (0, 2))):
        reader = world.store.subscribe(name, start, follow=False)
        assert [number_of(b["Logs"]) for b in reader] == [2, 3]


@pytest.mark.parametrize("start", ["soon", 7, (1,), ("a", 1), (-1, 0), None])
def test_a_start_that_is_none_is_refused(world: World, start: object) -> None:
    """Scenario: nonsense as a start. Guarantee: a typed error; no subscriber was made."""
    with pytest.raises(InvalidInput):
        world.store.subscribe("r", start)  # type: ignore[arg-type]
    assert world.store.subscribers == {}


def test_an_order_that_is_none_is_refused(world: World) -> None:
    """Scenario: an unknown order. Guarantee: a typed error; no subscriber was made."""
    with pytest.raises(InvalidInput, match="sideways"):
        world.store.subscribe("r", order="sideways")
    assert world.store.subscribers == {}


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 65, "CON"])
def test_bad_names_are_refused(world: World, name: str) -> None:
    """Scenario: a name that would be a bad file name. Guarantee: refused."""
    with pytest.raises(InvalidName):
        world.store.subscribe(name)


def test_a_known_one_resumes_whatever_it_asks_for(world: World) -> None:
    """Scenario: a subscriber comes back and says `latest`. Guarantee: it goes on where it
    was: a forgotten option must not lose data."""
    world.put_durable(1, 2)
    bundle = world.store.subscribe("r").next_bundle()
    assert bundle is not None
    bundle.ack()
    world.restart()
    reader = world.store.subscribe("r", "latest", follow=False)
    assert [number_of(b["Logs"]) for b in reader] == [2]


def test_one_that_is_away_loses_nothing(world: World) -> None:
    """Scenario: a subscriber is known and stays away over restarts while another finishes
    everything and upkeep runs. Guarantee: when it comes back it gets all of it."""
    world.store.subscribe("away")
    world.restart()
    for n in range(4):
        world.sealed(n)
        assert world.drain("here") == [n]
        world.store.maintain()
        world.restart()
    assert world.drain("away") == [0, 1, 2, 3]


def test_two_phases_and_orphans(world: World) -> None:
    """Scenario: two are known, one registers, the start-up ends. Guarantee: the other is an
    orphan that is shown, holds its data, can come late, or can be dropped."""
    for name in ("a", "b", "c"):
        world.store.register(name)
    world.sealed(1)
    world.restart()
    assert set(map(str, world.store.subscribers.values())) == {"known"}
    world.store.register("a")
    assert world.store.activate() == ["b", "c"] == world.store.orphans
    world.drain("a")
    world.store.maintain()
    assert world.store.segments() == [(0, 1)], "orphans hold it"
    with pytest.raises(InvalidInput, match="not an orphan"):
        world.store.drop_orphan("a")
    assert world.store.drop_orphan("b") == 1
    assert world.drain("c") == [1], "late, not lost"
    world.store.maintain()
    assert world.store.segments() == []


def test_leaving_drops_what_is_left_and_frees_segments(world: World) -> None:
    """Scenario: the slow one of two unregisters. Guarantee: how much it gave up is told,
    its file is gone, the segment it held goes, and its handles say that it is gone."""
    world.sealed(1, 2)
    slow = world.store.subscribe("slow")
    world.drain("fast")
    assert world.store.maintain().deleted == 0
    assert world.store.unregister("slow") == 2
    assert world.files("quiver.sub.slow") == []
    assert world.store.maintain().deleted == 1
    for use in (slow.next_bundle, lambda: world.store.unregister("slow")):
        with pytest.raises(UnknownSubscriber):
            use()


@pytest.mark.parametrize("end", ["kill", "power_cut", "restart"])
def test_one_that_left_stays_away(world: World, end: str) -> None:
    """Scenario: a subscriber leaves, then the store ends. Guarantee: it is not known any
    more, and the store opens."""
    world.store.subscribe("gone")
    world.store.subscribe("here")
    world.store.unregister("gone")
    getattr(world, end)()
    assert set(world.store.subscribers) == {"here"}


def test_a_registered_one_is_known_after_a_power_cut(world: World) -> None:
    """Scenario: `register` returned, then the power goes. Guarantee: its data is held."""
    world.store.register("r")
    world.sealed(1)
    world.power_cut()
    assert set(world.store.subscribers) == {"r"}
    world.drain("other")
    world.store.maintain()
    assert world.drain("r") == [1]


def _damage(world: World, how: str) -> None:
    world.sealed(1, 2)
    bundle = world.store.subscribe("r").next_bundle()
    assert bundle is not None
    bundle.ack()
    world.store.close()
    world.change("quiver.sub.r", (lambda _: None) if how == "missing" else flipped)


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_damaged_progress_is_refused_unless_told(world: World, how: str) -> None:
    """Scenario: a progress file is damaged or gone. Guarantee: by default the store says so
    and does not open: it would deliver twice, or lose, in silence."""
    _damage(world, how)
    with pytest.raises(ProgressCorrupt):
        world.open()


@pytest.mark.parametrize("how", ["damaged", "missing"])
@pytest.mark.parametrize(("policy", "rest"), [("earliest", [1, 2, 3]), ("latest", [3])])
def test_damaged_progress_by_policy(world: World, how: str, policy: str, rest: list[int]) -> None:
    """Scenario: the same with a policy. Guarantee: it starts over at that end, the store
    says `degraded`, and the next open knows the new progress."""
    _damage(world, how)
    store = world.open(subscribers={"corrupt_progress": policy})
    assert store.report.progress_problems
    assert store.status().state == "degraded"
    world.put_durable(3)
    assert world.drain("r") == rest
    world.restart(subscribers={"corrupt_progress": "fail"})
    assert world.drain("r") == []


def test_seeking_back_and_forth(world: World) -> None:
    """Scenario: finished data is kept, a subscriber goes back to a ref, then ahead.
    Guarantee: from there all comes again; ahead, what is skipped is done. Both are kept."""
    world.settings["retention"] = {"keep_after_finish": "1h"}
    refs = world.sealed(0, 1, 2, 3)
    assert world.drain("r") == [0, 1, 2, 3]
    reader = world.store.subscribe("r")
    reader.seek(refs[2])
    reader.flush()
    world.power_cut()
    assert world.drain("r") == [2, 3]
    reader = world.store.subscribe("r")
    reader.seek(refs[0])
    reader.seek(refs[3])
    assert reader.outcome(refs[1]) is Outcome.ACKED
    assert world.drain("r") == [3]


def test_counts_of_what_is_pending(world: World) -> None:
    """Scenario: bundles in two segments, some acked, one claimed. Guarantee: the count, the
    refs by range and `all_subscribers_drained` agree with it."""
    refs = [*world.sealed(0, 1), *world.sealed(2), *world.put_durable(3)]
    reader = world.store.subscribe("r")
    reader.ack([refs[0]])
    held = reader.next_bundle()
    assert held is not None
    assert reader.pending_bundle_count == 3
    assert reader.pending_bundles_in_range(0, 0) == [refs[1]]
    assert reader.pending_bundles_in_range(1, 9) == refs[2:]
    assert not world.store.all_subscribers_drained()
    reader.ack(refs)
    assert reader.pending_bundle_count == 0
    assert world.store.all_subscribers_drained()


def test_progress_is_written_in_batches(world: World) -> None:
    """Scenario: a hundred acks, then one round of upkeep. Guarantee: one file is written,
    by replacing it whole, and a second round writes nothing."""
    world.put_durable(*range(100))
    world.drain("r")
    before = len(world.faulty.calls)
    assert world.store.maintain().progress_files == 1
    steps = [op for op, p in world.faulty.calls[before:] if p.startswith("quiver.sub.r")]
    assert [op for op in steps if op != "unlink"] == [
        "create",
        "pwritev",
        "fsync",
        "close",
        "rename",
    ]
    assert world.store.maintain().progress_files == 0
