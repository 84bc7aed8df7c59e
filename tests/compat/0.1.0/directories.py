"""How ``directories/`` was made: stores with odd histories, written by 0.1.0.

Run by the code of 0.1.0 (see ``README.md``).  Each history runs in a process of its own,
which closes its store or is killed.  A manifest beside each directory says what 0.1.0 itself
reads from a copy of it; that is checked against what the history was promised.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from random import Random

import pyarrow as pa
from typer.testing import CliRunner

import quiver
from quiver import ManualClock, OTAP_SLOTS
from quiver.cli import app as cli
from quiver.disk.posix import PosixDisk, PosixFile
from quiver.errors import QuiverError
from quiver.tail import Trigger

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
OUT = HERE / "directories"
START_NS = 1_750_000_000_000_000_000
SMALL = {
    "reserve": 0,
    "wal": {"rotation_target": "2KiB", "max_size": "256KiB", "max_rotated_files": 100},
    "segment": {"target_size": "16KiB"},
    "limits": {"max_bundle": "16KiB", "max_unsynced": "32KiB"},
}
ONE_FILE = {"rotation_target": "64KiB", "max_size": "256KiB", "max_rotated_files": 100}
OWNER = b'{"host": "frozen", "pid": 1, "started": "2025-06-15T15:06:40+00:00"}'


def load(path):
    """A module of the tests, which are not on this process's path."""
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reading = load(TESTS / "compat" / "reading.py")


def numbered(number, rows=3):
    """A batch that can be told from others."""
    values = list(range(number * 1000, number * 1000 + rows))
    return pa.record_batch(
        {"n": pa.array(values, pa.int64()), "text": pa.array([f"row {n}" for n in values])}
    )


def large(number, size=3000):
    return pa.record_batch({"blob": pa.array([Random(number).randbytes(size)])})


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Life:
    """A store in the making, and a note of everything it promised."""

    def __init__(self, where, settings):
        self.path = where / "store"
        self.notes = where / "notes.json"
        self.settings = settings
        self.clock = ManualClock(START_NS)
        self.numbers = count()
        self.said = {"puts": [], "commits": [], "acked": {}, "rejected": {}, "staged": []}
        self.store = None

    def open(self, **settings):
        self.settings = {**self.settings, **settings}
        self.store = quiver.open(self.path, clock=self.clock, **self.settings)
        return self.store

    def write_down(self):
        text = json.dumps({**self.said, "settings": self.settings, "now_ns": self.clock.now_ns()})
        fresh = self.notes.with_suffix(".new")
        fresh.write_text(text)
        fresh.rename(self.notes)

    def put(self, slots=None, **options):
        """Put a bundle and wait for it; a numbered one in slot ``Logs`` unless told."""
        if slots is None:
            slots = {"Logs": numbered(next(self.numbers))}
        self.clock.advance(0.001)
        receipt = self.store.put(slots, **options).wait()
        digest = options.get("content_hash")
        self.said["puts"].append(
            {
                "ref": list(receipt.ref),
                "sequence": receipt.sequence,
                "key": options.get("key"),
                "content_hash": None if digest is None else digest.hex(),
                "slots": [[slot, reading.pack(batch)] for slot, batch in slots.items()],
            }
        )
        self.write_down()
        return receipt.ref

    def puts(self, many, **options):
        return [self.put(**options) for _ in range(many)]

    def sealed(self, many=3):
        found = self.puts(many)
        self.store.flush()
        return found

    def finish(self, name, ack=(), reject=()):
        """Outcomes for some bundles, durably."""
        subscription = self.store.subscribe(name, follow=False)
        subscription.ack(ack)
        for ref in reject:
            subscription.reject(ref, "can't be used")
        subscription.flush()
        self.said["acked"].setdefault(name, []).extend(map(list, ack))
        self.said["rejected"].setdefault(name, []).extend(map(list, reject))
        self.write_down()

    def stage(self, app, version, attempt, many, finish=True, batch=numbered):
        stage = self.store.stage(app, version, attempt)
        sent = []
        for _ in range(many):
            one = batch(next(self.numbers))
            stage.put({"Logs": one})
            sent.append(reading.pack(one))
        if finish:
            stage.finish()
            said = {"app": app, "version": version, "attempt": attempt, "batches": sent}
            self.said["staged"].append(said)
        self.write_down()

    def commit(self, app, version, attempts):
        self.clock.advance(0.001)
        said = {"app": app, "version": version, "attempts": attempts}
        self.said["committing"] = said
        self.write_down()
        self.store.commit(app, version, attempts)
        self.said["commits"].append(said)
        self.write_down()

    def close(self):
        self.store.close()
        self.write_down()

    def die(self):
        self.write_down()
        die()

    def crash(self, work):
        """Do something in a child that is killed at its end; the directory is left to us."""
        pid = os.fork()
        if not pid:
            try:
                work()
                self.die()
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        said = json.loads(self.notes.read_text())
        self.clock = ManualClock(said.pop("now_ns"))
        self.settings = said.pop("settings")
        self.said = said
        sent = len(said["puts"]) + sum(len(one["batches"]) for one in said["staged"])
        self.numbers = count(sent + 100)


