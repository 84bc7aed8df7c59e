"""Staged writes of one stream: the attempts that are being written, and how they end.

::

    DoPut ──► open ──finish──► on disk ──commit──► published
               │                  └──────abort───► removed
               └── commit, abort, or nobody finishes it: discarded

A client that dies looks like one that has sent everything, so the end of a DoPut says
nothing.  A stage whose call is over and that nobody finishes is discarded after a while;
its client, if there is one after all, writes it again under another name.

One lock for each stage: bundles go in and ends come one at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from flight_service.protocol.errors import ServiceError
from flight_service.protocol.names import Ref
from flight_service.protocol.stage import (
    Abort,
    Aborted,
    Begin,
    Begun,
    CommitDone,
    CommitStages,
    FinishStage,
    StageFinished,
    StageName,
)
from quiver import Stage, Staged, Store
from quiver.clock import Clock
from quiver.errors import StageNotFound

MAX_OPEN: Final = 1_024
"""Stages of one stream that may be written at a time."""
UNFINISHED_SECONDS: Final = 60.0
"""How long a stage whose call is over is kept for its ``finish_stage``."""
BUSY_MS: Final = 500

STAGE_ENDED: Final = "stage_ended"
"""What the call of a stage that is over ends with."""

_Name = tuple[str, int, str]


@dataclass(slots=True, eq=False)
class OpenStage:
    """An attempt that is being written, by one DoPut."""

    stage: Stage
    lock: threading.Lock = field(default_factory=threading.Lock)
    bundles: int = 0
    ended: str | None = None
    over_since: float | None = None

    def put(self, slots: Mapping[str, Any], **options: Any) -> None:
        """A bundle of batches."""
        with self._one_more():
            self.stage.put(slots, **options)

    def put_ipc(self, slots: Mapping[Any, Any], **options: Any) -> None:
        """A bundle of IPC streams."""
        with self._one_more():
            self.stage.put_ipc(slots, **options)

    @contextmanager
    def _one_more(self) -> Iterator[None]:
        with self.lock:
            if self.ended is not None:
                raise _ended(self.ended)
            try:
                yield
            except StageNotFound:  # a commit or an abort was first
                raise _ended("aborted, or left out of the commit") from None
            self.bundles += 1

    def finish(self, bundles: int) -> Staged:
        """Put it on disk; the client says how many bundles it knows to be in it."""
        with self.lock:
            if self.ended is not None and self.ended != "finished":
                raise _unknown(self.stage.attempt)
            _check_count(self.bundles, bundles)
            staged = self.stage.finish()
            self.ended = "finished"
            return staged

    def discard(self, why: str) -> bool:
        """Nobody wants it any more; whether it was still open."""
        with self.lock:
            if self.ended is not None:
                return False
            self.ended = why
            self.stage.discard()
            return True


class OpenStages:
    """The open stages of one stream, and the transactions they belong to."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[_Name, OpenStage] = {}

    @property
    def busy(self) -> bool:
        """Whether one is being written: the stream must stay open."""
        return bool(self._open)

    # Writing

    def begin(self, request: Begin) -> Begun:
        """Whether a transaction is committed."""
        last = self._store.committed(request.app)
        return Begun(committed=last is not None and request.version <= last, last=last)

    def open(self, name: StageName) -> OpenStage:
        """A new stage for a DoPut."""
        last = self._store.committed(name.app)
        if last is not None and name.version <= last:
            raise ServiceError(
                "already_committed",
                f"version {name.version:,} of {name.app!r} is committed already"
                f" (the last is {last:,}): there is nothing to write.",
                details={"last": last},
            )
        key = (name.app, name.version, name.attempt)
        with self._lock:
            if len(self._open) >= MAX_OPEN:
                raise ServiceError(
                    "busy",
                    f"{MAX_OPEN:,} stages of this stream are being written, the limit.",
                    details={"retry_after_ms": BUSY_MS},
                )
            opened = self._open[key] = OpenStage(self._store.stage(*key))
            return opened

    def call_over(self, opened: OpenStage, *, broken: bool) -> None:
        """Its DoPut has ended: what was cut short is never finished, the rest has a while."""
        if broken:
            opened.discard("cut short")
        opened.over_since = self._clock.monotonic()
        self._sweep()

    def finish(self, request: FinishStage) -> StageFinished:
        """An attempt is complete; asked again, the answer is the same."""
        key = (request.app, request.version, request.attempt)
        with self._lock:
            opened = self._open.get(key)
        if opened is not None:
            staged = opened.finish(request.bundles)
        else:
            staged = self._store.staged(*key)
            _check_count(staged.bundles, request.bundles)
        self._sweep()
        return StageFinished(bundles=staged.bundles, rows=staged.rows, nbytes=staged.nbytes)

    # Ends

    def commit(self, request: CommitStages) -> CommitDone:
        """Publish; whoever still writes for this transaction or an earlier one has lost."""
        done = self._store.commit(request.app, request.version, request.attempts)
        self._discard(request.app, request.version, earlier=True, why="left out of the commit")
        return CommitDone(
            bundles=done.bundles,
            rows=done.rows,
            segments=done.segments,
            first_ref=None if done.first_ref is None else Ref(*done.first_ref),
            repeated=done.repeated,
        )

    def abort(self, request: Abort) -> Aborted:
        """Remove what was staged."""
        app, version, only = request.app, request.version, request.attempts
        count = self._discard(app, version, earlier=False, why="aborted", only=only)
        return Aborted(attempts=count + self._store.abort(app, version, only))

    def _discard(
        self,
        app: str,
        version: int,
        *,
        earlier: bool,
        why: str,
        only: Sequence[str] | None = None,
    ) -> int:
        with self._lock:
            losers = [
                opened
                for (whose, which, attempt), opened in self._open.items()
                if whose == app
                and (which == version or (earlier and which < version))
                and (only is None or attempt in only)
            ]
        count = sum(opened.discard(why) for opened in losers)
        self._sweep()
        return count

    # Upkeep

    def tick(self, now: float) -> None:
        """Discard what nobody finished."""
        with self._lock:
            opened = list(self._open.values())
        for one in opened:
            if one.over_since is not None and now - one.over_since >= UNFINISHED_SECONDS:
                one.discard("not finished in time")
        self._sweep()

    def close(self) -> None:
        """The stream is closed: what is not finished is gone."""
        with self._lock:
            opened = list(self._open.values())
        for one in opened:
            one.discard("lost when the server stopped")
        self._sweep()

    def _sweep(self) -> None:
        """Forget those that have ended; their calls, if they go on, are told."""
        with self._lock:
            self._open = {name: one for name, one in self._open.items() if one.ended is None}

    def status(self) -> dict[str, Any]:
        """Attempts that are staged and not committed, for ``status``."""
        found = self._store.stages()
        return {
            "attempts": len(found),
            "open": sum(not one.finished for one in found),
            "transactions": len({(one.app, one.version) for one in found}),
            "nbytes": sum(one.nbytes for one in found),
            "oldest_ns": min((one.since_ns for one in found), default=None),
        }


def _check_count(held: int, said: int) -> None:
    if held != said:
        raise ServiceError(
            "stage_incomplete",
            f"the stage holds {held:,} bundles, not {said:,}: write it again under another name.",
            details={"bundles": held},
        )


def _ended(how: str) -> ServiceError:
    return ServiceError("stage_ended", f"this stage was {how}: nothing more goes in.")


def _unknown(attempt: str) -> ServiceError:
    return ServiceError(
        "stage_not_found",
        f"there is no stage of the attempt {attempt!r}: write it again under another name.",
    )
