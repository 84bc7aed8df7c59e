"""The idempotency window: what it remembers, and the runs that outlive the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.disk.disk import Disk
from quiver.errors import QuiverError, StateCorrupt, StorageFull, UnsupportedVersion
from quiver.format.crc import crc32
from quiver.format.keys import KEYS, KeyRecord, KeyRun, decode_run, encode_run
from quiver.ids import BundleRef
from quiver.record.key_runs import RUN_KEYS, KeyRuns, read_runs
from quiver.record.key_window import KeyWindow
from tests.support.memory_disk import MemoryDisk

AGE = 100

waits = st.sampled_from([0, 0, 30, 60, AGE + 1])
puts = st.tuples(st.sampled_from(["put", "replay"]), st.integers(0, 5), waits)
undo = st.tuples(st.just("undo"), st.integers(0, 3), st.just(0))
written = st.tuples(st.just("written"), st.integers(0, 5), st.just(0))
histories = st.lists(st.one_of(puts, puts, puts, undo, written), max_size=60)


def record(key: int, sequence: int, ts: int) -> KeyRecord:
    return KeyRecord(f"k{key}", bytes([key]) * 32, BundleRef(sequence // 7, key), sequence, ts)


class Plain:
    """What the window should remember, the slow way: every record in order, looked through."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.records: list[KeyRecord] = []

    def add(self, new: KeyRecord) -> None:
        kept = [one for one in self.records if one.key != new.key]
        self.records = [one for one in [*kept, new] if new.ts_ns - one.ts_ns <= AGE][-self.most :]

    def forget_from(self, sequence: int) -> None:
        self.records = [one for one in self.records if one.sequence < sequence]


@given(histories, st.integers(1, 6), st.sampled_from([1, 1500]))
def test_the_window_remembers_what_it_should(
    history: list[tuple[str, int, int]], most: int, stride: int
) -> None:
    """Scenario: keys come, come again when they have expired, are taken back when their group
    could not be written; now and then a checkpoint is written of what is durable. A log that
    is replayed under a longer window than it was written has a key twice. Guarantee: a key is
    known exactly as long as it should be, and the runs of every checkpoint give them back."""
    window, plain = KeyWindow(most, AGE), Plain(most)
    disk = Disk(MemoryDisk(record=False))
    runs = KeyRuns(disk, ())
    once_durable: list[KeyRecord] = []
    now, sequence, durable = 0, 0, 0
    for step, number, wait in history:
        if step in ("put", "replay"):
            now += wait
            new = record(number, sequence, now)
            known = window.find(new.key, new.content_hash, now)
            if known is None or step == "replay":
                window.add(new)
                plain.add(new)
                sequence += stride
        elif step == "undo":
            sequence = max(durable, sequence - number * stride)
            window.forget_from(sequence)
            plain.forget_from(sequence)
        else:
            durable = max(durable, sequence - number * stride)
            once_durable += [one for one in plain.records if one.sequence < durable]
            expected = tuple(one for one in plain.records if one.sequence < durable)
            assert window.snapshot(durable) == expected
            listed = runs.cover(expected)
            found = remembered(disk, listed, most)
            # What only a bundle that is not durable pushed out is known again after a crash.
            kept = {one.key for one in expected}
            assert tuple(one for one in found if one.key in kept) == expected
            assert all(one in once_durable for one in found)
            runs.remove_unlisted()
            assert disk.listdir(KEYS) == [run.name for run in listed]
        assert len(window) == len(plain.records)
        for one in plain.records:
            assert window.find(one.key, one.content_hash, one.ts_ns) is one


def remembered(disk: Disk, listed: tuple[KeyRun, ...], most: int) -> tuple[KeyRecord, ...]:
    """The window that an open makes of runs."""
    window = KeyWindow(most, AGE)
    for found in read_runs(disk, listed).values():
        assert not isinstance(found, QuiverError)
        window.extend(found)
    return window.snapshot(1 << 63)


