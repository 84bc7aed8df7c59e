"""Recycled files: what is old must never be taken for new, wherever a crash cuts."""

from __future__ import annotations

import random

import pytest

from quiver.format.wal.scan import TERMINATOR
from quiver.wal.files import ACTIVE
from tests.support.memory_disk import MemoryDisk
from tests.support.oplog import Write
from tests.support.wal import Log, as_v1, image, payloads, read, reopened, small

SECTOR = 64


def lapping(seed: int, puts: int) -> tuple[Log, random.Random]:
    """A log that has gone round its files many times, with entries of many sizes."""
    pick = random.Random(seed)
    log = Log(config=small(rotation_target=900, max_size=4000, max_rotated_files=3))
    for n in range(puts):
        # Few sizes, so that new entries often end where old ones began.
        log.put(bytes([n % 251]) * pick.choice([0, 16, 32, 100, 200]), segment=n)
        log.writer.retire(n - 1)
    return log, pick


def torn(old: bytes, new: bytes, at: int, kept: list[bool]) -> bytes:
    """A write of which only some sectors arrived; what it grew reads as zeros."""
    size = max(len(old), at + len(new))
    result = bytearray(old.ljust(size, b"\0"))
    for sector in range(at // SECTOR, (at + len(new) - 1) // SECTOR + 1):
        low, high = max(at, sector * SECTOR), min(at + len(new), (sector + 1) * SECTOR)
        if kept[sector % len(kept)]:
            result[low:high] = new[low - at : high - at]
    return bytes(result)


@pytest.mark.parametrize("seed", range(6))
def test_hundreds_of_laps(seed: int) -> None:
    """After each of many rounds over the same files the log reads back exactly."""
    pick = random.Random(seed)
    log = Log(config=small(rotation_target=900, max_size=4000, max_rotated_files=3))
    sent: dict[int, bytes] = {}
    names: set[str] = set()
    for n in range(1500):
        ack = log.put(bytes([n % 251]) * pick.choice([0, 16, 32, 100, 200]), segment=n)
        sent[ack.sequence] = ack.payload
        log.writer.retire(n - 3)
        files = image(log)
        names |= set(files)
        found = payloads(read(files))
        assert found
        assert max(found) == ack.sequence
        assert found == {sequence: sent[sequence] for sequence in found}
    laps = max(int(name.rpartition(".")[2]) for name in names if name[-1].isdigit())
    assert laps > 200
    assert "wal/quiver.wal.spare" in names


@pytest.mark.parametrize("seed", range(40))
def test_every_tear_of_the_last_group(seed: int) -> None:
    """Any sectors of the last write may be missing: all before it is read, no phantom.

    The group is written over an old lap; what shows through must be told apart.
    """
    log, pick = lapping(seed, 60 + seed)
    before = image(log)
    durable = payloads(read(before))
    for size in pick.choices([0, 16, 32, 100], k=4):
        log.stage(bytes([255]) * size, segment=999)
    raw = log.raw
    assert isinstance(raw, MemoryDisk)
    mark = len(raw.ops)
    log.writer.commit()
    write = next(op for op in raw.ops[mark:] if isinstance(op, Write))
    staged = {ack.sequence: ack.payload for ack in log.acks[-4:]}
    active = before.get(ACTIVE)
    if write.offset == 0 or active is None:
        return  # a new file: it has no name before it is whole
    for _ in range(60):
        kept = [pick.random() < 0.5 for _ in range(16)]
        files = before | {ACTIVE: torn(active, write.data, write.offset, kept)}
        found = payloads(read(files))
        assert {n: found[n] for n in durable} == durable
        extra = {n: data for n, data in found.items() if n not in durable}
        assert extra.items() <= staged.items()
        assert sorted(extra) == list(range(max(durable) + 1, max(durable) + 1 + len(extra)))


def test_every_cut_of_a_lapped_file() -> None:
    """Cut at any byte, the active file gives a prefix of what it held."""
    log, _ = lapping(3, 100)
    files = image(log)
    whole = payloads(read(files))
    first = read(files).files[-1].header.first_sequence
    assert first is not None
    for cut in range(64, read(files).files[-1].end):
        contents = read(files | {ACTIVE: files[ACTIVE][:cut]}, salvage=True)
        found = payloads(contents)
        assert found == {n: whole[n] for n in range(min(whole), contents.next_sequence)}


def test_a_stale_entry_does_not_come_back() -> None:
    """10 torn, 11 whole, both unsynced; a new 10 of equal length must not revive the 11.

    The tail behind the torn entry is cut at recovery, so nothing can follow the new 10.
    """
    log = Log(config=small(rotation_target=1 << 20))
    for n in range(10):
        log.put(b"%02d" % n)
    end = read(image(log)).files[-1].end
    for n in (10, 11, 12):
        log.stage(b"old%d" % n)
    log.commit()
    files = image(log)
    bad = bytearray(files[ACTIVE])
    bad[end + 50] ^= 1
    raw = MemoryDisk.from_image({ACTIVE: bytes(bad)})
    contents = read(raw.image())
    assert contents.torn is not None
    assert contents.next_sequence == 10
    again = reopened(raw, small(rotation_target=1 << 20, max_rotated_files=2))
    again.put(b"new10", segment=1)
    again.writer.retire(0)
    again.put(b"new11", segment=2)
    found = payloads(read(raw.image()))
    assert found[10] == b"new10"
    assert found[11] == b"new11"
    assert not any(data.startswith(b"old") for data in found.values())


def test_a_stale_entry_behind_a_hole_does_not_come_back() -> None:
    """The same with 10 lost altogether: the end looks clean, and is cut all the same.

    Otherwise the recycled file would still hold the whole 11 and 12 when it comes round
    again for sequence 11.
    """
    config = small(rotation_target=1 << 20, max_rotated_files=2)
    log = Log(config=config)
    for n in range(10):
        log.put(b"%02d" % n)
    end = read(image(log)).files[-1].end
    for n in (10, 11, 12):
        log.stage(b"old%d" % n)
    log.commit()
    data = image(log)[ACTIVE]
    size = (len(data) - 64 - end) // 3
    raw = MemoryDisk.from_image({ACTIVE: data[:end] + bytes(size) + data[end + size :]})
    assert read(raw.image()).torn is None
    again = reopened(raw, config)
    assert raw.image()[ACTIVE][end:] == TERMINATOR
    again.put(b"new10", segment=1)
    assert b"old" not in b"".join(raw.image().values())


def test_the_terminator_is_overwritten_by_the_next_group() -> None:
    """Groups stand one behind the other, with one terminator behind the last."""
    log = Log(config=small(rotation_target=1 << 20))
    for n in range(5):
        log.put(bytes([n + 1]) * 40)
    data = image(log)[ACTIVE]
    assert data.endswith(TERMINATOR)
    assert data.count(TERMINATOR) == 1


def test_an_old_entry_where_the_next_should_be() -> None:
    """In version 1, an older sequence is the end, without a terminator too."""
    log = Log(config=small(rotation_target=1 << 20))
    for n in range(3):
        log.put(b"%d" % n)
    data = as_v1(image(log)[ACTIVE])
    entries = list(read({ACTIVE: data}).entries())
    size = entries[1].offset - entries[0].offset
    end = read({ACTIVE: data}).files[-1].end
    for old in (0, 1, 2):
        start = entries[old].offset
        contents = read({ACTIVE: data[:end] + data[start : start + size]})
        assert contents.torn is None
        assert contents.next_sequence == 3
        assert contents.files[-1].end == end


def test_an_earlier_lap_fails_its_checksum() -> None:
    """With a salt, an entry of an earlier lap is no entry at all: a torn tail, and kept aside."""
    old, new = Log(config=small()), Log(config=small())
    for n in range(3):
        old.put(b"%d" % n)
        new.put(b"%d" % n)
    lap, data = image(old)[ACTIVE], image(new)[ACTIVE]
    first, second = (one.offset for one in list(read({ACTIVE: lap}).entries())[:2])
    end = read({ACTIVE: data}).files[-1].end
    contents = read({ACTIVE: data[:end] + lap[first:second]})
    assert contents.torn is not None
    assert (contents.torn.offset, contents.next_sequence) == (end, 3)
    raw = MemoryDisk.from_image({ACTIVE: data[:end] + lap[first:second]})
    reopened(raw)
    copies = [found for path, found in raw.image().items() if path.startswith("quarantine/")]
    assert copies == [lap[first:second]]


def test_going_on_from_version_1() -> None:
    """A log of 0.1.0 is read, gone on from and written over; no entry of it comes back."""
    config = small(rotation_target=900, max_size=4000, max_rotated_files=3)
    log = Log(config=config)
    for n in range(20):
        log.put(bytes([n]) * 100, segment=n)
        log.writer.retire(n - 4)
    files = {path: as_v1(data) for path, data in image(log).items() if not path.endswith("spare")}
    before = payloads(read(files))
    again = reopened(MemoryDisk.from_image(files), config)
    sent = dict(before)
    for n in range(20, 60):
        ack = again.put(bytes([n]) * 100, segment=n)
        sent[ack.sequence] = ack.payload
        found = payloads(read(image(again)))
        assert found == {sequence: sent[sequence] for sequence in found}
        assert max(found) == ack.sequence
        again.writer.retire(n - 4)
    assert min(found) > max(before)
