"""Who leads a commit, and who waits."""

from __future__ import annotations

import threading

import pytest

from quiver.clock import ManualClock
from quiver.errors import StoreClosed, WaitTimeout
from quiver.wal.group_commit import Commits
from tests.support.memory_disk import MemoryDisk
from tests.support.wal import Ack, Log, payloads, read, small


class SlowDisk(MemoryDisk):
    """A disk whose syncs wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.syncing = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def log(self, op: object) -> None:
        if type(op).__name__ == "Sync" and not self.go.is_set():
            self.syncing.set()
            assert self.go.wait(30)
        super().log(op)  # type: ignore[arg-type]


def big(raw: MemoryDisk | None = None) -> Log:
    return Log(raw, small(rotation_target=1 << 20))


def test_waiting_leads() -> None:
    """Without any thread whoever waits commits, for all who are staged."""
    log = big()
    commits = Commits(log.writer, log.config)
    acks = [log.stage(bytes(n)) for n in range(5)]
    commits.wait(acks[0])
    assert all(ack.durable for ack in acks)
    commits.wait(acks[4])


def test_groups_form_behind_a_running_sync() -> None:
    """While one sync runs others stage and wait; one more sync then serves them all."""
    raw = SlowDisk()
    log = big(raw)
    log.put(b"first")
    commits = Commits(log.writer, log.config)
    raw.go.clear()
    leader = log.stage(b"leader")
    threads = [threading.Thread(target=commits.wait, args=(leader, 30))]
    threads[0].start()
    assert raw.syncing.wait(30)
    followers = [log.stage(bytes(n)) for n in range(20)]
    threads += [threading.Thread(target=commits.wait, args=(ack, 30)) for ack in followers]
    for thread in threads[1:]:
        thread.start()
    assert not any(ack.done for ack in followers)
    raw.go.set()
    for thread in threads:
        thread.join(30)
    assert all(ack.durable for ack in [leader, *followers])
    assert log.durable == [1, 2, 22]


def test_many_writers() -> None:
    """Threads that put and wait, one at a time each: all durable, once, in order."""
    log = Log(config=small(rotation_target=5000, max_size=1 << 30))
    commits = Commits(log.writer, log.config)

    def work(name: int) -> None:
        for n in range(50):
            commits.wait(log.stage(f"{name}.{n}".encode()), 60)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(ack.durable for ack in log.acks)
    found = payloads(read(log.disk))
    assert sorted(found.values()) == sorted(ack.payload for ack in log.acks)


def test_a_wait_has_its_time() -> None:
    """Who can't lead gets WaitTimeout when the time is up, and may wait again."""
    raw = SlowDisk()
    log = big(raw)
    log.put(b"first")
    commits = Commits(log.writer, log.config)
    raw.go.clear()
    leader = log.stage(b"leader")
    thread = threading.Thread(target=commits.wait, args=(leader, 30))
    thread.start()
    assert raw.syncing.wait(30)
    with pytest.raises(WaitTimeout):
        commits.wait(leader, 0.01)
    raw.go.set()
    commits.wait(leader, 30)
    thread.join(30)
    assert leader.durable


def test_a_receipt_nobody_will_tell() -> None:
    """Waiting for something that isn't staged ends with an error, not never."""
    log = big()
    commits = Commits(log.writer, log.config)
    with pytest.raises(StoreClosed):
        commits.wait(Ack(0, b""))


def test_gathering_waits_for_the_one_who_flushes() -> None:
    """With ``gather`` set nobody leads: receipts come true with the next flush."""
    log = big()
    commits = Commits(log.writer, log.config)
    commits.gather = True
    ack = log.stage(b"x")
    with pytest.raises(WaitTimeout):
        commits.wait(ack, 0)
    thread = threading.Thread(target=commits.wait, args=(ack, 30))
    thread.start()
    commits.flush()
    thread.join(30)
    assert ack.durable


def test_due_by_time_or_by_size() -> None:
    """Staged entries are due when the interval is over, or at once when they are many."""
    clock = ManualClock()
    log = Log(config=small(rotation_target=1 << 20, flush_interval=0.5))
    commits = Commits(log.writer, log.config, clock)
    assert not commits.due()
    log.stage(b"x")
    assert not commits.due()
    clock.advance(0.4)
    assert not commits.due()
    clock.advance(0.1)
    assert commits.due()
    commits.flush()
    assert not commits.due()
    log.stage(bytes(5000))
    assert commits.due()


def test_flush_commits_what_was_staged_before() -> None:
    """All groups, however many there are."""
    log = Log(config=small(max_group=512))
    commits = Commits(log.writer, log.config)
    acks = [log.stage(bytes(300)) for _ in range(10)]
    commits.flush()
    assert all(ack.durable for ack in acks)
