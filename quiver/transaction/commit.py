"""Commit and abort: all of a transaction is seen, exactly once, or nothing of it.

    winners checked → small files merged → ONE log entry durable = committed
        → files become segments → seen together → what is left goes

What comes before the entry leaves nothing behind if it fails.  What comes after it can't
fail the commit any more: it is done later by upkeep, or by the next start.  A commit that
comes again finds its version in the table, does nothing and says so.

One commit or abort at a time (``_turn``): it is taken before every other lock.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from quiver import metrics as m
from quiver.disk import quarantine
from quiver.errors import (
    Backpressure,
    Damage,
    InvalidInput,
    QuiverError,
    StageNotFound,
    StoreClosed,
)
from quiver.events import (
    STAGE_DAMAGED,
    STAGE_LEFT_BEHIND,
    TRANSACTION_ABORTED,
    TRANSACTION_COMMITTED,
)
from quiver.format.segment.stage import StageKey, Transaction
from quiver.format.state import AppRecord
from quiver.format.wal.commit import Commit
from quiver.ids import BundleRef
from quiver.ingest.parts import Parts
from quiver.segment.closing import Trigger
from quiver.segment.stage_table import Finished, Staged, StageInfo
from quiver.segment.staged_file import StageFile, check_committed
from quiver.transaction.merging import Merge, discard, merge
from quiver.transaction.stage import Stage, Staging, check_name, check_version
from quiver.upkeep.upkeep import Upkeep

ASSIST_ROUNDS: Final = 4
"""How often a commit makes room in the log before it gives up."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer to a commit.

    ``repeated``: this version, or a later one, had been committed before; nothing was done.
    The numbers are those of the first time, as long as it is the app's last commit.
    """

    app: str
    version: int
    first_ref: BundleRef | None
    segments: int
    bundles: int
    rows: int
    repeated: bool


class _EntryAnswer:
    """What becomes of a log entry."""

    def __init__(self) -> None:
        self.done = False
        self.error: QuiverError | None = None

    def complete(self, error: QuiverError | None = None) -> None:
        self.error = error
        self.done = True


class Committing:
    """Commits and aborts transactions."""

    def __init__(self, parts: Parts, upkeep: Upkeep, staging: Staging) -> None:
        self._parts = parts
        self._upkeep = upkeep
        self._staging = staging
        self._turn = threading.Lock()
        self._seconds = parts.metrics.histogram(m.TRANSACTION_SECONDS)

    # Questions

    def committed(self, app: str) -> int | None:
        """The last version that an app has committed, if one is remembered."""
        record = self._record(check_name("app", app))
        return None if record is None else record.version

    def staged(self, app: str, version: int, attempt: str) -> Staged:
        """What a finished attempt holds."""
        key = StageKey(
            check_name("app", app), check_version(version), check_name("attempt", attempt)
        )
        return self._parts.stages.get(key).staged

    def stages(self) -> list[StageInfo]:
        return self._parts.stages.infos()

    def _record(self, app: str) -> AppRecord | None:
        with self._parts.lock:
            return self._parts.ingest.transactions.find(app, self._parts.ingest.times.now_ns())

    # Committing

    def commit(self, app: str, version: int, attempts: Sequence[str]) -> Committed:
        """Make the attempts' bundles seen, all at once; or say that it was done before."""
        self._staging.check_log()
        transaction = Transaction(check_name("app", app), check_version(version))
        names = _check_attempts(attempts)
        began = self._parts.clock.monotonic()
        with self._turn:
            self._parts.disk.poison.check()
            self._settle()
            answer = self._repeat(transaction)
            if answer is None:
                answer = self._commit(transaction, names)
            self._clear(transaction)
        outcome = "repeated" if answer.repeated else "committed"
        self._parts.metrics.counter(m.TRANSACTIONS, outcome=outcome).add()
        self._seconds.observe(self._parts.clock.monotonic() - began)
        return answer

    def _settle(self) -> None:
        """After an interrupt an entry may be staged that nobody waits for any more."""
        parts = self._parts
        while parts.ingest.transactions.unsettled and parts.wal is not None:
            if not parts.wal.commit():
                parts.disk.poison.check()
                return

    def _repeat(self, transaction: Transaction) -> Committed | None:
        record = self._record(transaction.app)
        if record is None or transaction.version > record.version:
            return None
        if transaction.version < record.version:
            return Committed(*transaction, None, 0, 0, 0, repeated=True)
        first = BundleRef(record.first_segment, 0) if record.segments else None
        return Committed(
            *transaction, first, record.segments, record.bundles, record.rows, repeated=True
        )

    def _commit(self, transaction: Transaction, attempts: Sequence[str]) -> Committed:
        parts = self._parts
        winners = parts.stages.claim(transaction, attempts)
        merged: Merge | None = None
        try:
            self._check(winners)
            merged = merge(parts, transaction, winners)
            commit = self._log(transaction, merged.files)
        except BaseException:
            if not self._is_logged(transaction):
                parts.stages.unclaim(winners)
                discard(parts, () if merged is None else merged.made)
            raise
        parts.stages.committed(winners)
        self._count(commit)
        self._upkeep.seal_quietly()
        with suppress(QuiverError):  # the next start removes what is still there
            self._staging.remove(list(merged.left))
        first = BundleRef(commit.first_segment, 0) if commit.files else None
        return Committed(
            *transaction, first, len(commit.files), commit.bundles, commit.rows, repeated=False
        )

    def _check(self, winners: Sequence[Finished]) -> None:
        """Look at what was written before the last start: disks forget."""
        for winner in winners:
            for file in winner.files:
                if not file.fresh:
                    self._check_file(winner, file)

    def _check_file(self, winner: Finished, file: StageFile) -> None:
        try:
            check_committed(self._parts.disk, file.committed())
        except FileNotFoundError:
            reason = f"{file.path} is gone"
        except Damage as damage:
            reason = damage.message.rstrip(".")
            with suppress(FileNotFoundError):
                quarantine.move(self._parts.disk, file.path)
        else:
            return
        self._parts.stages.unclaim([winner])
        self._staging.drop(winner.key)
        self._parts.metrics.counter(m.DAMAGE, code=StageNotFound.code).add()
        self._parts.log.error(
            STAGE_DAMAGED, app=winner.key.app, attempt=winner.key.attempt, error=reason
        )
        self._upkeep.records.problems.append(f"a staged file was damaged: {reason}")
        raise StageNotFound(
            f"the attempt {winner.key.attempt[:80]!r} can't be committed: {reason}.",
            advice="Nothing was committed. Write it again, under a new name.",
            attempt=winner.key.attempt,
        )

    def _log(self, transaction: Transaction, files: Sequence[StageFile]) -> Commit:
        """Put the one entry into the log that makes it so, and wait until it is durable."""
        parts, wal = self._parts, self._parts.wal
        assert wal is not None, "checked before"
        named = [file.committed() for file in files]
        answer = _EntryAnswer()
        for attempt in range(ASSIST_ROUNDS):
            with parts.lock:
                parts.disk.poison.check()
                commit = parts.ingest.stage_commit(*transaction, named, answer)
                if isinstance(commit, Commit):
                    for seq, file in commit.segments:
                        parts.stages.expect(seq, file.length)
            if isinstance(commit, Commit):
                break
            if attempt + 1 == ASSIST_ROUNDS or not self._make_room(commit):
                raise commit
        assert isinstance(commit, Commit)
        while not answer.done and wal.commit():
            pass
        if answer.error is not None:
            parts.stages.unexpect(range(commit.first_segment, commit.end_segment))
            raise answer.error.with_traceback(None)
        if not answer.done:
            raise StoreClosed("the store was closed before the commit was durable.")
        return commit

    def _make_room(self, refusal: Backpressure) -> bool:
        """Without room in the log: write what it is kept for, so that it can go."""
        parts = self._parts
        with parts.lock:
            parts.segments.closed(Trigger.PRESSURE)
        return self._upkeep.relieve(refusal)

    def _is_logged(self, transaction: Transaction) -> bool:
        """Whether the entry is durable, or may be: then it is not taken back here."""
        with self._parts.lock:
            unsettled = self._parts.ingest.transactions.unsettled
        return unsettled or self._repeat(transaction) is not None

    def _count(self, commit: Commit) -> None:
        parts = self._parts
        parts.metrics.counter(m.INGEST_BUNDLES).add(commit.bundles)
        parts.metrics.counter(m.INGEST_ROWS).add(commit.rows)
        nbytes = sum(file.nbytes for file in commit.files)
        parts.metrics.counter(m.INGEST_BYTES).add(nbytes)
        parts.metrics.counter(m.INGEST_DURABLE_BYTES).add(nbytes)
        parts.log.info(
            TRANSACTION_COMMITTED,
            app=commit.app,
            version=commit.version,
            segments=len(commit.files),
            bundles=commit.bundles,
        )

    # What is left

    def abort(self, app: str, version: int, attempts: Sequence[str] | None = None) -> int:
        """Remove a transaction's stages, or these; how many. What is committed stays so."""
        transaction = Transaction(check_name("app", app), check_version(version))
        with self._turn:
            self._parts.disk.poison.check()
            finished, writing = self._parts.stages.of(app, version, first=version)
            if attempts is not None:
                finished = [key for key in finished if key.attempt in attempts]
                writing = [stage for stage in writing if stage.key.attempt in attempts]
            count = self._drop(finished, writing)
        if count:
            self._parts.metrics.counter(m.TRANSACTION_ABORTS).add()
            self._parts.log.info(TRANSACTION_ABORTED, **transaction._asdict(), attempts=count)
        return count

    def _clear(self, transaction: Transaction) -> None:
        """Stages that lost, and those of versions before: nobody can commit them any more."""
        try:
            self._drop(*self._parts.stages.of(*transaction))
        except QuiverError as error:  # they expire, or the next start removes them
            self._parts.log.warning(STAGE_LEFT_BEHIND, app=transaction.app, error=str(error))

    def _drop(self, finished: Sequence[StageKey], writing: Sequence[object]) -> int:
        count = sum(self._staging.drop(key) for key in finished)
        for stage in writing:
            if isinstance(stage, Stage):
                stage.discard()
                count += 1
        return count


def _check_attempts(attempts: Sequence[str]) -> list[str]:
    if isinstance(attempts, str):
        raise InvalidInput("attempts are a list of names, not one name.")
    names = [check_name("attempt", attempt) for attempt in attempts]
    if len(set(names)) != len(names):
        raise InvalidInput("an attempt is named twice: its bundles would come twice.")
    return names
