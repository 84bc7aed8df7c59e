"""The promise, one function for each sentence of it: a history in, violations out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tests.chaos.history import Note
from tests.chaos.sight import LedgerRow, Ref, Sight, sights

SHOWN: Final = 8
"""Bundles that a sentence names; the others are counted."""


class Invariant(StrEnum):
    """What must never be true; :data:`SENTENCES` says it in words."""

    DURABLE_BUNDLE_MISSING = "durable_bundle_missing"
    LOSS_NOT_ON_RECORD = "loss_not_on_record"
    REJECT_NOT_ON_RECORD = "reject_not_on_record"
    FALSE_LOSS = "false_loss"
    WRONG_CONTENT = "wrong_content"
    DOUBLED = "doubled"
    REF_REUSED = "ref_reused"
    DELIVERED_AFTER_DURABLE_ACK = "delivered_after_durable_ack"
    COMMIT_HALF = "commit_half"
    DAMAGE_SPREAD = "damage_spread"
    STATUS_HIDES_DAMAGE = "status_hides_damage"
    RESEND_REFUSED = "resend_refused"
    SETTINGS_LOST = "settings_lost"
    REFUSED_TO_START = "refused_to_start"
    NEWER_FILE_TAKEN = "newer_file_taken"
    NEIGHBOUR_REFUSED = "neighbour_refused"
    POISONED_WITHOUT_FAULT = "poisoned_without_fault"
    STUCK = "stuck"
    LEFT_LOCKED = "left_locked"
    REFUSED_FOR_GOOD = "refused_for_good"
    CLIENT_FAILED = "client_failed"
    HANG = "hang"
    DEAD_LETTER_MISSING = "dead_letter_missing"
    LATE_ACK_TAKEN = "late_ack_taken"
    NOTHING_TRIED = "nothing_tried"


SENTENCES: Final[dict[Invariant, str]] = {
    Invariant.DURABLE_BUNDLE_MISSING: (
        "answered durable, never delivered, and nothing happened that may cost a bundle"
    ),
    Invariant.LOSS_NOT_ON_RECORD: (
        "lost to damage or a policy, and the ledger does not name it for its subscriber"
    ),
    Invariant.REJECT_NOT_ON_RECORD: (
        "a reject was answered as durable, and the ledger does not name it for its subscriber"
    ),
    Invariant.FALSE_LOSS: (
        "the ledger tells of a loss that cannot have been, or counts more than there was"
    ),
    Invariant.WRONG_CONTENT: "what was delivered is not what was put",
    Invariant.DOUBLED: "one put is there under two refs",
    Invariant.REF_REUSED: "one ref names two bundles",
    Invariant.DELIVERED_AFTER_DURABLE_ACK: "delivered again after an ack answered as durable",
    Invariant.COMMIT_HALF: "a transaction is there in part",
    Invariant.DAMAGE_SPREAD: "damage cost bundles that it did not touch",
    Invariant.STATUS_HIDES_DAMAGE: (
        "bytes are damaged and data is missing or wrong, and the store says that all is well"
    ),
    Invariant.RESEND_REFUSED: "a bundle on record as lost was sent again and not stored",
    Invariant.SETTINGS_LOST: "settings or policies differ from those set, in silence",
    Invariant.REFUSED_TO_START: "a start, or a stream, was refused without reason",
    Invariant.NEWER_FILE_TAKEN: (
        "a file of a newer version did not refuse its stream, or was changed"
    ),
    Invariant.NEIGHBOUR_REFUSED: "one stream's trouble took another stream away",
    Invariant.POISONED_WITHOUT_FAULT: (
        "writes are refused until a restart, though no sync has failed"
    ),
    Invariant.STUCK: "the trouble is over, and puts are still not taken",
    Invariant.LEFT_LOCKED: "a closed store can't be opened again",
    Invariant.REFUSED_FOR_GOOD: "a good bundle was rejected",
    Invariant.CLIENT_FAILED: "a client ended with an error that is no answer",
    Invariant.HANG: "a process did not end, or did not answer, in time",
    Invariant.DEAD_LETTER_MISSING: "never acked, finished as poison, and no dead letter has it",
    Invariant.LATE_ACK_TAKEN: (
        "an ack for a deleted stream was taken by the stream that has its name now"
    ),
    Invariant.NOTHING_TRIED: (
        "nothing was answered durable, or nothing came: the round shows nothing"
    ),
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One sentence that is true and must not be."""

    invariant: Invariant
    stream: str
    detail: str
    bundles: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = ", ".join(self.bundles[:SHOWN])
        more = len(self.bundles) - SHOWN
        named = f": {shown}{f' and {more:,} more' if more > 0 else ''}" if shown else ""
        return (
            f"{self.invariant}: {SENTENCES[self.invariant]} ({self.stream}: {self.detail}){named}"
        )


