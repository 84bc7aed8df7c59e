"""Bundles out of a store, in the forms the wire knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from flight_service.protocol.errors import ServiceError
from flight_service.protocol.message import VERSION
from flight_service.protocol.wrapper import BY_NUMBER, slot_numbers, wrap_streams
from flight_service.server.claims import DeliveredBundle, info_fields
from quiver import BundleRef, Store
from quiver.errors import BundleGone, NotFound
from quiver.format.arrow.ipc import EncodedBatch, encode_batch, project
from quiver.format.record import EncodedSlot
from quiver.metrics import SENT_BYTES

AT_ONCE: Final = 64
AT_ONCE_BYTES: Final = 1 << 20
"""Bundles are made ready for the wire in groups of about this size, whichever is less."""

_Row: TypeAlias = tuple[int, bytes | None, EncodedBatch]
"""Slot, fingerprint, data."""


@dataclass(frozen=True, slots=True)
class View:
    """The part of a bundle that somebody wants: all, some slots, some columns of them."""

    slots: tuple[str, ...] | None = None
    projection: Mapping[str, tuple[str, ...]] | None = None


class Wrapped(NamedTuple):
    """A message in bundle mode: a record batch, and what is told beside it."""

    batch: pa.RecordBatch
    info: pa.Buffer


class Ready(NamedTuple):
    """Bundles for the wire, wrapped as one batch: Arrow's objects are made once for all."""

    batch: pa.RecordBatch
    rows: Sequence[int]
    """How many of the batch's rows each bundle has."""
    told: Sequence[str]
    """About each: the fields of its :class:`~flight_service.protocol.get.BundleInfo`."""

    def each(self) -> list[Wrapped]:
        """A message for each bundle.

        What is told is cut from one buffer: whoever frees memory of Python's enters the
        interpreter, and so does that once for all.
        """
        told = [f'{{"v":{VERSION},{fields}}}'.encode() for fields in self.told]
        infos = pa.py_buffer(b"".join(told))
        found = []
        row = at = 0
        for rows, info in zip(self.rows, told, strict=True):
            found.append(Wrapped(self.batch.slice(row, rows), infos.slice(at, len(info))))
            row, at = row + rows, at + len(info)
        return found

    def together(self) -> Wrapped:
        """One message for all of them."""
        told = "},{".join(self.told)
        return Wrapped(
            self.batch, pa.py_buffer(f'{{"v":{VERSION},"bundles":[{{{told}}}]}}'.encode())
        )


def ready_next(
    store: Store,
    refs: Sequence[BundleRef],
    view: View,
    delivered: Mapping[BundleRef, DeliveredBundle],
) -> Ready:
    """The first of these bundles, about :data:`AT_ONCE_BYTES` of them, and at least one.

    If one can't be had, those before it come without it: whoever asks on meets it as
    the first, and hears why.
    """
    rows: list[_Row] = []
    counts: list[int] = []
    told: list[str] = []
    nbytes = size = 0
    try:
        for ref, (meta, found) in zip(refs, store.bundles(refs, view.slots), strict=True):
            some = _projected(found, view.projection) if view.projection else [*found.values()]
            fields = info_fields(ref, meta, tuple(found), delivered.get(ref))
            told.append(fields)
            counts.append(len(some))
            rows += some
            size += len(fields.encode())  # a reader takes so many bytes, not characters
            for _, _, batch in some:
                nbytes += batch.payload_len
            if nbytes + size >= AT_ONCE_BYTES:
                break
    except Exception:
        if not told:
            raise
    store.metrics.counter(SENT_BYTES).add(nbytes)
    return Ready(_wrapped(rows), counts, told)


def _wrapped(rows: Sequence[_Row]) -> pa.RecordBatch:
    return wrap_streams(
        slot_numbers(tuple([slot for slot, _, _ in rows])),
        [fingerprint for _, fingerprint, _ in rows],
        [encoded.buffers() for _, _, encoded in rows],
        BY_NUMBER,
    )


def _projected(
    slots: Mapping[str, EncodedSlot], projection: Mapping[str, Sequence[str]]
) -> list[_Row]:
    """What is cut has another schema, and so no fingerprint."""
    return [
        (slot.slot, None, encode_batch(project(slot.batch.decode(), projection[name])))
        if name in projection
        else slot
        for name, slot in slots.items()
    ]


@dataclass(frozen=True, slots=True)
class MessageRun:
    """Bundles in a row whose slot has one schema."""

    schema: pa.Schema
    refs: list[BundleRef]
    rows: int
    nbytes: int


def runs_of(
    store: Store, refs: Iterable[BundleRef], slot: str, columns: Sequence[str] | None
) -> tuple[list[MessageRun], list[BundleRef]]:
    """Bundles grouped by schema, in order, and those that don't have the slot."""
    runs: list[MessageRun] = []
    without: list[BundleRef] = []
    every = list(refs)
    for ref, batch in zip(every, store.read_slot(every, slot, columns), strict=True):
        if batch is None:
            without.append(ref)
            continue
        nbytes = batch.get_total_buffer_size()
        last = runs[-1] if runs else None
        if last is None or not last.schema.equals(batch.schema, check_metadata=True):
            runs.append(MessageRun(batch.schema, [ref], batch.num_rows, nbytes))
        else:
            last.refs.append(ref)
            runs[-1] = MessageRun(
                last.schema, last.refs, last.rows + batch.num_rows, last.nbytes + nbytes
            )
    return runs, without


def native_reader(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatchReader:
    """A reader that runs without Python, batch *i* of the list its batch *i*.

    A table's reader leaves out empty batches and knows no rows without columns: those
    take the slower way.
    """
    if batches and len(schema) and all(batch.num_rows for batch in batches):
        table = pa.Table.from_batches(batches, schema)
        return table.to_reader()
    return pa.RecordBatchReader.from_batches(schema, batches)


def gone_as_expired(error: NotFound, ref: tuple[int, int]) -> ServiceError:
    """A ticket's bundle that isn't there any more."""
    if isinstance(error, BundleGone):
        outcome = str(error.details.get("outcome", "deleted"))
        return ServiceError(
            "expired",
            f"bundle {ref[0]}.{ref[1]} is not here any more: {outcome}.",
            details={"ref": list(ref), "outcome": outcome},
        )
    return ServiceError("unknown_bundle", str(error), details={"ref": list(ref)})


def check_uuid(store: Store, uuid: str | None) -> None:
    """Refuse what was made for another stream of the same name; not every request says."""
    if uuid is not None and uuid != store.uuid:
        raise ServiceError(
            "expired",
            "the stream was made anew or replaced since: its refs name other bundles.",
            details={"uuid": uuid, "outcome": "deleted"},
        )


def with_gone(store: Store, refs: Iterable[BundleRef]) -> Iterator[BundleRef]:
    """The refs, each checked to be there."""
    asked = list(refs)
    found = store.metas(asked)
    for ref in asked:
        try:
            next(found)
        except NotFound as error:
            raise gone_as_expired(error, ref) from None
        yield ref
