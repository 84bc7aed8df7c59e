"""What a workload notes down between the records of the disk.

``narrows`` says whether a state that was fine before the note may not be any more.  A
note that only allows more is no reason to look at a state again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from quiver.config import Config
from quiver.format.segment.stage import StageKey
from quiver.ids import BundleRef
from tests.crash.oracle import Attempt, Commitment, Oracle, Outcome, Put, Reject, Sub


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


# Transactions


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt; nothing of it may be found."""

    key: StageKey
    narrows: ClassVar[bool] = False

    def apply(self, oracle: Oracle) -> None:
        oracle.attempts[self.key] = Attempt([])


@dataclass(frozen=True, slots=True)
class StagedPut:
    key: StageKey
    put: Put
    narrows: ClassVar[bool] = False

    def apply(self, oracle: Oracle) -> None:
        put = self.put
        oracle.puts[put.number] = Put(put.number, put.slots, None, {}, "staged")
        oracle.attempts[self.key].numbers.append(put.number)


@dataclass(frozen=True, slots=True)
class Finishing:
    key: StageKey
    narrows: ClassVar[bool] = False

    def apply(self, oracle: Oracle) -> None:
        oracle.attempts[self.key].phase = "finishing"


@dataclass(frozen=True, slots=True)
class StageFinished:
    key: StageKey
    at: int
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        oracle.attempts[self.key].phase = "finished"
        oracle.attempts[self.key].since = self.at


@dataclass(frozen=True, slots=True)
class StageLeaving:
    """Somebody gives it up, or its time is over."""

    key: StageKey
    expired: bool = False
    narrows: ClassVar[bool] = False

    def apply(self, oracle: Oracle) -> None:
        attempt = oracle.attempts[self.key]
        if attempt.phase != "gone":
            attempt.phase = "leaving"
        attempt.expired = self.expired


@dataclass(frozen=True, slots=True)
class StageGone:
    key: StageKey
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        _give_up(oracle, self.key)


def _give_up(oracle: Oracle, key: StageKey) -> None:
    attempt = oracle.attempts[key]
    attempt.phase = "gone"
    for number in attempt.numbers:
        if oracle.puts[number].state in ("staged", "offered"):
            oracle.puts[number].state = "void"


@dataclass(frozen=True, slots=True)
class CommitAsked:
    """From here on all of it may be found, or nothing."""

    transaction: tuple[str, int]
    winners: tuple[str, ...]
    narrows: ClassVar[bool] = False

    def apply(self, oracle: Oracle) -> None:
        if self.transaction in oracle.commitments:
            return
        oracle.commitments[self.transaction] = Commitment(self.winners)
        for number in oracle.winners_of(self.transaction):
            oracle.puts[number].state = "offered"


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """It was told so: everything is as before."""

    transaction: tuple[str, int]
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        _take_back(oracle, self.transaction)


def _take_back(oracle: Oracle, transaction: tuple[str, int]) -> None:
    commitment = oracle.commitments.get(transaction)
    if commitment is not None and commitment.phase == "asked":
        for number in oracle.winners_of(transaction):
            oracle.puts[number].state = "staged"
        del oracle.commitments[transaction]


@dataclass(frozen=True, slots=True)
class CommitAnswered:
    """All of the winners must be found from here on; the losers are given up."""

    transaction: tuple[str, int]
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        _promise(oracle, self.transaction)


def _promise(oracle: Oracle, transaction: tuple[str, int]) -> None:
    for number in oracle.winners_of(transaction):
        if oracle.puts[number].state == "offered":
            oracle.puts[number].state = "durable"
    oracle.commitments[transaction].phase = "answered"
    for key in list(oracle.attempts):
        if oracle.is_over(key):
            _give_up(oracle, key)


@dataclass(frozen=True, slots=True)
class CommitPlaced:
    """Where the bundles of a commit are, and what they are called."""

    transaction: tuple[str, int]
    places: Mapping[int, tuple[BundleRef, int, int]]
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        oracle.commitments[self.transaction].placed = True
        for number, (ref, sequence, ts) in self.places.items():
            put = oracle.puts[number]
            put.ref, put.sequence, put.ts = ref, sequence, ts


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
        oracle.recorded |= oracle.standing_rejects(self.name)
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
class Rejected:
    """A bundle was refused: on record before that outcome is durable."""

    name: str
    ref: BundleRef
    narrows: ClassVar[bool] = False

    def apply(self, oracle: Oracle) -> None:
        oracle.rejected.add((self.name, self.ref))


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
                oracle.recorded |= oracle.standing_rejects(sub.name)


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
    rejects: frozenset[Reject] = frozenset()
    stages: Mapping[StageKey, int] = field(default_factory=dict)
    committed: Mapping[str, int] = field(default_factory=dict)
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        self._settle_commits(oracle)
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
        oracle.recorded |= self.rejects
        oracle.subs = {name: sub for name, sub in oracle.subs.items() if name in self.outcomes}
        for name, standing in self.outcomes.items():
            oracle.subs[name].settle(standing)

    def _settle_commits(self, oracle: Oracle) -> None:
        """What was asked for is so, or isn't; what was not finished is gone."""
        for transaction, commitment in list(oracle.commitments.items()):
            app, version = transaction
            if commitment.phase == "asked" and self.committed.get(app, -1) >= version:
                _promise(oracle, transaction)
            else:
                _take_back(oracle, transaction)
            if transaction in oracle.commitments:
                numbers = oracle.winners_of(transaction)
                commitment.placed = all(
                    n in self.found or oracle.puts[n].state != "durable" for n in numbers
                )
        for key, attempt in oracle.attempts.items():
            if key in self.stages:
                attempt.phase = "finished"
                attempt.since = attempt.since or self.stages[key]
            else:
                _give_up(oracle, key)


@dataclass(frozen=True, slots=True)
class Configured:
    """The store is opened with these settings from here on."""

    config: Config
    narrows: ClassVar[bool] = True

    def apply(self, oracle: Oracle) -> None:
        oracle.config = self.config
