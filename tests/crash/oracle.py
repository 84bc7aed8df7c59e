"""What has been promised so far, and what may be found besides.

The workload writes a note (:mod:`tests.crash.notes`) before it asks the store for
something (from here on its effects *may* be found) and one when it gets the answer (from
here on they *must*).
The notes stand between the records of the disk, so that the explorer knows for each crash
what had been promised by then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import pyarrow as pa

from quiver.config import Config
from quiver.format.segment.stage import StageKey
from quiver.ids import BundleRef

Outcome: TypeAlias = Literal["pending", "acked", "dropped"]
Slots: TypeAlias = Mapping[str | int, pa.RecordBatch]
Reject: TypeAlias = tuple[str, BundleRef]
"""A subscriber's name, and what it has rejected."""
EARLIEST: Final = BundleRef(0, 0)


@dataclass(slots=True)
class Put:
    """A bundle that was offered to the store, and how far it came.

    ``offered``: may be found, whole; ``durable``: must be; ``void``: must not be, the
    caller was told that it failed; ``gone``: was durable and has rightly been deleted;
    ``staged``: must not be found until somebody asks for its commit.
    """

    number: int
    slots: Slots
    key: str | None
    attributes: Mapping[str, str]
    state: Literal["offered", "durable", "void", "gone", "staged"] = "offered"
    ref: BundleRef | None = None
    sequence: int | None = None
    ts: int | None = None


@dataclass(slots=True)
class Attempt:
    """A stage, and how far it came.

    ``writing``: dies with its process; ``finishing``: may be found finished; ``finished``:
    must be, unless its transaction is committed; ``leaving``: may be gone; ``gone``: is.
    """

    numbers: list[int]
    phase: Literal["writing", "finishing", "finished", "leaving", "gone"] = "writing"
    since: int = 0
    expired: bool = False

    @property
    def is_kept(self) -> bool:
        return self.phase == "finished"


@dataclass(slots=True)
class Commitment:
    """A commit that was asked for, or (``answered``) is promised."""

    winners: tuple[str, ...]
    phase: Literal["asked", "answered"] = "asked"
    placed: bool = False
    """Whether its bundles' refs are known."""


class Sub:
    """One subscriber: every outcome that may be found for each bundle."""

    def __init__(self, name: str, start: BundleRef) -> None:
        self.name = name
        self.phase: Literal["joining", "joined", "leaving"] = "joining"
        self._start = start
        self._outcomes: dict[BundleRef, Outcome] = {}
        self._possible: dict[BundleRef, set[Outcome]] = {}

    def now(self, ref: BundleRef) -> Outcome:
        """What the running store was told last."""
        return self._outcomes.get(ref) or ("acked" if ref < self._start else "pending")

    def allowed(self, ref: BundleRef) -> set[Outcome]:
        """What may be found after a crash: anything since the last durable snapshot."""
        return self._possible.get(ref) or {self.now(ref)}

    def set(self, ref: BundleRef, outcome: Outcome) -> None:
        self._possible.setdefault(ref, {self.now(ref)}).add(outcome)
        self._outcomes[ref] = outcome

    def seek(self, position: BundleRef, refs: Iterable[BundleRef]) -> None:
        before = {ref: self.now(ref) for ref in refs}
        self._start = position
        self._outcomes = {
            ref: "acked" if was == "pending" else was
            for ref, was in before.items()
            if ref < position
        }
        for ref, was in before.items():
            self._possible.setdefault(ref, {was}).add(self.now(ref))

    def keep(self) -> None:
        """All outcomes so far are durable."""
        self._possible.clear()

    def settle(self, found: Mapping[BundleRef, Outcome]) -> None:
        """A store that was opened says how it stands."""
        self._outcomes.update(found)
        self._possible.clear()
        self.phase = "joined"


