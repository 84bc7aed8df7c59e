"""Which stages there are: those being written, and those that wait for their commit.

The table knows files and sizes; :mod:`quiver.transaction.stage` writes them,
:mod:`quiver.transaction.commit` makes them segments or removes them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from quiver.errors import InvalidInput, LimitExceeded, StageNotFound
from quiver.format.segment.stage import StageKey, Transaction
from quiver.segment.staged_file import StageFile


@dataclass(frozen=True, slots=True)
class Staged:
    """What a finished attempt holds, durably."""

    attempt: str
    bundles: int
    rows: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class StageInfo:
    """A stage as ``status`` shows it; ``since_ns`` is when it was last written to."""

    app: str
    version: int
    attempt: str
    finished: bool
    bundles: int
    rows: int
    nbytes: int
    files: int
    since_ns: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished attempt: its files, in order."""

    key: StageKey
    files: tuple[StageFile, ...]
    since_ns: int

    @property
    def staged(self) -> Staged:
        return Staged(
            self.key.attempt,
            sum(file.bundles for file in self.files),
            sum(file.rows for file in self.files),
            sum(file.nbytes for file in self.files),
        )

    @property
    def info(self) -> StageInfo:
        staged = self.staged
        return StageInfo(
            *self.key,
            finished=True,
            bundles=staged.bundles,
            rows=staged.rows,
            nbytes=staged.nbytes,
            files=len(self.files),
            since_ns=self.since_ns,
        )


class Writing(Protocol):
    """A stage that is being written."""

    key: StageKey

    @property
    def info(self) -> StageInfo: ...

    @property
    def held(self) -> int:
        """Bytes that are in memory only."""
        ...


class StageTable:
    """All stages of a store. Safe to use from any thread; holds its lock for no I/O."""

    def __init__(self, finished: Iterable[Finished] = (), *, max_stages: int = 100_000) -> None:
        self._lock = threading.Lock()
        self._max_stages = max_stages
        self._finished = {one.key: one for one in finished}
        self._writing: dict[StageKey, Writing] = {}
        self._claimed: dict[StageKey, Finished] = {}
        self._unpublished: dict[int, int] = {}
        self.memory = 0
        """Bytes of all stages that are in memory only."""
        self.file_bytes = sum(file.length for one in self._finished.values() for file in one.files)
        """Bytes of all staged files; also of those that are committed and no segment yet."""

    # Sizes

    def grow(self, *, memory: int = 0, files: int = 0) -> None:
        """Bytes come, or (less than 0) go."""
        with self._lock:
            self.memory += memory
            self.file_bytes += files

    def expect(self, seq: int, nbytes: int, *, found: bool = False) -> None:
        """A staged file is to become this segment; ``found`` at the start, uncounted yet."""
        with self._lock:
            self._unpublished[seq] = nbytes
            if found:
                self.file_bytes += nbytes

    def published(self, seqs: Iterable[int]) -> None:
        """They are segments, or lost: others count them now, or nobody."""
        with self._lock:
            for seq in seqs:
                self.file_bytes -= self._unpublished.pop(seq, 0)

    def unexpect(self, seqs: Iterable[int]) -> None:
        """The commit was not written: they are staged files as before."""
        with self._lock:
            for seq in seqs:
                self._unpublished.pop(seq, None)

    # Coming

    def begin(self, stage: Writing) -> None:
        """A new attempt; its name must be new, too."""
        with self._lock:
            key = stage.key
            if key in self._finished or key in self._claimed:
                raise _taken(key, "is finished")
            if key in self._writing:
                raise _taken(key, "is being written")
            count = len(self._finished) + len(self._writing) + 1
            if count > self._max_stages:
                raise LimitExceeded(
                    "stages of this store",
                    count,
                    self._max_stages,
                    advice="Commit or abort some; raise transactions.max_stages.",
                )
            self._writing[key] = stage

    def finish(self, finished: Finished) -> None:
        with self._lock:
            self._writing.pop(finished.key, None)
            self._finished[finished.key] = finished

    def drop(self, key: StageKey) -> Finished | None:
        """Forget a stage, unless a commit has it; its files, if it was finished."""
        with self._lock:
            self._writing.pop(key, None)
            return self._finished.pop(key, None)

    # A commit's way with them

    def claim(self, transaction: Transaction, attempts: Sequence[str]) -> list[Finished]:
        """Take the winners for a commit: nobody else touches them from now on."""
        keys = [StageKey(*transaction, attempt) for attempt in attempts]
        with self._lock:
            for key in keys:
                if key not in self._finished:
                    raise self._not_found(key)
            for key in keys:
                self._claimed[key] = self._finished.pop(key)
            return [self._claimed[key] for key in keys]

    def unclaim(self, winners: Iterable[Finished]) -> None:
        """The commit came to nothing: they are as before."""
        with self._lock:
            for one in winners:
                if self._claimed.pop(one.key, None) is not None:
                    self._finished[one.key] = one

    def committed(self, winners: Iterable[Finished]) -> None:
        """Their bundles are in the log's commit entry."""
        with self._lock:
            for one in winners:
                self._claimed.pop(one.key, None)

    # Questions

    def get(self, key: StageKey) -> Finished:
        """A finished attempt."""
        with self._lock:
            found = self._finished.get(key) or self._claimed.get(key)
            if found is None:
                raise self._not_found(key)
            return found

    def of(self, app: str, through: int, *, first: int = 0) -> tuple[list[StageKey], list[Writing]]:
        """The stages of an app with these versions: finished ones, and those being written."""
        with self._lock:
            return (
                [k for k in self._finished if k.app == app and first <= k.version <= through],
                [
                    stage
                    for key, stage in self._writing.items()
                    if key.app == app and first <= key.version <= through
                ],
            )

    def writing(self) -> list[Writing]:
        with self._lock:
            return list(self._writing.values())

    def finished(self) -> list[Finished]:
        with self._lock:
            return list(self._finished.values())

    def infos(self) -> list[StageInfo]:
        """All of them, by name."""
        with self._lock:
            infos = [one.info for one in (*self._finished.values(), *self._claimed.values())]
            writing = list(self._writing.values())
        infos += [one.info for one in writing]
        return sorted(infos, key=lambda one: (one.app, one.version, one.attempt))

    def __len__(self) -> int:
        return len(self._finished) + len(self._writing)

    def _not_found(self, key: StageKey) -> StageNotFound:
        why = "was never finished" if key in self._writing else "is not here"
        return StageNotFound(
            f"the attempt {key.attempt[:80]!r} of {key.app[:80]!r} version {key.version} {why}.",
            advice="It may have been aborted, or have expired: write it again, under a new name.",
            app=key.app,
            version=key.version,
            attempt=key.attempt,
        )


def _taken(key: StageKey, why: str) -> InvalidInput:
    return InvalidInput(
        f"the attempt {key.attempt[:80]!r} of {key.app[:80]!r} {why} already.",
        advice="Each attempt needs a name of its own.",
        attempt=key.attempt,
    )