def kill_at_rename(wanted, *, before=False, at=1):
    """Die at the ``at``-th rename that ``wanted(source, target)`` is about."""
    real, seen = PosixDisk.rename, count(1)

    def rename(self, source, target):
        hit = wanted(source, target) and next(seen) == at
        if hit and before:
            die()
        real(self, source, target)
        if hit:
            die()

    PosixDisk.rename = rename


def kill_in_write(keep):
    """Die in the next write, of which only a part gets to the file."""

    def pwritev(self, buffers, offset):
        data = b"".join(bytes(one) for one in buffers)
        os.pwrite(self._live(), data[: int(len(data) * keep)], offset)
        die()

    PosixFile.pwritev = pwritev


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at if at >= 0 else len(data) + at] ^= 0xFF
    path.chmod(0o600)
    path.write_bytes(data)


# ----------------------------------------------------------------- histories
# Each takes a Life, and leaves its directory closed or as a kill leaves it.

HISTORIES = {}


def history(function):
    HISTORIES[function.__name__.replace("_", "-")] = function
    return function


@history
def empty(life):
    """Opened and closed; nothing was ever put."""
    life.open()
    life.close()


@history
def only_registered(life):
    """Killed after a subscriber was registered, before anything was put."""
    life.open()
    life.store.register("waiting")
    life.die()


@history
def closed(life):
    """Closed cleanly, with keys, attributes, event times, fingerprints and a reserve file."""
    life.open(reserve="64KiB")
    life.put(key="a", attributes={"source": "edge-1", "ü": "🏹"})
    life.put({"Logs": numbered(1), "Traces": numbered(2, 5)}, event_time=(-5, 10**18))
    life.put({"Logs": numbered(3)}, fingerprints={"Logs": bytes(range(32))})
    life.put({"Logs": numbered(4)}, key="own hash", content_hash=b"\7" * 32)
    life.put({}, key="no slots")
    life.finish("reader", ack=[(0, 0), (0, 2)])
    life.close()


@history
def killed_log_only(life):
    """Killed with all bundles in the log and no segment."""
    life.open()
    life.store.register("idle")
    for number in range(5):
        life.put(key=f"key-{number}")
    life.finish("reader", ack=[(0, 0), (0, 3)], reject=[(0, 1)])
    life.die()


@history
def killed_with_unsynced(life):
    """Killed with bundles that were accepted and never waited for."""
    life.open()
    life.puts(3)
    life.store.put({"Logs": numbered(900)}, key="accepted")
    life.die()


@history
def rotated_and_spare(life):
    """Rotated log files, older ones retired, one of them kept to be written over; killed."""
    life.open()
    life.puts(8)
    with life.store._lock:
        life.store._tail.close(Trigger.FLUSH)
    life.puts(6)
    life.store._upkeep.sealing.seal_all()  # the first segment alone
    assert (life.path / "wal/quiver.wal.spare").exists()
    assert len(list((life.path / "wal").glob("quiver.wal.[0-9]*"))) >= 1
    life.die()


