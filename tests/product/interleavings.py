"""Interleavings that lost or doubled acknowledged data elsewhere, each by its name.

An :class:`Interleaving` puts calls of a store inside every step of another call, under the
scheduler of :mod:`tests.crash.scheduler`: at its first point, at its second, and so on, until
the call has no more of them.  Each time the process ends in one of several ways, the store
is opened again, and the judge of the product says whether the promise was kept.

A place is ``name:way:point:end``; the same place is the same run.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from quiver.errors import WaitTimeout
from quiver.ingest.memory_budget import MemoryBudget
from quiver.ingest.receipt import Receipt
from tests.crash.disk import Killed
from tests.product import judge
from tests.product.copies import needles
from tests.product.facts import Put, Violation
from tests.product.steps import TINY
from tests.product.world import NOT_NOW, World

CUTS: Final = 2
"""Power cuts tried at each point: the states they leave are drawn."""
MAX_POINTS: Final = 400
"""Of one call; more would mean that it never ends."""
SLOW: Final = 30.0
IMPATIENT: Final = 1.0
SPARSE: Final = 5
SPARSER: Final = 60
"""Only each so-manieth point is tried, where a scenario takes long."""

ENDS: Final = ("kill", *(f"cut{n}" for n in range(CUTS)))


@dataclass(frozen=True, slots=True)
class Interleaving:
    """A scenario with one call inside every step of another, in several ways.

    ``play(way, at, end)`` says whether the call had so many points.
    """

    name: str
    what: str
    ways: tuple[str, ...]
    play: Callable[[str, int, str], bool]

    def everywhere(self, only: str = "") -> Iterator[tuple[str, Violation | None]]:
        """Play it in every way, or in one, at every point: each place, and what was broken."""
        for way in [only] if only else self.ways:
            for at in range(MAX_POINTS):
                more = True
                for end in ENDS:
                    place = f"{self.name}:{way}:{at}:{end}"
                    try:
                        more = self.play(way, at, end) and more
                    except Violation as violation:
                        more = False
                        yield place, violation
                    else:
                        yield place, None
                if not more:
                    break
            else:
                raise RuntimeError(f"{self.name}:{way} has no end")


INTERLEAVINGS: Final[dict[str, Interleaving]] = {}


def interleaving(*ways: str) -> Callable[[Callable[[str, int, str], bool]], Interleaving]:
    """List a scenario under its function's name."""

    def add(play: Callable[[str, int, str], bool]) -> Interleaving:
        what = (play.__doc__ or "").strip().splitlines()[0]
        one = INTERLEAVINGS[play.__name__] = Interleaving(play.__name__, what, ways, play)
        return one

    return add


# What they have in common


@contextlib.contextmanager
def stage(place: str, memory: int | None = None, **settings: Any) -> Iterator[World]:
    """An open store."""
    world = World(random.Random(place), {**TINY, **settings})
    try:
        if memory is not None:
            world.memory = MemoryBudget(memory)
        world.open()
        yield world
    finally:
        world.end()


def inside(
    world: World, at: int, call: Callable[[], object], *others: Callable[[], object]
) -> bool:
    """The others inside the call, at one of its points; whether it had so many."""
    named = [(f"other{n}", other) for n, other in enumerate(others)]
    tasks = world.scheduler.run(("call", call), *named, inside=at)
    world.check(tasks)
    return len(tasks[0].trail) > at


def ended(world: World, end: str) -> None:
    """The process or the machine ends; what is left is opened, used and judged."""
    if world.store is not None:
        world.kill() if end == "kill" else world.cut()
    world.open()
    world.put(["After"])
    judge.at_the_end(world)


def sent(world: World, slot: str = "Logs", key: str | None = None) -> tuple[Put, Receipt]:
    """A bundle that was taken, and is not durable yet."""
    put = world.new_put([slot], key)
    receipt = world.send(put)
    assert receipt is not None
    return put, receipt


def waits(receipt: Receipt) -> Callable[[], None]:
    """A producer that waits for its answer."""

    def wait() -> None:
        with contextlib.suppress(*NOT_NOW):
            receipt.wait()

    return wait


# The interleavings


