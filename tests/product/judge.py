"""The promise held against a store: one function for each part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from quiver.engine import Store
from quiver.errors import Damage, NotFound
from quiver.format.state import Loss
from quiver.ids import BundleRef
from quiver.subscriber.handle import ClaimedBundle
from tests.product.facts import Facts, Put, Violation

if TYPE_CHECKING:
    from tests.product.world import World

POLICIES = ("size", "time", "age")
"""Reasons of losses that a setting orders."""
REJECTED = "rejected"
"""The reason of a row for what a subscriber refused: it is not lost."""


def covers(loss: Loss, ref: BundleRef) -> bool:
    """Whether a row of the ledger names this bundle."""
    if loss.segment_seq != ref.segment_seq:
        return False
    indexes = getattr(loss, "indexes", None)  # rows of 0.1.0 always mean the whole segment
    return indexes is None or any(first <= ref.bundle_index < end for first, end in indexes)


def lost_rows(store: Store) -> list[Loss]:
    """The ledger's rows, but for rejects."""
    return [loss for loss in store.losses if loss.reason != REJECTED]


def look(world: World, *, opened: bool = False) -> None:
    """Everything that can be read, against everything sent; a store that was just ``opened``
    also answers what nobody was answered."""
    store = world.store
    assert store is not None
    if store.config.deliver == "sealed":
        store.flush()  # nothing is shown before that
    found = _found(store, world.facts)
    if opened:
        _take_torn(world, found)
        _settle(world.facts, found)
    _present(store, world.facts, found)
    _ledger(store, world.facts, found)
    _rejects(store, world.facts)
    _reported(store, world.facts)


def _found(store: Store, facts: Facts) -> dict[int, BundleRef]:
    """Which put is where; each is one that was sent, whole, equal, and there once."""
    found: dict[int, BundleRef] = {}
    for seq, count in store.segments():
        for index in range(count):
            ref = BundleRef(seq, index)
            try:
                slots = store.read(ref)
            except (NotFound, Damage):
                continue  # missing: judged as such
            put = _which(facts, ref, slots)
            if put.number in facts.doubled and put.number in found:
                continue
            if put.number in found:
                raise Violation(
                    "present_once", f"put {put.number} is at {found[put.number]} and at {ref}"
                )
            found[put.number] = ref
    return found


def _which(facts: Facts, ref: BundleRef, slots: dict[str, pa.RecordBatch]) -> Put:
    if not slots:
        raise Violation("content_equal", f"{ref} has no slots")
    number = next(iter(slots.values())).column("n")[0].as_py()
    put = facts.puts.get(number)
    if put is None:
        raise Violation("content_equal", f"{ref} holds {number}, which nobody sent")
    check_equal(facts, put, ref, slots)
    if put.state == "failed":
        raise Violation("no_phantom", f"{ref} is put {number}, which was told to have failed")
    return put


def check_equal(facts: Facts, put: Put, ref: BundleRef, slots: dict[str, pa.RecordBatch]) -> None:
    """What was read is what was sent."""
    if facts.names_doubtful and len(slots) == len(put.slots):
        slots = dict(zip(put.slots, sorted(slots.values(), key=_second), strict=True))
    if slots.keys() != put.slots.keys():
        sentence = "names_kept" if len(slots) == len(put.slots) else "content_equal"
        raise Violation(
            sentence, f"{ref} (put {put.number}) has {sorted(slots)}, not {sorted(put.slots)}"
        )
    for name, batch in slots.items():
        if not batch.equals(put.slots[name]):
            raise Violation("content_equal", f"{ref} (put {put.number}) differs in {name}")


def _second(batch: pa.RecordBatch) -> int:
    """Which of its bundle's slots a batch is, whatever they are called now."""
    at: int = batch.column("n")[1].as_py()
    return at


def locate(store: Store, puts: list[Put]) -> None:
    """Where the bundles of a commit are: it is answered without their refs."""
    wanted = {put.number: put for put in puts}
    for seq, count in reversed(store.segments()):
        for index in range(count):
            try:
                slots = store.read((seq, index))
            except (NotFound, Damage):
                continue
            number = next(iter(slots.values())).column("n")[0].as_py()
            if number in wanted:
                wanted.pop(number).ref = BundleRef(seq, index)
        if not wanted:
            return


