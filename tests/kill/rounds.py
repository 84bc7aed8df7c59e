"""Start, kill, look at what is left; again, in the same directory."""

from __future__ import annotations

import multiprocessing
import os
import select
import shutil
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Final

import quiver
from tests.kill.victim import SETTINGS, live
from tests.kill.witness import Testimony

LONGEST_LIFE: Final = 0.6
LONGEST_START: Final = 60.0
CHUNK: Final = 1 << 16


@dataclass
class Tally:
    """What was tried."""

    rounds: int = 0
    durable: int = 0
    kept: int = 0
    in_recovery: int = 0
    """Rounds in which the victim was killed before it had opened the store."""


class Rounds:
    """Kills in one directory. What a round leaves is what the next one starts from."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._store = directory / "store"
        self._copy = directory / "copy"
        self._random = Random(seed)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.kill.victim"])
        self.testimony = Testimony()
        self.tally = Tally()

    def play(self) -> None:
        """One round."""
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=live, args=(str(self._store), self.tally.rounds, theirs), daemon=True
        )
        process.start()
        theirs.close()
        opened = self._listen_and_kill(process, ours.fileno())
        ours.close()
        self.tally.rounds += 1
        self.tally.in_recovery += not opened
        self.tally.durable = len(self.testimony.durable)
        self.tally.kept = sum(map(len, self.testimony.kept.values()))
        self._look()

    def _listen_and_kill(self, process: BaseProcess, pipe: int) -> bool:
        """Hear all that is said until the victim is dead; whether it had opened the store."""
        signal = "opening" if self._random.random() < 0.2 else "ready"
        life = self._random.uniform(0.0, LONGEST_LIFE if signal == "ready" else 0.05)
        deadline = time.monotonic() + LONGEST_START
        heard: set[str] = set()
        rest = b""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                assert signal in heard or process.exitcode is None, "it never began"
                process.kill()
                deadline = time.monotonic() + LONGEST_START
                continue
            if not select.select([pipe], [], [], left)[0]:
                continue
            data = os.read(pipe, CHUNK)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                kind = self.testimony.hear(line.decode())
                if kind == signal and kind not in heard:
                    deadline = time.monotonic() + life
                heard.add(kind)
        process.join()
        assert process.exitcode == -9, f"it ended by itself, with {process.exitcode}"
        return "ready" in heard

    def _look(self) -> None:
        """Open a copy: the original stays as the kill left it."""
        shutil.rmtree(self._copy, ignore_errors=True)
        if not self._store.exists():
            return
        shutil.copytree(self._store, self._copy)
        store = quiver.open(self._copy, **SETTINGS)
        self.testimony.check(store)
        store.close()
