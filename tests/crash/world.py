"""A store, its disk and everybody who uses it, on the record.

:class:`World` makes the calls and writes the notes: before a call what may come of it,
after it what it promised, and in between, at the very moment, which receipts were told
and which deletions were ordered.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from quiver.clock import ManualClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.errors import (
    Busy,
    Damage,
    NotFound,
    Poisoned,
    QuiverError,
    StorageFault,
)
from quiver.format.floor import FLOOR_PATH, decode_floor
from quiver.format.state import Loss
from quiver.ids import BundleRef
from quiver.ingest.receipt import Receipt
from quiver.segment.info import SEGMENTS, parse_name
from quiver.store.store import Store
from quiver.subscriber.subscription import Subscription
from tests.crash import notes as o
from tests.crash.desk import Desk
from tests.crash.disk import CrashDisk, Fold, Image, Record
from tests.crash.invariants import INVARIANTS, Case, Violation, opens
from tests.crash.look import Looker
from tests.crash.notes import Note
from tests.crash.oracle import EARLIEST, Oracle, Put, Slots
from tests.crash.rights import may_go
from tests.crash.states import State, states
from tests.support.oplog import Rename, Unlink, settle


@dataclass(frozen=True, slots=True)
class Epoch:
    """A record from one set of files on, with the notes between: at ``n`` means after n
    records."""

    files: Image
    directories: list[str]
    records: list[Record]
    notes: list[tuple[int, Note]]


class World:
    """A store, its disk, and everybody who uses it; writes the notes."""

    def __init__(
        self,
        config: Config,
        clock: ManualClock,
        *,
        state: State | None = None,
        oracle: Oracle | None = None,
    ) -> None:
        self.clock = clock
        self.oracle = oracle if oracle is not None else Oracle()
        self.epochs: list[Epoch] = []
        self.waiting: list[tuple[int, Receipt]] = []
        self.handles: dict[str, Subscription] = {}
        self._looker = Looker()
        self._by_receipt: dict[int, tuple[int, Receipt]] = {}
        self._completions: dict[int, int] = {}
        self._bundle: Any = None
        self._putting: int | None = None
        self._sealed: set[int] = set()
        self._losses: set[int] = set(self.oracle.losses)
        self.desk = Desk(self)
        self._is_open = False
        self.begin_epoch(state or State({}, []))
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Open with these settings next time."""
        self.config = config
        self.note(o.Configured(config))

    # The record

    def begin_epoch(self, state: State) -> None:
        """Go on from these files, all of them durable."""
        disk = CrashDisk.from_image(state.files, state.directories)
        assert isinstance(disk, CrashDisk)
        self.disk = disk
        self.disk.watch = self._watch
        self.fold = Fold(state.files, state.directories)
        self.notes: list[tuple[int, Note]] = []
        self.epochs.append(Epoch(state.files, state.directories, self.disk.records, self.notes))

    def _watch(self, record: Record) -> None:
        """Called before each record: an order to delete must have its reason by then."""
        gone: set[int] = set()
        if isinstance(record, Rename) and record.target == FLOOR_PATH:
            inode = record.inode
            data = settle(self.fold.contents[inode], self.fold.pending.get(inode, []))
            with contextlib.suppress(Damage):
                floor = decode_floor(data)
                gone = {seq for seq in self.oracle.sizes() if floor.is_gone(seq)}
        elif isinstance(record, Unlink) and record.path.startswith(SEGMENTS):
            seq = parse_name(record.path.rpartition("/")[2])
            gone = set() if seq is None else {seq}
        for seq in sorted(gone - self.oracle.removals.keys()):
            self.note(o.Removal(seq, may_go(self.fold.image(), self.oracle, seq)))
        if self._is_open:
            self.desk.watch(record)
        self.fold.take(record)

    def note(self, note: Note) -> None:
        self.notes.append((len(self.disk.records), note))
        take(self.oracle, note)

    # Opening and the three ways to end

    def open(self) -> None:
        """Open the store and check it against everything noted so far."""
        self._is_open = False
        try:
            self.store = Store(Disk(self.disk), self.config, where="crash", clock=self.clock)
        except Exception as error:
            raise opens(error) from error
        self._is_open = True
        self.desk.restarted()
        self.handles = {}
        self.waiting = []
        self._by_receipt = {}
        self._settle()
        self._sealed = {info.seq for info in self.store._parts.segments.infos()}
        self._losses = {loss.segment_seq for loss in self._lost()}

    def _settle(self) -> None:
        image = self.disk.image()
        view = self._looker.look(self.store, image)
        case = Case(self.oracle, self.store, self.disk, image, image, view, self.clock.now_ns(), {})
        for invariant in INVARIANTS:
            invariant(case)
        found = {}
        for ref, put in case.numbers.items():
            meta = view.bundles[ref].meta
            found[put.number] = (ref, meta.sequence, meta.ingestion_ts_ns)
        stages = {key: info.since_ns for key, info in view.stages.items()}
        losses = frozenset(view.losses)
        self.note(o.Settled(found, view.outcomes, losses, view.rejects, stages, view.committed))

    def close(self) -> None:
        if self._try(self.store.close):
            self.note(o.Kept())
        self._after()
        self.disk.revive()

    def kill(self) -> None:
        """The process ends; the page cache lives on."""
        self.disk.revive()

    def cut(self, rng: random.Random, sector: int) -> None:
        """The machine ends, in one of the states that are legal here."""
        self.begin_epoch(rng.choice(list(states(self.fold, rng, sector))))

    # Calls

    def _try(self, call: Callable[[], object]) -> bool:
        """Call; whether it worked. A store may say no, but only in its own words."""
        try:
            call()
        except (Busy, StorageFault):
            return False
        return True

    def _after(self) -> None:
        """Note what a call did besides what it was asked for; the dead tell nothing."""
        if self.disk.dead:
            return
        for loss in self._lost():
            if loss.segment_seq not in self._losses:
                self._losses.add(loss.segment_seq)
                self.note(o.Dropped(loss.segment_seq))
        sealed = {info.seq for info in self.store._parts.segments.infos()}
        for seq in sorted(self._sealed - sealed):
            self.note(o.Deleted(seq))
        self._sealed = sealed
        self.desk.after()

    def _lost(self) -> list[Loss]:
        return [loss for loss in self.store._parts.ledger.losses if not loss.is_reject]

    def after(self) -> None:
        """For those who make calls of their own."""
        self._after()

    # Producers

    def put(
        self,
        slots: Slots,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        *,
        encoded: bool = False,
    ) -> Receipt | None:
        """Put a bundle, ``encoded``: as IPC streams; its receipt, if it was taken."""
        number = max(self.oracle.puts, default=-1) + 1
        self.note(o.Offered(Put(number, slots, key, attributes or {})))
        self._putting = number
        marks = len(self.notes)
        try:
            if encoded:
                streams = {slot: _stream(batch) for slot, batch in slots.items()}
                receipt = self.store.put_ipc(streams, key=key, attributes=attributes)
            else:
                receipt = self.store.put(slots, key=key, attributes=attributes)
        except Busy:
            self.note(o.Failed(number))
            return None
        except StorageFault:
            return None
        finally:
            self._putting = None
            self._after()
        if receipt.duplicate:
            # The first one's receipt was made anew and completed: not this put's.
            self.note(o.Failed(number))
            self._check_repeat(number, receipt)
            return receipt
        self._by_receipt[id(receipt)] = (number, receipt)
        self.note(o.Placed(number, receipt.ref, receipt.sequence))
        if receipt.done:
            self._completed_inside(marks, number, receipt)
        else:
            self.waiting.append((number, receipt))
        return receipt

    def _completed_inside(self, marks: int, number: int, receipt: Receipt) -> None:
        """It was told during the put: date the note back to when that was."""
        note = _answer(number, receipt)
        if note is None:
            return
        at = self._completions.pop(id(receipt), len(self.disk.records))
        position = next((i for i in range(marks, len(self.notes)) if self.notes[i][0] > at), None)
        take(self.oracle, note)
        self.notes.insert(len(self.notes) if position is None else position, (at, note))

    def _check_repeat(self, number: int, receipt: Receipt) -> None:
        put = self.oracle.puts[number]
        firsts = [
            p
            for p in self.oracle.puts.values()
            if p.key == put.key and p.number != number and p.state != "void"
        ]
        if not any(p.ref == receipt.ref for p in firsts):
            raise Violation("keys_remembered", f"the repeat of {put.key} was called {receipt.ref}")

    def completed(self, receipt: Receipt) -> None:
        """Told by the store, at this very point of the record."""
        if self.disk.dead:
            return
        known = self._by_receipt.get(id(receipt))
        if known is None:
            if self._putting is not None:
                self._completions = {id(receipt): len(self.disk.records)}
            return
        note = _answer(known[0], receipt)
        if note is not None:
            self.note(note)

    def wait(self, receipt: Receipt) -> None:
        self._try(receipt.wait)
        self._after()
        self.waiting = [(n, r) for n, r in self.waiting if not r.done]

    def call(self, call: Callable[[], object], *, keeps: bool = False) -> None:
        """A call of the store's upkeep; ``keeps``: progress is durable when it returns."""
        if self._try(call) and keeps:
            self.note(o.Kept())
        self._after()
        self.waiting = [(n, r) for n, r in self.waiting if not r.done]

    # Subscribers

    def subscribe(self, name: str, start: BundleRef | str) -> None:
        known = name in self.oracle.subs
        if not known:
            position = self._position(start)
            self.note(o.Joining(name, position))
        try:
            handle = self.store.subscribe(name, start)  # type: ignore[arg-type]
        except (Busy, StorageFault):
            self._after()
            if not known and name not in self.store.subscribers:
                self.note(o.Leaving(name))
            return
        self._after()
        self.handles[name] = handle
        self.note(o.Joined(name))

    def _position(self, start: BundleRef | str) -> BundleRef:
        if isinstance(start, BundleRef):
            return start
        if start == "earliest":
            return EARLIEST
        return max(
            (
                BundleRef(p.ref.segment_seq, p.ref.bundle_index + 1)
                for p in self.oracle.ever_durable()
                if p.ref is not None
            ),
            default=EARLIEST,
        )

    def is_visible(self, ref: BundleRef) -> bool:
        """Whether a durable bundle is delivered already."""
        return self.config.deliver == "durable" or ref.segment_seq in self._sealed

    def take(self, name: str) -> None:
        """Take the next bundle and check that it is one that was called durable."""
        handle = self.handles[name]
        bundle = handle.next_bundle()
        self._after()
        self.waiting = [(n, r) for n, r in self.waiting if not r.done]
        if bundle is None:
            return
        puts = [p for p in self.oracle.durable() if p.ref == bundle.ref]
        if not puts:
            raise Violation("delivered_durable", f"{name} was given {bundle.ref} before its time")
        for slot, batch in puts[0].slots.items():
            if not bundle[str(slot)].equals(batch):
                raise Violation("no_phantom", f"{name} was given another {bundle.ref}")
        if self.oracle.subs[name].now(bundle.ref) != "pending":
            raise Violation("progress_kept", f"{name} was given {bundle.ref} again")
        self._bundle = bundle

    def resolve(self, name: str, how: str) -> None:
        """Take a bundle and say what became of it."""
        self._bundle = None
        with contextlib.suppress(Busy, StorageFault):
            self.take(name)
        bundle = self._bundle
        if bundle is None:
            return
        if how in ("ack", "reject"):
            outcome = str(bundle.ack() if how == "ack" else bundle.reject("no"))
            if how == "reject" and outcome == "dropped":
                self.note(o.Rejected(name, bundle.ref))
            if outcome in ("acked", "dropped"):
                self.note(o.Resolved(name, bundle.ref, outcome))  # type: ignore[arg-type]
        elif how == "defer":
            bundle.defer(1.0)
        self._bundle = None

    def seek(self, name: str, position: BundleRef) -> None:
        self.note(o.Sought(name, position))
        self.handles[name].seek(position)

    def unregister(self, name: str) -> None:
        self.note(o.Leaving(name))
        orphan = name in self.store.orphans
        try:
            (self.store.drop_orphan if orphan else self.store.unregister)(name)
        except (NotFound, Busy, StorageFault):
            self._after()
            return
        self._after()
        self.handles.pop(name, None)
        self.note(o.Left(name))


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def take(oracle: Oracle, note: Note) -> None:
    """Let the oracle know."""
    oracle.version += note.narrows
    note.apply(oracle)


def _answer(number: int, receipt: Receipt) -> Note | None:
    """What a completed receipt told its producer."""
    error = receipt.error
    if error is None:
        return o.Durable(number, receipt.ref, receipt.sequence, receipt.ingestion_ts_ns)
    # After a failed fsync nobody knows; after everything else it is said to be out.
    return None if isinstance(error, Poisoned) else o.Failed(number)


@contextlib.contextmanager
def listening(world: World) -> Iterator[None]:
    """Let the world hear of each receipt in the moment it is told."""
    original = Receipt.complete

    def complete(self: Receipt, error: QuiverError | None = None) -> None:
        original(self, error)
        if type(self) is Receipt:
            world.completed(self)

    Receipt.complete = complete  # type: ignore[method-assign]
    try:
        yield
    finally:
        Receipt.complete = original  # type: ignore[method-assign]