@history
def recycled_log(life):
    """The active log file is a recycled one: an old lap lies behind its end. Killed."""
    life.open()
    for _ in range(3):
        life.puts(7)
        life.store.flush()
        life.store.maintain()
    life.puts(1)
    life.die()


@history
def rotation_interrupted_before(life):
    """Killed in a rotation: the next file is whole, the active one has its name still."""
    life.open()
    life.puts(2)
    kill_at_rename(lambda source, _: source == "wal/quiver.wal", before=True)
    life.puts(50)


@history
def rotation_interrupted_between(life):
    """Killed in a rotation: there is ``quiver.wal.new`` and no active file."""
    life.open()
    life.puts(2)
    kill_at_rename(lambda source, _: source == "wal/quiver.wal")
    life.puts(50)


@history
def rotation_interrupted_with_spare(life):
    """The same where the next file is the recycled one: ``quiver.wal.spare``."""
    life.open()
    life.puts(8)
    life.store.flush()
    life.store.maintain()
    assert (life.path / "wal/quiver.wal.spare").exists()
    kill_at_rename(lambda source, _: source == "wal/quiver.wal")
    life.puts(50)


@history
def torn_tail(life):
    """Killed in the middle of a write to the log: its last entry is torn."""
    life.open(wal=ONE_FILE)
    life.puts(3)
    kill_in_write(0.6)
    life.put()


@history
def torn_next_file(life):
    """Killed in the middle of writing the next log file: ``quiver.wal.new`` is torn."""
    life.open()
    life.puts(3)
    kill_in_write(0.6)
    life.put()


@history
def torn_tail_cut(life):
    """The same, opened again by 0.1.0: the torn bytes are in quarantine; then killed."""

    def first():
        life.open(wal=ONE_FILE)
        life.puts(3)
        kill_in_write(0.6)
        life.put()

    life.crash(first)
    life.open()
    assert list((life.path / "quarantine").iterdir())
    life.puts(2)
    life.die()


@history
def sealed_partly_done(life):
    """Sealed segments, acked and rejected in part by three subscribers; closed."""
    life.open()
    first, second, third = life.sealed(4), life.sealed(4), life.sealed(2)
    life.finish("fast", ack=[*first, *second, third[0]])
    life.finish("slow", ack=[first[1]], reject=[first[3], second[0]])
    life.store.register("none")
    life.store.register("late", "latest")
    life.put()
    life.close()


@history
def seal_interrupted(life):
    """Killed while a segment was written: its ``.tmp`` is there, the log covers it."""
    life.open()
    life.sealed(3)
    life.puts(3)
    kill_at_rename(lambda source, _: source.startswith("segments/0"), before=True)
    life.store.flush()


@history
def progress_interrupted(life):
    """Killed while progress was replaced: the file before it counts."""
    life.open()
    refs = life.sealed(4)
    life.finish("reader", ack=refs[:1])
    kill_at_rename(lambda _, target: target == "quiver.sub.reader", before=True)
    life.finish("reader", ack=refs[1:3])


@history
def gaps_in_floor(life):
    """Segments finished and deleted out of order: the floor has gaps; closed."""
    life.open()
    segments = [life.sealed(2) for _ in range(6)]
    life.finish("reader", ack=[*segments[0], *segments[2], *segments[4], segments[3][0]])
    life.store.maintain()
    left = sorted(int(one.stem) for one in (life.path / "segments").glob("*.qseg"))
    assert left == [1, 3, 5], left
    life.close()


@history
def gaps_in_floor_killed(life):
    """The same, with more in the log, and killed."""
    life.open()
    segments = [life.sealed(2) for _ in range(6)]
    life.finish("reader", ack=[*segments[0], *segments[2], *segments[3], segments[4][1]])
    life.store.maintain()
    life.puts(3)
    life.finish("other", reject=[segments[1][0]])
    life.die()


