"""The judge's view of one stream, made of the notes about it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.history import Note

Ref = tuple[int, int]
SOUND_STATES = frozenset({"ok", "open"})
REJECTED = "rejected"
"""The reason of a ledger row for what a subscriber refused: it is not lost."""
DAMAGED = "damaged"
"""The reason of a row for what no policy dropped."""
MAX_ROWS = 1000
"""Rows that a ledger keeps one by one."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A bundle that came to a subscriber or was read."""

    at: int
    subscriber: str | None
    ref: Ref
    identity: str
    hash: str


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A row of the loss ledger, as the store tells it."""

    segment: int
    bundles: int
    reason: str
    subscribers: Mapping[str, int]
    exact: bool = True
    """Whether the counts are more than upper bounds."""
    indexes: tuple[tuple[int, int], ...] | None = None
    """Which bundles, as half-open ranges; None: all of the segment; empty: nothing tells which,
    and ``bundles`` is how many at most."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> LedgerRow:
        return cls(
            int(row["segment_seq"]),
            int(row["bundles"]),
            row["reason"],
            dict(row["subscribers"]),
            bool(row.get("exact", True)),
            None if row.get("indexes") is None else tuple((a, b) for a, b in row["indexes"]),
        )

    @property
    def named(self) -> set[Ref]:
        """The refs that the row names one by one."""
        return {
            (self.segment, index)
            for first, end in self.indexes or ()
            for index in range(first, end)
        }

    @property
    def rejects(self) -> set[tuple[str, Ref]]:
        """What a row of rejects names, and for whom."""
        return {(name, ref) for name in self.subscribers for ref in self.named}

    @property
    def is_damage(self) -> bool:
        """Whether no policy decided it."""
        return self.reason == DAMAGED

    def names(self, ref: Ref) -> bool:
        """Whether the row speaks of this bundle."""
        segment, index = ref
        if segment != self.segment:
            return False
        return self.indexes is None or any(first <= index < end for first, end in self.indexes)

    def unnamed(self, known: set[Ref]) -> int:
        """How many bundles, at most, the row may speak of beside those whose refs are known."""
        if self.indexes == ():
            return self.bundles
        if self.indexes is None:
            return max(0, self.bundles - sum(ref[0] == self.segment for ref in known))
        return len(self.named - known)


