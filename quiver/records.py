"""The small files that say what is true: checkpoint, segment floor, progress.

Whatever goes (a log file, a segment, a subscriber) goes only after these say so; the
rooms that delete call this one first.  All of them are replaced as a whole, and all of
them must still work on a full disk: that is what the reserve is for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from quiver import metrics as m
from quiver.errors import StorageFull
from quiver.events import DISK_FULL, DISK_RECOVERED
from quiver.format.floor import FLOOR_PATH, Floor, encode_floor, gone_below
from quiver.format.keys import WindowEncoder
from quiver.format.state import STATE_NAME, Checkpoint, encode_state
from quiver.gate import Gate
from quiver.parts import Parts

T = TypeVar("T")


class Records:
    """Writes the small files; ``lock`` is upkeep's: one writer at a time."""

    def __init__(self, parts: Parts, lock: Gate, floor: Floor, state: Checkpoint):
        self._parts = parts
        self._lock = lock
        self._floor = floor
        self._state = state
        self._windows = WindowEncoder()
        self.disk_full = False
        self.last_progress = parts.clock.monotonic()

    # The checkpoint

    def checkpoint(self, *, leaving: str | None = None) -> None:
        """Write ``quiver.state``: what would otherwise go with the log or a segment.

        It names the subscribers whose file must be there, so one that comes is named
        after its file is durable, and one that goes (``leaving``) is not named before its
        file goes: a crash in between must not look like a lost file.
        """
        parts = self._parts
        with self._lock:
            with parts.lock:
                through = parts.ingest.durable_before
                state = replace(
                    self._state,
                    through=through,
                    last_ts=parts.ingest.last_ts,
                    slots={name: slot for slot, name in parts.slots.names.items()},
                    window=parts.ingest.window.snapshot(through),
                    transactions=parts.ingest.transactions.snapshot(through),
                )
                ledger_was_dirty, parts.ledger.dirty = parts.ledger.dirty, False
            state = replace(
                state,
                subscribers=tuple(
                    one.name
                    for one in parts.registry.subscribers()
                    if one.has_file and one.name != leaving
                ),
                losses=parts.ledger.losses,
                loss_totals=parts.ledger.totals,
            )
            try:
                data = encode_state(state, self._windows)
                self.guarded(lambda: parts.disk.replace(STATE_NAME, data))
            except BaseException:
                parts.ledger.dirty = parts.ledger.dirty or ledger_was_dirty
                raise
            self._state = state
            if not self._floor.has_state:
                self._write_floor(replace(self._floor, has_state=True))

    def names(self, subscriber: str) -> bool:
        """Whether the checkpoint says that this subscriber must have a file."""
        return subscriber in self._state.subscribers

    @property
    def is_stale(self) -> bool:
        """Whether the log holds something that the checkpoint lacks."""
        parts = self._parts
        with parts.lock:
            names = {name: slot for slot, name in parts.slots.names.items()}
            newest = (
                parts.ingest.window.newest_sequence,
                parts.ingest.transactions.newest_sequence,
            )
            last_ts = parts.ingest.last_ts
        return (
            parts.ledger.dirty
            or last_ts > self._state.last_ts
            or names != dict(self._state.slots)
            or any(one is not None and one >= self._state.through for one in newest)
        )

    # The floor

    def keep_floor(
        self,
        *,
        without: frozenset[int] = frozenset(),
        log_first: int | None = None,
        unwritten: int | None = None,
    ) -> None:
        """Make durable which numbers are used up, and which of them have a file.

        ``without`` are segments about to be deleted, ``log_first`` is the sequence that the
        log is about to begin with; ``unwritten`` is the oldest segment in memory, if it is to
        be let go without ever having a file.  Without a log, numbers are used up before they are
        given out; it is written with every segment then, so that no put waits for it.
        """
        tail = self._parts.tail
        with self._parts.lock:
            sealed_below, following = tail.oldest, tail.next_segment
        if unwritten is not None:
            sealed_below = max(sealed_below, unwritten + 1)
        if self._parts.wal is None:
            following += self._parts.config.segment.max_unfinalized
        live = {info.seq for info in self._parts.catalog.infos} - without
        replay_floor = max(sealed_below, self._floor.replay_floor)
        floor = replace(
            self._floor,
            next_segment=max(following, self._floor.next_segment),
            replay_floor=replay_floor,
            gone=gone_below(replay_floor, live),
            log_first=self._floor.log_first if log_first is None else log_first,
        )
        if floor != self._floor:
            self._write_floor(floor)

    def _write_floor(self, floor: Floor) -> None:
        self.guarded(lambda: self._parts.disk.replace(FLOOR_PATH, encode_floor(floor)))
        self._floor = floor

    def mark_log_begun(self, first: int) -> None:
        """From now on a missing log is damage, and so is one without its first file."""
        if not self._floor.has_log:
            self._write_floor(replace(self._floor, has_log=True, log_first=first))

    # Progress

    def flush_progress(self, names: tuple[str, ...] | None = None) -> int:
        """Make outcomes durable; how many files were written."""
        self.last_progress = self._parts.clock.monotonic()
        written = self.guarded(lambda: self._parts.registry.flush(names))
        self._parts.metrics.counter(m.PROGRESS_WRITES).add(written)
        return written

    # A full disk

    def guarded(self, write: Callable[[], T]) -> T:
        """A small write that must work on a full disk: the reserve is there for it."""
        try:
            return write()
        except StorageFull:
            self.note_full()
            if not self._parts.reserve.release():
                raise
            return write()

    def note_full(self) -> None:
        """The disk said that it is full."""
        if not self.disk_full:
            self.disk_full = True
            self._parts.log.warning(DISK_FULL)

    def look_for_room(self) -> None:
        """Take the reserve back, and notice when the disk is not full any more."""
        parts = self._parts
        if parts.reserve.restore() and self.disk_full:
            free = parts.disk.free_bytes()
            if free > parts.config.reserve:
                self.disk_full = False
                parts.log.info(DISK_RECOVERED, free_bytes=free)