@history
def key_window(life):
    """More keys than the window holds, over retired log files and deleted segments; killed."""
    life.open(idempotency={"window_count": 20})
    for number in range(30):
        life.put(key=f"job/{number}")
    life.store.flush()
    life.finish("reader", ack=[(0, n) for n in range(30)])
    life.store.maintain()
    life.store.flush()
    for number in range(30, 36):
        life.put(key=f"job/{number}")
    life.die()


@history
def key_window_closed(life):
    """Keys of bundles that are deleted, known from the checkpoint alone; closed, opened, closed."""
    life.open()
    for number in range(12):
        life.put(key=f"job/{number}", content_hash=bytes([number]) * 32)
    life.store.flush()
    life.finish("reader", ack=[(0, n) for n in range(12)])
    life.store.maintain()
    life.close()
    life.open()
    life.put(key="last")
    life.close()


@history
def slots_late(life):
    """Slots by number first, names later; the log files that named them are retired; killed."""
    life.open()
    life.put({5: numbered(0), 63: numbered(1)})
    life.put({"Logs": numbered(2)})
    life.put({"Logs": numbered(3), 5: numbered(4), "Spans": numbered(5)})
    life.store.flush()
    life.puts(8)
    life.store.flush()
    life.store.maintain()
    life.put({0: numbered(20), "Metrics": numbered(21)})
    life.put({"Metrics": numbered(22), 7: numbered(23)})
    life.die()


@history
def slots_declared(life):
    """A declared slot table (OTAP's) and a column of event times; killed."""
    life.open(slots=dict(OTAP_SLOTS), event_time={"Logs": "n"})
    names = sorted(OTAP_SLOTS)[:3]
    life.put({"Logs": numbered(0), names[0]: numbered(1)})
    life.put({name: numbered(n) for n, name in enumerate(names)})
    life.store.flush()
    life.put()
    life.die()


@history
def transaction_committed(life):
    """Commits of two apps between puts, one attempt that lost; killed."""
    life.open()
    life.puts(2)
    life.stage("loader", 0, "p0", 3)
    life.stage("loader", 0, "p1", 2)
    life.stage("loader", 0, "p1-again", 2)
    life.commit("loader", 0, ["p0", "p1-again"])
    life.puts(2)
    life.stage("loader", 4, "x", 1)
    life.commit("loader", 4, ["x"])
    life.stage("other app / ü", 7, "attempt", 2)
    life.commit("other app / ü", 7, ["attempt"])
    life.commit("nothing", 1, [])
    life.die()


@history
def transaction_closed(life):
    """A commit known from the checkpoint alone, with its segments deleted; closed."""
    life.open()
    life.stage("loader", 3, "a", 3)
    life.commit("loader", 3, ["a"])
    life.puts(8)
    life.store.flush()
    life.finish("reader", ack=reading.refs(life.store))
    life.store.maintain()
    life.put()
    life.close()
    life.open()
    life.puts(1)
    life.close()


@history
def transaction_staged(life):
    """Attempts that are finished and not committed, one that isn't finished; killed."""
    life.open()
    life.put()
    life.stage("loader", 0, "p0", 3)
    life.stage("loader", 0, "p1", 2)
    life.stage("loader", 0, "unfinished", 2, finish=False)
    life.stage("big", 2, "b", 6, batch=large)
    life.die()


@history
def transaction_unpublished(life):
    """Killed between the log entry of a commit and the rename of its first file."""
    life.open(segment={"target_size": "16KiB", "max_bundles": 2})
    life.put()
    life.stage("loader", 0, "p0", 5, batch=large)
    kill_at_rename(lambda source, _: source.startswith("stages/") and ".qstage" in source[-8:],
                   before=True)
    life.commit("loader", 0, ["p0"])


@history
def transaction_half_published(life):
    """Killed after the first of three files of a commit had become a segment."""
    life.open(segment={"target_size": "16KiB", "max_bundles": 2})
    life.sealed(1)
    life.stage("loader", 0, "p0", 5, batch=large)
    kill_at_rename(lambda _, target: target.startswith("segments/0"))
    life.commit("loader", 0, ["p0"])