@interleaving("flush", "memory", "full_log", "receipt")
def forced_seal_in_group_commit(way: str, at: int, end: str) -> bool:
    """A seal is forced (flush, memory, a full log, a receipt) in every step of a group commit.

    The segment that is to be written holds a bundle of the group whose sync is under way, and
    one that was staged behind it.
    """
    place = f"forced_seal:{way}:{at}:{end}"
    settings: dict[str, Any] = {"segment": {**TINY["segment"], "max_bundles": 6}}
    if way == "receipt":
        settings["durability"] = "segment_only"
    if way == "full_log":
        settings["wal"] = {"rotation_target": 1024, "max_size": 8192, "max_rotated_files": 8}
    with stage(place, memory=600 if way == "memory" else None, **settings) as world:
        world.subscribe("ada")
        world.put(["Logs"])
        _, receipt = sent(world, "Logs", "k1")

        def force() -> None:
            for slot in ("Logs", "New"):
                world.put([slot], wait=way == "receipt")
            if way == "full_log":
                for _ in range(12):
                    world.put(["More"], wait=False)
            elif way == "memory":
                world.work()  # as the background does: without a commit before it
            else:
                world.flush()

        more = inside(world, at, waits(receipt), force)
        if at % 2:
            world.disk.die_in = 3  # inside what comes next
        with world.mortal():
            world.put(["Later"])
            world.flush()
        ended(world, end)
        return more


@interleaving("log1", "log2", "names1", "names3", "segment1", "segment3")
def watermark_over_a_second_sync(way: str, at: int, end: str) -> bool:
    """A producer asks for the durability mark while the second of two syncs fails.

    The bundles before and behind it are in two files of the log, or in two segments: that
    the first is synced says nothing of the second.
    """
    kind, nth = way[:-1], int(way[-1])
    settings: dict[str, Any] = {"wal": {**TINY["wal"], "rotation_target": 1024}}
    if kind == "segment":
        settings = {"durability": "segment_only"}
    with stage(f"watermark:{way}:{at}:{end}", **settings) as world:
        if kind == "segment":
            world.disk.capacity = world.disk.used  # two segments wait for room
        sending = [sent(world, "Logs", f"k{n}") for n in range(5)]
        world.disk.capacity = None
        if kind == "names":
            world.disk.fail_dir_syncs_in = nth
        else:
            world.disk.fail_syncs_in = nth

        def ask() -> None:
            store = world.store
            assert store is not None
            for put, receipt in sending:
                with contextlib.suppress(*NOT_NOW):
                    store.wait_durable(receipt.sequence, IMPATIENT)
                    world.told(put, receipt.ref)

        call = world.flush if kind == "segment" else waits(sending[-1][1])
        more = inside(world, at, call, ask)
        ended(world, end)
        return more


@interleaving("sync0", "sync1", "names0", "names2")
def failed_group_sent_again(way: str, at: int, end: str) -> bool:
    """A group's sync fails, its bytes stay, are replayed, and are sent again with their key.

    Whether they stayed is the disk's to decide: there once, in either case.
    """
    with stage(f"failed_group:{way}:{at}:{end}", wal={**TINY["wal"], "rotation_target": 1024}) as w:
        world = w
        world.put(["Logs"], "k0")
        puts = [sent(world, "Logs", f"k{n}") for n in range(1, 4)]
        nth = int(way[-1])
        if way.startswith("names"):
            world.disk.fail_dir_syncs_in = nth
        else:
            world.disk.fail_syncs_in = nth

        def again() -> None:
            for put, _ in puts:  # the same producer, which got no answer in time
                with contextlib.suppress(*NOT_NOW):
                    world.store.put(put.slots, key=put.key)  # type: ignore[union-attr]

        more = inside(world, at, waits(puts[-1][1]), again)
        world.kill() if end == "kill" else world.cut()
        world.open()
        for put, _ in puts:
            world.repeat(put)
        judge.look(world)
        world.flush()
        world.kill()
        world.open()
        for put, _ in puts:
            world.repeat(put)
        ended(world, end)
        return more


@interleaving("receipt", "sequence")
def answered_on_a_time_out(way: str, at: int, end: str) -> bool:
    """Somebody's time runs out while the disk is still at the sync: no answer is `durable`.

    The machine ends before that sync does.
    """
    with stage(f"time_out:{way}:{at}:{end}") as world:
        put, first = sent(world)
        later, second = sent(world)
        world.disk.slow = SLOW

        def impatient() -> None:
            store = world.store
            assert store is not None
            for one, receipt in ((later, second), (put, first)):
                with contextlib.suppress(WaitTimeout):
                    if way == "receipt":
                        receipt.wait(IMPATIENT)
                    else:
                        store.wait_durable(receipt.sequence, IMPATIENT)
                    world.told(one, receipt.ref)
            world.disk.dead = True

        more = True
        try:
            more = inside(world, at, waits(first), impatient)
        except Killed:
            world.cut()
        ended(world, end)
        return more and at < 12


