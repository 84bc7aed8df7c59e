"""The promise, one function for each sentence of it.

Each takes a :class:`Case`, a store opened on a state that a crash may leave, and raises
:class:`Violation` when the sentence is not true.  They run in the order of
:data:`INVARIANTS`; those of :data:`PROBES` then use the store, so they come last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NoReturn

import pyarrow as pa

from quiver.errors import Backpressure
from quiver.format.floor import FLOOR_PATH, decode_floor
from quiver.format.segment.stage import STAGES
from quiver.ids import BundleRef
from quiver.ingest.receipt import Receipt
from quiver.segment.info import SEGMENTS
from quiver.store.store import Store
from quiver.transaction.commit import Committed
from tests.crash.disk import CrashDisk, Image
from tests.crash.look import Bundle, View, outcomes
from tests.crash.oracle import Oracle, Outcome, Put, Reject, Slots
from tests.crash.rights import may_go

PROBED_KEYS: Final = 2
"""Keyed bundles that are really put again in each state; the others are looked up."""

PATIENCE: Final = 4
"""Times a put may be told to come again later, with upkeep in between."""

_PROBE: Final = pa.record_batch({"probe": pa.array([1])})
_RANK: Final = {"durable": 0, "offered": 1, "staged": 2, "gone": 3, "void": 4}


class Violation(AssertionError):
    """The promise was broken; ``invariant`` names the sentence."""

    def __init__(self, invariant: str, what: str) -> None:
        if invariant not in SENTENCES:
            raise ValueError(f"{invariant} is no sentence of the promise: add it to SENTENCES")
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


@dataclass(slots=True)
class Case:
    """One opened state. ``before`` and ``after`` are the files around the open."""

    oracle: Oracle
    store: Store
    disk: CrashDisk
    before: Image
    after: Image
    view: View
    now_ns: int
    numbers: dict[BundleRef, Put]
    """Which put each bundle turned out to be; filled in by :func:`no_phantom`."""
    probe: Receipt | None = None
    """A bundle put into the opened store, by :func:`goes_on`."""

    def fail(self, invariant: Callable[[Case], None], what: str) -> NoReturn:
        raise Violation(invariant.__name__, what)

    def present(self) -> dict[int, BundleRef]:
        """Where each put was found."""
        return {put.number: ref for ref, put in self.numbers.items()}


# What is there


def no_phantom(case: Case) -> None:
    """All that is there was put, whole and unaltered, and not told to have failed."""
    for ref, bundle in case.view.bundles.items():
        candidates = sorted(case.oracle.at(ref), key=lambda put: _RANK[put.state])
        same = [put for put in candidates if _is(bundle, put)]
        if not same:
            case.fail(no_phantom, f"{ref} is nothing that was put there: {bundle.slots}")
        put = same[0]
        if put.state == "void":
            case.fail(no_phantom, f"{ref} is put {put.number}, which was told to have failed")
        if put.state == "staged":
            case.fail(no_phantom, f"{ref} is put {put.number}, which nobody has committed")
        if put.state == "gone":
            case.fail(no_phantom, f"{ref} is put {put.number}, which had been deleted")
        case.numbers[ref] = put


def _is(bundle: Bundle, put: Put) -> bool:
    meta = bundle.meta
    return (
        bundle.slots.keys() == put.slots.keys()
        and meta.key == put.key
        and dict(meta.attributes) == dict(put.attributes)
        and all(_equal(batch, put.slots[name]) for name, batch in bundle.slots.items())
    )


def same_slots(found: Mapping[str, pa.RecordBatch], put: Slots) -> bool:
    """Whether these are the batches that were put."""
    return found.keys() == put.keys() and all(_equal(b, put[name]) for name, b in found.items())


def _equal(found: pa.RecordBatch, put: pa.RecordBatch) -> bool:
    return bool(found.equals(put, check_metadata=True))


def present_once(case: Case) -> None:
    """Nothing is there twice."""
    seen: dict[int, BundleRef] = {}
    for ref, put in case.numbers.items():
        if put.number in seen:
            case.fail(present_once, f"put {put.number} is at {seen[put.number]} and at {ref}")
        seen[put.number] = ref


def durable_present(case: Case) -> None:
    """Every bundle called durable is there, or its segment went by right.

    That is: everyone had durably finished it when its removal was ordered, or when the store
    was opened (a segment that all have finished isn't written then), or its loss is in the
    ledger.
    """
    found = case.present()
    there = {ref.segment_seq for ref in case.view.bundles}
    for put in case.oracle.durable():
        if put.number in found:
            continue
        if put.ref is None:
            case.fail(durable_present, f"put {put.number} of the Rust crate is gone")
        segment = put.ref.segment_seq
        if segment in there:
            case.fail(durable_present, f"{put.ref} is missing from a segment that is there")
        dropped = case.view.losses.get(segment) in ("size", "time")
        ordered = segment in case.oracle.removals
        finished = case.oracle.removals.get(segment) or (
            not ordered and may_go(case.before, case.oracle, segment)
        )
        if not dropped and not finished:
            case.fail(
                durable_present,
                f"{put.ref} (put {put.number}) is gone, "
                + ("though not everyone had finished it" if ordered else "and nobody ordered that"),
            )


def same_names(case: Case) -> None:
    """A bundle has the ref, the sequence and the time that its receipt said."""
    for ref, put in case.numbers.items():
        meta = case.view.bundles[ref].meta
        if put.ref is not None and (ref, meta.sequence) != (put.ref, put.sequence):
            case.fail(
                same_names,
                f"put {put.number} was {put.ref} with sequence {put.sequence},"
                f" is {ref} with {meta.sequence}",
            )
        if put.ts is not None and put.ts != meta.ingestion_ts_ns:
            case.fail(same_names, f"{ref} was taken at {put.ts}, now says {meta.ingestion_ts_ns}")


def numbers_apart(case: Case) -> None:
    """No two bundles share a sequence, but for those of one commit; in all they ascend."""
    metas = sorted(
        (ref, b.meta.sequence)
        for ref, b in case.view.bundles.items()
        if b.meta.sequence is not None  # the Rust crate's segments say none
    )
    commits = case.view.transactions
    for (ref, sequence), (other, following) in pairwise(metas):
        mates = commits.get(ref.segment_seq)
        together = mates is not None and mates == commits.get(other.segment_seq)
        if sequence > following or (sequence == following) is not together:
            case.fail(numbers_apart, f"{ref} has sequence {sequence}, {other} has {following}")


# Subscribers


def subscribers_known(case: Case) -> None:
    """Who was registered is known; who had left is not; nobody else is."""
    known = set(case.view.outcomes)
    must = {name for name, sub in case.oracle.subs.items() if sub.phase == "joined"}
    if must - known:
        case.fail(subscribers_known, f"forgotten: {sorted(must - known)}")
    if known - set(case.oracle.subs):
        case.fail(subscribers_known, f"came back: {sorted(known - set(case.oracle.subs))}")


def progress_kept(case: Case) -> None:
    """What a subscriber had durably finished stays finished."""
    for name, ref, found, allowed in _standings(case):
        if found == "pending" and found not in allowed:
            case.fail(progress_kept, f"{name} had {ref} as {sorted(allowed)}; it is pending again")


def nobody_done_early(case: Case) -> None:
    """Nobody is marked as done with something they never were."""
    for name, ref, found, allowed in _standings(case):
        if found == "dropped" and "pending" in allowed and ref.segment_seq in case.view.losses:
            continue  # retention gave it up, on record
        if found != "pending" and found not in allowed:
            case.fail(nobody_done_early, f"{name} has {ref} as {found}, not {sorted(allowed)}")


def _standings(case: Case) -> list[tuple[str, BundleRef, Outcome, set[Outcome]]]:
    subs = case.oracle.subs
    return [
        (name, ref, found, subs[name].allowed(ref))
        for name, standing in case.view.outcomes.items()
        if name in subs
        for ref, found in standing.items()
    ]


# What was recorded


def losses_on_record(case: Case) -> None:
    """A loss that was on record stays there, and a crash alone never causes one."""
    missing = case.oracle.losses - set(case.view.losses)
    if missing:
        case.fail(losses_on_record, f"segments {sorted(missing)} are not in the ledger any more")
    damaged = [seq for seq, why in case.view.losses.items() if why not in ("size", "time")]
    report = case.store.report
    if damaged or report.lost or report.reclaimed or report.quarantined or report.degraded:
        case.fail(losses_on_record, f"lost without damage: {damaged or report}")


def rejects_on_record(case: Case) -> None:
    """What a subscriber rejected is on record before it counts as done, and stays there; nothing
    else is, and nothing twice."""
    rows, oracle = case.view.rejects, case.oracle
    silent = {
        (name, ref)
        for name, ref, found, _ in _standings(case)
        if found == "dropped" and ref.segment_seq not in case.view.losses
    }
    # A segment is deleted when everyone has durably finished it, so its rejects are durable too.
    silent |= {
        (name, ref)
        for name, sub in oracle.subs.items()
        if sub.phase == "joined"
        for _, ref in oracle.standing_rejects(name)
        if ref not in case.view.bundles
    }
    silent = (silent | oracle.recorded) - rows
    if silent:
        case.fail(rejects_on_record, f"rejected, and not in the ledger: {_shown(silent)}")
    if rows - oracle.rejected:
        false = _shown(rows - oracle.rejected)
        case.fail(rejects_on_record, f"in the ledger, and never rejected: {false}")
    if case.view.rejects_counted != len(rows):
        case.fail(
            rejects_on_record, f"{len(rows)} rejects are counted as {case.view.rejects_counted}"
        )


def _shown(rejects: Collection[Reject]) -> str:
    return ", ".join(f"{ref} by {name}" for name, ref in sorted(rejects))


# Files


def bytes_accounted(case: Case) -> None:
    """What the store thinks it takes on disk is what it takes."""
    segments = sum(len(b) for p, b in case.after.items() if p.endswith(".qseg"))
    log = sum(
        len(b)
        for p, b in case.after.items()
        if p.startswith("wal/") and not p.endswith((".cursor", ".tmp"))
    )
    stages = sum(len(b) for p, b in case.after.items() if p.endswith(".qstage"))
    view = case.view
    if (segments, log, stages) != (view.segment_bytes, view.log_bytes, view.stage_bytes):
        case.fail(
            bytes_accounted,
            f"segments {segments}, log {log} and stages {stages} on disk,"
            f" {view.segment_bytes}, {view.log_bytes} and {view.stage_bytes} in the books",
        )


def no_strays(case: Case) -> None:
    """Nothing half-written is left after an open, and no segment file that isn't one."""
    wal = case.store._wal
    known = wal is not None and wal._files._spare is not None  # made by the open itself
    for path in case.after:
        if path.endswith((".tmp", ".new") if known else (".tmp", ".new", ".spare")):
            case.fail(no_strays, f"{path} is still there after the open")
        if path.startswith(f"{SEGMENTS}/") and path.endswith(".qseg"):
            seq = int(path.removeprefix(f"{SEGMENTS}/").removesuffix(".qseg"))
            if seq not in case.store._parts.segments:
                case.fail(no_strays, f"{path} is there, but the store doesn't know it")
        if path.endswith(".qstage") and not any(
            path.startswith(f"{STAGES}/{key.id.hex()}-") for key in case.view.stages
        ):
            case.fail(no_strays, f"{path} is there, and no stage has it")


def decided_deletions_done(case: Case) -> None:
    """A segment that the floor calls gone has no file after an open."""
    floor = decode_floor(case.after[FLOOR_PATH])
    for info in case.store._parts.segments.infos():
        if info.seq < floor.replay_floor and floor.is_gone(info.seq):
            case.fail(decided_deletions_done, f"segment {info.seq} is there, and gone by the floor")


# Transactions


def commit_whole(case: Case) -> None:
    """Of a commit all is there or nothing, and its version is remembered with it."""
    found = case.present()
    for (app, version), commitment in case.oracle.commitments.items():
        remembered = case.view.committed.get(app, -1) >= version
        if commitment.phase == "answered" and not remembered:
            case.fail(commit_whole, f"{app} {version} was committed, and is forgotten")
        if commitment.phase == "asked":
            numbers = case.oracle.winners_of((app, version))
            there = [number for number in numbers if number in found]
            if len(there) != (len(numbers) if remembered else 0):
                case.fail(
                    commit_whole,
                    f"{len(there)} of {len(numbers)} bundles of {app} {version} are there, it is"
                    f" {'' if remembered else 'not '}called committed",
                )


def finished_kept(case: Case) -> None:
    """A finished stage is there, with all its bundles, until it is committed or given up."""
    for key, attempt in case.oracle.attempts.items():
        info = case.view.stages.get(key)
        over = case.view.committed.get(key.app, -1) >= key.version
        if info is None:
            if attempt.is_kept and not over:
                case.fail(finished_kept, f"{key} was finished, and is gone")
            continue
        if attempt.phase in ("writing", "gone") or over:
            case.fail(finished_kept, f"{key} is there: {attempt.phase}, committed: {over}")
        if not info.finished or info.bundles != len(case.oracle.bundles_of(key)):
            case.fail(finished_kept, f"{key} is there as {info}")
    strays = case.view.stages.keys() - case.oracle.attempts.keys()
    if strays:
        case.fail(finished_kept, f"nobody has staged {sorted(strays)}")


INVARIANTS: Final[tuple[Callable[[Case], None], ...]] = (
    no_phantom,
    present_once,
    durable_present,
    same_names,
    numbers_apart,
    subscribers_known,
    progress_kept,
    nobody_done_early,
    losses_on_record,
    rejects_on_record,
    commit_whole,
    finished_kept,
    bytes_accounted,
    no_strays,
    decided_deletions_done,
)

# The store is used from here on


def keys_remembered(case: Case) -> None:
    """A keyed bundle that was durable, put again, is answered with the first ref."""
    config = case.store.config.idempotency
    oldest = case.now_ns - int(config.window_age * 1e9)
    keyed = [p for p in case.oracle.puts.values() if p.key is not None]
    # Whatever came after a key pushes it out, whether or not it was durable in the end.
    kept = [
        p
        for p in keyed[-config.window_count :]
        if p.state in ("durable", "gone") and p.ts is not None and p.ts > oldest
    ]
    remembered = case.store._parts.ingest.window._records
    for put in kept:
        if put.key not in remembered:
            case.fail(keys_remembered, f"the key of put {put.number} ({put.ref}) is forgotten")
    for put in [*kept[:1], *kept[1:][-1:]][:PROBED_KEYS]:
        receipt = case.store.put(put.slots, key=put.key, attributes=put.attributes).wait()
        same = {p.ref for p in keyed if p.key == put.key and p.state != "void"}
        if not receipt.duplicate or receipt.ref not in same:
            case.fail(
                keys_remembered,
                f"put {put.number} is {put.ref}; put again it was answered {receipt.ref}",
            )


def goes_on(case: Case) -> None:
    """The store takes a bundle, and makes it durable."""
    case.probe = _put_with_patience(case, {"Logs": _PROBE})
    if case.probe is not None and not case.probe.durable:
        case.fail(goes_on, f"{case.probe} is not durable after waiting")


def numbers_not_reused(case: Case) -> None:
    """The new bundle's segment and sequence were never anybody else's; nor is it older."""
    new = case.probe
    if new is None:
        return
    for put in case.oracle.ever_durable():
        if put.ref is not None and put.ref.segment_seq >= new.ref.segment_seq:
            case.fail(numbers_not_reused, f"a new bundle is {new.ref}, not behind {put.ref}")
        if put.sequence is not None and put.sequence >= new.sequence:
            case.fail(numbers_not_reused, f"sequence {new.sequence} was that of {put.ref}")
        if put.ts is not None and put.ts > new.ingestion_ts_ns:
            case.fail(numbers_not_reused, "ingestion time went back")
    for bundle in case.view.bundles.values():
        if (bundle.meta.sequence or 0) >= new.sequence:
            case.fail(numbers_not_reused, f"sequence {new.sequence} is that of {bundle.ref} too")


def new_is_pending(case: Case) -> None:
    """Nobody is done with a bundle that has only just come."""
    if case.probe is not None:
        for name, standing in outcomes(case.store, {case.probe.ref: None}).items():
            if standing[case.probe.ref] != "pending":
                case.fail(new_is_pending, f"{name} is done with the new {case.probe.ref}")


def _put_with_patience(case: Case, slots: Slots) -> Receipt | None:
    """A put may be told to come back later; for ever only at a cap that protects the data."""
    retention = case.store.config.retention
    for _ in range(PATIENCE):
        try:
            return case.store.put(slots).wait()
        except Backpressure:
            case.store.maintain()
    if retention.size_cap is not None and retention.size_cap_policy == "backpressure":
        return None
    return case.store.put(slots).wait()


def commits_go_on(case: Case) -> None:
    """A commit that was answered is a repeat; one that wasn't, asked again, is seen once."""
    oracle, store = case.oracle, case.store
    segments = store.segments()
    for (app, version), commitment in list(oracle.commitments.items())[-2:]:
        known = case.view.committed.get(app, -1) >= version
        answer = store.commit(app, version, commitment.winners)
        if answer.repeated is not known:
            case.fail(commits_go_on, f"{app} {version} again: {answer}, though known: {known}")
        if known and store.segments() != segments:
            case.fail(commits_go_on, f"a repeat of {app} {version} made {store.segments()}")
        if not known:
            _seen_once(case, answer, len(oracle.winners_of((app, version))))
            segments = store.segments()
    left = {(info.app, info.version, info.attempt) for info in store.stages()}
    for key in [key for key in oracle.attempts if key in left][-1:]:
        answer = store.commit(key.app, key.version, [key.attempt])
        _seen_once(case, answer, len(oracle.bundles_of(key)))


def _seen_once(case: Case, answer: Committed, bundles: int) -> None:
    infos = case.store._parts.segments.infos()
    seen = dict(case.store.segments())
    mine = [info.seq for info in infos if info.transaction == (answer.app, answer.version)]
    count = sum(seen.get(seq, 0) for seq in mine)
    if answer.repeated or not answer.bundles == count == bundles:
        case.fail(commits_go_on, f"{answer} shows {count} of {bundles} bundles")


PROBES: Final[tuple[Callable[[Case], None], ...]] = (
    keys_remembered,
    goes_on,
    numbers_not_reused,
    new_is_pending,
    commits_go_on,
)


def opens(error: BaseException) -> Violation:
    """A legal state is never refused."""
    return Violation(opens.__name__, f"{type(error).__name__}: {error}")


def same_again(first: View, second: View) -> None:
    """Opened again, a store that was only opened shows the same.

    But for the next segment's number: without a log each open uses some of them up.
    """
    for what, a, b in (
        ("bundles", _fixed(first), _fixed(second)),
        ("outcomes", first.outcomes, second.outcomes),
        ("losses", first.losses, second.losses),
        ("rejects", first.rejects, second.rejects),
        ("slots", first.slot_names, second.slot_names),
        ("next sequence", first.next_sequence, second.next_sequence),
        ("stages", first.stages, second.stages),
        ("committed", first.committed, second.committed),
    ):
        if a != b:
            raise Violation(same_again.__name__, f"{what}: first {a}, then {b}")


def _fixed(view: View) -> Mapping[BundleRef, object]:
    return {
        ref: (b.meta.sequence, b.meta.ingestion_ts_ns, b.meta.key, dict(b.slots))
        for ref, b in view.bundles.items()
    }


WHILE_RUNNING: Final = (
    "damage_noticed",
    "delivered_durable",
    "seen_together",
    "versions_remembered",
)
"""Seen by the explorer and the workload themselves: there is no function to call later."""

SENTENCES: Final = (
    *(f.__name__ for f in (opens, *INVARIANTS, same_again, *PROBES)),
    *WHILE_RUNNING,
)