def many(first: int, end: int) -> list[KeyRecord]:
    return [
        KeyRecord(f"key {n}", n.to_bytes(32, "big"), BundleRef(n // 9, n % 9), n, n)
        for n in range(first, end)
    ]


def test_only_what_is_new_is_written() -> None:
    """Scenario: a full window of 65,536 keys, then a few hundred more with each log file.
    Guarantee: what is written goes with what is new, not with the window."""
    raw = MemoryDisk(record=False)
    runs = KeyRuns(Disk(raw), ())
    full = 65_536
    runs.cover(many(0, full))
    before = raw.image()
    for end in range(full + 500, full + 5_000, 500):
        listed = runs.cover(many(end - full, end))
        runs.remove_unlisted()
    written = sum(len(data) for path, data in raw.image().items() if path not in before)
    assert written < len(before[KeyRun.of(many(0, RUN_KEYS)).path]) * 1.5
    assert sum(run.count for run in listed) >= full
    assert len(listed) <= 2 * full // RUN_KEYS + 14


def test_a_key_per_log_file_does_not_make_a_file_per_key() -> None:
    """Scenario: thousands of checkpoints with one new key each. Guarantee: a dozen files or two,
    and each key was written a dozen times, not a thousand."""
    raw = MemoryDisk()
    runs = KeyRuns(Disk(raw), ())
    keys = many(0, 3_000)
    most = written = 0
    for end in range(1, len(keys) + 1):
        before = {run.name: run for run in runs._runs}
        listed = runs.cover(keys[:end])
        written += sum(run.count for run in listed if run.name not in before)
        runs.remove_unlisted()
        most = max(most, len(raw.listdir(KEYS)))
    assert most <= 14
    assert written <= len(keys) * 13
    assert [run.first for run in listed] == sorted(run.first for run in listed)


def test_old_runs_leave_the_list() -> None:
    """Scenario: the window has moved on past a run, or is empty. Guarantee: the run is not
    listed any more, and its file is deleted only when that is asked for."""
    disk = Disk(MemoryDisk())
    runs = KeyRuns(disk, ())
    old = runs.cover(many(0, RUN_KEYS))
    both = runs.cover(many(0, 2 * RUN_KEYS))
    new = runs.cover(many(RUN_KEYS, 2 * RUN_KEYS))
    assert both == (*old, *new)
    assert disk.listdir(KEYS) == [run.name for run in both]
    runs.remove_unlisted()
    assert disk.listdir(KEYS) == [run.name for run in new]
    assert runs.cover([]) == ()


def test_a_full_disk_does_not_make_it_start_over() -> None:
    """Scenario: the disk is full after the first of three runs. Guarantee: with more capacity
    the other two are written, and the first is not written again."""
    raw = MemoryDisk(record=False)
    disk = Disk(raw)
    runs = KeyRuns(disk, ())
    keys = many(0, 3 * RUN_KEYS)
    raw.capacity = 2 * len(encode_run(keys[:RUN_KEYS])) - 1
    with pytest.raises(StorageFull):
        runs.cover(keys)
    [first] = disk.listdir(KEYS)
    raw.capacity = None
    kept = raw.image()[f"{KEYS}/{first}"]
    listed = runs.cover(keys)
    assert listed[0].name == first
    assert raw.image()[f"{KEYS}/{first}"] == kept
    assert len(listed) == 3


def test_a_damaged_run_is_refused() -> None:
    """Scenario: each byte of a run changed, cut anywhere, another's content under its name, or
    missing. Guarantee: `StateCorrupt` that names the file, never other keys."""
    keys = many(3, 9)
    run, good = KeyRun.of(keys), encode_run(keys)
    assert decode_run(good, run) == tuple(keys)
    for at in range(len(good)):
        with pytest.raises((StateCorrupt, UnsupportedVersion), match=run.name):
            decode_run(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :], run)
        with pytest.raises(StateCorrupt, match=run.name):
            decode_run(good[:at], run)
    with pytest.raises(StateCorrupt, match="other keys"):
        decode_run(encode_run(many(3, 10)), run)
    [missing] = read_runs(Disk(MemoryDisk()), [run]).values()
    assert isinstance(missing, StateCorrupt)
    assert "missing" in missing.message


def test_a_run_of_a_newer_version_is_not_damage() -> None:
    """Scenario: a run with version 2 and a good checksum. Guarantee: refused by name."""
    keys = many(3, 9)
    body = bytearray(encode_run(keys)[:-4])
    body[8] = 2
    with pytest.raises(UnsupportedVersion, match="version 2"):
        decode_run(bytes(body) + crc32(body).to_bytes(4, "little"), KeyRun.of(keys))
