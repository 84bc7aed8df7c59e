"""A put from check to receipt: prepare, find room, stage, see to what follows.

When there is no room the put helps itself: without a background it does the work that
makes room, with one it asks for it and waits as long as it was told to.  Otherwise it is
refused at once, with the reason.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from quiver import metrics as m
from quiver.bundle.preparing import Prepared
from quiver.errors import Backpressure, KeyConflict, OutOfTurn, QuiverError, Reason, StorageFull
from quiver.events import BUNDLE_RESENT, INGEST_RESUMED, INGEST_THROTTLED
from quiver.ingest.parts import Parts
from quiver.ingest.receipt import Receipt
from quiver.ingest.seal_wait import SealWait
from quiver.segment.closing import Trigger
from quiver.segment.info import SEGMENTS
from quiver.upkeep.background import Background, Driven
from quiver.upkeep.upkeep import Upkeep
from quiver.wal.group_commit import Commits

ASSIST_ROUNDS: Final = 4
"""How often a put makes room by itself before it gives up."""
THROTTLE_LOG_SECONDS: Final = 10.0
"""A store under pressure refuses thousands of puts a second: one line says it as well."""


class Throttle:
    """Counts refusals and logs them, seldom enough to be read."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._logged_at: float | None = None
        self._unlogged = 0
        self._told = False
        self.on = False
        """Whether the last put was refused."""

    def refused(self, refusal: Backpressure) -> None:
        parts, reason = self._parts, str(refusal.reason)
        parts.metrics.counter(m.INGEST_THROTTLE, reason=reason).add()
        now = parts.clock.monotonic()
        self.on = True
        self._unlogged += 1
        if self._logged_at is None or now - self._logged_at >= THROTTLE_LOG_SECONDS:
            count, self._unlogged, self._logged_at = self._unlogged, 0, now
            self._told = True
            parts.log.warning(
                INGEST_THROTTLED, reason=reason, refused=count, detail=refusal.message
            )

    def accepted(self) -> None:
        """The first put that came in again."""
        self.on = False
        if self._told:
            self._told = False
            self._parts.log.info(INGEST_RESUMED)


def _check_turn(after: Receipt | None) -> None:
    """Under the ingest lock, as the rollback of a failed group and the telling of its receipts
    is: asked before, the group could be taken back between the answer and the staging, and
    this bundle would get ahead of one that its producer has yet to send again."""
    if after is not None and after.error is not None:
        raise OutOfTurn(
            f"the bundle before it could not be written ({after.error.code}).",
            advice="Put that one again, then this one.",
        )


