"""Staging, committing, and the files that come of it."""

from __future__ import annotations

import threading

import pytest

from quiver.errors import Backpressure, StoreClosed
from quiver.format.wal.entry import SLOT_NAME, encode_slot_name
from quiver.wal.files import ACTIVE
from tests.support.memory_disk import MemoryDisk
from tests.support.oplog import Rename, Sync, SyncDir, Write
from tests.support.wal import Log, body, image, payloads, read, reopened, small


def ops(log: Log) -> list[object]:
    assert isinstance(log.raw, MemoryDisk)
    return list(log.raw.ops)


def test_committed_entries_are_read_back() -> None:
    """Whatever was staged and committed is in the log, in order, and receipts say so."""
    log = Log()
    acks = [log.stage(bytes([n]) * n) for n in range(50)]
    assert not any(ack.done for ack in acks)
    log.commit()
    assert all(ack.durable for ack in acks)
    contents = read(image(log))
    assert payloads(contents) == {ack.sequence: ack.payload for ack in acks}
    assert contents.next_sequence == log.writer.next_sequence == log.writer.durable_before == 50
    assert contents.position == log.writer.position
    assert log.writer.staged_bytes == 0


def test_one_write_and_one_sync_per_group() -> None:
    """A group costs one write and one sync however many entries it has."""
    log = Log(config=small(rotation_target=1 << 20))
    log.put(b"first")
    before = len(ops(log))
    for n in range(20):
        log.stage(bytes(n))
    assert log.writer.commit() == 20
    assert [type(op) for op in ops(log)[before:]] == [Write, Sync]


def test_a_group_has_a_limit() -> None:
    """No group is larger than max_group, unless one entry alone is."""
    log = Log(config=small(rotation_target=1 << 20, max_group=1000))
    for size in (300, 300, 300, 5000, 10):
        log.stage(bytes(size))
    counts = []
    while count := log.writer.commit():
        counts.append(count)
    assert counts == [2, 1, 1, 1]


def test_flush_every_commits_entry_by_entry() -> None:
    """With ``flush: every`` each entry has a sync of its own."""
    log = Log(config=small(flush="every"))
    acks = [log.stage() for _ in range(3)]
    assert log.writer.commit() == 1
    assert [ack.done for ack in acks] == [True, False, False]


def test_what_is_durable_is_published_before_receipts_are_told() -> None:
    """Whoever sees a receipt done sees its bundle, too: the callback came first."""
    log = Log()
    ack = log.stage()
    seen: list[bool] = []

    def on_durable(before: int) -> None:
        assert log.lock.locked()
        seen.append(ack.done)
        assert before == 1

    log.writer.on_durable = on_durable
    log.commit()
    assert seen == [False]
    assert ack.durable


def test_the_ingest_lock_is_free_during_io() -> None:
    """Puts go on while a group is written and synced."""
    log = Log()
    held: list[bool] = []
    raw = log.raw
    assert isinstance(raw, MemoryDisk)
    record = raw.log

    def watch(op: object) -> None:
        held.append(log.lock.locked())
        record(op)  # type: ignore[arg-type]

    raw.log = watch  # type: ignore[method-assign]
    for n in range(100):
        log.stage(bytes(n))
        log.commit()
    log.writer.retire(0)
    assert held
    assert not any(held)


def test_only_the_next_sequence_is_taken() -> None:
    """An entry sealed with any other sequence would break the log: refused, not staged."""
    log = Log()
    with pytest.raises(ValueError, match="not the next"):
        log.writer.stage([b"x"], 1, 5, 0, None)
    assert log.writer.staged_bytes == 0


def test_a_found_log_is_never_appended_to() -> None:
    """After a restart the first entry begins a new file; nothing is made before that."""
    log = Log()
    log.put(b"old")
    before = image(log)
    again = reopened(log.raw)
    assert set(image(again)) == set(before)
    again.put(b"new")
    files = image(again)
    assert sorted(files) == [ACTIVE, "wal/quiver.wal.1"]
    assert payloads(read(files)) == {0: b"old", 1: b"new"}


def test_rotation_syncs_names_one_after_the_other() -> None:
    """The next file is durable before the old one is renamed, and that before it is replaced."""
    log = Log(config=small(recycle=False))
    log.put(bytes(600))
    before = len(ops(log))
    log.put(bytes(600))
    kinds = [op for op in ops(log)[before:] if isinstance(op, (Sync, Rename, SyncDir))]
    assert [type(op) for op in kinds] == [Sync, SyncDir, Rename, SyncDir, Rename, SyncDir]
    assert isinstance(kinds[2], Rename)
    assert isinstance(kinds[4], Rename)
    assert (kinds[2].source, kinds[4].target) == (ACTIVE, ACTIVE)


def test_positions_count_data_only() -> None:
    """Heads are not part of positions, and these go on from file to file."""
    log = Log()
    sizes = []
    for n in range(30):
        before = log.writer.position
        log.put(bytes(n * 10))
        sizes.append(log.writer.position - before)
    contents = read(image(log))
    found = [(entry.position, entry.end_position) for entry in contents.entries()]
    ends = [sum(sizes[: n + 1]) for n in range(30)]
    assert found == list(zip([0, *ends[:-1]], ends, strict=True))
    assert len(contents.files) > 3


