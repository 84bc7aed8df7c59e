"""One subscriber at run time: its state behind a lock, its bell, its file.

Acks only touch memory; :meth:`Subscriber.flush` writes all of them at once.  An ack that
comes while a flush is writing isn't in that file, so the subscriber stays dirty: what
counts is the state's number of changes *when the snapshot was taken*.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from itertools import islice
from typing import Final

from quiver.disk.disk import Disk
from quiver.errors import (
    BundleGone,
    Busy,
    InvalidInput,
    NotFound,
    QuiverError,
    UnknownSubscriber,
)
from quiver.ids import BundleRef
from quiver.subscriber.doorbell import Doorbell
from quiver.subscriber.progress import keep_progress, remove_progress
from quiver.subscriber.state import Order, Outcome, SubscriberState

_NEVER: Final = -1


class Status(StrEnum):
    """Where a subscriber stands in its life."""

    KNOWN = "known"  # found at start-up, not registered yet
    REGISTERED = "registered"  # registered, start-up not over
    ACTIVE = "active"  # takes bundles
    ORPHAN = "orphan"  # start-up is over and nobody registered it: holds its data
    GONE = "gone"  # unregistered


class Subscriber:
    """Made and owned by the registry; every method may be called from any thread."""

    def __init__(
        self, disk: Disk, name: str, state: SubscriberState, status: Status, *, durable: bool
    ) -> None:
        self.name = name
        self.status = status
        self._disk = disk
        self._state = state
        self._durable_changes = state.changes if durable else _NEVER
        self._file_hides = False  # rejects that were on no record when it was written
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # one flush at a time; taken before _lock
        self._abandoned: deque[BundleRef] = deque()
        self._bell = Doorbell()
        self._shut: QuiverError | None = None

    # Taking bundles

    def claim_next(self, order: Order = Order.OLDEST) -> BundleRef | None:
        """Claim the next pending bundle, if there is one."""
        self._must_be_active()
        with self._lock:
            self._take_back()
            ref = self._state.next_ref(order)
            if ref is not None:
                self._state.claim(ref)
            return ref

    def claim(self, ref: BundleRef) -> None:
        """Claim this one, or say why not: ``BundleGone``, ``UnknownBundle`` or ``Busy``."""
        self._must_be_active()
        with self._lock:
            self._take_back()
            if self._state.claim(ref):
                return
            outcome = self._state.outcome(ref)
        if outcome.final:
            raise BundleGone(
                f"bundle {ref} is done for {self.name}: {outcome}.", ref=ref, outcome=str(outcome)
            )
        raise Busy(f"bundle {ref} is claimed by {self.name} already.", ref=ref)

    def wait(self, timeout: float) -> bool:
        """Wait until a bundle may be there, or :meth:`wake`; ``False`` when time is up."""
        with self._bell.armed() as heard:
            with self._lock:
                self._take_back()
                # Who is gone isn't rung for any more: the next look says so.
                if self._state.next_ref() is not None or self.status is Status.GONE:
                    return True
            return heard(timeout)

    def wake(self) -> None:
        """Let all who wait look again (the store closes, say)."""
        self._bell.ring()

    def _must_be_active(self) -> None:
        if self.status is Status.ACTIVE:
            return
        if self.status is Status.GONE:
            raise UnknownSubscriber(f"{self.name} is not registered any more.", name=self.name)
        raise InvalidInput(
            f"{self.name} is {self.status}, it takes no bundles yet.",
            advice="Register it and activate.",
            name=self.name,
            status=str(self.status),
        )

    # Outcomes

    def ack(self, ref: BundleRef) -> Outcome:
        """See :meth:`SubscriberState.ack`; durable after the next flush."""
        with self._lock:
            return self._state.ack(ref)

    def ack_before(self, ref: BundleRef) -> int:
        """See :meth:`SubscriberState.ack_before`; durable after the next flush."""
        with self._lock:
            return self._state.ack_before(ref)

    def reject(self, ref: BundleRef) -> Outcome:
        """See :meth:`SubscriberState.reject`; durable after the next flush behind the ledger."""
        with self._lock:
            return self._state.reject(ref)

    def drop(self, ref: BundleRef) -> Outcome:
        """See :meth:`SubscriberState.drop`; durable after the next flush."""
        with self._lock:
            return self._state.drop(ref)

    def release(self, ref: BundleRef) -> Outcome:
        """Give a claim back and wake who waits."""
        with self._lock:
            outcome = self._state.release(ref)
        self._bell.ring()
        return outcome

    def abandon(self, ref: BundleRef) -> None:
        """As :meth:`release`, from a destructor: takes no lock, so it is done a bit later."""
        self._abandoned.append(ref)
        self._bell.ring()

    def _take_back(self) -> None:
        while self._abandoned:
            with contextlib.suppress(NotFound):  # its segment may have been deleted since
                self._state.release(self._abandoned.popleft())

    def seek(self, ref: BundleRef) -> None:
        """See :meth:`SubscriberState.seek`."""
        with self._lock:
            self._take_back()
            self._state.seek(ref)
        self._bell.ring()

    # Segments that come and go

    def observe(self, segment_seq: int, visible: int) -> None:
        """See :meth:`SubscriberState.observe`; wakes who waits."""
        with self._lock:
            added = self._state.observe(segment_seq, visible)
        if added:
            self._bell.ring()

    def advance_open(self, before: int, after: int) -> None:
        """A segment was finalized: if that moves the oldest incomplete one, the file is stale."""
        with self._lock:
            state = self._state
            if state.oldest_incomplete(before) != state.oldest_incomplete(after):
                state.changes += 1

    def drop_segment(self, segment_seq: int, total: int) -> int:
        """See :meth:`SubscriberState.drop_segment`."""
        with self._lock:
            return self._state.drop_segment(segment_seq, total)

    def drop_bundles(self, segment_seq: int, indexes: Collection[int]) -> None:
        """See :meth:`SubscriberState.drop_bundles`."""
        with self._lock:
            self._state.drop_bundles(segment_seq, indexes)

    @contextlib.contextmanager
    def locked(self) -> Iterator[SubscriberState]:
        """The state itself, for the registry's steps over several subscribers at once."""
        with self._lock:
            yield self._state

    def forget(self, segment_seq: int) -> int:
        """See :meth:`SubscriberState.forget`."""
        with self._lock:
            return self._state.forget(segment_seq)

    # Questions

    def outcome(self, ref: BundleRef) -> Outcome:
        """See :meth:`SubscriberState.outcome`."""
        with self._lock:
            self._take_back()
            return self._state.outcome(ref)

    def is_complete(self, segment_seq: int, total: int) -> bool:
        with self._lock:
            return self._state.is_complete(segment_seq, total)

    def pending_in(self, segment_seq: int, visible: int) -> int:
        with self._lock:
            return self._state.pending_in(segment_seq, visible)

    def unfinished_in(self, segment_seq: int, visible: int) -> int:
        with self._lock:
            return self._state.unfinished_in(segment_seq, visible)

    def pending_bundles_in_range(self, first: int, last: int, limit: int) -> list[BundleRef]:
        """Up to ``limit`` bundles not done in segments ``first`` to ``last``, in order."""
        with self._lock:
            return list(islice(self._state.outstanding_refs(first, last), limit))

    def unfinished(self) -> list[tuple[int, int]]:
        """See :meth:`SubscriberState.unfinished`."""
        with self._lock:
            return self._state.unfinished()

    def oldest_incomplete(self, open_segment: int) -> int:
        with self._lock:
            return self._state.oldest_incomplete(open_segment)

    @property
    def changes(self) -> int:
        """Rises with every outcome."""
        return self._state.changes

    @property
    def outstanding(self) -> int:
        """Bundles that are visible and not done: the lag, but for what waits to be shown."""
        with self._lock:  # a seek counts anew from 0
            return self._state.outstanding

    @property
    def claimed(self) -> int:
        """How many of those are in somebody's hands."""
        with self._lock:
            self._take_back()
            return self._state.claimed

    @property
    def frontier(self) -> BundleRef | None:
        """The oldest bundle not done."""
        with self._lock:
            return self._state.frontier

    # Its file

    @property
    def has_file(self) -> bool:
        """Whether its progress was durable at least once."""
        return self._durable_changes != _NEVER

    @property
    def dirty(self) -> bool:
        """Is there something that the file doesn't say yet?"""
        return self.status is not Status.GONE and (
            self._state.changes != self._durable_changes or self._file_hides
        )

    @property
    def has_unrecorded(self) -> bool:
        """See :meth:`SubscriberState.has_unrecorded`; takes no lock."""
        return self._state.has_unrecorded

    def unrecorded(self) -> dict[int, int]:
        """See :meth:`SubscriberState.unrecorded`."""
        with self._lock:
            return self._state.unrecorded()

    def recorded(self, rejects: Mapping[int, int]) -> None:
        """See :meth:`SubscriberState.recorded`."""
        with self._lock:
            self._state.recorded(rejects)

    def flush(self, open_segment: int) -> bool:
        """Make every outcome so far durable, but for rejects that are on no record; ``False`` if
        they were already."""
        with self._writing:
            if self._shut is not None:
                raise self._shut.with_traceback(None)
            with self._lock:
                if not self.dirty:
                    return False
                changes, hides = self._state.changes, self._state.has_unrecorded
                progress = self._state.snapshot(open_segment)
            keep_progress(self._disk, self.name, progress)
            self._durable_changes, self._file_hides = changes, hides
            return True

    def shut(self, error: QuiverError) -> None:
        """The store is closed, its files may be another's: nothing is written any more."""
        with self._writing:
            self._shut = error
        self.wake()

    def leave(self) -> int:
        """Remove the file and give up what is left; how many bundles that were.

        The file goes first: if that fails, the subscriber is as it was.
        """
        with self._writing:
            remove_progress(self._disk, self.name)
            with self._lock:
                self.status = Status.GONE
                given_up = self._state.drop_all()
        self._bell.ring()
        return given_up
