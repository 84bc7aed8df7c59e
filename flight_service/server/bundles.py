"""Bundles out of a store, in the forms the wire knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from flight_service.protocol.errors import ServiceError
from flight_service.protocol.get import BundleInfo
from flight_service.protocol.wrapper import BY_NUMBER, slot_numbers, wrap_streams
from flight_service.server.claims import Delivered, bundle_info
from quiver import BundleRef, Store
from quiver.errors import BundleGone, NotFound
from quiver.format.ipc import EncodedBatch, encode_batch, project
from quiver.metrics import SENT_BYTES


@dataclass(frozen=True, slots=True)
class View:
    """The part of a bundle that somebody wants: all, some slots, some columns of them."""

    slots: tuple[str, ...] | None = None
    projection: Mapping[str, tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A bundle in bundle mode."""

    batch: pa.RecordBatch
    info: BundleInfo


def wrapped(store: Store, ref: BundleRef, view: View, delivered: Delivered | None) -> Wrapped:
    """A bundle as one record batch and its metadata."""
    found = store.encoded(ref, view.slots)
    columns = view.projection or {}
    streams = [_projected(slot.batch, columns.get(name)).buffers() for name, slot in found.items()]
    batch = wrap_streams(
        slot_numbers(tuple(slot.slot for slot in found.values())),
        [None if name in columns else slot.fingerprint for name, slot in found.items()],
        streams,
        BY_NUMBER,
    )
    store.metrics.counter(SENT_BYTES).add(batch.get_total_buffer_size())
    if delivered is None:
        return Wrapped(batch, bundle_info(ref, store.meta(ref), tuple(found)))
    return Wrapped(batch, delivered.info(tuple(found)))


def _projected(encoded: EncodedBatch, columns: Sequence[str] | None) -> EncodedBatch:
    return encoded if columns is None else encode_batch(project(encoded.decode(), columns))


@dataclass(frozen=True, slots=True)
class Run:
    """Bundles in a row whose slot has one schema."""

    schema: pa.Schema
    refs: list[BundleRef]
    rows: int
    nbytes: int


def runs_of(
    store: Store, refs: Iterable[BundleRef], slot: str, columns: Sequence[str] | None
) -> tuple[list[Run], list[BundleRef]]:
    """Bundles grouped by schema, in order, and those that don't have the slot."""
    runs: list[Run] = []
    without: list[BundleRef] = []
    every = list(refs)
    for ref, batch in zip(every, store.read_slot(every, slot, columns), strict=True):
        if batch is None:
            without.append(ref)
            continue
        nbytes = batch.get_total_buffer_size()
        last = runs[-1] if runs else None
        if last is None or not last.schema.equals(batch.schema, check_metadata=True):
            runs.append(Run(batch.schema, [ref], batch.num_rows, nbytes))
        else:
            last.refs.append(ref)
            runs[-1] = Run(last.schema, last.refs, last.rows + batch.num_rows, last.nbytes + nbytes)
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


def with_gone(store: Store, refs: Iterable[BundleRef]) -> Iterator[BundleRef]:
    """The refs, each checked to be there."""
    for ref in refs:
        try:
            store.meta(ref)
        except NotFound as error:
            raise gone_as_expired(error, ref) from None
        yield ref
