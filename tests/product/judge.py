"""The promise held against a store: one function for each part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from quiver.errors import Damage, NotFound
from quiver.format.state import Loss
from quiver.ids import BundleRef
from quiver.store.store import Store
from quiver.subscriber.handle import ClaimedBundle
from tests.product.copies import log_of
from tests.product.facts import Facts, Put, Transaction, Violation

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


def look(world: World, *, opened: bool = False) -> dict[int, BundleRef]:
    """Everything that can be read, against everything sent; a store that was just ``opened``
    also answers what nobody was answered.  Which put is where."""
    store = world.store
    assert store is not None
    if store.config.deliver == "sealed":
        store.flush()  # nothing is shown before that
    found = _found(store, world.facts)
    if opened:
        _take_torn(world, found)
        _settle(world.facts, found)
    _present(world, store, found)
    _ledger(store, world.facts, found)
    _rejects(store, world.facts)
    _reported(store, world.facts)
    if opened:
        world.facts.dealt_with(world.disk.image(), found)
    return found


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
    check_equal(put, ref, slots)
    if put.state == "failed":
        raise Violation("no_phantom", f"{ref} is put {number}, which was told to have failed")
    return put


def check_equal(put: Put, ref: BundleRef, slots: dict[str, pa.RecordBatch]) -> None:
    """What was read is what was sent."""
    if slots.keys() != put.slots.keys():
        sentence = "names_kept" if len(slots) == len(put.slots) else "content_equal"
        raise Violation(
            sentence, f"{ref} (put {put.number}) has {sorted(slots)}, not {sorted(put.slots)}"
        )
    for name, batch in slots.items():
        if not batch.equals(put.slots[name]):
            raise Violation("content_equal", f"{ref} (put {put.number}) differs in {name}")


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
    new = world.disk.image().keys() - facts.aside
    told = any(path.startswith("quarantine/quiver.wal") for path in new)
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
    for one in facts.commits.values():
        if one.phase == "asked":
            _settle_commit(facts, one)


def _settle_commit(facts: Facts, one: Transaction) -> None:
    """All of it is there, or nothing, but for what damage touched."""
    puts = one.attempts.values()
    missing = [put.number for put in puts if put.state != "durable"]
    if len(missing) == len(puts):
        one.phase = "staged"
        return
    one.phase = "answered"
    if not facts.touched.issuperset(missing):
        raise Violation("commit_whole", f"{one.app} {one.version} is there without {missing}")


def _present(world: World, store: Store, found: dict[int, BundleRef]) -> None:
    """What was promised is there; or everyone has finished it; or it is on record, with a
    reason that can be true."""
    facts = world.facts
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
            _reasons(world, put, rows)
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
                f" damage: {facts.history[-3:]}",
            )


def _reasons(world: World, put: Put, rows: list[Loss]) -> None:
    """What is on record was dropped by a policy in force, or touched by damage."""
    facts = world.facts
    by_policy = all(row.reason in POLICIES for row in rows)
    world.effects.add("dropped" if by_policy else "lost")
    if by_policy:
        for row in rows:
            if row.reason not in world.policies:
                raise Violation("drops_by_policy", f"{put.ref}: no setting says {row.reason}")
            if row.reason == "time" and not world.may_be_too_old(put):
                raise Violation("drops_by_policy", f"{put.ref} was dropped, and is not so old")
        return
    if put.number in facts.halved and not log_of(world.disk.image()).has(put.ref):
        return  # the log was retired before anybody noticed
    if put.number not in facts.touched:
        raise Violation(
            "damage_bounded",
            f"{put.ref} (put {put.number}) is lost, and damage left a copy of it;"
            f" damage: {facts.history[-3:]}",
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
            _dropped(facts, loss, readable)
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


def _dropped(facts: Facts, loss: Loss, readable: set[BundleRef]) -> None:
    """A row of what a policy dropped counts those who still needed it."""
    by_ref = facts.by_ref()
    gone = [
        ref
        for ref, put in by_ref.items()
        if covers(loss, ref) and put.state == "durable" and ref not in readable
        if not facts.may_be_released(put)
    ]
    if loss.bundles < len(gone):
        raise Violation("loss_counted", f"{loss}: {len(gone)} bundles were dropped")
    for name, sub in facts.subs.items():
        owed = [r for r in gone if not sub.finished(r) and by_ref[r].number not in sub.absent]
        if not sub.doubtful and loss.subscribers.get(name, 0) < len(owed):
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
    check_equal(put, bundle.ref, slots)
    if put.transaction is not None:
        shown(facts, put, bundle.ref)
    sub = facts.subs.get(name)
    if sub is not None and bundle.ref in sub.hard and not sub.doubtful:
        raise Violation("acks_kept", f"{name} has durably finished {bundle.ref}; it came again")


def shown(facts: Facts, put: Put, ref: BundleRef) -> None:
    """A bundle of a transaction was seen: so all of it is committed."""
    assert put.transaction is not None
    one = facts.commits[put.transaction]
    for part in one.attempts.values() if one.phase == "asked" else ():
        if part.state == "unknown":
            part.state = "durable"
    put.ref = put.ref or ref
    one.phase = "answered"


def _commits_located(world: World, store: Store, found: dict[int, BundleRef]) -> None:
    """A commit is answered without refs, and may get its places later; by now it has them."""
    facts = world.facts
    for put in facts.promised():
        if put.ref is not None or put.number in found or put.number in facts.touched:
            continue
        if not any(row.reason in POLICIES for row in lost_rows(store)):
            raise Violation("durable_present", f"put {put.number} of a commit is nowhere")


def at_the_end(world: World) -> None:
    """Every subscriber gets what it has not finished, and nothing else."""
    store = world.store
    assert store is not None
    store.flush()
    found = look(world)
    _commits_located(world, store, found)
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
