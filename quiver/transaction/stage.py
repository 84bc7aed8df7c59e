"""Writing stages: bundles that nobody sees until a commit names them.

A stage gathers bundles in memory as the open segment does, and writes a staged file when
it has enough for a segment, when the stages together hold too much memory, or when it is
finished.  It doesn't go through the log: what is staged is promised by :meth:`Stage.finish`
alone, whose files are synced by then.

A stage's own lock is held while its file is written.  Nothing but the table's lock is
taken under it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final

import pyarrow as pa

from quiver import metrics as m
from quiver.bundle.preparing import Preparation, Prepared
from quiver.bundle.slots import BySlot
from quiver.errors import (
    Backpressure,
    InvalidInput,
    LimitExceeded,
    QuiverError,
    StageNotFound,
    StoreClosed,
)
from quiver.events import STAGE_EXPIRED
from quiver.forking import guard
from quiver.format.record import BundleMeta
from quiver.format.segment.stage import MAX_VERSION, STAGES, StageKey, StageLabel
from quiver.ingest.parts import Parts
from quiver.segment.closing import full_by
from quiver.segment.open_segment import OpenSegment
from quiver.segment.stage_table import Finished, Staged, StageInfo
from quiver.segment.staged_file import STAGED, StageFile, write_stage

MAX_NAME_BYTES: Final = 512
NAME_ROUNDS: Final = 4
"""How often new slot names are tried to be put into the log."""

Admit = Callable[[Callable[[], Prepared], float], Prepared]
"""Prepares a bundle and waits until there is room for it."""


def check_name(what: str, name: object) -> str:
    """An app's or an attempt's name: short text that can be shown."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise InvalidInput(
            f"{what} is a non-empty string without control characters.", **{what: repr(name)[:80]}
        )
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > MAX_NAME_BYTES:
        raise LimitExceeded(f"bytes of {what}", size, MAX_NAME_BYTES)
    return name


def check_version(version: object) -> int:
    """A version is a number that an app counts up."""
    if type(version) is not int or not 0 <= version <= MAX_VERSION:
        raise InvalidInput(f"a version is a number from 0 to {MAX_VERSION}, not {version!r:.80}.")
    return version


