"""Making a log fit to go on from."""

from __future__ import annotations

import errno

import pytest

from quiver.disk.disk import Disk
from quiver.errors import IoFault
from quiver.format.wal.scan import TERMINATOR
from quiver.wal.files import ACTIVE
from quiver.wal.reader import read_log
from quiver.wal.repair import repair_tail
from tests.support.faulty import Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.support.oplog import Durability, Sync, Truncate, Write
from tests.support.wal import LAYOUT, Log, image, payloads, read, small


def torn_log() -> tuple[dict[str, bytes], int]:
    """A log whose last group of two is torn in its first entry; where that is."""
    log = Log(config=small(rotation_target=1 << 20))
    for n in range(4):
        log.put(bytes([n]) * 40)
    end = read(image(log)).files[-1].end
    log.stage(b"torn" * 20)
    log.stage(b"whole" * 20)
    log.commit()
    data = bytearray(image(log)[ACTIVE])
    data[end + 70] ^= 1
    return {ACTIVE: bytes(data)}, end


def repair(raw: MemoryDisk | FaultyDisk) -> tuple[str, ...]:
    disk = Disk(raw)
    return repair_tail(disk, read_log(disk, layout_hash=LAYOUT)).copies


def test_a_torn_tail_is_kept_and_cut() -> None:
    """The torn bytes go to quarantine, whole; the file ends behind its last good entry.

    A terminator is behind it again: without one, the end might have been cut off.
    """
    files, end = torn_log()
    raw = MemoryDisk.from_image(files)
    (copy,) = repair(raw)
    after = raw.image()
    assert after[copy] == files[ACTIVE][end:]
    assert after[ACTIVE] == files[ACTIVE][:end] + TERMINATOR
    contents = read(after)
    assert contents.torn is None
    assert sorted(payloads(contents)) == [0, 1, 2, 3]


def test_repair_is_durable() -> None:
    """When it is done, a power cut changes nothing any more."""
    files, _ = torn_log()
    raw = MemoryDisk.from_image(files)
    repair(raw)
    state = raw.durability()
    assert state.pending == {}
    assert state.pending_entries == []
    assert state.image() == raw.image()


def test_repair_twice_is_repair_once() -> None:
    """It can be done again, or after a crash in the middle of it: one copy, same log."""
    files, _ = torn_log()
    raw = MemoryDisk.from_image(files)
    repair(raw)
    once = raw.image()
    for count in range(len(raw.ops)):
        state = MemoryDisk.from_image(files)
        for op in raw.ops[:count]:
            state.ops.append(op)
        cut = MemoryDisk.from_image(state.durability().image(), ["wal"])
        repair(cut)
        assert cut.image() == once
    repair(raw)
    assert raw.image() == once


def test_what_is_not_proven_is_written_again() -> None:
    """After a kill the last group may be in the page cache only: rewritten and synced."""
    log = Log(config=small(rotation_target=1 << 20))
    log.put(b"proven")
    log.put(b"not yet")
    files = image(log)
    raw = MemoryDisk.from_image(files)
    contents = read(files)
    entry = list(contents.entries())[-1]
    repair(raw)
    writes = [op for op in raw.ops if isinstance(op, Write)]
    end = contents.files[-1].end
    assert [(op.offset, len(op.data)) for op in writes] == [
        (entry.offset, end - entry.offset),
        (end, len(TERMINATOR)),
    ]
    assert isinstance(raw.ops[raw.ops.index(writes[-1]) + 1], Sync)
    assert payloads(read(raw.image())) == {0: b"proven", 1: b"not yet"}


def test_a_sealed_log_is_left_alone() -> None:
    """A clean close proves all there is: nothing is written at the next open."""
    log = Log()
    log.put(b"x")
    log.writer.seal()
    raw = MemoryDisk.from_image(image(log))
    repair(raw)
    assert raw.ops == []


def test_a_seal_with_something_behind_it_is_written_again() -> None:
    """Scenario: killed between writing the seal and cutting the file behind it: it may be in
    the page cache only. Guarantee: it is written again, synced, and the file is cut."""
    log = Log()
    log.put(b"x")
    log.writer.seal()
    closed = image(log)
    raw = MemoryDisk.from_image({ACTIVE: closed[ACTIVE] + TERMINATOR})
    seal = list(read(closed).entries())[-1]
    repair(raw)
    writes = [op for op in raw.ops if isinstance(op, Write)]
    assert writes[0].offset == seal.offset
    assert raw.durability().image() == closed
    raw.ops.clear()
    repair(raw)
    assert raw.ops == []


def test_strays_are_removed() -> None:
    """Files in the making and the spare may hold anything: they go."""
    log = Log()
    log.put(b"x")
    files = image(log) | {"wal/quiver.wal.new": b"half", "wal/quiver.wal.spare": bytes(500)}
    raw = MemoryDisk.from_image(files)
    repair(raw)
    assert sorted(raw.image()) == [ACTIVE]


def test_a_full_disk_does_not_keep_a_store_shut() -> None:
    """Without room for the copy the tail is cut all the same: it was never promised."""
    files, end = torn_log()
    raw = MemoryDisk.from_image(files)
    raw.capacity = raw.used
    assert repair(raw) == ()
    assert raw.image() == {ACTIVE: files[ACTIVE][:end] + TERMINATOR}


def test_faults_in_repair_are_faults() -> None:
    """Any call that fails ends the repair with an error; the next one finishes it."""
    files, end = torn_log()
    clean = FaultyDisk(MemoryDisk.from_image(files))
    repair(clean)
    for at in range(len(clean.calls)):
        raw = MemoryDisk.from_image(files)
        faulty = FaultyDisk(raw, Fault(at, errno.EIO))
        if clean.calls[at][0] == "chmod":
            continue
        with pytest.raises((IoFault, Exception)):
            repair(faulty)
        repair(raw)
        assert raw.image()[ACTIVE] == files[ACTIVE][:end] + TERMINATOR


def test_an_end_without_a_terminator_is_reported() -> None:
    """Cut between two entries, a log looks whole: it is told, and whole again afterwards."""
    log = Log(config=small(rotation_target=1 << 20))
    for n in range(3):
        log.put(b"%d" % n)
    files = image(log)
    ends = [entry.offset for entry in read(files).entries()] + [read(files).files[-1].end]
    assert read(files).torn is None
    for end in ends:
        for zeros in (0, 1, 63):
            data = files[ACTIVE][:end] + bytes(zeros)
            torn = read({ACTIVE: data}).torn
            assert torn is not None
            assert (torn.offset, torn.length) == (len(data), 0)
            assert "terminator" in torn.describe()
            raw = MemoryDisk.from_image({ACTIVE: data})
            assert repair(raw) == ()
            assert read(raw.image()).torn is None


def test_a_terminator_that_is_there_is_never_cut() -> None:
    """Opening a log again and again must not make its end look uncertain in between."""
    log = Log()
    log.put(b"x")
    raw = MemoryDisk.from_image(image(log))
    repair(raw)
    durable = Durability(image(log))
    for op in raw.ops:
        durable.apply(op)
        assert read(durable.image()).torn is None
    assert not any(isinstance(op, Truncate) for op in raw.ops)
