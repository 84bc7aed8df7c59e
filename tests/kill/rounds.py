"""Start, kill, look at what is left; again, in the same directory."""

from __future__ import annotations

import multiprocessing
import os
import select
import shutil
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Final

import quiver
from tests.kill.victim import SETTINGS, live
from tests.kill.witness import Testimony

LONGEST_LIFE: Final = 60.0
"""Seconds in which a victim must have got as far as its round wants it: then it is stuck."""
MOST_DURABLE: Final = 400
MOST_KEPT: Final = 40
LONGEST_PAUSE: Final = 0.03
"""Seconds from what a round waits for to the kill: so it falls into any step of the work."""
CHUNK: Final = 1 << 16
FOREVER: Final = float("inf")


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

    def _pick(self) -> tuple[str, int]:
        """Which line the victim is killed after, and the how-manyth of them.

        Counted, not timed: on a busy machine a victim takes longer, and gets as far.
        """
        chance = self._random.random()
        if chance < 0.2:
            return "opening", 1
        if chance < 0.3:
            return "ready", 1
        if chance < 0.5:
            return "kept", self._random.randint(1, MOST_KEPT)
        return "durable", self._random.randint(1, MOST_DURABLE)

    def _listen_and_kill(self, process: BaseProcess, pipe: int) -> bool:
        """Hear all that is said until the victim is dead; whether it had opened the store."""
        signal, wanted = self._pick()
        pause = self._random.uniform(0.0, LONGEST_PAUSE)
        stuck_at = time.monotonic() + LONGEST_LIFE
        kill_at: float | None = None
        heard: Counter[str] = Counter()
        rest = b""
        while True:
            until = stuck_at if kill_at is None else kill_at
            left = None if until == FOREVER else max(0.0, until - time.monotonic())
            if not select.select([pipe], [], [], left)[0] or left == 0.0:
                process.kill()
                assert kill_at is not None, f"no {wanted} times {signal!r}, only {heard}"
                kill_at = FOREVER  # it is dead: hear it out
                continue
            data = os.read(pipe, CHUNK)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                heard[self.testimony.hear(line.decode())] += 1
            if kill_at is None and heard[signal] >= wanted:
                kill_at = time.monotonic() + pause
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