class Puts:
    """Takes prepared bundles in."""

    def __init__(
        self,
        parts: Parts,
        upkeep: Upkeep,
        commits: Commits | None,
        sealed: SealWait,
        store: Driven,
    ) -> None:
        self._parts = parts
        self._upkeep = upkeep
        self._commits = commits
        self._sealed = sealed
        self._store = store
        self._throttle = Throttle(parts)
        self._seconds = parts.metrics.histogram(m.INGEST_SECONDS)
        self._each = commits is not None and parts.config.wal.flush == "every"
        self.background: Background | None = None
        self.stopping = threading.Event()
        """Ends every wait: the store closes."""

    def put(
        self,
        prepare: Callable[[], Prepared],
        timeout: float,
        *,
        awaited: bool = False,
        after: Receipt | None = None,
    ) -> Receipt:
        """Check, stage, and answer.

        ``awaited``: somebody is about to wait for the receipt and commits it then; waking
        a flusher for it would only cost two threads their turns.
        """
        began = self._parts.clock.monotonic()
        prepared = self._prepared(prepare)
        deadline = began + timeout if timeout > 0 else None
        receipt = self._admit(prepared, deadline, awaited, after)
        self._seconds.observe(self._parts.clock.monotonic() - began)
        return receipt

    def admit(self, prepare: Callable[[], Prepared], timeout: float) -> Prepared:
        """Check a bundle for a stage, and wait until there is room for it."""
        parts = self._parts
        began = parts.clock.monotonic()
        prepared = self._prepared(prepare)
        deadline = began + timeout if timeout > 0 else None
        rounds = 0
        while True:
            seen = self._sealed.told
            with parts.lock:
                parts.disk.poison.check()
                if parts.ingest.closed is not None:
                    raise parts.ingest.closed.with_traceback(None)
                refusal = self._upkeep.admission.refusal(prepared.nbytes, logged=False)
            if refusal is None:
                break
            rounds += 1
            if not self._make_room(refusal, rounds, deadline, seen):
                self._throttle.refused(refusal)
                raise refusal
        if self._throttle.on:
            self._throttle.accepted()
        if self.background is not None:
            self.background.watch(self._store)
        return prepared

    def _prepared(self, prepare: Callable[[], Prepared]) -> Prepared:
        try:
            return prepare()
        except QuiverError as error:
            self._parts.metrics.counter(m.INGEST_REFUSED, code=error.code).add()
            raise

    def _admit(
        self, prepared: Prepared, deadline: float | None, awaited: bool, after: Receipt | None
    ) -> Receipt:
        parts, segments = self._parts, self._parts.segments
        rounds = 0
        while True:
            seen = self._sealed.told
            try:
                with parts.lock:
                    parts.disk.poison.check()
                    _check_turn(after)
                    answer = parts.ingest.stage(prepared)
                    full = segments.full_by()
                    if full is not None:
                        segments.closed(full)
            except KeyConflict:
                other = prepared.with_other_hashes()
                if other is None:
                    raise
                prepared = other
                continue
            if isinstance(answer, Receipt):
                if answer.replaces is not None:
                    parts.log.warning(
                        BUNDLE_RESENT,
                        key=answer.key,
                        lost=str(answer.replaces),
                        ref=str(answer.ref),
                    )
                self._after(answer, full is not None, awaited)
                return answer
            rounds += 1
            if not self._make_room(answer, rounds, deadline, seen):
                answer = self._cause(answer)
                self._throttle.refused(answer)
                raise answer

    def _cause(self, refusal: Backpressure) -> Backpressure:
        """What is really missing: segments that wait for a full disk are not slow."""
        waits = refusal.reason in (Reason.ROLLOVER, Reason.WAL_FULL)
        return StorageFull(SEGMENTS) if waits and self._upkeep.records.disk_full else refusal

    def _after(self, receipt: Receipt, full: bool, awaited: bool) -> None:
        background, commits = self.background, self._commits
        if self._throttle.on:
            self._throttle.accepted()
        if background is not None:
            if commits is not None and not commits.gather and not awaited:
                background.flush_soon(self._store)
            background.watch(self._store)
            if full:
                background.work_soon(self._store)
        elif full:
            self._upkeep.seal_quietly()
        if self._each and commits is not None and not receipt.done:
            commits.wait(receipt)

    def _make_room(
        self, refusal: Backpressure, rounds: int, deadline: float | None, seen: int
    ) -> bool:
        """Try to get a refused put in: do the work here, or wait for those who do it."""
        parts, background = self._parts, self.background
        if refusal.reason is Reason.WAL_FULL:
            with parts.lock:
                parts.segments.closed(Trigger.PRESSURE)
        if background is None:
            if rounds <= ASSIST_ROUNDS and self._upkeep.relieve(refusal):
                return True
        else:
            self._upkeep.sealing.hurry()
            background.flush_soon(self._store)
            background.work_soon(self._store)
        if deadline is None:
            return False
        left = deadline - parts.clock.monotonic()
        if left <= 0:
            return False
        # Whoever acks, deletes or writes in another thread makes the room; a segment that
        # was written makes most of it, and says so.
        self._sealed.pause(seen, min(left, refusal.retry_after_ms / 1000))
        return not self.stopping.is_set()