def _take_torn(world: World, found: dict[int, BundleRef]) -> None:
    """Damage in the last group of a log that was never closed looks as a torn write does.  The
    store says that it cut one and keeps a copy, of the tail or, if it was repaired, of the
    whole log: the one thing it can't put on record."""
    facts = world.facts
    told = any(path.startswith("quarantine/quiver.wal") for path in world.disk.image())
    for number in facts.unprovable if told else ():
        put = facts.puts[number]
        gone = number not in found and put.state == "durable" and put.ref is not None
        if gone and put.ref is not None and not world.is_lost(put.ref):
            put.state, put.ref = "failed", None
            facts.touched.discard(number)
    facts.unprovable.clear()


def _settle(facts: Facts, found: dict[int, BundleRef]) -> None:
    """An open answers what nobody was answered: it is there, or it never was."""
    for number, put in facts.puts.items():
        if number in found:
            moved = put.ref is not None and put.ref != found[number]
            if moved and number in facts.resent and put.ref is not None:
                facts.replaced.add(put.ref)
                facts.touched.discard(number)
            elif moved and put.state == "durable" and number not in facts.doubled:
                raise Violation("same_ref", f"put {number} was {put.ref} and is {found[number]}")
            put.ref = found[number]
            put.state = "durable"
        elif put.state in ("asked", "unknown"):
            put.state = "failed"
            facts.unanswered.add(number)
    for (app, version), phase in facts.commits.items():
        states = {p.state for p in facts.puts.values() if p.transaction == (app, version)}
        if phase == "asked" and len(states) > 1 and not facts.damaged:
            raise Violation("commit_whole", f"{app} {version} is there in part")


def _present(store: Store, facts: Facts, found: dict[int, BundleRef]) -> None:
    """What was promised is there; or everyone has finished it; or it is on record, with a
    reason that can be true."""
    # The log's damage may hide which bundle it cost: a row counts it, as one of at most so many.
    unnamed = sum(loss.bundles for loss in lost_rows(store) if loss.indexes == ())
    for put in facts.promised():
        if put.number in found or put.ref is None:
            continue
        touched = put.number in facts.touched
        if facts.may_be_released(put):
            if unnamed and touched:
                facts.unnamed.add(put.ref)  # perhaps: some subscriber may still have needed it
            continue
        rows = [loss for loss in lost_rows(store) if covers(loss, put.ref)]
        if rows:
            facts.recorded.add(put.number)
            _reasons(facts, put, rows)
        elif put.number in facts.forgotten and _ledger_was_lost(store):
            facts.unnamed.add(put.ref)
        elif touched and unnamed:
            unnamed -= 1
            facts.unnamed.add(put.ref)
            facts.recorded.add(put.number)
        else:
            raise Violation(
                "loss_on_record" if touched else "durable_present",
                f"{put.ref} (put {put.number}) is missing and not on record;"
                f" damage: {facts.damaged[-3:]}",
            )


def _reasons(facts: Facts, put: Put, rows: list[Loss]) -> None:
    """What is on record was dropped by a policy in force, or touched by damage."""
    if all(row.reason in POLICIES for row in rows):
        if not facts.policy_drops:
            raise Violation("durable_present", f"{put.ref} was dropped by {rows[0].reason}")
    elif put.number not in facts.touched:
        raise Violation(
            "damage_bounded",
            f"{put.ref} (put {put.number}) is lost, and no damage touched it;"
            f" damage: {facts.damaged[-3:]}",
        )


def _is_readable(store: Store, ref: BundleRef) -> bool:
    try:
        store.read(ref)
    except (NotFound, Damage):
        return False
    return True


def _ledger_was_lost(store: Store) -> bool:
    """Whether a row says that earlier ones are not known any more."""
    return any(not loss.bundles and not loss.exact for loss in lost_rows(store))