class Stage:
    """One attempt to write a part of a transaction; use it as a context manager.

    Left without :meth:`finish`, it is discarded.
    """

    def __init__(self, staging: Staging, key: StageKey) -> None:
        self.key = key
        self._staging = staging
        self._lock = threading.Lock()
        self._segment = OpenSegment(STAGED)
        self._rows = 0
        self._files: list[StageFile] = []
        self._staged: Staged | None = None
        self._ended: QuiverError | None = None
        self._since_ns = staging.parts.ingest.times.now_ns()
        self.touched = staging.parts.clock.monotonic()
        guard(self)

    @property
    def app(self) -> str:
        return self.key.app

    @property
    def version(self) -> int:
        return self.key.version

    @property
    def attempt(self) -> str:
        return self.key.attempt

    def put(
        self,
        slots: BySlot[pa.RecordBatch],
        *,
        attributes: Mapping[str, str] | None = None,
        fingerprints: BySlot[bytes] | None = None,
        event_time: tuple[int, int] | None = None,
        timeout: float = 0.0,
    ) -> None:
        """Take a bundle in. It is durable with :meth:`finish`, and seen once committed."""
        self._take(
            lambda: self._staging.preparation.prepare(
                slots, attributes=attributes, fingerprints=fingerprints, event_time=event_time
            ),
            timeout,
        )

    def put_ipc(
        self,
        slots: BySlot[bytes | memoryview | pa.Buffer],
        *,
        attributes: Mapping[str, str] | None = None,
        fingerprints: BySlot[bytes] | None = None,
        event_time: tuple[int, int] | None = None,
        timeout: float = 0.0,
    ) -> None:
        """As :meth:`put`, for slots that are Arrow IPC streams already."""
        self._take(
            lambda: self._staging.preparation.prepare_ipc(
                slots, attributes=attributes, fingerprints=fingerprints, event_time=event_time
            ),
            timeout,
        )

    def _take(self, prepare: Callable[[], Prepared], timeout: float) -> None:
        self._check_open()
        self._staging.bound_memory()  # first: what is taken in must not end in an error
        prepared = self._staging.admit(prepare, timeout)
        with self._lock:
            self._check_open()
            # Not once it is full, but before it gets more: so the last file isn't empty.
            if full_by(self._segment, self._rows, self._staging.parts.config.segment) is not None:
                self._write(last=False)
            extras = prepared.extras
            meta = BundleMeta(
                attributes=extras.attributes,
                event_time=extras.event_time,
                rows=prepared.rows,
                nbytes=prepared.nbytes,
            )
            before = self._segment.nbytes
            self._segment.append(prepared.slots, meta)
            self._rows += prepared.rows
            self._touch()
            self._staging.parts.stages.grow(memory=self._segment.nbytes - before)
        self._staging.count(prepared)

    def finish(self) -> Staged:
        """Make all of it durable; from here on it waits for a commit. Fine to call twice."""
        with self._lock:
            if self._staged is not None:
                return self._staged
            self._check_open()
        self._staging.log_names()
        with self._lock:
            if self._staged is None:
                self._check_open()
                self._write(last=True)
                self._staging.parts.disk.fsync_dir(STAGES)
                finished = Finished(self.key, tuple(self._files), self._since_ns)
                self._staging.parts.stages.finish(finished)
                self._staged = finished.staged
            return self._staged

    def discard(self) -> None:
        """Give it up, finished or not, unless it is committed. Fine to call twice."""
        with self._lock:
            if self._staged is not None:
                finished = self._staging.parts.stages.drop(self.key)
                files = [] if finished is None else list(finished.files)
            else:
                self._staging.parts.stages.drop(self.key)
                files, self._files = self._files, []
                self._staging.parts.stages.grow(memory=-self._segment.nbytes)
                self._segment, self._rows = OpenSegment(STAGED), 0
            if self._ended is None:
                self._ended = StageNotFound(
                    f"the attempt {self.attempt[:80]!r} was discarded, aborted, or has expired.",
                    advice="Write it again, under a new name.",
                )
        self._staging.remove(files)

    def end(self, error: QuiverError) -> None:
        """The store is closed: nothing is written any more; waits for who writes."""
        with self._lock:
            self._ended = self._ended or error

    def spill(self) -> bool:
        """Write out what is in memory, unless somebody is at it; whether that was done."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._ended is not None or self._staged is not None or not self.held:
                return False
            self._write(last=False)
            return True
        finally:
            self._lock.release()

    def _write(self, *, last: bool) -> None:
        """The next file. If it fails, all is as before and can be tried again."""
        parts, segment = self._staging.parts, self._segment
        self._touch()
        label = StageLabel(*self.key, number=len(self._files), last=last, ts=self._since_ns)
        file = write_stage(parts.disk, segment, label, parts.slots.names)
        self._files.append(file)
        self._segment, self._rows = OpenSegment(STAGED), 0
        parts.stages.grow(memory=-segment.nbytes, files=file.length)

    def _touch(self) -> None:
        self._since_ns = self._staging.parts.ingest.times.now_ns()
        self.touched = self._staging.parts.clock.monotonic()

    def _check_open(self) -> None:
        if self._ended is not None:
            raise self._ended.with_traceback(None)
        if self._staged is not None:
            raise InvalidInput(
                f"the attempt {self.attempt[:80]!r} is finished: it takes no more bundles.",
                advice="Use another attempt.",
            )

    @property
    def held(self) -> int:
        """Bytes that are in memory only."""
        return self._segment.nbytes

    @property
    def info(self) -> StageInfo:
        files, segment = list(self._files), self._segment
        return StageInfo(
            *self.key,
            finished=self._staged is not None,
            bundles=sum(file.bundles for file in files) + segment.bundle_count,
            rows=sum(file.rows for file in files) + self._rows,
            nbytes=sum(file.nbytes for file in files) + segment.nbytes,
            files=len(files),
            since_ns=self._since_ns,
        )

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._staged is None:
            with suppress(QuiverError):  # what is left goes with the next start
                self.discard()


class Staging:
    """Makes stages, bounds their memory, and removes those that nobody commits."""

    def __init__(self, parts: Parts, preparation: Preparation) -> None:
        self.parts = parts
        self.preparation = preparation
        self.admit: Admit = lambda prepare, timeout: prepare()
        """Set by who knows how to make room."""
        self._has_directory = False
        self._ttl = parts.config.transactions.stage_ttl
        self._max_memory = parts.config.transactions.max_memory
        self._bundles = parts.metrics.counter(m.STAGE_BUNDLES)
        self._bytes = parts.metrics.counter(m.STAGE_BYTES)

    def begin(self, app: str, version: int, attempt: str) -> Stage:
        """A new stage."""
        self.check_log()
        key = StageKey(
            check_name("app", app), check_version(version), check_name("attempt", attempt)
        )
        stage = Stage(self, key)
        with self.parts.lock:
            if self.parts.ingest.closed is not None:
                raise self.parts.ingest.closed
        self.parts.stages.begin(stage)
        try:
            self._make_directory()
        except BaseException:
            self.parts.stages.drop(key)
            raise
        return stage

    def _make_directory(self) -> None:
        """Only stores that use it have one."""
        if not self._has_directory:
            self.parts.disk.make_directory(STAGES)
            self._has_directory = True

    def check_log(self) -> None:
        """Without a log nothing could say that all of a transaction is there."""
        if self.parts.wal is None:
            raise InvalidInput(
                "staged writes need the log, and this store goes without.",
                advice="Set durability to wal.",
            )

    def count(self, prepared: Prepared) -> None:
        """A bundle came in."""
        self._bundles.add()
        self._bytes.add(prepared.nbytes)

    def bound_memory(self) -> None:
        """See that all of them together don't hold too much."""
        if self.parts.stages.memory > self._max_memory:
            self.spill(self._max_memory // 2)

    def spill(self, down_to: int) -> None:
        """Write out the largest first: many small files would help nobody."""
        stages = [one for one in self.parts.stages.writing() if isinstance(one, Stage)]
        for stage in sorted(stages, key=lambda one: -one.held):
            if self.parts.stages.memory <= down_to:
                return
            stage.spill()

    def relieve(self) -> bool:
        """Memory is short: write out half of what is held; whether something was."""
        held = self.parts.stages.memory
        self.spill(held // 2)
        return self.parts.stages.memory < held

    def log_names(self) -> None:
        """Make every slot name that a staged file may use durable in the log."""
        parts, wal = self.parts, self.parts.wal
        assert wal is not None, "checked when the stage was begun"
        for _ in range(NAME_ROUNDS):
            with parts.lock:
                waiting = parts.ingest.stage_names()
            if isinstance(waiting, Backpressure):
                raise waiting
            if not waiting:
                return
            known = wal.last_failure
            while wal.commit():
                pass
            parts.disk.poison.check()
            if wal.last_failure is not None and wal.last_failure is not known:
                raise wal.last_failure.with_traceback(None)

    # Going

    def remove(self, files: list[StageFile]) -> None:
        """Delete staged files, durably."""
        parts = self.parts
        for file in files:
            parts.disk.unlink(file.path, missing_ok=True)
            parts.stages.grow(files=-file.length)
        if files:
            parts.disk.fsync_dir(STAGES)

    def drop(self, key: StageKey) -> bool:
        """Remove a finished attempt; whether it was there."""
        finished = self.parts.stages.drop(key)
        if finished is None:
            return False
        self.remove(list(finished.files))
        return True

    @property
    def is_due(self) -> bool:
        """Whether a stage has been left alone for too long."""
        return bool(self._expired_writing() or self._expired_finished())

    def _expired_finished(self) -> list[Finished]:
        oldest = self.parts.ingest.times.now_ns() - int(self._ttl * 1e9)
        return [one for one in self.parts.stages.finished() if one.since_ns < oldest]

    def _expired_writing(self) -> list[Stage]:
        now = self.parts.clock.monotonic()
        return [
            one
            for one in self.parts.stages.writing()
            if isinstance(one, Stage) and now - one.touched > self._ttl
        ]

    def expire(self) -> int:
        """Remove stages that nobody has committed or aborted in time; how many."""
        parts, count = self.parts, 0
        for finished in self._expired_finished():
            if self.drop(finished.key):
                count += 1
                self._note_expired(finished.info)
        for stage in self._expired_writing():
            info = stage.info
            stage.discard()
            count += 1
            self._note_expired(info)
        parts.metrics.counter(m.STAGES_EXPIRED).add(count)
        return count

    def _note_expired(self, info: StageInfo) -> None:
        self.parts.log.warning(
            STAGE_EXPIRED,
            app=info.app,
            version=info.version,
            attempt=info.attempt,
            finished=info.finished,
            bundles=info.bundles,
        )

    def finish(self) -> None:
        """Before closing: what is not finished goes."""
        for stage in self.parts.stages.writing():
            if isinstance(stage, Stage):
                with suppress(QuiverError):
                    stage.discard()

    def shut(self, error: StoreClosed) -> None:
        """The store is closed: nobody writes a staged file any more."""
        for stage in self.parts.stages.writing():
            if isinstance(stage, Stage):
                stage.end(error)
