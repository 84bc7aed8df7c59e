"""What is true of a run so far: the memory of an outside witness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import pyarrow as pa

from quiver.ids import BundleRef

PutState = Literal["asked", "durable", "failed", "unknown"]
"""``unknown``: the call ended without an answer, or with one that leaves it open."""

SENTENCES: Final = {
    "durable_present": "a bundle answered durable is readable, finished by all, or on record",
    "content_equal": "what is read equals what was put",
    "present_once": "no bundle is there twice",
    "no_phantom": "what was told to have failed does not appear",
    "same_ref": "a bundle keeps the ref of its receipt",
    "ref_unique": "no ref is given out twice",
    "damage_bounded": "damage costs no more than what it touched",
    "loss_on_record": "every loss is in the ledger, with reason and subscribers",
    "no_false_loss": "the ledger names nothing as lost that is still readable",
    "rejects_on_record": "a durable reject is in the ledger, once, and nothing else is as rejected",
    "no_false_damage": "a store that nobody damaged finds no damage",
    "loss_counted": "a ledger row counts what is lost, or says that it is an upper bound",
    "acks_kept": "a durable ack survives: the bundle does not come again",
    "all_delivered": "every subscriber gets every bundle that it has not finished",
    "keys_kept": "a repeat with a key is a duplicate, unless its bundle is lost",
    "lost_can_be_sent_again": "a repeat of a lost bundle is stored again",
    "commit_whole": "of a commit all is visible or nothing, once",
    "opens": "a store opens unless damage is named; after repair it opens",
    "damage_reported": "a store that lost something does not call itself ok",
    "goes_on": "calls end, and fail only in the store's own words",
    "room_returns": "what everyone has finished gives its room back, also on a full disk",
    "stays_poisoned": "after a failed sync nothing is taken until the store is opened again",
    "names_kept": "a slot keeps its name",
    "newer_untouched": "a file of a newer version refuses the store by name and costs nothing",
}


class Violation(AssertionError):
    """A sentence of the promise that was not true."""

    def __init__(self, sentence: str, what: str) -> None:
        if sentence not in SENTENCES:
            raise ValueError(f"{sentence} is no sentence of the promise")
        super().__init__(f"{sentence}: {what}")
        self.sentence = sentence


@dataclass(slots=True)
class Put:
    """A bundle that somebody sent."""

    number: int
    slots: Mapping[str, pa.RecordBatch]
    key: str | None = None
    state: PutState = "asked"
    ref: BundleRef | None = None
    transaction: tuple[str, int] | None = None


@dataclass(slots=True)
class Sub:
    """A subscriber, as it knows itself."""

    name: str
    soft: dict[BundleRef, str] = field(default_factory=dict)
    """Outcomes it gave to the store that runs now; a crash may forget them."""
    ever: set[BundleRef] = field(default_factory=set)
    """All it ever gave an outcome: that may have become durable behind its back."""
    hard: dict[BundleRef, str] = field(default_factory=dict)
    """Outcomes that were made durable."""
    absent: set[int] = field(default_factory=set)
    """Puts that had been deleted, by right, before it came."""
    doubtful: bool = False
    """Its progress file was damaged: it may get everything again."""
    leaving: bool = False
    """Asked to be removed, and nobody knows yet whether it was."""

    def finished(self, ref: BundleRef) -> bool:
        return ref in self.ever


@dataclass(slots=True)
class Facts:
    """Everything that the judge knows."""

    puts: dict[int, Put] = field(default_factory=dict)
    subs: dict[str, Sub] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    """Puts of which damage has left no intact copy."""
    unprovable: set[int] = field(default_factory=set)
    """Puts in the last group of a log that was never closed, and was damaged there: the store
    may take that for a torn write, and must say so."""
    damaged: list[str] = field(default_factory=list)
    """Which files were damaged since the store was last found sound, in words."""
    refusable: set[str] = field(default_factory=set)
    """Damaged files for which an open may refuse."""
    keys_doubtful: bool = False
    """What remembers keys and commits was damaged."""
    names_doubtful: bool = False
    """What remembers slot names was damaged."""
    commits: dict[tuple[str, int], str] = field(default_factory=dict)
    """Transactions: asked or answered."""
    doubled: set[int] = field(default_factory=set)
    """Puts that were sent again when damage had made the store forget their keys."""
    resent: set[int] = field(default_factory=set)
    """Lost puts that were sent again, answered or not: they may be somewhere else since."""
    replaced: set[BundleRef] = field(default_factory=set)
    """Refs of lost bundles that were sent again, and have another ref since."""
    unnamed: set[BundleRef] = field(default_factory=set)
    """Missing bundles that a row counts and can't name."""
    recorded: set[int] = field(default_factory=set)
    """Puts that were seen on record as lost."""
    forgotten: set[int] = field(default_factory=set)
    """Those of them whose rows were in a checkpoint that was damaged."""
    rejected: set[tuple[str, BundleRef]] = field(default_factory=set)
    """What subscribers ever asked to reject: it may be on record."""
    rejects_forgotten: set[tuple[str, BundleRef]] = field(default_factory=set)
    """Those of them whose rows were in a checkpoint that was damaged."""
    unanswered: set[int] = field(default_factory=set)
    """Puts that ended with a crash before they were answered, and were not found after it."""
    policy_drops: bool = False
    """Whether a setting in force may drop data on record."""
    released: set[int] = field(default_factory=set)
    """Puts that every subscriber had finished at some moment."""

    def by_ref(self) -> dict[BundleRef, Put]:
        return {put.ref: put for put in self.puts.values() if put.ref is not None}

    def promised(self) -> list[Put]:
        return [put for put in self.puts.values() if put.state == "durable"]

    def may_be_released(self, put: Put) -> bool:
        """Whether all subscribers that ever needed it have finished it."""
        return put.number in self.released or self._is_finished(put)

    def _is_finished(self, put: Put) -> bool:
        needed = [s for s in self.subs.values() if put.number not in s.absent and not s.leaving]
        ref = put.ref
        return bool(self.subs) and ref is not None and all(sub.finished(ref) for sub in needed)

    def note_released(self) -> None:
        """Remember what could be deleted by right at this moment, whoever comes or goes later."""
        self.released |= {put.number for put in self.promised() if self._is_finished(put)}
