"""The caps are exact: never an extra byte, never an extra file, never refused too early."""

from __future__ import annotations

import random

import pytest

from quiver.config import WalConfig
from quiver.wal.capacity import EMPTY_FILE, LogPlan
from tests.support.wal import Log, body, image, small


def check(log: Log) -> None:
    files = {path: data for path, data in image(log).items() if path.startswith("wal/")}
    assert log.writer.bytes_on_disk == sum(map(len, files.values())) <= log.config.max_size
    assert log.writer.file_count == len(files) <= log.config.max_rotated_files


def fill(log: Log, size: int) -> int:
    """Stage entries of one size until there is no more room; how many."""
    count = 0
    while log.writer.room_for(body(bytes(size)).entry_size()):
        log.stage(bytes(size), segment=log.writer.next_sequence)
        count += 1
    return count


@pytest.mark.parametrize("size", [0, 1, 50, 333, 900, 5000])
@pytest.mark.parametrize("limits", [(4096, 100), (5000, 2), (20_000, 3), (6601, 7)])
def test_full_means_full(size: int, limits: tuple[int, int]) -> None:
    """When there is no room any more, one entry more really would pass a cap."""
    max_size, max_files = limits
    config = small(rotation_target=1500, max_size=max_size, max_rotated_files=max_files)
    log = Log(config=config)
    entry = body(bytes(size)).entry_size()
    count = fill(log, size)
    log.commit()
    check(log)
    per_file = max(1, (1500 - EMPTY_FILE) // entry)
    files, in_last = -(-(count + 1) // per_file), (count + 1) % per_file
    one_more = files * 64 + 64 + (count + 1) * entry
    assert files > max_files or one_more > max_size, (files, in_last, one_more)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("recycle", [True, False])
def test_never_over_the_caps(seed: int, recycle: bool) -> None:
    """Whatever is put, committed and retired in whatever order, both caps hold at all times."""
    pick = random.Random(seed)
    config = small(
        rotation_target=pick.choice([600, 1024, 3000]),
        max_size=pick.choice([4096, 7777, 20_000]),
        max_rotated_files=pick.choice([2, 3, 8]),
        max_group=pick.choice([512, 2048]),
        recycle=recycle,
    )
    log = Log(config=config)
    segment = refused = 0
    for _ in range(400):
        size = pick.choice([0, 10, 100, 500, 1500])
        if log.writer.room_for(body(bytes(size)).entry_size()):
            log.stage(bytes(size), segment)
        else:
            refused += 1
            log.commit()
            segment += 1
            log.writer.retire(segment - 1)
        if pick.random() < 0.3:
            log.writer.commit()
        check(log)
    log.commit()
    check(log)
    assert refused
    assert not log.rollbacks


def test_the_spare_gives_way() -> None:
    """A file kept for recycling never costs room that a put could have used."""
    config = small(rotation_target=1024, max_size=2200, max_rotated_files=3)
    log = Log(config=config)
    assert fill(log, 300)
    log.commit()
    segment = log.writer.next_sequence
    assert log.writer.retire(segment) == 1
    assert "wal/quiver.wal.spare" in image(log)
    check(log)
    fill(log, 1100)
    log.commit()
    check(log)


def test_room_counts_what_is_staged() -> None:
    """Staged entries take their room at once: a refusal never comes at the commit."""
    log = Log(config=small(max_size=3000, max_rotated_files=2))
    count = fill(log, 200)
    assert image(log) == {}
    while log.writer.commit():
        pass
    assert len(log.acks) == count
    assert all(ack.durable for ack in log.acks)


def test_room_comes_back() -> None:
    """After retiring, exactly what was freed can be used again, lap after lap."""
    log = Log(config=small(max_size=4096, max_rotated_files=4))
    laps = []
    for _ in range(20):
        laps.append(fill(log, 100))
        log.commit()
        log.writer.retire(log.writer.next_sequence)
    assert len(set(laps[2:])) == 1
    assert laps[2] > 0


def test_an_entry_larger_than_a_file_gets_its_own() -> None:
    """Entries are never split: one over the target has a file to itself."""
    log = Log(config=WalConfig(rotation_target=512, max_size=100_000))
    for size in (10, 5000, 10, 10):
        log.put(bytes(size))
    sizes = sorted(len(data) for data in image(log).values())
    assert len(sizes) == 3
    assert sizes[-1] > 5000


def test_plan_starts_files_at_the_target() -> None:
    """A file takes entries up to the target, its terminator included, and not one more."""
    plan = LogPlan(target=1000, max_size=10**6, max_files=10)
    assert plan.add(1000 - EMPTY_FILE)
    assert plan.total == 1000
    assert plan.add(1)
    assert (plan.files, plan.total) == (2, 1000 - 64 + EMPTY_FILE + 1)


@pytest.mark.parametrize("seed", range(30))
def test_plan_refuses_exactly_what_would_pass_a_cap(seed: int) -> None:
    """What fits is what, once added, is still within both caps; not a byte's difference."""
    pick = random.Random(seed)
    limits = {"target": 1000, "max_size": pick.randint(1500, 4000), "max_files": 4}
    plan, fitted = LogPlan(**limits), set()
    for _ in range(300):
        nbytes = pick.randint(1, 1200)
        trial = LogPlan(**limits)
        trial.reset(files=plan.files, total=plan.total, end=plan.end, seed=plan.seed)
        trial.add(nbytes)
        fits = trial.total <= trial.max_size and trial.files <= trial.max_files
        assert plan.fits(nbytes) is fits
        fitted.add(fits)
        if fits:
            plan.add(nbytes)
        elif plan.files > 1:
            plan.release(min(900, plan.total // plan.files))
    assert fitted == {True, False}
