"""One round's processes, and the trouble they can be given."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final

from tests.chaos.clients.job import STOP, STOP_PUTTING, Flags, Job
from tests.chaos.disks import SmallDisk
from tests.chaos.history import Book, Reader
from tests.chaos.network import Network
from tests.chaos.processes import QUIVER, FakeClock, Process, run
from tests.chaos.server import Server
from tests.chaos.sight import DAMAGED, REJECTED
from tests.chaos.wire import FAILURES, act, connect

STREAM: Final = "t"
EMBEDDED: Final = "embedded"
STEP_SECONDS: Final = 10.0
"""Longest wait for the puts that a step of the schedule waits for."""
END_SECONDS: Final = 25.0
"""Longest time a client has to end, once told to."""
DRAIN_SECONDS: Final = 25.0
START_SECONDS: Final = 20.0
LOOK: Final = 0.01
DAMAGED_EXIT: Final = 3
DROPPED: Final = "dropped by a policy"
"""Trouble that shows only in the ledger."""


@dataclass
class Tally:
    """What a round did."""

    durable: int = 0
    delivered: int = 0
    acked: int = 0
    kills: int = 0
    lost: int = 0
    """Bundles on record as lost, as far as the ledger says so."""
    troubles: Counter[str] = field(default_factory=Counter)
    """What was done to the store and its clients, and how often it took effect."""
    obstacles: Counter[str] = field(default_factory=Counter)
    """Why some of it could not be done on this machine."""


class Stage:
    """Server, clients, network, disk and clock of one round."""

    def __init__(self, where: Path, seed: str, *, small_disk: bool, embedded: bool) -> None:
        self.where = where
        self.seed = seed
        shutil.rmtree(where, ignore_errors=True)  # of the same round, played before
        where.mkdir(parents=True)
        self.flags = Flags(where)
        self.book = Book(where / "stage.notes", "stage")
        self.reader = Reader(where)
        self.kills = 0
        self._durable: Counter[str] = Counter()
        self.clock = FakeClock(where / "clock")
        self.disk = SmallDisk(where / "disk") if small_disk else None
        root = where / "disk" / "root" if small_disk else where / "root"
        self.server = Server(root, where, self.clock.environment)
        self.network = Network(self.server.port)
        self.settings: dict[str, Any] = {}
        self.slow_ms = 0.0
        self.clients: list[Process] = []
        self.embedded: Process | None = None
        self.uses_embedded = embedded
        self.embedded_path = where / "embedded-store"
        self.embedded_settings: dict[str, Any] = {}
        self.embedded_job = Job(EMBEDDED, "store", str(where), seed, stream=EMBEDDED)
        self.damaged = False
        self.connections: list[socket.socket] = []
        self._never = threading.Event()

    # Notes

    def trouble(self, what: str, stream: str | None = STREAM, **fields: Any) -> None:
        """Write down what was done to the store: some of it excuses some of what follows."""
        if stream is not None:
            fields["stream"] = stream
        self.book.note("trouble", what=what, **fields)

    def cannot(self, why: str) -> None:
        """Write down that this machine does not allow a kind of trouble."""
        self.book.note("not_played", why=why)

    def violation(self, invariant: str, sentence: str) -> None:
        self.book.violation(invariant, sentence)

    def durable_puts(self, stream: str | None = None) -> int:
        """Puts answered durable so far, by server and embedded store; or those of a stream."""
        self._durable.update(
            note["stream"]
            for note in self.reader.read()
            if note.kind == "answer" and note.get("level") == "durable"
        )
        return self._durable.total() if stream is None else self._durable[stream]

    def count(self) -> Tally:
        """What the round did, by all its notes."""
        tally = Tally(kills=self.kills)
        for note in self.reader.all():
            if note.kind == "answer":
                tally.durable += note.get("level") == "durable"
            elif note.kind == "delivered":
                tally.delivered += 1
            elif note.kind == "acked":
                tally.acked += len(note["refs"])
            elif note.kind == "ledger":
                lost = [row for row in note["rows"] if row["reason"] != REJECTED]
                tally.lost += sum(row["bundles"] for row in lost)
                if any(row["reason"] != DAMAGED for row in lost):
                    tally.troubles[DROPPED] += 1
            elif note.kind == "trouble":
                tally.troubles[note["what"]] += 1
            elif note.kind == "not_played":
                tally.obstacles[note["why"]] += 1
        return tally

    def await_(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Whether something became true in time."""
        deadline = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > deadline:
                return False
            self._never.wait(LOOK)
        return True

    def await_puts(self, count: int, seconds: float = STEP_SECONDS) -> bool:
        """Wait for so many more durable answers."""
        goal = self.durable_puts() + count
        return self.await_(lambda: self.durable_puts() >= goal, seconds)

    def pass_time(self, seconds: float) -> None:
        """For trouble in which no put is answered."""
        self._never.wait(seconds)

    # The server

    def start(self) -> bool:
        """Start the server with the settings of now; whether it listens."""
        return self.server.start(self.settings, self.slow_ms)

    def kill(self) -> None:
        self.kills += 1
        self.trouble("killed")
        self.server.kill()

    def stop_hard_or_softly(self, chance: Random) -> None:
        """kill -9 mostly; else SIGTERM."""
        if chance.random() < 0.7:
            self.kill()
        elif not self.server.terminate():
            self.violation("hang", "the server did not end after SIGTERM")

    def ask(self, action: str, **fields: Any) -> dict[str, Any] | None:
        """An action of the server's, not through the bad network; ``None`` if it failed."""
        with connect(self.server.url) as client:
            try:
                return act(client, action, **fields)
            except FAILURES:
                return None

    def said(self, event: str) -> int:
        """How often the server has logged an event."""
        log = self.where / "server.log"
        return log.read_text(errors="replace").count(event) if log.exists() else 0

    def stream_state(self) -> dict[str, Any] | None:
        """What the server says of the stream."""
        told = self.ask("status")  # of all: a refused stream is told of, not asked
        return None if told is None else told["streams"].get(STREAM)

    def settled(self) -> dict[str, Any] | None:
        """The stream's status, once the start is over."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            self.ask("lag", stream=STREAM)  # opens a stream that is asleep
            state = self.stream_state()
            if state is not None and state["state"] not in ("recovering", "closed", "unknown"):
                found.append(state)
            return bool(found)

        self.await_(look, START_SECONDS)
        return found[-1] if found else None

    @property
    def store(self) -> Path:
        """Where the server keeps the stream."""
        return self.server.root / "streams" / STREAM / "store"

    # Clients

    def start_client(self, program: str, job: Job) -> Process:
        command = [sys.executable, "-m", f"tests.chaos.clients.{program}", job.to_argument()]
        process = Process(job.name, command, self.where)
        self.clients.append(process)
        return process

    def start_embedded(self) -> None:
        """Another life of the embedded store."""
        if not self.uses_embedded:
            return
        options = {
            **json.loads(self.embedded_job.options),
            "path": str(self.embedded_path),
            "background": True,
        }
        job = replace(
            self.embedded_job,
            settings=json.dumps(nested(self.embedded_settings)),
            options=json.dumps(options),
        )
        self.embedded_job = replace(job, life=job.life + 1)
        command = [sys.executable, "-m", "tests.chaos.clients.embedded", job.to_argument()]
        more = {**self.clock.environment, "CHAOS_SLOW": str(self.slow_ms)}
        self.embedded = Process(EMBEDDED, command, self.where, more=more)

    def kill_embedded(self) -> None:
        if self.embedded is not None:
            self.kills += 1
            self.trouble("killed", EMBEDDED)
            self.embedded.kill()
            self.embedded = None

    # Repair

    def quiver(self, *arguments: str) -> tuple[int, Any]:
        """A command of ``quiver`` with JSON output."""
        code, text = run([*QUIVER, *arguments, "--json"])
        try:
            return code, json.loads(text)
        except ValueError:
            return code, None

    def repair(self, directory: Path, stream: str) -> None:
        """What an operator does with a damaged store."""
        code, told = self.quiver("repair", str(directory), "--yes")
        self.trouble("repair", stream, code=code, done=told and told.get("done"))
        if code != 0:
            self.violation("refused_to_start", f"quiver repair ended with {code} for {stream}")

    # The end

    def calm(self) -> None:
        """End all trouble; whatever was stopped goes on."""
        self.clock.set(0.0)
        self.network.calm()
        self.drop_connections()
        if self.disk is not None:
            self.disk.free()
        for path in (*self.where.glob("hold-*.flag"), *self.where.glob("slow-*.flag")):
            path.unlink()
        for process in (*self.clients, self.server.process, self.embedded):
            if process is not None:
                process.signal(signal.SIGCONT)

    def drop_connections(self) -> None:
        connections, self.connections = self.connections, []
        for one in connections:
            with contextlib.suppress(OSError):
                one.close()

    def end_client(self, process: Process) -> None:
        """A client that was told to end does, and without an error."""
        if not process.wait(END_SECONDS):
            self.hang(process, "did not end")
            process.kill()
        elif process.code:
            self.violation(
                "client_failed", f"{process.name} ended with {process.code}: {process.tail(600)}"
            )

    def hang(self, process: Process, what: str) -> None:
        """Write down where all threads of a process are, and of the server's."""
        stacks = self.where / f"{process.name}.hang"
        text = process.stacks()
        if self.server.process is not None:
            text += f"\n--- server\n{self.server.process.stacks()}"
        stacks.write_text(text)
        self.violation("hang", f"{process.name} {what}; stacks in {stacks.name}")

    def give_up(self) -> None:
        """The round's time is up: every process says where it is, and ends."""
        for process in (*self.clients, self.embedded, self.server.process):
            if process is not None and process.running:
                process.signal(signal.SIGCONT)
                self.hang(process, "was running when the round's time was up")
                process.signal(signal.SIGKILL)
        self.book.note("cut_short")

    def stop_putting(self) -> None:
        self.flags.raise_(STOP_PUTTING)

    def stop(self) -> None:
        self.flags.raise_(STOP)

    def drained(self) -> bool:
        """Whether every subscriber of the stream has finished everything."""
        told = self.ask("lag", stream=STREAM)
        return told is not None and not any(one["bundles"] for one in told["subscribers"].values())

    def close(self) -> None:
        """Leave nothing behind: every child is ended by its own id."""
        self.flags.raise_(STOP_PUTTING)
        self.flags.raise_(STOP)
        for process in (*self.clients, self.server.process, self.embedded):
            if process is not None:
                process.kill()
        self.network.close()
        self.drop_connections()
        if self.disk is not None:
            self.disk.close()

    def remove(self) -> None:
        """Delete the round's directory."""
        shutil.rmtree(self.where, ignore_errors=True)

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """``{"wal.flush": x}`` as ``quiver.open`` takes it."""
    return {name.replace(".", "__"): value for name, value in flat.items()}