def _ledger(store: Store, facts: Facts, found: dict[int, BundleRef]) -> None:
    """The ledger names what is missing, and nothing else; its counts are true."""
    readable = set(found.values())
    by_ref = facts.by_ref()
    for loss in lost_rows(store):
        if loss.reason in POLICIES:
            continue
        # Asked again: what was read first may have been lost by what was found after it.
        false = [ref for ref in readable if covers(loss, ref) and _is_readable(store, ref)]
        if false:
            raise Violation("no_false_loss", f"{loss} names {false}, which can be read")
        missing = [ref for ref in by_ref if covers(loss, ref) and by_ref[ref].state == "durable"]
        again = sum(covers(loss, ref) for ref in facts.replaced)
        most = len(missing) + again + len(facts.unanswered)  # whose refs nobody was told
        if getattr(loss, "exact", True) and loss.bundles > most:
            raise Violation("loss_counted", f"{loss}: {len(missing)} bundles are missing")
        needed = [r for r in missing if not facts.may_be_released(by_ref[r])]
        if not loss.bundles and not loss.exact:
            continue  # it says that nobody knows
        if loss.bundles < len(needed):
            raise Violation("loss_counted", f"{loss}: {len(needed)} bundles are missing")
        for name, sub in facts.subs.items():
            owed = [r for r in needed if r not in sub.hard and by_ref[r].number not in sub.absent]
            # Upkeep may have made an outcome durable without telling anybody.
            soft = [r for r in owed if sub.finished(r)]
            told = loss.subscribers.get(name, 0)
            if not sub.doubtful and told + len(soft) < len(owed):
                raise Violation("loss_on_record", f"{loss}: {name} had not finished {owed}")


def _rejects(store: Store, facts: Facts) -> None:
    """The ledger names what was rejected, for whom, and counts each once."""
    named: set[tuple[str, BundleRef]] = set()
    for row in store.losses:
        if row.reason == REJECTED:
            (name,) = row.subscribers
            refs = [
                BundleRef(row.segment_seq, index)
                for first, end in row.indexes or ()
                for index in range(first, end)
            ]
            named |= {(name, ref) for ref in refs}
            if not row.exact or not row.bundles == row.subscribers[name] == len(refs):
                raise Violation("rejects_on_record", f"{row} counts other than {refs}")
    if false := named - facts.rejected:
        raise Violation("rejects_on_record", f"never rejected, and in the ledger: {sorted(false)}")
    durable = {
        (name, ref)
        for name, sub in facts.subs.items()
        for ref in sub.hard
        # Damage or a policy may have taken it from the hands of who then rejected it.
        if (name, ref) in facts.rejected and not any(covers(one, ref) for one in lost_rows(store))
        if sub.hard[ref] == "dropped"
    }
    if silent := durable - named - facts.rejects_forgotten:
        raise Violation(
            "rejects_on_record", f"durably rejected, and not in the ledger: {sorted(silent)}"
        )
    counted = store.status().loss_totals.get("rejected.bundles", 0)
    if not facts.rejects_forgotten and counted != len(named):
        raise Violation("rejects_on_record", f"{len(named)} are counted as {counted}")


def _reported(store: Store, facts: Facts) -> None:
    """A store that has lost something to damage says so."""
    damaged = [loss for loss in lost_rows(store) if loss.reason not in POLICIES]
    if damaged and not store.status().losses:
        raise Violation("damage_reported", f"{damaged[0]} is not in the status")


def delivered(world: World, name: str, bundle: ClaimedBundle) -> None:
    """A bundle in a subscriber's hands."""
    facts = world.facts
    slots = {slot: bundle[slot] for slot in bundle}
    if not slots:
        raise Violation("content_equal", f"{name} was given {bundle.ref} without slots")
    number = next(iter(slots.values())).column("n")[0].as_py()
    put = facts.puts.get(number)
    if put is None or put.state == "failed":
        raise Violation("no_phantom", f"{name} was given {bundle.ref}: {number}")
    check_equal(facts, put, bundle.ref, slots)
    sub = facts.subs.get(name)
    if sub is not None and bundle.ref in sub.hard and not sub.doubtful:
        raise Violation("acks_kept", f"{name} has durably finished {bundle.ref}; it came again")


def at_the_end(world: World) -> None:
    """Every subscriber gets what it has not finished, and nothing else."""
    store = world.store
    assert store is not None
    store.flush()
    look(world)
    for name, sub in list(world.facts.subs.items()):
        given = world.drain(name)
        for put in world.facts.promised():
            ref = put.ref
            if ref is None or ref in given or sub.finished(ref) or put.number in sub.absent:
                continue
            if sub.doubtful and put.number in world.facts.released:
                continue  # nobody knows whether it was gone when this one came
            if ref in world.facts.unnamed or any(covers(one, ref) for one in lost_rows(store)):
                continue
            raise Violation("all_delivered", f"{name} never gets {ref} (put {put.number})")