def judge(notes: Sequence[Note]) -> list[Violation]:
    """Every violation in a history."""
    found = [_witnessed(note) for note in notes if note.kind == "violation"]
    whole = not any(note.kind == "cut_short" for note in notes)
    for sight in sights(notes).values():
        for check in (*SAFETY, *(COMPLETENESS if whole else ())):
            found += check(sight)
    return found


def shows_nothing(notes: Sequence[Note], streams: Iterable[str]) -> list[Violation]:
    """Streams of a round that took no durable put or delivered nothing: a fault of the suite."""
    seen = sights(notes)
    found = []
    for name in streams:
        sight = seen.get(name, Sight(name))
        durable, came = len(sight.promised()), len(sight.seen)
        if not durable or not came:
            detail = f"{durable} answered durable, {came} delivered"
            found.append(_say(sight, Invariant.NOTHING_TRIED, detail))
    return found


def _witnessed(note: Note) -> Violation:
    invariant, stream = Invariant(note["invariant"]), note.get("stream") or "all"
    return Violation(invariant, stream, note["sentence"], tuple(note.get("bundles", ())))


def _say(sight: Sight, invariant: Invariant, detail: str, bundles: Iterable[str] = ()) -> Violation:
    return Violation(invariant, sight.name, detail, tuple(sorted(bundles)))


# One function for each sentence


def delivered_or_on_record(sight: Sight) -> Iterator[Violation]:
    """Every durable bundle reaches every subscriber, or its loss is on record for it."""
    may_lose = bool(sight.had("damage", "caps", "age"))
    for subscriber in sorted(sight.registered):
        missing = sight.missing(subscriber)
        silent = missing - sight.excused(missing, subscriber)
        if silent and may_lose:
            detail = f"{len(silent):,} bundles never came to {subscriber}"
            yield _say(sight, Invariant.LOSS_NOT_ON_RECORD, detail, silent)
        elif silent:
            detail = f"{len(silent):,} bundles never came to {subscriber}"
            yield _say(sight, Invariant.DURABLE_BUNDLE_MISSING, detail, silent)
        yield from _undercounted(sight, subscriber)


def _undercounted(sight: Sight, subscriber: str) -> Iterator[Violation]:
    """A row that names a subscriber counts all that it lost."""
    by_segment: dict[int, set[str]] = defaultdict(set)
    for one in sight.missing(subscriber):
        if len(sight.refs.get(one, ())) == 1:
            ((segment, _),) = sight.refs[one]
            by_segment[segment].add(one)
    for segment, lost in sorted(by_segment.items()):
        rows = [row for row in sight.ledger if row.segment == segment]
        told = sum(row.subscribers.get(subscriber, 0) for row in rows)
        if rows and 0 < told < len(lost):
            detail = f"segment {segment}: {subscriber} lost {len(lost)}, the ledger says {told}"
            yield _say(sight, Invariant.LOSS_NOT_ON_RECORD, detail, lost)


def equal_to_what_was_put(sight: Sight) -> Iterator[Violation]:
    """What comes is what was put, value for value, under the ref that was answered."""
    wrong: dict[str, str] = {}
    for one in sight.seen:
        expected = sight.hashes.get(one.identity)
        if expected is None:
            wrong[f"{one.ref}"] = f"{one.ref} says it is {one.identity}, which nobody put"
        elif expected != one.hash:
            wrong[one.identity] = f"{one.identity} at {one.ref} has other values than were put"
    if wrong:
        yield _say(sight, Invariant.WRONG_CONTENT, sorted(wrong.values())[0], wrong)