@dataclass
class Sight:
    """One stream."""

    name: str
    hashes: dict[str, str] = field(default_factory=dict)
    sent_at: dict[str, int] = field(default_factory=dict)
    last_sent_at: dict[str, int] = field(default_factory=dict)
    transactions: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    committed: set[tuple[str, int]] = field(default_factory=set)
    durable: set[str] = field(default_factory=set)
    refs: dict[str, set[Ref]] = field(default_factory=lambda: defaultdict(set))
    """By identity: where it was answered durable, or seen with its own content."""
    owners: dict[Ref, set[str]] = field(default_factory=lambda: defaultdict(set))
    deleted_at: int | None = None
    """When the stream was last deleted: what was put before it is owed to nobody."""
    registered: dict[str, int] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    acked: dict[tuple[str, Ref], int] = field(default_factory=dict)
    """Finished durably, by an ack or a reject; and since when."""
    rejecting: set[tuple[str, Ref]] = field(default_factory=set)
    rejected: set[tuple[str, Ref]] = field(default_factory=set)
    """By a reject that was answered as durable, and never acked."""
    moved: set[str] = field(default_factory=set)
    undelivered: set[str] = field(default_factory=set)
    """Owed to a subscriber that was told that nothing is pending, in any life of the stream."""
    dead: dict[Ref, set[Ref]] = field(default_factory=lambda: defaultdict(set))
    """Dead letters: by the ref that a bundle had, where they are."""
    buried: set[str] = field(default_factory=set)
    """Bundles that must be dead letters."""
    resent: list[Note] = field(default_factory=list)
    resent_at: dict[str, set[Ref]] = field(default_factory=lambda: defaultdict(set))
    """By identity: where it was stored in the calm, when all subscribers had ended."""
    troubles: list[Note] = field(default_factory=list)
    state: str | None = None
    ledger: list[LedgerRow] = field(default_factory=list)
    """The rows for losses."""
    refusals: list[LedgerRow] = field(default_factory=list)
    """The rows for rejects."""
    full_ledger: bool = False
    """Whether older rows may be counted only."""

    def add(self, note: Note) -> None:
        """Take one note in."""
        handler = getattr(self, f"_on_{note.kind}", None)
        if handler is not None:
            handler(note)

    def _on_put(self, note: Note) -> None:
        identity = note["id"]
        self.hashes[identity] = note["hash"]
        self.sent_at.setdefault(identity, note.at)
        self.last_sent_at[identity] = note.at
        if note.get("app") is not None:
            name = (note["app"], note["version"])
            self.transactions.setdefault(name, set()).add(identity)

    def _on_answer(self, note: Note) -> None:
        if note["status"] in ("ok", "dup") and note.get("level") == "durable":
            self.durable.add(note["id"])
            self._place(note["id"], _ref(note["ref"]))

    def _on_resent(self, note: Note) -> None:
        self.resent.append(note)
        if note["status"] == "ok":
            self._place(note["id"], _ref(note["ref"]))
            self.resent_at[note["id"]].add(_ref(note["ref"]))

    def _on_committed(self, note: Note) -> None:
        self.committed.add((note["app"], note["version"]))

    def _on_registered(self, note: Note) -> None:
        self.registered.setdefault(note["subscriber"], note.at)

    def _on_left(self, note: Note) -> None:
        self.registered.pop(note["subscriber"], None)

    def _on_deleted(self, note: Note) -> None:
        """Its subscribers go with it; its refs stay known, since none of them may come back."""
        self.deleted_at = note.at
        self.registered.clear()
        self.rejecting.clear()
        self.rejected.clear()
        self.ledger, self.refusals = [], []

    def _on_drained(self, note: Note) -> None:
        missing = self.missing(note["subscriber"])
        self.undelivered |= missing - self.excused(missing, note["subscriber"])

    def _on_dead(self, note: Note) -> None:
        origin = _ref(note["origin"])
        self.dead[origin].add(_ref(note["ref"]))
        self._see(Seen(note.at, None, origin, note["id"], note["hash"]))

    def _on_buried(self, note: Note) -> None:
        self.buried |= set(note["ids"])

    def _on_delivered(self, note: Note) -> None:
        self._see(Seen(note.at, note["subscriber"], _ref(note["ref"]), note["id"], note["hash"]))

    def _on_read(self, note: Note) -> None:
        self._see(Seen(note.at, None, _ref(note["ref"]), note["id"], note["hash"]))

    def _on_acked(self, note: Note) -> None:
        for ref in note["refs"]:
            self.acked.setdefault((note["subscriber"], _ref(ref)), note.at)
            self.rejected.discard((note["subscriber"], _ref(ref)))

    def _on_rejecting(self, note: Note) -> None:
        self.rejecting |= {(note["subscriber"], _ref(ref)) for ref in note["refs"]}

    def _on_rejected(self, note: Note) -> None:
        for ref in note["refs"]:
            one = (note["subscriber"], _ref(ref))
            if one not in self.acked:
                self.rejected.add(one)
            self.acked.setdefault(one, note.at)

    def _on_moved(self, note: Note) -> None:
        self.moved.add(note["subscriber"])

    def _on_trouble(self, note: Note) -> None:
        self.troubles.append(note)

    def _on_status(self, note: Note) -> None:
        self.state = note["state"]

    def _on_ledger(self, note: Note) -> None:
        rows = [LedgerRow.of(row) for row in note["rows"]]
        self.ledger = [row for row in rows if row.reason != REJECTED]
        self.refusals = [row for row in rows if row.reason == REJECTED]
        self.full_ledger = len(rows) >= MAX_ROWS

    def _see(self, seen: Seen) -> None:
        self.seen.append(seen)
        if self.hashes.get(seen.identity) == seen.hash:
            self._place(seen.identity, seen.ref)

    def _place(self, identity: str, ref: Ref) -> None:
        self.refs[identity].add(ref)
        self.owners[ref].add(identity)

    # Questions

    def promised(self) -> set[str]:
        """All bundles that were answered durable, one by one or by their commit."""
        whole = set().union(*(self.transactions.get(name, set()) for name in self.committed))
        return self.durable | whole

    def missing(self, subscriber: str) -> set[str]:
        """Promised bundles that a subscriber was never sent, right or wrong."""
        since = self.registered[subscriber]
        came = [one for one in self.seen if one.subscriber == subscriber]
        names, places = {one.identity for one in came}, {one.ref for one in came}
        return {
            one
            for one in self.promised()
            if self.sent_at.get(one, 0) > max(since, self.deleted_at or since)
            and one not in names
            and not self.refs.get(one, set()) & places
        }

    def excused(self, absent: set[str], subscriber: str) -> set[str]:
        """Which of these bundles the ledger tells this subscriber that it lost.

        Those that a row names.  Of bundles whose refs no client ever saw, and of bundles that
        no row names, as many as rows leave room for: a row that can't say which bundles it
        speaks of excuses the number it gives, and no more.
        """
        rows = [row for row in self.ledger if row.subscribers.get(subscriber, 0) > 0]
        named = {one for one in absent if self._named_by(rows, one)}
        seen = {one.ref for one in self.seen if one.subscriber == subscriber}
        known = {ref for ref in self.owners if self.owners[ref]} | seen
        places = sum(row.unnamed(known) for row in rows if row.indexes != ())
        adrift = sum(row.subscribers[subscriber] for row in rows if row.indexes == ())
        nowhere = sorted(one for one in absent - named if not self.refs.get(one))
        elsewhere = sorted(absent - named - set(nowhere))
        placed = nowhere[:places]
        return named | set(placed) | set([*elsewhere, *nowhere[places:]][:adrift])

    def _named_by(self, rows: Iterable[LedgerRow], identity: str) -> bool:
        """Whether every place that a bundle was owed from is on record as lost."""
        places = self.refs.get(identity, set()) - self.resent_at.get(identity, set())
        rows = list(rows)
        return bool(places) and all(any(row.names(ref) for row in rows) for ref in places)

    def lost_to_damage(self, ref: Ref) -> bool:
        """Whether a row says that damage took this bundle."""
        return any(row.is_damage and row.names(ref) for row in self.ledger)

    def finished_before(self, subscriber: str, at: int) -> set[Ref]:
        """What a subscriber had durably finished by then, as far as that can't be forgotten."""
        forgotten = max((note.at for note in self.progress_lost(subscriber)), default=-1)
        if subscriber in self.moved:
            return set()
        return {
            ref
            for (name, ref), acked in self.acked.items()
            if name == subscriber and forgotten < acked < at
        }

    def progress_lost(self, subscriber: str) -> list[Note]:
        """When this subscriber's progress was damaged."""
        return [
            note
            for note in self.had("progress_lost")
            if note.get("subscriber") in (None, subscriber)
        ]

    def most_in(self, segment: int) -> int:
        """At most so many bundles can have been in a segment: those seen, and all in doubt."""
        known = {one for one, places in self.refs.items() if any(s == segment for s, _ in places)}
        placed = {one for one, places in self.refs.items() if places}
        return len(known) + len(set(self.hashes) - placed)

    def had(self, *whats: str) -> list[Note]:
        """Trouble of these kinds."""
        return [note for note in self.troubles if note["what"] in whats]

    @property
    def sound(self) -> bool:
        """Whether the store said at the end that nothing is wrong."""
        return self.state in SOUND_STATES


def sights(notes: Iterable[Note]) -> dict[str, Sight]:
    """All streams of a history.  Trouble without a stream is every stream's."""
    found: dict[str, Sight] = {}
    everywhere: list[Note] = []
    for note in notes:
        stream = note.get("stream")
        if stream is not None:
            found.setdefault(stream, Sight(stream)).add(note)
        elif note.kind == "trouble":
            everywhere.append(note)
    for sight in found.values():
        for note in everywhere:
            sight.add(note)
    return found


def _ref(value: Any) -> Ref:
    segment, index = value
    return int(segment), int(index)