@history
def transaction_merged(life):
    """Many small attempts, merged into one segment by the commit; then closed."""
    life.open()
    for number in range(12):
        life.stage("loader", 0, f"p{number}", 1)
    life.stage("loader", 0, "large", 5, batch=large)
    life.commit("loader", 0, [f"p{number}" for number in range(12)] + ["large"])
    life.put()
    life.close()


@history
def transaction_merged_unpublished(life):
    """Killed between the log entry of such a commit and the rename of the merged file."""
    life.open()
    for number in range(5):
        life.stage("loader", 0, f"p{number}", 1)
    kill_at_rename(lambda _, target: target.startswith("segments/0"), before=True)
    life.commit("loader", 0, [f"p{number}" for number in range(5)])


@history
def transaction_merged_uncommitted(life):
    """Killed after the attempts were merged, before the commit's entry: they are staged still."""
    life.open()
    life.put()
    for number in range(3):
        life.stage("loader", 0, f"p{number}", 1)
    real = PosixDisk.rename

    def rename(self, source, target):
        real(self, source, target)
        if target.startswith("stages/"):
            kill_in_write(0.0)

    PosixDisk.rename = rename
    life.commit("loader", 0, [f"p{number}" for number in range(3)])


@history
def loss_quarantined(life):
    """A damaged segment that the log didn't cover: set aside, its bundles in the ledger."""
    life.open()
    life.sealed(3)
    life.sealed(4)
    life.finish("reader", ack=[(0, 0), (1, 1)])
    life.puts(8)
    life.store.flush()
    life.store.maintain()
    life.close()
    flip(life.path / "segments/0000000000000001.qseg", 200)
    life.open()
    for ref in reading.refs(life.store):
        if ref.segment_seq == 1:
            try:
                life.store.read(ref)
            except QuiverError:
                pass
    life.store.maintain()
    life.close()
    life.open()
    life.put()
    life.close()
    assert list((life.path / "quarantine").iterdir())


@history
def loss_segment_missing(life):
    """A segment file was deleted by somebody; 0.1.0 noticed and went on; killed."""
    life.open()
    life.sealed(3)
    life.sealed(4)
    life.finish("reader", ack=[(0, 0), (1, 1)])
    life.puts(8)
    life.store.flush()
    life.store.maintain()
    life.close()
    (life.path / "segments/0000000000000001.qseg").unlink()
    life.open()
    life.put()
    life.die()


@history
def loss_by_policy(life):
    """At its size cap the oldest segments were dropped although somebody needed them; closed."""
    life.open(
        wal={"rotation_target": "8KiB", "max_size": "40KiB", "max_rotated_files": 100},
        segment={"target_size": "8KiB"},
        limits={"max_bundle": "8KiB", "max_unsynced": "16KiB"},
        retention={"size_cap": "72KiB", "size_cap_policy": "drop_oldest"},
    )
    life.store.subscribe("slow")
    for number in range(30):
        life.put({"Logs": large(number)})
        life.store.maintain()
    assert life.store.losses
    life.close()


@history
def rebuilt_from_log(life):
    """A segment was damaged that the log covers: nothing is lost; not opened since."""
    life.open(wal=ONE_FILE)
    life.sealed(3)
    life.puts(2)

    life.write_down()
    flip(life.path / "segments/0000000000000000.qseg", 100)
    die()


@history
def damaged_log(life):
    """A bit of a synced log entry is flipped, not opened since: it must be refused."""
    life.open(wal=ONE_FILE)
    life.puts(6)
    life.write_down()
    flip(life.path / "wal/quiver.wal", 1500)
    die()