def once(sight: Sight) -> Iterator[Violation]:
    """One put, one ref; unless it was sent again after its loss, or its key's, went on record."""
    forgotten = [note.at for note in sight.had("memory_lost", "keys_lost")]
    doubled: dict[str, list[Ref]] = {}
    for one, places in sight.refs.items():
        sent, again = sight.sent_at.get(one, 0), sight.last_sent_at.get(one, 0)
        if any(sent < at < again for at in forgotten):
            continue  # its key may have been forgotten between two tries
        if len({ref for ref in places if not sight.lost_to_damage(ref)}) > 1:
            doubled[one] = sorted(places)
    # Of some losses nothing tells which bundles they were: so many of these may be among them.
    adrift = sum(row.bundles for row in sight.ledger if row.is_damage and row.indexes == ())
    if len(doubled) > adrift:
        name, found = min(doubled.items())
        yield _say(sight, Invariant.DOUBLED, f"{name} is at {found}", doubled)


def a_ref_for_each(sight: Sight) -> Iterator[Violation]:
    """A ref names one bundle, for good."""
    shared = {ref: names for ref, names in sight.owners.items() if len(names) > 1}
    if shared:
        ref, names = min(shared.items())
        bundles = set().union(*shared.values())
        yield _say(sight, Invariant.REF_REUSED, f"{ref} names {sorted(names)}", bundles)


def acks_hold(sight: Sight) -> Iterator[Violation]:
    """What was acked durably does not come again, but after a seek, or to a subscriber whose
    progress file was damaged since."""
    again: set[str] = set()
    who: Counter[str] = Counter()
    lost = {name: [note.at for note in sight.progress_lost(name)] for name, _ in sight.acked}
    for one in sight.seen:
        if one.subscriber is None or one.subscriber in sight.moved:
            continue
        acked = sight.acked.get((one.subscriber, one.ref))
        if acked is None or acked >= one.at:
            continue
        if any(acked < at < one.at for at in lost[one.subscriber]):
            continue
        again.add(one.identity)
        who[one.subscriber] += 1
    if again:
        detail = ", ".join(f"{count:,} to {name}" for name, count in sorted(who.items()))
        yield _say(sight, Invariant.DELIVERED_AFTER_DURABLE_ACK, detail, again)


def all_before_drained(sight: Sight) -> Iterator[Violation]:
    """Who is told that nothing is pending has been sent everything, also in a life of the
    stream that has ended."""
    if sight.undelivered:
        detail = f"{len(sight.undelivered):,} bundles never came, and nothing was pending"
        yield _say(sight, Invariant.DURABLE_BUNDLE_MISSING, detail, sight.undelivered)


def dead_letters(sight: Sight) -> Iterator[Violation]:
    """What was never acked and is not pending is a dead letter, once."""
    twice = {origin for origin, places in sight.dead.items() if len(places) > 1}
    if twice:
        detail = f"{len(twice):,} dead letters are there twice"
        yield _say(sight, Invariant.DOUBLED, detail, _owners(sight, twice))
    if silent := sight.buried - _owners(sight, sight.dead):
        detail = f"{len(silent):,} bundles"
        yield _say(sight, Invariant.DEAD_LETTER_MISSING, detail, silent)


def whole_commits(sight: Sight) -> Iterator[Violation]:
    """Of a transaction all bundles come, or none, or the ledger says which are lost."""
    for (app, version), members in sorted(sight.transactions.items()):
        if (app, version) in sight.committed:
            continue  # they are promised one by one
        for subscriber in sorted(sight.registered):
            came = {one.identity for one in sight.seen if one.subscriber == subscriber}
            absent = members - came
            if absent == members or not absent:
                continue
            if absent - sight.excused(absent, subscriber):
                detail = f"{app} {version}: {len(members - absent)} of {len(members)}"
                detail += f" came to {subscriber}"
                yield _say(sight, Invariant.COMMIT_HALF, detail, absent)


