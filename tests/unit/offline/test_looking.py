"""Looking at stores that move, and at what is worth a note."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import quiver
from quiver import BundleRef, Config, ManualClock, Store
from quiver.disk.disk import Disk
from quiver.disk.posix import PosixDisk
from quiver.errors import Busy, NotFound
from quiver.offline.dump import dump
from quiver.offline.inventory import spans
from quiver.offline.look import look
from quiver.offline.repair import RepairPlan
from quiver.offline.summary import summarize
from quiver.offline.verify import verify
from tests.support.crashed import SETTINGS, disk_of, logs, mostly_in_log, mostly_sealed
from tests.support.memory_disk import MemoryDisk
from tests.support.rust import batches_of, number_of


def test_a_log_that_moves_on_while_it_is_dumped() -> None:
    """Its bundles are found again in the segments they went to; each is saved once."""
    disk = Disk(MemoryDisk())
    store = Store(disk, Config.load(env={}, **SETTINGS), where="mem", clock=ManualClock())
    refs = [store.put({"Logs": logs(number)}).wait().ref for number in range(20)]
    moved = []

    def move_on(done: int, total: int) -> None:
        if done == 3:
            store.flush()
            for number in range(100, 140):  # the files they were in are written over
                store.put({"Logs": logs(number)}).wait()
            store.flush()
            moved.append((done, total))

    out = Disk(MemoryDisk())
    result = dump(disk, out, progress=move_on)
    assert moved
    assert (result.sound, result.lost) == (True, ())
    saved = {one.ref: number_of(batches_of(one, out)[0]) for one in result.saved}
    assert [saved[ref] for ref in refs] == list(range(20))
    store.close()


def test_a_segment_deleted_while_it_is_dumped() -> None:
    """It was finished by everyone: what is left comes out, and nothing is called lost."""
    disk = Disk(MemoryDisk())
    store = Store(disk, Config.load(env={}, **SETTINGS), where="mem", clock=ManualClock())
    for number in range(80):
        store.put({"Logs": logs(number)}).wait()
        store.flush()
    exporter = store.subscribe("exporter", follow=False)

    def finish(done: int, _: int) -> None:
        if done == 2:
            for bundle in exporter:
                bundle.ack()
            store.maintain()

    result = dump(disk, Disk(MemoryDisk()), progress=finish)
    assert (result.sound, result.lost) == (True, ())
    assert 2 <= len(result.saved) < 80
    store.close()


def test_a_store_that_never_holds_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many tries that is the answer, and no endless loop."""
    changes = iter(range(10_000))
    monkeypatch.setattr("quiver.offline.look._stamp", lambda disk: next(changes))
    with pytest.raises(Busy, match="faster than it can be read"):
        look(disk_of(mostly_sealed().image))


def test_many_segments_need_few_descriptors(tmp_path: Path) -> None:
    """A store may have more segments than a process can open files."""
    with quiver.open(tmp_path / "s", reserve=0) as store:
        for number in range(100):
            store.put({"Logs": logs(number)}).wait()
            store.flush()
    most = 0

    def count(*_: object) -> None:
        nonlocal most
        most = max(most, len(os.listdir("/proc/self/fd")))

    before = len(os.listdir("/proc/self/fd"))
    disk = Disk(PosixDisk(tmp_path / "s"))
    dump(disk, Disk(PosixDisk(tmp_path / "out")), progress=count)
    verify(disk, watch=count)
    assert most - before < 50


def test_nothing_there() -> None:
    """An empty directory is not a store."""
    for tool in (look, verify, RepairPlan):
        with pytest.raises(NotFound):
            tool(Disk(MemoryDisk()))
    with pytest.raises(NotFound):
        dump(Disk(MemoryDisk()), Disk(MemoryDisk()))


def test_notes() -> None:
    """Half-written files, torn ends and quarantine are told, and are no damage."""
    image = dict(mostly_in_log().image)
    image["segments/0000000000000009.qseg.tmp"] = b"half"
    image["quiver.state.tmp"] = b"half"
    image["quarantine/quiver.wal.7"] = b"set aside"
    image["wal/quiver.wal"] = image["wal/quiver.wal"].rstrip(b"\0") + b"\x50\0\0\0torn"
    verdict = verify(disk_of(image))
    assert verdict.sound
    notes = " ".join(verdict.notes)
    for word in ("segments/0000000000000009.qseg.tmp", "quiver.state.tmp", "quarantine/ holds 1"):
        assert word in notes
    assert "never called durable" in notes
    assert summarize(disk_of(image), ManualClock()).log[-1].state == "torn"


def test_swapped_segments() -> None:
    """A file under another's name is noticed."""
    image = dict(mostly_sealed().image)
    one, other = "segments/0000000000000000.qseg", "segments/0000000000000001.qseg"
    image[one], image[other] = image[other], image[one]
    assert not verify(disk_of(image)).sound


def test_spans() -> None:
    """Runs of refs are put together."""
    refs = [BundleRef(3, 4), BundleRef(3, 7), BundleRef(3, 8), BundleRef(3, 9), BundleRef(4, 0)]
    assert spans(refs) == "3.4, 3.7 to 3.9, 4.0"