class Oracle:
    """All notes so far, added up."""

    def __init__(self) -> None:
        self.puts: dict[int, Put] = {}
        self.subs: dict[str, Sub] = {}
        self.attempts: dict[StageKey, Attempt] = {}
        self.commitments: dict[tuple[str, int], Commitment] = {}
        self.losses: set[int] = set()
        self.rejected: set[Reject] = set()
        """Everything that was ever rejected: may be on record."""
        self.recorded: set[Reject] = set()
        """Rejects that must be on record, for good."""
        self.removals: dict[int, bool] = {}
        """Segments whose removal was ordered: had everyone durably finished them?"""
        self.config: Config | None = None
        """The settings the store is opened with from here on."""
        self.version = 0

    def copy(self) -> Oracle:
        """One that can go its own way: for a second crash."""
        other = Oracle()
        other.puts = {
            number: Put(p.number, p.slots, p.key, p.attributes, p.state, p.ref, p.sequence, p.ts)
            for number, p in self.puts.items()
        }
        for name, sub in self.subs.items():
            twin = other.subs[name] = Sub(name, sub._start)
            twin.phase = sub.phase
            twin._outcomes = dict(sub._outcomes)
            twin._possible = {ref: set(these) for ref, these in sub._possible.items()}
        other.attempts = {
            key: Attempt(list(a.numbers), a.phase, a.since, a.expired)
            for key, a in self.attempts.items()
        }
        other.commitments = {
            key: Commitment(c.winners, c.phase, c.placed) for key, c in self.commitments.items()
        }
        other.version, other.config = self.version, self.config
        other.losses = set(self.losses)
        other.rejected, other.recorded = set(self.rejected), set(self.recorded)
        other.removals = dict(self.removals)
        return other

    # Questions

    def durable(self) -> list[Put]:
        return [put for put in self.puts.values() if put.state == "durable"]

    def ever_durable(self) -> list[Put]:
        return [put for put in self.puts.values() if put.state in ("durable", "gone")]

    def at(self, ref: BundleRef) -> list[Put]:
        """Puts that were, or may have been, given this ref."""
        return [put for put in self.puts.values() if put.ref is None or put.ref == ref]

    def bundles_of(self, key: StageKey) -> list[int]:
        """The puts that an attempt has taken."""
        return [n for n in self.attempts[key].numbers if self.puts[n].state != "void"]

    def winners_of(self, transaction: tuple[str, int]) -> list[int]:
        """The puts that a commit makes seen."""
        winners = self.commitments[transaction].winners
        return [n for name in winners for n in self.bundles_of(StageKey(*transaction, name))]

    def committed(self, app: str) -> int | None:
        """The last version of an app that was answered as committed."""
        answered = [
            version
            for (name, version), one in self.commitments.items()
            if name == app and one.phase == "answered"
        ]
        return max(answered, default=None)

    def is_over(self, key: StageKey) -> bool:
        """Whether a commit has made sure that a stage is needed no more."""
        committed = self.committed(key.app)
        return committed is not None and key.version <= committed

    def sizes(self) -> dict[int, int]:
        """Durable bundles by segment."""
        sizes: dict[int, int] = defaultdict(int)
        for put in self.durable():
            if put.ref is not None:
                sizes[put.ref.segment_seq] += 1
        return sizes

    def refs(self) -> list[BundleRef]:
        return [put.ref for put in self.puts.values() if put.ref is not None]

    def standing_rejects(self, name: str) -> set[Reject]:
        """What a subscriber has rejected, and not gone back to since."""
        sub = self.subs[name]
        return {one for one in self.rejected if one[0] == name and sub.now(one[1]) == "dropped"}

    def left_in(self, segment_seq: int, sub: Sub) -> list[BundleRef]:
        """Bundles of a segment that a subscriber has not finished."""
        refs = [put.ref for put in self.durable() if put.ref is not None]
        return [r for r in refs if r.segment_seq == segment_seq and sub.now(r) == "pending"]