def rejects_on_record(sight: Sight) -> Iterator[Violation]:
    """What was rejected durably is in the ledger, for the one who rejected it."""
    if sight.full_ledger:
        return
    named = set().union(*(row.rejects for row in sight.refusals))
    forgotten = max((note.at for note in sight.had("memory_lost")), default=-1)
    silent = {
        (name, ref)
        for name, ref in sight.rejected - named
        if sight.acked[name, ref] > forgotten
        # Damage or a policy may have taken a bundle from the hands of who then rejected it.
        and not any(name in row.subscribers and row.names(ref) for row in sight.ledger)
    }
    if silent:
        detail = f"{len(silent):,} rejects are on no record"
        yield _say(sight, Invariant.REJECT_NOT_ON_RECORD, detail, _names(sight, silent))


def no_false_reject(sight: Sight) -> Iterator[Violation]:
    """A row of rejects names what its subscriber rejected, and counts just that."""
    for row in sight.refusals:
        false = row.rejects - sight.rejecting
        if row.exact and false:
            detail = f"segment {row.segment}: rejected by nobody, and in the ledger as rejected"
            yield _say(sight, Invariant.FALSE_LOSS, detail, _names(sight, false))
        elif row.bundles != len(row.rejects):
            detail = f"segment {row.segment}: {len(row.rejects)} rejects counted as {row.bundles}"
            yield _say(sight, Invariant.FALSE_LOSS, detail, _names(sight, row.rejects))


def _names(sight: Sight, rejects: Iterable[tuple[str, Ref]]) -> set[str]:
    """The bundles, as they are called; those that nobody knows by their refs."""
    return _owners(sight, (ref for _, ref in rejects))


def no_false_loss(sight: Sight) -> Iterator[Violation]:
    """A row of the ledger has a cause, and names and counts no more than there was to lose."""
    damage = sight.had("damage")
    policy = sight.had("caps", "age")
    hit = {note.get("segment") for note in damage}
    for row in sight.ledger:
        what = f"segment {row.segment}, {row.bundles} bundles, {row.reason}"
        inside = _in_segment(sight, row.segment)
        if not (damage if row.is_damage else policy):
            yield _say(sight, Invariant.FALSE_LOSS, f"{what}: without cause", inside)
        elif row.is_damage and None not in hit and row.segment not in hit:
            detail = f"{what}: only segments {sorted(hit)} were damaged"
            yield _say(sight, Invariant.FALSE_LOSS, detail, inside)
        elif row.exact:  # else it says that it may count too many
            for detail, named in _too_many(sight, row):
                yield _say(sight, Invariant.FALSE_LOSS, f"{what}: {detail}", named or inside)


def _too_many(sight: Sight, row: LedgerRow) -> Iterator[tuple[str, set[str]]]:
    """What is wrong with a row that says it is exact, with the bundles that it concerns."""
    most = sight.most_in(row.segment)
    if row.bundles > most:
        yield f"the segment held at most {most}", set()
        return
    if row.indexes is not None and row.bundles != len(row.named):
        yield f"names {len(row.named)}", _owners(sight, row.named)
    for name, told in sorted(row.subscribers.items()):
        if told > row.bundles:
            yield f"{name} is told to have lost {told}", _owners(sight, row.named)
    if row.is_damage:
        yield from _not_lost(sight, row)


