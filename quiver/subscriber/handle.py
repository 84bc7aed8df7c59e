"""A bundle in the hands of a subscriber: read it, then say what became of it.

A handle that disappears without an outcome gives its bundle back.  That happens in
``__del__``, which the interpreter may run anywhere, also inside code that holds the very
lock a release needs; so it only calls :meth:`HandleOwner.abandon`, which takes no lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Protocol, TypeVar

import pyarrow as pa

from quiver.errors import InvalidInput, SlotNotInBundle
from quiver.format.record import BundleMeta
from quiver.ids import BundleRef
from quiver.subscriber.state import Outcome

T = TypeVar("T")


class HandleOwner(Protocol):
    """What a handle needs of the store, for one subscriber."""

    def slots(self, ref: BundleRef) -> Sequence[str]:
        """Names of the slots this bundle has."""
        ...

    def read(self, ref: BundleRef, slot: str) -> pa.RecordBatch:
        """One slot's batch; the slot is one of :meth:`slots`."""
        ...

    def ack(self, ref: BundleRef) -> Outcome: ...

    def reject(self, ref: BundleRef, reason: str) -> Outcome: ...

    def hand_over(self, ref: BundleRef, where: str) -> Outcome: ...

    def defer(self, ref: BundleRef, delay: float) -> Outcome:
        """Give the bundle back, to be delivered again after ``delay`` seconds."""
        ...

    def abandon(self, ref: BundleRef) -> None:
        """Give it back from ``__del__``: must not take a lock, wait or raise."""
        ...


class ClaimedBundle:
    """One bundle, claimed: ``bundle["Logs"]``, then ``ack()``, ``reject()`` or ``defer()``.

    As a context manager it gives the bundle back at the end of the block unless it got an
    outcome inside.  Batches are read when asked for, once.
    """

    __slots__ = ("__weakref__", "_batches", "_outcome", "_resolver", "_slots", "meta", "ref")

    def __init__(self, resolver: HandleOwner, ref: BundleRef, meta: BundleMeta) -> None:
        self._outcome = Outcome.CLAIMED
        self._resolver = resolver
        self._slots: tuple[str, ...] | None = None
        self._batches: dict[str, pa.RecordBatch] = {}
        self.ref = ref
        self.meta = meta

    # What it is

    @property
    def sequence(self) -> int | None:
        """Its place in the log; ``None`` in segments that don't record it."""
        return self.meta.sequence

    @property
    def ingestion_ts_ns(self) -> int | None:
        """When the store took it, in nanoseconds since the epoch, if recorded."""
        return self.meta.ingestion_ts_ns

    @property
    def key(self) -> str | None:
        return self.meta.key

    @property
    def attributes(self) -> Mapping[str, str]:
        return self.meta.attributes

    @property
    def outcome(self) -> Outcome:
        """Where it stands, as far as this handle knows."""
        return self._outcome

    # What is in it

    def keys(self) -> tuple[str, ...]:
        """Names of the slots it has."""
        if self._slots is None:
            self._slots = tuple(self._resolver.slots(self.ref))
        return self._slots

    def __getitem__(self, slot: str) -> pa.RecordBatch:
        batch = self._batches.get(slot)
        if batch is None:
            if slot not in self.keys():
                raise SlotNotInBundle(
                    f"bundle {self.ref} has no slot {slot!r}.",
                    advice=f"It has: {', '.join(self.keys()) or 'none'}.",
                    ref=self.ref,
                    slot=slot,
                )
            batch = self._batches[slot] = self._resolver.read(self.ref, slot)
        return batch

    def get(self, slot: str, default: T | None = None) -> pa.RecordBatch | T | None:
        """The batch of a slot, or ``default`` if the bundle doesn't have it."""
        return self[slot] if slot in self.keys() else default

    def items(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Slot names with their batches, each read when its turn comes."""
        return ((slot, self[slot]) for slot in self.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, slot: object) -> bool:
        return slot in self.keys()

    def __len__(self) -> int:
        return len(self.keys())

    def __bool__(self) -> bool:
        # A bundle without slots is a bundle: `while bundle := next_bundle()` must see it.
        return True

    # What becomes of it

    def ack(self) -> Outcome:
        """It was dealt with. ``DROPPED`` if retention had to give it up first."""
        if not self._outcome.final:
            self._mine()
            self._outcome = self._resolver.ack(self.ref)
        return self._outcome

    def reject(self, reason: str = "") -> Outcome:
        """It can never be dealt with: dropped, on record in the ledger, not delivered again."""
        if not self._outcome.final:
            self._mine()
            self._outcome = self._resolver.reject(self.ref, reason)
        return self._outcome

    def hand_over(self, where: str) -> Outcome:
        """It is durable in another stream: dropped here, and no entry of the ledger."""
        if not self._outcome.final:
            self._mine()
            self._outcome = self._resolver.hand_over(self.ref, where)
        return self._outcome

    def defer(self, delay: float = 0.0) -> Outcome:
        """Not now: deliver it again, after ``delay`` seconds at the earliest."""
        if self._outcome is Outcome.CLAIMED:
            self._outcome = self._resolver.defer(self.ref, delay)
        return self._outcome

    def _mine(self) -> None:
        if self._outcome is not Outcome.CLAIMED:
            raise InvalidInput(
                f"bundle {self.ref} was given back by this handle.",
                advice="Claim it again to give it an outcome.",
                ref=self.ref,
            )

    def __enter__(self) -> ClaimedBundle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.defer()

    def __del__(self) -> None:
        if self._outcome is Outcome.CLAIMED:
            self._resolver.abandon(self.ref)

    def __repr__(self) -> str:
        return f"<ClaimedBundle {self.ref} {self._outcome}>"