@history
def repaired(life):
    """The same, repaired by ``quiver repair --yes``, and used since; killed."""

    def first():
        life.open(wal=ONE_FILE)
        life.sealed(2)
        life.puts(6)
        life.finish("reader", ack=[(0, 0), (1, 4)])
        life.write_down()
        flip(life.path / "wal/quiver.wal", 3000)
        die()

    life.crash(first)
    done = CliRunner().invoke(cli, ["repair", str(life.path), "--yes"])
    assert done.exit_code == 0, done.output
    life.open()
    life.put(key="after the repair")
    life.die()


@history
def repaired_closed(life):
    """Repaired, not opened since."""

    def first():
        life.open()
        life.sealed(4)
        life.sealed(3)
        life.finish("reader", ack=[(1, 1)])
        life.puts(3)
        life.write_down()
        flip(life.path / "segments/0000000000000000.qseg", 300)
        die()

    life.crash(first)
    done = CliRunner().invoke(cli, ["repair", str(life.path), "--yes"])
    assert done.exit_code == 0, done.output


@history
def segment_only(life):
    """Without a log: what is in segments is kept; killed with one bundle in memory."""
    life.open(durability="segment_only")
    for number in range(2):
        life.put(key=f"a{number}")
    life.store.flush()
    for number in range(3):
        life.put(key=f"b{number}")
    life.store.flush()
    life.finish("reader", ack=[(0, 0)])
    life.store.put({"Logs": numbered(900)})
    life.die()


@history
def now_segment_only(life):
    """A store with a log that was opened without one since; closed."""

    def first():
        life.open()
        life.puts(4)

    life.crash(first)
    life.open(durability="segment_only")
    life.puts(2)
    life.store.flush()
    life.close()


@history
def deliver_sealed(life):
    """Bundles are delivered from written segments only; some are in the log; killed."""
    life.open(deliver="sealed")
    life.store.register("reader")
    first = life.sealed(3)
    life.finish("reader", ack=first[:2])
    life.puts(4)
    life.die()


@history
def orphans(life):
    """Subscribers that did not come back, one of them removed for good; closed."""
    life.open()
    refs = life.sealed(4)
    for name in ("stays", "orphan-1", "orphan-2", "dropped"):
        life.store.register(name)
    life.finish("orphan-1", ack=refs[:2])
    life.close()
    life.open()
    life.finish("stays", ack=refs[:1])
    assert set(life.store.orphans) == {"orphan-1", "orphan-2", "dropped"}
    life.store.drop_orphan("dropped")
    life.put()
    life.close()


@history
def subscribers_moved(life):
    """Subscribers that began late, went back, or finished by position; killed."""
    life.open()
    first, second = life.sealed(3), life.sealed(3)
    life.store.register("from-ref", second[1])
    life.finish("back", ack=[*first, *second])
    life.store.subscribe("back").seek(first[2])
    life.store.subscribe("by-position").ack_before(second[2])
    life.store.flush_progress()
    life.store.register("gone")
    life.store.unregister("gone")
    life.puts(2)
    life.die()


@history
def types(life):
    """Every type Arrow has, dictionaries that change, batches without rows or columns; closed."""
    zoo = load(TESTS / "support" / "batches.py").zoo()
    life.open(
        limits={"max_bundle": "256KiB", "max_unsynced": "256KiB"},
        segment={"target_size": "256KiB"},
        wal={"rotation_target": "256KiB", "max_size": "2MiB"},
    )
    for name in ("everything", "everything[1:4]", "everything[:0]", "described", "same_names",
                 "no_name", "no_columns", "no_rows_no_columns", "unregistered", "unregistered[:0]"):
        life.put({"Data": zoo[name]}, key=name)
    for values in (["a", "b"], ["a", "b"], ["c"], ["a", "b", "c"]):
        keys = pa.array([0, len(values) - 1, None], pa.int8())
        array = pa.DictionaryArray.from_arrays(keys, pa.array(values))
        life.put({"Levels": pa.record_batch({"level": array})})
    life.store.flush()
    life.put({"Data": zoo["everything"], "Levels": numbered(1)})
    life.close()


