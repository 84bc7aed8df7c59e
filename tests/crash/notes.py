"""What a workload notes down between the records of the disk.

``narrows`` says whether a state that was fine before the note may not be any more.  A
note that only allows more is no reason to look at a state again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from quiver.config import Config
from quiver.ids import BundleRef
from tests.crash.oracle import Oracle, Outcome, Put, Sub


class Note(Protocol):
    """Something that was asked for, or answered."""

    narrows: ClassVar[bool]

    def apply(self, oracle: Oracle) -> None: ...


# Bundles


@dataclass(frozen=True, slots=True)
class Offered:
    put: Put
    narrows: ClassVar[bool] = False

    def apply(self, oracle: Oracle) -> None:
        put = self.put
        oracle.puts[put.number] = Put(put.number, put.slots, put.key, put.attributes)


@dataclass(frozen=True, slots=True)
class Placed:
    """The put was answered with its ref; nothing is promised yet."""

    number: int
    ref: BundleRef
    sequence: int
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        put = oracle.puts[self.number]
        put.ref, put.sequence = self.ref, self.sequence


@dataclass(frozen=True, slots=True)
class Durable:
    number: int
    ref: BundleRef
    sequence: int
    ts: int
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        put = oracle.puts[self.number]
        put.ref, put.sequence, put.ts = self.ref, self.sequence, self.ts
        put.state = "durable"


@dataclass(frozen=True, slots=True)
class Promised:
    """A bundle of the Rust crate: durable, with a ref if it is in a segment already."""

    number: int
    ref: BundleRef | None
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        put = oracle.puts[self.number]
        put.ref, put.state = self.ref, "durable"


@dataclass(frozen=True, slots=True)
class Failed:
    """The producer was told so, and may put it again."""

    number: int
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        oracle.puts[self.number].state = "void"


# Subscribers


@dataclass(frozen=True, slots=True)
class Joining:
    name: str
    start: BundleRef
    narrows: ClassVar[bool] = False

    def apply(self, oracle: Oracle) -> None:
        oracle.subs[self.name] = Sub(self.name, self.start)


@dataclass(frozen=True, slots=True)
class Joined:
    name: str
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        oracle.subs[self.name].phase = "joined"
        oracle.subs[self.name].keep()


@dataclass(frozen=True, slots=True)
class Leaving:
    name: str
    narrows: ClassVar[bool] = False

    def apply(self, oracle: Oracle) -> None:
        oracle.subs[self.name].phase = "leaving"


@dataclass(frozen=True, slots=True)
class Left:
    name: str
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        del oracle.subs[self.name]


@dataclass(frozen=True, slots=True)
class Resolved:
    """An outcome was given; durable with the next :class:`Kept`."""

    name: str
    ref: BundleRef
    outcome: Outcome
    narrows: ClassVar[bool] = False

    def apply(self, oracle: Oracle) -> None:
        oracle.subs[self.name].set(self.ref, self.outcome)


@dataclass(frozen=True, slots=True)
class Sought:
    name: str
    position: BundleRef
    narrows: ClassVar[bool] = False

    def apply(self, oracle: Oracle) -> None:
        oracle.subs[self.name].seek(self.position, oracle.refs())


@dataclass(frozen=True, slots=True)
class Kept:
    """Progress was flushed, of some or (``None``) of all."""

    names: tuple[str, ...] | None = None
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        for sub in oracle.subs.values():
            if self.names is None or sub.name in self.names:
                sub.keep()


# Retention, and restarts


@dataclass(frozen=True, slots=True)
class Dropped:
    """A segment is in the loss ledger."""

    segment_seq: int
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        oracle.losses.add(self.segment_seq)
        for sub in oracle.subs.values():
            for ref in oracle.left_in(self.segment_seq, sub):
                sub.set(ref, "dropped")


@dataclass(frozen=True, slots=True)
class Deleted:
    """A segment's file is gone, and the call that removed it has returned."""

    segment_seq: int
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        for put in oracle.durable():
            if put.ref is not None and put.ref.segment_seq == self.segment_seq:
                put.state = "gone"


@dataclass(frozen=True, slots=True)
class Removal:
    """The deletion of a segment was ordered; had everyone durably finished it by then?"""

    segment_seq: int
    finished: bool
    narrows: ClassVar[bool] = False

    def apply(self, oracle: Oracle) -> None:
        oracle.removals[self.segment_seq] = self.finished


@dataclass(frozen=True, slots=True)
class Settled:
    """A store was opened: what it shows is what there is, by the number of the put."""

    found: Mapping[int, tuple[BundleRef, int | None, int | None]]
    outcomes: Mapping[str, Mapping[BundleRef, Outcome]]
    losses: frozenset[int]
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        for number, put in oracle.puts.items():
            if number in self.found:
                put.ref, put.sequence, put.ts = self.found[number]
                put.state = "durable"
                oracle.removals.pop(put.ref.segment_seq, None)
            elif put.state == "offered":
                put.state = "void"
            elif put.state == "durable":
                put.state = "gone"
        oracle.losses |= self.losses
        oracle.subs = {name: sub for name, sub in oracle.subs.items() if name in self.outcomes}
        for name, standing in self.outcomes.items():
            oracle.subs[name].settle(standing)


@dataclass(frozen=True, slots=True)
class Configured:
    """The store is opened with these settings from here on."""

    config: Config
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        oracle.config = self.config
