"""All subscribers of one store, from start-up to shutdown.

Locks, always in this order: ``_membership`` (who comes and goes; held while their files
are written or removed), ``_lock`` (the tables; never held over I/O), then a subscriber's
own.  A put only needs the last two, each for a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from quiver.disk.disk import Disk
from quiver.errors import InvalidInput, ProgressCorrupt, QuiverError, UnknownSubscriber
from quiver.format.progress import Progress
from quiver.ids import BundleRef, subscriber_id
from quiver.subscriber.progress import LoadedProgress, recover, remove_leftovers
from quiver.subscriber.state import EARLIEST, SubscriberState
from quiver.subscriber.subscriber import Status, Subscriber

if TYPE_CHECKING:
    from quiver.config import CorruptProgress
    from quiver.segment.segments import Unshown


class Shown(Protocol):
    """What the owner of segment numbers says about what is shown."""

    def visible(self) -> list[tuple[int, int]]:
        """Every segment with how many of its bundles are shown, oldest first."""
        ...

    def waiting(self) -> list[Unshown]:
        """What is durable and not shown yet."""
        ...

    @property
    def growing(self) -> int:
        """The lowest number that may still get visible bundles."""
        ...

    @property
    def end(self) -> BundleRef:
        """The position behind everything that is shown."""
        ...


class Registry:
    """Knows every subscriber, also those that are away: they hold their data.

    Which bundles there are it asks the owner of segment numbers.  What changes the answer is
    done inside :meth:`show`, :meth:`retire` or :meth:`drop_segment`, under the same lock
    under which a new subscriber is made: nobody misses a segment, and nobody gets one that
    is about to go.
    """

    def __init__(self, disk: Disk, segments: Shown, *, policy: CorruptProgress = "fail") -> None:
        self._disk = disk
        self._segments = segments
        self._policy: CorruptProgress = policy
        self._membership = threading.Lock()
        self._lock = threading.Lock()
        self._subscribers: dict[str, Subscriber] = {}
        self._open_segment = 0  # the owner's `growing`, as the subscribers were last told
        self._activated = False
        self._changes_of_gone = 0
        self._shut: QuiverError | None = None

    # Start-up: load, register, activate

    def load(self, scanned: Mapping[str, Progress | ProgressCorrupt]) -> list[LoadedProgress]:
        """Take over what :func:`~quiver.subscriber.progress.scan_progress` found.

        The answer tells what the policy had to decide; without a policy that decides, it
        raises.
        """
        totals, latest = dict(self._segments.visible()), self._segments.end
        recovered = [
            recover(self._disk, name, what, totals, policy=self._policy, latest=latest)
            for name, what in scanned.items()
        ]
        remove_leftovers(self._disk)
        with self._lock:
            self._open_segment = latest.segment_seq
            for one in recovered:
                durable = one.problem is None
                self._subscribers[one.name] = Subscriber(
                    self._disk, one.name, one.state, Status.KNOWN, durable=durable
                )
        return recovered

    def register(self, name: str, start: BundleRef = EARLIEST) -> Subscriber:
        """Resume a known subscriber, or make a new one at ``start``; durable on return."""
        subscriber_id(name)
        with self._membership:
            if self._shut is not None:
                raise self._shut.with_traceback(None)
            with self._lock:
                subscriber = self._subscribers.get(name)
                known = subscriber is not None
                if subscriber is None:
                    subscriber = self._subscribers[name] = self._new(name, start)
                open_segment = self._open_segment
            try:
                subscriber.flush(open_segment)
            except BaseException:
                if not known:
                    with self._lock:
                        del self._subscribers[name]
                raise
            subscriber.status = Status.ACTIVE if self._activated else Status.REGISTERED
            return subscriber

    def _new(self, name: str, start: BundleRef) -> Subscriber:
        state = SubscriberState(start)
        for segment_seq, visible in self._segments.visible():
            state.observe(segment_seq, visible)
        return Subscriber(self._disk, name, state, Status.KNOWN, durable=False)

    def activate(self) -> list[str]:
        """Start-up is over: the registered take bundles, the others are orphans (returned)."""
        with self._membership:
            self._activated = True
            for subscriber in self.subscribers():
                if subscriber.status is Status.REGISTERED:
                    subscriber.status = Status.ACTIVE
                elif subscriber.status is Status.KNOWN:
                    subscriber.status = Status.ORPHAN
        return self.orphans()

    # Leaving

    def unregister(self, name: str) -> int:
        """Remove a subscriber for good; how many bundles it gave up."""
        with self._membership:
            return self._remove(self.get(name))

    def drop_orphan(self, name: str) -> int:
        """As :meth:`unregister`, but only for an orphan: nobody's data goes by mistake."""
        with self._membership:
            subscriber = self.get(name)
            if subscriber.status is not Status.ORPHAN:
                raise InvalidInput(
                    f"{name} is {subscriber.status}, not an orphan.",
                    advice="Use unregister to remove it all the same.",
                    name=name,
                    status=str(subscriber.status),
                )
            return self._remove(subscriber)

    def _remove(self, subscriber: Subscriber) -> int:
        given_up = subscriber.leave()
        with self._lock:
            del self._subscribers[subscriber.name]
            self._changes_of_gone += subscriber.changes + 1
        return given_up

    # Who is there

    def get(self, name: str) -> Subscriber:
        with self._lock:
            subscriber = self._subscribers.get(name)
        if subscriber is None:
            raise UnknownSubscriber(
                f"there is no subscriber {str(name)[:80]!r}.", advice="Register it.", name=name
            )
        return subscriber

    def subscribers(self) -> list[Subscriber]:
        """All of them, whatever their status, by name."""
        with self._lock:
            return [self._subscribers[name] for name in sorted(self._subscribers)]

    def chosen(self, names: Iterable[str] | None) -> list[Subscriber]:
        """These; without ``names`` all of them."""
        return self.subscribers() if names is None else [self.get(name) for name in names]

    def orphans(self) -> list[str]:
        """Names of the subscribers that hold data and have nobody to take it."""
        return [one.name for one in self.subscribers() if one.status is Status.ORPHAN]

    def shut(self, error: QuiverError) -> None:
        """The store is closed: nobody comes any more, no file is written, all who wait look."""
        with self._membership:
            self._shut = error
            for subscriber in self.subscribers():
                subscriber.shut(error)

    # Segments that come and go

    def show(self, change: Callable[[], Mapping[int, int]]) -> None:
        """Make a change of the owner's that shows more, and tell everyone.

        The change answers how many bundles of which segments are shown now.  Whoever looks
        sees all of it, or nothing of it.  The counts are told before the open segment moves
        on: what lies below that and was never seen counts as finished.
        """
        with self._lock:
            for segment_seq, count in change().items():
                for subscriber in self._subscribers.values():
                    subscriber.observe(segment_seq, count)
            before, self._open_segment = self._open_segment, self._segments.growing
            for subscriber in self._subscribers.values():
                subscriber.advance_open(before, self._open_segment)

    def drop_segment(
        self,
        segment_seq: int,
        total: int,
        hide: Callable[[int], None],
        known: Mapping[str, int] | None = None,
    ) -> dict[str, int] | None:
        """Retention gives this segment up: bundles dropped by subscriber, where any were.

        ``None``, and nothing is done, if somebody needs a bundle that is not ``known`` (bitmaps
        by subscriber): it came, or came back, after that was asked.

        Durable after the next :meth:`flush`; only then may the file be deleted.
        """
        with self._lock, ExitStack() as held:
            states = {
                one.name: held.enter_context(one.locked()) for one in self._subscribers.values()
            }
            if known is not None and any(
                state.unfinished_in(segment_seq, total) & ~known.get(name, 0)
                for name, state in states.items()
            ):
                return None
            hide(segment_seq)  # whoever registers now doesn't get it
            dropped = {
                name: state.drop_segment(segment_seq, total) for name, state in states.items()
            }
        return {name: count for name, count in dropped.items() if count}

    def drop_bundles(self, segment_seq: int, indexes: Collection[int]) -> None:
        """These bundles are lost, the rest of their segment isn't: for whoever has no outcome
        of them yet, they are dropped.  Durable after the next :meth:`flush`."""
        for subscriber in self.subscribers():
            subscriber.drop_bundles(segment_seq, indexes)

    def retire(self, segment_seq: int, total: int, hide: Callable[[int], None]) -> bool:
        """If everyone has finished this segment, make sure that nobody comes back to it.

        Between the look and the deletion somebody could seek back or register; so both
        happen under all locks at once.  Flush after this, then delete.
        """
        with self._lock, ExitStack() as held:
            states = [held.enter_context(one.locked()) for one in self._subscribers.values()]
            if not states or not all(one.is_complete(segment_seq, total) for one in states):
                return False
            for state in states:
                state.drop_segment(segment_seq, total)
            hide(segment_seq)
        return True

    def forget(self, segment_seq: int) -> dict[str, int]:
        """The segment has been deleted; the bundles it cost, empty if all was in order."""
        given_up = {one.name: one.forget(segment_seq) for one in self.subscribers()}
        return {name: count for name, count in given_up.items() if count}

    # Questions

    def visible(self) -> list[tuple[int, int]]:
        """Every segment with how many of its bundles can be delivered, oldest first."""
        with self._lock:
            return self._segments.visible()

    @property
    def end(self) -> BundleRef:
        """The position behind everything that can be delivered; never goes back.

        Nothing becomes visible before it any more: a segment that still grows bounds it,
        even if a later one can be read already.
        """
        with self._lock:
            return self._segments.end

    @property
    def changes(self) -> int:
        """Rises with every outcome and every leave-taking: tells whether there is work."""
        with self._lock:
            present = sum(subscriber.changes for subscriber in self._subscribers.values())
            return self._changes_of_gone + present

    @property
    def open_segment(self) -> int:
        """The lowest segment that may still grow."""
        return self._open_segment

    def is_complete(self, segment_seq: int, total: int) -> bool:
        """Has everyone finished this segment? Without any subscriber nothing is finished."""
        subscribers = self.subscribers()
        return bool(subscribers) and all(one.is_complete(segment_seq, total) for one in subscribers)

    def unfinished_in(self, segment_seq: int, total: int) -> dict[str, int]:
        """The bundles of a segment that each subscriber has not finished, as bitmaps."""
        return {one.name: one.unfinished_in(segment_seq, total) for one in self.subscribers()}

    def is_followed(self, segment_seq: int, total: int) -> bool:
        """Is everyone close behind: done with a part of this segment at least?"""
        subscribers = self.subscribers()
        return bool(subscribers) and all(
            one.pending_in(segment_seq, total) < total for one in subscribers
        )

    def oldest_incomplete(self) -> int | None:
        """The first segment somebody hasn't finished; ``None`` without subscribers."""
        open_segment = self._open_segment
        return min(
            (one.oldest_incomplete(open_segment) for one in self.subscribers()), default=None
        )

    def waiting(self) -> list[Unshown]:
        """What is durable and can't be delivered yet; see :meth:`Segments.waiting`."""
        with self._lock:  # not between a change of what is shown and telling them of it
            return self._segments.waiting()

    def behind(self, subscriber: Subscriber) -> int:
        """How many durable bundles a subscriber has not done, shown or still to be."""
        with self._lock:
            return subscriber.outstanding + sum(
                subscriber.pending_in(one.seq, one.bundle_count) for one in self._segments.waiting()
            )

    def all_drained(self) -> bool:
        """Has every subscriber, orphans too, done all there is, and all that is still to come?"""
        return not any(self.behind(one) for one in self.subscribers())

    # Files

    @property
    def dirty(self) -> list[str]:
        """Who has outcomes that aren't durable yet."""
        return [one.name for one in self.subscribers() if one.dirty]

    def flush(self, names: Iterable[str] | None = None) -> int:
        """Make outcomes durable, of all or of some; how many files were written.  Rejects that are
        not in the ledger yet are not in the files either.

        One that fails doesn't keep the others from trying; the first error is raised then.
        """
        chosen = self.chosen(names)
        written = 0
        first_error: QuiverError | None = None
        for subscriber in chosen:
            try:
                written += subscriber.flush(self._open_segment)
            except QuiverError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return written