def _not_lost(sight: Sight, row: LedgerRow) -> Iterator[tuple[str, set[str]]]:
    """What could be read to the end is not lost, nor what was finished before the damage."""
    damaged_at = min(note.at for note in sight.had("damage"))
    readable = {
        one.ref
        for one in sight.seen
        if one.subscriber is None and sight.hashes.get(one.identity) == one.hash
    }
    if sound := row.named & readable:
        yield f"{len(sound)} of them can be read", _owners(sight, sound)
    finished = {name: sight.finished_before(name, damaged_at) for name in sight.registered}
    by_all = set.intersection(*finished.values()) if finished else set()
    if false := row.named & by_all:
        yield f"all had finished {len(false)} of them before", _owners(sight, false)
    elif row.bundles > sight.most_in(row.segment) - _count_in(by_all, row.segment):
        yield f"all had finished {_count_in(by_all, row.segment)} of the segment before", set()
    for name, told in sorted(row.subscribers.items()):
        done = finished.get(name, set())
        left = len(row.named - done)
        if row.indexes is None:
            left = sight.most_in(row.segment) - _count_in(done, row.segment)
        if told > left:
            detail = f"{name} had finished all but {left} of them before, and is told {told}"
            yield detail, _owners(sight, row.named & done)


def _count_in(refs: set[Ref], segment: int) -> int:
    return sum(ref[0] == segment for ref in refs)


def _owners(sight: Sight, refs: Iterable[Ref]) -> set[str]:
    """The bundles, as they are called; those that nobody knows by their refs."""
    return {name for ref in refs for name in sight.owners.get(ref) or {str(ref)}}


def _in_segment(sight: Sight, segment: int) -> set[str]:
    return {one for one, places in sight.refs.items() if any(s == segment for s, _ in places)}


def no_hidden_damage(sight: Sight) -> Iterator[Violation]:
    """If bytes were damaged and something is missing or wrong, status or ledger say so."""
    if not sight.had("damage") or sight.state is None or not sight.sound or sight.ledger:
        return
    missing = set().union(*(sight.missing(name) for name in sight.registered))
    wrong = {one.identity for one in sight.seen if sight.hashes.get(one.identity) != one.hash}
    if missing or wrong:
        detail = f"state {sight.state}, ledger empty"
        yield _say(sight, Invariant.STATUS_HIDES_DAMAGE, detail, missing | wrong)


def damage_is_local(sight: Sight) -> Iterator[Violation]:
    """A flipped byte inside one bundle's values costs that bundle, and no other.

    By refs: of a bundle that came to nobody a row may be all that tells its ref.
    """
    damage = sight.had("damage")
    touched = {(note["segment"], note["index"]) for note in damage if note.get("index") is not None}
    others = {note.get("segment") for note in damage if note.get("index") is None}
    if None in others:
        return
    aimed_at = {segment for segment, _ in touched} - others
    spread: set[str] = set()
    for subscriber in sight.registered:
        for one in sight.missing(subscriber):
            places = sight.refs.get(one, set()) - sight.resent_at.get(one, set())
            if places - touched and {segment for segment, _ in places} <= aimed_at:
                spread.add(one)
    for row in sight.ledger:
        if row.is_damage and row.segment in aimed_at:
            spread |= _owners(sight, row.named - touched)
            if row.exact and not row.named and row.bundles > _count_in(touched, row.segment):
                spread.add(f"{row.bundles} of segment {row.segment}")
    if spread:
        detail = f"{len(touched)} bundles touched, {len(spread)} others lost"
        yield _say(sight, Invariant.DAMAGE_SPREAD, detail, spread)


def lost_may_be_resent(sight: Sight) -> Iterator[Violation]:
    """What is on record as lost is stored when its producer sends it again."""
    turned_away = [note["id"] for note in sight.resent if note["status"] != "ok"]
    if turned_away:
        answers = sorted({note["status"] for note in sight.resent if note["status"] != "ok"})
        yield _say(sight, Invariant.RESEND_REFUSED, f"answered {', '.join(answers)}", turned_away)


Check = Callable[[Sight], Iterator[Violation]]
SAFETY: Final[tuple[Check, ...]] = (
    equal_to_what_was_put,
    once,
    a_ref_for_each,
    acks_hold,
    all_before_drained,
    dead_letters,
    no_false_loss,
    no_false_reject,
    lost_may_be_resent,
)
"""What holds at every moment."""
COMPLETENESS: Final[tuple[Check, ...]] = (
    delivered_or_on_record,
    rejects_on_record,
    whole_commits,
    no_hidden_damage,
    damage_is_local,
)
"""What holds once everything has been drained."""