@history
def types_in_log(life):
    """The same in the log alone, each kind by itself, by IPC stream; killed."""
    zoo = load(TESTS / "support" / "batches.py").zoo()
    life.open(
        limits={"max_bundle": "256KiB", "max_unsynced": "256KiB"},
        segment={"target_size": "256KiB"},
        wal={"rotation_target": "256KiB", "max_size": "2MiB"},
    )
    for name in ("list", "map[1:4]", "dense_union", "run_end_of", "of_struct_of", "uuid", "tensor",
                 "list_of_struct_of[1:4]", "interval", "utf8_view", "decimal256[:0]", "null"):
        life.put({"Data": zoo[name]})
    life.die()


@history
def rust_adopted(life):
    """A directory of the Rust crate, adopted by 0.1.0, used since; closed."""
    shutil.copytree(TESTS / "fixtures/rust/basic/data", life.path)
    life.open()
    life.puts(2)
    life.close()


@history
def rust_adopted_multislot(life):
    """Another, with several slots by number, adopted and killed."""
    shutil.copytree(TESTS / "fixtures/rust/multislot/data", life.path)
    life.open()
    life.put({"Logs": numbered(0)})
    life.die()


@history
def rust_adoption_interrupted(life):
    """Killed in the middle of adopting one."""
    shutil.copytree(TESTS / "fixtures/rust/crashed/data", life.path)
    life.write_down()
    kill_at_rename(lambda _, target: target.startswith("segments/0"))
    life.open()
    raise AssertionError("nothing was adopted")


@history
def many_lives(life):
    """Ten lives of a seeded mix of everything, each ended by a kill."""
    random = Random(10)

    def one_life():
        life.open()
        for _ in range(random.randint(3, 9)):
            life.put(key=f"k{next(life.numbers)}" if random.random() < 0.5 else None)
            if random.random() < 0.2:
                life.store.flush()
        for name in ("a", "b"):
            taken = 0.8 if name == "a" else 0.6
            subscription = life.store.register(name)
            left = [r for r in reading.refs(life.store) if subscription.outcome(r) == "pending"]
            some = [ref for ref in left if random.random() < taken]
            cut = int(len(some) * 0.8)
            life.finish(name, ack=some[:cut], reject=some[cut:])
        if random.random() < 0.5:
            life.stage("app", version, "x", 2)
            life.commit("app", version, ["x"])
        life.store.maintain()

    for version in range(10):
        random.seed(version)
        life.crash(one_life)


# ------------------------------------------------------------------- manifest


def describe(name, where):
    """What 0.1.0 reads from a copy, checked against what the history was promised."""
    notes = json.loads((where / "notes.json").read_text())
    copy = where / "copy"
    shutil.copytree(where / "store", copy)
    verified = CliRunner().invoke(cli, ["verify", str(copy)])
    manifest = {
        "history": HISTORIES[name].__doc__,
        "version": "0.1.0",
        "settings": notes["settings"],
        "now_ns": notes["now_ns"],
        "verify": verified.exit_code,
    }
    try:
        store = reading.open_at(copy, notes["settings"], notes["now_ns"])
    except QuiverError as error:
        return manifest | {"refused": error.code}
    manifest |= reading.look(store)
    manifest["repeats"] = repeats(store, notes["puts"])
    manifest["commits"] = commits(store, notes)
    manifest["staged"] = [
        one
        for one in notes["staged"]
        if [one["app"], one["version"], one["attempt"]]
        in [[s["app"], s["version"], s["attempt"]] for s in manifest["stages"] if s["finished"]]
    ]
    check(manifest, notes)
    store.close()
    return manifest


def repeats(store, puts):
    """Keys that 0.1.0 still answers with ``dup``, and their refs."""
    found = []
    before = store.status().next_sequence
    window = {one.key for one in store._parts.ingest.window.snapshot(2**63)}
    for one in puts:
        if one["key"] in window:
            receipt = reading.repeat(store, one)
            assert receipt.duplicate, one["key"]
            assert list(receipt.ref) == one["ref"], one["key"]
            known = {name: one[name] for name in ("key", "content_hash", "slots")}
            found.append(known | {"ref": one["ref"], "sequence": receipt.sequence})
    assert store.status().next_sequence == before, "a repeat was taken for new"
    return found


