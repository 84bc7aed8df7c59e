"""From file to file: a log is never without an active file, or one ready to become it."""

from __future__ import annotations

import errno
import itertools

import pytest

from quiver.errors import IoFault, Poisoned, QuiverError, WalCorrupt
from quiver.wal.files import ACTIVE, NEW, SPARE
from tests.support.faulty import Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.support.oplog import Durability
from tests.support.wal import Log, image, payloads, read, reopened, small


def rotated(recycle: bool) -> tuple[MemoryDisk, int, Log]:
    """A log that has just rotated, and where in the disk's record that began."""
    raw = MemoryDisk()
    log = Log(raw, small(recycle=recycle))
    for segment in range(4):
        log.put(bytes(600), segment)
    log.writer.retire(1)
    assert (SPARE in image(log)) is recycle
    before = len(raw.ops)
    log.put(b"x" * 600, 4)
    return raw, before, log


@pytest.mark.parametrize("recycle", [False, True])
def test_a_crash_in_a_rotation_leaves_a_log(recycle: bool) -> None:
    """At each step, with any of the pending names lost: it opens, and goes on."""
    raw, before, log = rotated(recycle)
    durable = Durability({})
    kept = {ack.sequence: ack.payload for ack in log.acks[:-1]}
    interrupted = 0
    for step, op in enumerate(raw.ops):
        durable.apply(op)
        if step < before:
            continue
        pending = durable.pending_entries
        for arrived in itertools.product([False, True], repeat=len(pending)):
            chosen = list(itertools.compress(pending, arrived))
            files = durable.image(entries=chosen)
            interrupted += ACTIVE not in files
            disk = MemoryDisk.from_image(files)
            found = payloads(read(files))
            assert {n: kept[n] for n in found if n in kept} == {
                n: data for n, data in kept.items() if n in found
            }
            assert max(found) in (3, 4)
            again = reopened(disk)
            assert {NEW, SPARE}.isdisjoint(disk.image())
            assert payloads(read(disk.image())) == found
            assert again.put(b"more").durable
            assert b"more" in payloads(read(disk.image())).values()
    assert interrupted, "no state without an active file was tried"


@pytest.mark.parametrize("recycle", [False, True])
def test_a_missing_active_file_is_damage(recycle: bool) -> None:
    """Rotated files alone are no log: what was in the active one would be gone unseen."""
    raw, _, _ = rotated(recycle)
    files = raw.image()
    del files[ACTIVE]
    with pytest.raises(WalCorrupt, match="active file is missing") as refused:
        read(files)
    assert refused.value.details["file"] == ACTIVE
    assert read(files, salvage=True).damage


def test_a_spare_of_an_earlier_lap_is_no_active_file() -> None:
    """A retired file, whole and sound, doesn't pass for the missing one."""
    log = Log()
    for segment in range(4):
        log.put(bytes(600), segment)
    log.writer.retire(1)
    files = image(log)
    del files[ACTIVE]
    assert SPARE in files
    with pytest.raises(WalCorrupt):
        read(files)


def test_a_prepared_file_behind_a_gap_is_damage() -> None:
    """The active file vanished after the next one was prepared: that one doesn't fit."""
    raw, before, _ = rotated(recycle=False)
    durable = Durability({})
    for op in raw.ops[:before]:
        durable.apply(op)
    for op in raw.ops[before:]:
        durable.apply(op)
        files = durable.image()
        if NEW in files:
            break
    assert ACTIVE in files
    del files[ACTIVE]
    with pytest.raises(WalCorrupt, match="missing"):
        read(files)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_failed_rename_is_undone(error: int, which: int, after: bool) -> None:
    """The active file goes on under its name; if nobody can tell the names, writing stops."""
    raw = MemoryDisk()
    disk = FaultyDisk(raw)
    log = Log(disk)
    log.put(b"a" * 600)
    disk.arm(Fault(which, error, after=after, ops=frozenset({"rename"})))
    failed = log.put(b"b" * 600)
    assert isinstance(failed.error, QuiverError)
    if which == 1 and after:
        assert isinstance(failed.error, Poisoned)
    else:
        assert raw.stat_size(ACTIVE) is not None
        assert log.put(b"c" * 600).durable
        assert payloads(read(raw.image())) == {0: b"a" * 600, 1: b"c" * 600}
    assert payloads(read(raw.image()))[0] == b"a" * 600
    again = reopened(raw)
    assert again.put(b"more").durable


def test_a_rename_that_cannot_be_undone_poisons() -> None:
    """Both names are gone from under us: nothing more is promised, and a restart finds all."""
    raw = MemoryDisk()
    disk = FaultyDisk(raw)
    log = Log(disk)
    log.put(b"a" * 600)
    disk.arm(Fault(1, errno.EIO, times=2, ops=frozenset({"rename"})))
    assert isinstance(log.put(b"b" * 600).error, Poisoned)
    assert raw.stat_size(ACTIVE) is None
    assert payloads(read(raw.image()))[0] == b"a" * 600
    assert reopened(raw).put(b"more").durable


def test_an_interrupt_between_the_renames_poisons() -> None:
    """Nobody knows which name leads where; after a restart everything durable is there."""
    raw = MemoryDisk()
    log = Log(raw)
    log.put(b"a" * 600)
    rename, calls = log.disk.rename, []

    def interrupted(source: str, target: str) -> None:
        calls.append(source)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(source, target)

    log.disk.rename = interrupted  # type: ignore[method-assign]
    ack = log.stage(b"b" * 600)
    with pytest.raises(KeyboardInterrupt):
        log.commit()
    assert isinstance(ack.error, (Poisoned, IoFault))
    assert log.disk.poison.cause is not None
    assert payloads(read(raw.image()))[0] == b"a" * 600
    assert reopened(raw).put(b"more").durable


def test_a_seal_in_a_prepared_file_gets_its_name() -> None:
    """A clean close whose seal began a new file, cut short: the file is kept, not cleared up."""
    raw = MemoryDisk()
    log = Log(raw, small(rotation_target=700))
    log.put(bytes(480))
    before = len(raw.ops)
    log.writer.seal()
    log.writer.close()
    durable = Durability({})
    seen = 0
    for step, op in enumerate(raw.ops):
        durable.apply(op)
        files = durable.image()
        if step < before or ACTIVE in files:
            continue
        seen += 1
        disk = MemoryDisk.from_image(files)
        assert read(files).sealed
        again = reopened(disk)
        assert ACTIVE in disk.image()
        assert again.put(b"more").durable
    assert seen


def test_the_first_sequence_kept_is_known_before_anything_goes() -> None:
    """What is written down as the log's new beginning is what it then begins with."""
    log = Log(config=small(recycle=False))
    assert log.writer.first_kept() == 0
    for segment in range(6):
        log.put(bytes(600), segment)
    for through in (-1, 1, 3):
        kept = log.writer.first_kept(through)
        log.writer.retire(through, kept)
        assert read(image(log)).files[0].header.first_sequence == kept == through + 1
    kept = log.writer.first_kept(4)
    log.put(bytes(600), 4)
    assert log.writer.retire(99, kept) == 1
    assert read(image(log)).files[0].header.first_sequence == kept