def test_retire_goes_oldest_first_and_stops_at_what_is_needed() -> None:
    """Files go only with everything in them sealed, and never out of order."""
    log = Log(config=small(recycle=False))
    for segment in range(6):
        for _ in range(4):
            log.put(bytes(200), segment)
    everything = payloads(read(image(log)))
    assert not log.writer.retirable(-1)
    assert log.writer.retire(-1) == 0
    assert log.writer.retirable(2)
    assert log.writer.retire(2) > 0
    contents = read(image(log))
    left = payloads(contents)
    assert {n for n in everything if n >= 12} <= set(left)
    assert min(left) > 0
    assert log.writer.oldest_position == contents.files[0].header.position_start


def test_the_next_sequence_is_never_forgotten() -> None:
    """Even with everything retired a file is left that knows it: no number is used twice."""
    log = Log()
    log.put(bytes(100), 0)
    again = reopened(log.raw)
    assert again.writer.retire(99) == 0
    again.writer.rotate()
    again.put(bytes(100), 1)
    again.writer.rotate()
    assert again.writer.retire(99) == 2
    contents = read(image(again))
    assert [file.entries for file in contents.files] == [0]
    assert contents.next_sequence == 2


def test_begin_makes_the_first_file_once() -> None:
    """A log that was begun is there, with nothing in it; a second call changes nothing."""
    log = Log()
    log.writer.begin()
    log.writer.begin()
    contents = read(image(log))
    assert [file.path for file in contents.files] == [ACTIVE]
    assert contents.next_sequence == 0
    log.put(b"x")
    assert payloads(read(image(log))) == {0: b"x"}


def test_watermark_only_when_there_is_something_to_prove() -> None:
    """Once per idle period: after a commit, not before the first, not twice."""
    log = Log()
    asked = []
    for step in (log.commit, log.put, log.commit, log.commit, log.put):
        step()
        asked.append((log.writer.wants_watermark, log.writer.watermark(), log.writer.watermark()))
    assert [due for due, _, _ in asked] == [False, True, False, False, True]
    assert [staged for _, staged, _ in asked] == [False, True, False, False, True]
    assert not any(twice for _, _, twice in asked)
    log.commit()
    contents = read(image(log))
    assert contents.next_sequence == 4
    assert contents.proven_end == list(contents.entries())[-1].offset


def test_a_sealed_log_ends_with_its_seal() -> None:
    """A clean close leaves nothing behind the seal, and says so."""
    log = Log()
    log.put(b"x")
    log.writer.seal()
    log.writer.close()
    contents = read(image(log))
    assert contents.sealed
    assert contents.torn is None
    assert contents.files[-1].size == contents.files[-1].end


def test_seal_writes_nothing_if_nothing_was_written() -> None:
    """Opening and closing a store leaves its log as it is."""
    log = Log()
    log.put(b"x")
    log.writer.seal()
    before = image(log)
    again = reopened(log.raw)
    again.writer.seal()
    again.writer.close()
    assert image(again) == before


def test_after_close_nothing_is_taken() -> None:
    """A closed log refuses, and what was staged is told that it isn't durable."""
    log = Log()
    ack = log.stage()
    log.writer.close()
    assert isinstance(ack.error, StoreClosed)
    with pytest.raises(StoreClosed):
        log.stage()


def test_control_entries_share_the_sequence() -> None:
    """Names are entries like others and come back as such."""
    log = Log()
    log.stage(b"a")
    with log.lock:
        assert log.writer.stage_control(SLOT_NAME, encode_slot_name(4, "Logs"), 0) == 1
    log.stage(b"b")
    log.commit()
    contents = read(image(log))
    assert [entry.slot_name() for entry in contents.entries()] == [None, (4, "Logs"), None]
    assert payloads(contents) == {0: b"a", 2: b"b"}


def test_full_is_said_before_anything_is_staged() -> None:
    """At the cap ``stage`` refuses with its reason and leaves no trace."""
    log = Log(config=small(max_size=2048))
    while log.writer.room_for(body(bytes(300)).entry_size()):
        log.stage(bytes(300))
    with pytest.raises(Backpressure) as refused:
        log.stage(bytes(300))
    assert refused.value.reason == "wal_full"
    count = log.writer.next_sequence
    log.commit()
    assert len(payloads(read(image(log)))) == count


def test_many_threads_stage_and_commit() -> None:
    """Staging and committing from several threads loses and doubles nothing."""
    log = Log(config=small(rotation_target=8192, max_size=1 << 30))

    def work(name: int) -> None:
        for n in range(100):
            ack = log.stage(f"{name}/{n}".encode())
            while not ack.done:
                log.writer.commit()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = payloads(read(image(log)))
    assert sorted(found) == list(range(400))
    assert len(set(found.values())) == 400
    assert log.durable == sorted(log.durable)