def commits(store, notes):
    """Commits that are answered with ``repeated``."""
    asked = notes["commits"] + ([notes["committing"]] if "committing" in notes else [])
    found = []
    for one in asked:
        committed = store.committed(one["app"])
        if committed is None or committed < one["version"]:
            assert one not in notes["commits"], one
            continue
        answer = store.commit(one["app"], one["version"], one["attempts"])
        assert answer.repeated
        entry = one | {
            "last": committed,
            "first_ref": None if answer.first_ref is None else list(answer.first_ref),
            "segments": answer.segments,
            "bundles": answer.bundles,
            "rows": answer.rows,
        }
        if entry not in found:
            found.append(entry)
    return found


def check(manifest, notes):
    """Every promise of the history is kept, or the manifest says why not."""
    there = {tuple(one["ref"]): one for one in manifest["bundles"]}
    lost = bool(manifest["losses"])
    deleted = set()
    for one in notes["puts"]:
        ref = tuple(one["ref"])
        found = there.get(ref)
        if found is None or found.get("gone"):
            deleted.add(ref)
            continue
        sent = [reading.unpack(data) for _, data in one["slots"]]
        read = [reading.unpack(slot["data"]) for slot in found["slots"].values()]
        assert len(sent) == len(read), ref
        for batch in sent:
            assert any(batch.equals(other, check_metadata=True) for other in read), ref
        assert found["sequence"] == one["sequence"] or found["sequence"] is None, ref
        assert found["key"] == one["key"], ref
    done = {tuple(ref) for refs in notes["acked"].values() for ref in refs}
    done |= {tuple(ref) for refs in notes["rejected"].values() for ref in refs}
    assert lost or deleted <= done, deleted - done
    for kind, word in (("acked", "acked"), ("rejected", "dropped")):
        for name, refs in notes[kind].items():
            progress = manifest["subscribers"].get(name, {})
            for ref in refs:
                if tuple(ref) in there and not there[tuple(ref)].get("gone"):
                    assert ref in progress[word] or name == "back", (name, ref)


def archive(source, target):
    """A directory as a file that is the same every time it is made from the same bytes."""
    with tarfile.open(target, "w:xz", preset=9) as tar:
        for path in [source, *sorted(source.rglob("*"))]:
            info = tarfile.TarInfo(str(path.relative_to(source.parent)))
            info.mode = path.stat().st_mode & 0o777
            info.mtime = START_NS // 10**9
            if path.is_dir():
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            else:
                data = OWNER if path.name == "LOCK" else path.read_bytes()
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def live(name, where):
    """Be the process of a history."""
    HISTORIES[name](Life(where, SMALL))


def main(names):
    OUT.mkdir(exist_ok=True)
    for name in names or HISTORIES:
        with tempfile.TemporaryDirectory() as scratch:
            where = Path(scratch)
            ended = subprocess.run([*restart(), "--live", name, scratch], check=False)
            killed = ended.returncode == -signal.SIGKILL
            assert killed or ended.returncode == 0, (name, ended.returncode)
            archive(where / "store", OUT / f"{name}.tar.xz")
            manifest = {"killed": killed, **describe(name, where)}
            text = json.dumps(manifest, indent=1, ensure_ascii=False, sort_keys=True)
            (OUT / f"{name}.json").write_text(text + "\n")
            size = (OUT / f"{name}.tar.xz").stat().st_size
            print(f"{name:36} {size:7,} {len(text):8,}  {len(manifest.get('bundles', []))} bundles",
                  f"verify {manifest['verify']} {manifest.get('refused', '')}",
                  f"repeats {len(manifest.get('repeats', []))} losses {manifest.get('loss_totals')}")


def restart():
    """This script once more, with the same code on its path."""
    return [sys.executable, "-P", str(Path(__file__).resolve())]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--live"]:
        live(sys.argv[2], Path(sys.argv[3]))
    else:
        main(sys.argv[1:])
