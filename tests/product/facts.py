"""What is true of a run so far: the memory of an outside witness."""

from __future__ import annotations

from collections.abc import Container, Mapping
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
    "drops_by_policy": "a policy drops what it is set to drop, on record, and nothing else",
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
    "commit_once": "a commit that comes again does nothing and says so",
    "stages_kept": "a finished attempt can be committed until it is aborted, and not after that",
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
    at: float = 0.0
    """When it was sent, by the clock that never jumps."""
    needles: list[bytes] = field(default_factory=list)
    """The bytes of its messages, once somebody has asked for them."""


@dataclass(slots=True)
class Transaction:
    """A version of an app: attempts that were finished, and what became of them.

    ``staged`` → ``asked`` → ``answered``; or ``aborted``.  After a crash what was asked is
    answered or staged again.
    """

    app: str
    version: int
    phase: Literal["staged", "asked", "answered", "aborted"] = "staged"
    attempts: dict[str, Put] = field(default_factory=dict)
    """The attempts that a commit is to name."""
    doubtful: bool = False
    """An attempt may be gone, or back: a file was damaged, an abort failed, or a power cut
    came after it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Damage to a file that may still lie there."""

    data: bytes
    """The damaged file, all of it: while it has these bytes, nobody has dealt with it."""
    puts: frozenset[int]
    loose: bool


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
    halved: set[int] = field(default_factory=set)
    """Puts whose segment was damaged while the log still had them: while it does, they are
    not lost."""
    unprovable: set[int] = field(default_factory=set)
    """Puts in the last group of a log that was never closed, and was damaged there: the store
    may take that for a torn write, and must say so."""
    history: list[str] = field(default_factory=list)
    """All damage, in words."""
    marks: dict[str, Mark] = field(default_factory=dict)
    """Damaged files that no open has dealt with yet, by path."""
    refusable: set[str] = field(default_factory=set)
    """Kinds of damaged files for which an open may refuse, until one has succeeded."""
    aside: frozenset[str] = frozenset()
    """What lay in quarantine when the log was damaged: it tells nothing of that damage."""
    keys_doubtful: set[int] = field(default_factory=set)
    """Puts whose keys were nowhere but in what was damaged."""
    versions_doubtful: set[tuple[str, int]] = field(default_factory=set)
    """Committed versions that were nowhere but in what was damaged."""
    commits: dict[tuple[str, int], Transaction] = field(default_factory=dict)
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

    def is_committed(self, app: str, version: int) -> bool:
        """Whether somebody was answered that this version, or a later one, is committed."""
        return any(
            one.phase == "answered" and one.app == app and one.version >= version
            for key, one in self.commits.items()
            if key not in self.versions_doubtful
        )

    def may_be_committed(self, app: str, version: int) -> bool:
        """Whether this version, or a later one, was asked for at all."""
        return any(
            one.phase in ("asked", "answered") and one.app == app and one.version >= version
            for one in self.commits.values()
        )

    def dealt_with(self, image: Mapping[str, bytes], found: Container[int]) -> None:
        """A store was opened: forget damage whose file is not there any more, and that the
        puts that were ``found`` were ever in danger by it."""
        gone = {path for path, mark in self.marks.items() if image.get(path) != mark.data}
        saved = {number for path in gone for number in self.marks.pop(path).puts}
        still = {number for mark in self.marks.values() for number in mark.puts}
        saved = {number for number in saved - still if number in found}
        self.touched -= saved
        self.halved -= saved
        self.refusable.clear()
