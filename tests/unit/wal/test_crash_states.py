"""A power cut at any moment of a log's life, with any part of what was at risk lost."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

import pytest

from tests.support.faulty import Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.support.oplog import DataOp, Durability, Write, settle
from tests.support.wal import Log, payloads, read, reopened, small

SECTOR = 64


def lived(seed: int) -> tuple[MemoryDisk, Log, list[int], list[tuple[int, int]]]:
    """A log with laps, groups, retirements, a full disk now and then, and a clean close.

    Gives for each receipt how long the record was when it was told, and the same for
    each retirement, with what it let go.
    """
    pick = random.Random(seed)
    raw = MemoryDisk()
    faults = [Fault(at, errno.ENOSPC, short=True, ops=frozenset({"pwritev"})) for at in (9, 17)]
    config = small(rotation_target=700, max_size=6000, max_rotated_files=5, max_group=600)
    log = Log(FaultyDisk(raw, *faults), config)
    told: list[int] = []
    retired: list[tuple[int, int]] = []
    for n in range(30):
        for _ in range(pick.randint(1, 3)):
            log.stage(bytes([n + 1]) * pick.choice([0, 16, 40, 150]), segment=n)
        while log.writer.commit():
            told += [len(raw.ops)] * (sum(ack.done for ack in log.acks) - len(told))
        told += [len(raw.ops)] * (len(log.acks) - len(told))
        if pick.random() < 0.2 and log.writer.watermark():
            log.commit()
        retired.append((len(raw.ops), log.writer.durable_before))
        log.writer.retire(n - 1)
    return raw, log, told, retired


def tear(pick: random.Random, content: bytes, pending: list[DataOp]) -> bytes:
    """Some of the pending changes, writes with some of their sectors."""
    data = bytearray(content)
    for op in pending:
        if pick.random() < 0.3:
            continue
        if not isinstance(op, Write) or pick.random() < 0.3:
            data = bytearray(settle(bytes(data), [op]))
            continue
        end = op.offset + len(op.data)
        if end > len(data):
            data.extend(bytes(end - len(data)))
        for low in range(op.offset - op.offset % SECTOR, end, SECTOR):
            if pick.random() < 0.5:
                start, stop = max(low, op.offset), min(low + SECTOR, end)
                data[start:stop] = op.data[start - op.offset : stop - op.offset]
    return bytes(data)


def states(pick: random.Random, durable: Durability) -> Iterator[dict[str, bytes]]:
    """What a power cut may leave: nothing of what is at risk, all of it, and samples."""
    everything = {
        inode: settle(durable.contents[inode], ops) for inode, ops in durable.pending.items()
    }
    yield durable.image()
    yield durable.image(contents=everything, entries=durable.pending_entries)
    for _ in range(12):
        torn = {
            inode: tear(pick, durable.contents[inode], ops)
            for inode, ops in durable.pending.items()
        }
        entries = [op for op in durable.pending_entries if pick.random() < 0.5]
        yield durable.image(contents=torn, entries=entries)


@pytest.mark.parametrize("seed", range(5))
def test_any_power_cut(seed: int) -> None:
    """It opens; what was durable is there, once and equal; nothing appears that was not put.

    Then it is repaired, and the same holds again, and for what is put after that.
    """
    raw, log, told, retired = lived(seed)
    pick = random.Random(seed)
    sent = {(ack.sequence, ack.payload) for ack in log.acks}
    durable = Durability({})
    seen: set[int] = set()
    for step, op in enumerate(raw.ops):
        durable.apply(op)
        kept = {
            ack.sequence: ack.payload
            for ack, when in zip(log.acks, told, strict=True)
            if ack.durable and when <= step + 1
        }
        gone_before = max((before for when, before in retired if when <= step), default=0)
        for files in states(pick, durable):
            mark = hash(tuple(sorted(files.items())))
            if mark in seen:
                continue
            seen.add(mark)
            contents = read(files)
            found = payloads(contents)
            assert set(found.items()) <= sent
            lost = set(kept) - set(found)
            assert all(sequence < gone_before for sequence in lost), (step, lost)
            assert {n: found[n] for n in kept if n in found} == {
                n: kept[n] for n in kept if n in found
            }
            disk = MemoryDisk.from_image(files, record=False)
            again = reopened(disk)
            assert payloads(read(disk.image())) == found
            again.put(b"after")
            assert payloads(read(disk.image()))[contents.next_sequence] == b"after"
    assert len(seen) > 250