@interleaving("flush", "maintain")
def put_inside_upkeep(way: str, at: int, end: str) -> bool:
    """A put with a new slot name comes inside every step of upkeep, and the process ends."""
    log = {"rotation_target": 1024, "max_size": 16384, "max_rotated_files": 16}
    with stage(f"put_inside:{way}:{at}:{end}", wal=log) as world:
        for _ in range(4):
            world.put(["Logs"])

        def put() -> None:
            world.put(["New"])
            world.put(["Newer", "Newest"])

        more = inside(world, at, world.flush if way == "flush" else world.maintain, put)
        ended(world, end)
        return more


@interleaving("full", "rewritten")
def rebuilt_and_swept(way: str, at: int, end: str) -> bool:
    """A damaged segment was rebuilt from the log; a neighbour is swept, with acks in every step.

    ``full``: the disk has no room to write the rebuilt one first.
    """
    settings: dict[str, Any] = {
        "reserve": 4096,
        "wal": {"rotation_target": 65536, "max_size": 262144, "max_rotated_files": 8},
        "segment": {"target_size": 2048, "max_bundles": 2, "max_unfinalized": 3},
    }
    with stage(f"rebuilt:{way}:{at}:{end}", **settings) as world:
        world.subscribe("ada")
        for _ in range(6):  # three segments, and the log still has them
            world.put(["Logs"])
        world.consume("ada", 2)
        path = "segments/0000000000000001.qseg"
        data = bytearray(world.disk.image()[path])
        data[data.index(needles(world.facts.puts[2])[0]) + 40] ^= 1
        world.damage(path, bytes(data), "a bit flipped")
        if way == "full":
            world.disk.capacity = world.disk.used
        judge.look(world)
        more = inside(world, at * SPARSE, world.maintain, lambda: world.consume("ada", 1))
        if way == "rewritten":
            world.flush()
        ended(world, end)
        return more


KEYS: Final = 84
"""More than the reserve of :func:`full_disk_with_keys` could hold if all were written again."""


@interleaving("put", "repeat")
def full_disk_with_keys(way: str, at: int, end: str) -> bool:
    """The disk is full, many keys are remembered, all is acked: the log is to be released.

    A put, or a repeat of an old key, comes inside the upkeep that does it.
    """
    settings: dict[str, Any] = {
        "reserve": 3072,
        "wal": {"rotation_target": 4096, "max_size": 262144, "max_rotated_files": 64},
        "segment": {"target_size": 65536, "max_bundles": 60, "max_unfinalized": 3},
        "limits": {"max_bundle": 2048, "max_unsynced": 65536},
    }
    with stage(f"full_disk:{way}:{at}:{end}", **settings) as world:
        world.subscribe("ada")
        for number in range(KEYS):
            world.put(["Logs"], f"k{number}", wait=number % 12 == 11)
            if number % 12 == 11:  # as log files are retired: each has some new keys
                world.flush()
                world.consume("ada", 12)
                world.maintain()
        for number in range(45):
            world.put(["Logs"], f"new{number}" if number < 5 else None, wait=number == 44)
        world.disk.capacity = world.disk.used
        world.consume("ada", 45)
        world.flush_progress()

        def other() -> None:
            if way == "put":
                world.put(["Logs"], "late")
            else:
                world.repeat(world.facts.puts[0])

        def upkeep() -> None:
            world.flush()
            world.maintain()

        more = inside(world, at * SPARSER, upkeep, other)
        world.consume("ada", 1)
        upkeep()
        held = [path for path in world.disk.image() if _is_held(path)]
        if len(held) > 1:
            raise Violation("room_returns", f"all is acked, and the log still has {held}")
        world.kill() if end == "kill" else world.cut()
        world.open()
        for number in (0, KEYS - 1):
            world.repeat(world.facts.puts[number])
        judge.at_the_end(world)
        return more


def _is_held(path: str) -> bool:
    """Whether it is a file of the log that takes no more entries."""
    return path.startswith("wal/quiver.wal.") and path[-1].isdigit()
