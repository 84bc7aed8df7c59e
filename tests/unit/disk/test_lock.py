"""One writer per store."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from quiver.clock import ManualClock
from quiver.disk.disk import Disk
from quiver.disk.lock import LOCK_FILE, StoreLock, read_owner
from quiver.disk.posix import PosixDisk
from quiver.errors import StoreLocked
from tests.support.memory_disk import MemoryDisk

_NINE_FOURTEEN = 1_770_110_040_000_000_000  # 2026-02-03 09:14:00 UTC

_HOLD = """
import sys
from quiver.clock import SystemClock
from quiver.disk.disk import Disk
from quiver.disk.lock import StoreLock
from quiver.disk.posix import PosixDisk
with StoreLock.acquire(Disk(PosixDisk(sys.argv[1])), SystemClock(), where="there"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_writer_is_told_who_the_first_is() -> None:
    """Scenario: the store is open already.

    Guarantee: refused at once, with the owner's host, pid and time, and a way out.
    """
    disk = Disk(MemoryDisk())
    held = StoreLock.acquire(disk, ManualClock(_NINE_FOURTEEN), where="./data")
    with held, pytest.raises(StoreLocked) as caught:
        StoreLock.acquire(disk, ManualClock(), where="./data")
    host, pid = socket.gethostname(), os.getpid()
    assert str(caught.value) == (
        f"cannot open ./data: another process (host {host}, pid {pid}, since 2026-02-03 09:14 UTC)"
        " is writing to it. Stop it, or read without it: quiver inspect ./data"
    )
    assert caught.value.details == {
        "host": host,
        "pid": pid,
        "started": "2026-02-03T09:14:00+00:00",
    }


def test_it_can_be_taken_again_after_release() -> None:
    """Scenario: open, close, open. Guarantee: no stale lock, and the new owner is named."""
    disk = Disk(MemoryDisk())
    first = StoreLock.acquire(disk, ManualClock(_NINE_FOURTEEN), where="x")
    first.release()
    first.release()
    with StoreLock.acquire(disk, ManualClock(), where="x") as second:
        assert read_owner(disk) == second.owner
    assert second.owner != first.owner


@pytest.mark.parametrize("said", [b"", b"{", b"[]", b'{"host": "a"}', b"\xff\xfe"])
def test_an_unreadable_label_does_not_hide_the_lock(said: bytes) -> None:
    """Scenario: the label is empty or nonsense. Guarantee: still StoreLocked, without names."""
    raw = MemoryDisk()
    raw.lock(LOCK_FILE, said)
    with pytest.raises(StoreLocked, match=r"another process is writing") as caught:
        StoreLock.acquire(Disk(raw), ManualClock(), where="x")
    assert caught.value.details == {}


def test_between_processes_and_after_kill_9(tmp_path: Path) -> None:
    """Scenario: another process holds the lock, then is killed.

    Guarantee: refused naming that pid while it lives; free as soon as it is dead.
    """
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        disk = Disk(PosixDisk(tmp_path))
        with pytest.raises(StoreLocked) as caught:
            StoreLock.acquire(disk, ManualClock(), where="x")
        assert caught.value.details["pid"] == child.pid
        child.send_signal(signal.SIGKILL)
        child.wait()
        StoreLock.acquire(disk, ManualClock(), where="x").release()


def test_a_shorter_label_leaves_nothing_of_the_longer(tmp_path: Path) -> None:
    """Scenario: the last owner's label was longer. Guarantee: the new one is whole JSON."""
    raw = PosixDisk(tmp_path)
    raw.lock(LOCK_FILE, b"x" * 3000).release()
    with StoreLock.acquire(Disk(raw), ManualClock(), where="x"):
        assert json.loads((tmp_path / LOCK_FILE).read_bytes())["pid"] == os.getpid()
