"""When the disk fails: nothing false is promised, nothing hangs, and it goes on if it can."""

from __future__ import annotations

import errno

import pytest

from quiver.disk.disk import Disk
from quiver.errors import IoFault, Poisoned, QuiverError, StorageFull
from quiver.wal.capacity import Group
from quiver.wal.contents import LogStart
from tests.support.faulty import FOREVER, Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.support.wal import Log, payloads, read, reopened, small

KINDS = {
    "eio": Fault(0, errno.EIO),
    "enospc": Fault(0, errno.ENOSPC),
    "eio after the work": Fault(0, errno.EIO, after=True),
    "short": Fault(0, short=True),
    "short, then full": Fault(0, errno.ENOSPC, short=True),
    "full for good": Fault(0, errno.ENOSPC, times=FOREVER),
}


def workload(log: Log) -> None:
    """Several files, laps, groups of several entries, a watermark, a rotation, a seal."""
    for n in range(24):
        for payload in (b"%d" % n, bytes([n]) * 150):
            try:
                log.stage(payload, segment=n // 4)
            except QuiverError:
                continue
        log.commit()
        try:
            if n % 4 == 3:
                log.writer.retire(n // 4 - 1)
            if n == 10:
                log.writer.watermark()
            if n == 13:
                log.writer.rotate()
        except QuiverError:
            continue
    try:
        log.writer.seal()
        log.writer.close()
    except QuiverError:
        return


def calls_of_workload() -> int:
    disk = FaultyDisk(MemoryDisk())
    workload(Log(disk))
    return len(disk.calls)


@pytest.mark.parametrize("kind", KINDS)
def test_the_nth_call_fails(kind: str) -> None:
    """For every call and every kind of fault: durable means in the log, failed is failed.

    What was told durable and not retired is read back equal; nothing is read that was not
    put; every receipt is told; the log opens again, and takes more.
    """
    shape = KINDS[kind]
    for at in range(calls_of_workload()):
        raw = MemoryDisk()
        fault = Fault(at, shape.error, shape.short, shape.after, shape.times)
        disk = FaultyDisk(raw, fault)
        try:
            log = Log(disk)
        except QuiverError:
            continue
        workload(log)
        assert all(ack.done for ack in log.acks), at
        contents = read(raw.image())
        found = payloads(contents)
        kept = {ack.sequence: ack.payload for ack in log.acks if ack.durable}
        oldest = min(found, default=contents.next_sequence)
        assert {n: data for n, data in kept.items() if n >= oldest} == {
            n: data for n, data in found.items() if n in kept
        }, at
        sent = {(ack.sequence, ack.payload) for ack in log.acks}
        assert set(found.items()) <= sent, at
        again = reopened(raw)
        assert again.put(b"more").durable
        assert payloads(read(raw.image()))[again.acks[0].sequence] == b"more"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("short", [False, True])
def test_a_failed_write_is_taken_back(error: int, short: bool) -> None:
    """The failed group and all behind it are dropped; the log goes on where it was."""
    raw = MemoryDisk()
    disk = FaultyDisk(raw, Fault(1, error, short=short, ops=frozenset({"pwritev"})))
    log = Log(disk, small(rotation_target=1 << 20, max_group=512))
    good = log.put(b"good")
    failed = [log.stage(bytes(300)) for _ in range(5)]
    assert log.writer.commit() == 0
    wanted = StorageFull if error == errno.ENOSPC else IoFault
    assert all(isinstance(ack.error, wanted) for ack in failed)
    assert log.rollbacks == [(1, failed[0].error)]
    assert log.writer.next_sequence == log.writer.durable_before == 1
    assert log.writer.staged_bytes == 0
    assert log.writer.bytes_on_disk == sum(map(len, raw.image().values()))
    again = log.put(b"again")
    assert (good.sequence, again.sequence) == (0, 1)
    assert payloads(read(raw.image())) == {0: b"good", 1: b"again"}


def test_receipts_are_told_by_identity() -> None:
    """Sequences are used again after a rollback: the old receipt must stay failed."""
    raw = MemoryDisk()
    disk = FaultyDisk(raw, Fault(0, errno.ENOSPC, ops=frozenset({"pwritev"})))
    log = Log(disk)
    first = log.put(b"first")
    second = log.put(b"second")
    assert first.sequence == second.sequence == 0
    assert not first.durable
    assert second.durable


@pytest.mark.parametrize("op", ["fdatasync", "fsync", "fsync_dir"])
def test_a_failed_sync_poisons(op: str) -> None:
    """After a failed sync nothing more is promised, whatever it was that was synced."""
    raw = MemoryDisk()
    disk = FaultyDisk(raw, Fault(2, errno.EIO, ops=frozenset({op})))
    log = Log(disk)
    while log.put(bytes(100)).durable:
        assert len(log.acks) < 100
    assert isinstance(log.acks[-1].error, Poisoned)
    disk.heal()
    with pytest.raises(Poisoned):
        log.stage()


def test_a_rollback_that_fails_poisons() -> None:
    """If the file can't be cut back, stale entries could come back: stop writing."""
    raw = MemoryDisk()
    disk = FaultyDisk(
        raw,
        Fault(1, errno.ENOSPC, short=True, ops=frozenset({"pwritev"})),
        Fault(0, errno.EIO, ops=frozenset({"truncate"})),
    )
    log = Log(disk, small(rotation_target=1 << 20))
    log.put(b"good")
    ack = log.put(bytes(500))
    assert isinstance(ack.error, Poisoned)
    assert payloads(read(raw.image())) == {0: b"good"}


def test_a_full_disk_recovers_by_itself() -> None:
    """Puts fail while there is no room and work again when there is; no restart needed."""
    raw = MemoryDisk(capacity=4000)
    log = Log(raw, small(rotation_target=1 << 20))
    durable = 0
    while (ack := log.put(bytes(300))).durable:
        durable += 1
    assert isinstance(ack.error, StorageFull)
    assert isinstance(log.put(bytes(300)).error, StorageFull)
    raw.capacity = 8000
    assert log.put(bytes(300)).durable
    assert sorted(payloads(read(raw.image()))) == list(range(durable + 1))


def test_a_full_disk_frees_the_spare() -> None:
    """Bytes kept for recycling are given back when the disk is full."""
    raw = MemoryDisk()
    log = Log(raw, small(rotation_target=1000, max_rotated_files=10))
    for n in range(6):
        log.put(bytes(300), n)
    assert log.writer.retire(5)
    assert "wal/quiver.wal.spare" in raw.image()
    raw.capacity = raw.used
    while log.put(bytes(400), 6).durable:
        pass
    assert "wal/quiver.wal.spare" not in raw.image()
    assert log.put(bytes(100), 7).durable


@pytest.mark.parametrize("size", [10, 2000])
@pytest.mark.parametrize("done", [False, True])
def test_an_interrupt_takes_the_group_back(size: int, done: bool) -> None:
    """Ctrl-C in a commit, even one that was just about done: no half group, nothing hangs.

    The sequence is used again, so the interrupted group must be gone from the file, or it
    would hide what comes after it.
    """
    log = Log()
    log.put(b"good")
    ack = log.stage(bytes(size))
    append = log.writer._files.append

    def interrupted(group: Group, position: int) -> None:
        if done:
            append(group, position)
        raise KeyboardInterrupt

    log.writer._files.append = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        log.writer.commit()
    assert isinstance(ack.error, IoFault)
    log.writer._files.append = append  # type: ignore[method-assign]
    assert log.put(b"next").durable
    assert log.put(b"last").durable
    assert payloads(read(log.disk)) == {0: b"good", 1: b"next", 2: b"last"}


def test_a_fault_while_reading_is_a_fault() -> None:
    """EIO is never taken for the end of the log: every read that fails is an IoFault."""
    raw = MemoryDisk()
    log = Log(raw)
    for n in range(12):
        log.put(bytes(n * 20))
    disk = FaultyDisk(raw)
    read(Disk(disk))
    for at in range(len(disk.calls)):
        with pytest.raises(IoFault):
            read(Disk(FaultyDisk(raw, Fault(at, errno.EIO))))
    assert LogStart().files == ()
