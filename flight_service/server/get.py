"""GetFlightInfo, GetSchema, ListFlights and DoGet."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.flight as flight

from flight_service.protocol.errors import ServiceError, to_flight
from flight_service.protocol.get import FlightMeta, ReadCommand, StreamMeta, Ticket
from flight_service.protocol.names import Ref
from flight_service.protocol.wrapper import BY_NUMBER
from flight_service.server.bundles import (
    AT_ONCE,
    View,
    Wrapped,
    check_uuid,
    gone_as_expired,
    native_reader,
    ready_next,
    runs_of,
    with_gone,
)
from flight_service.server.claims import DeliveredBundle
from flight_service.server.edge import service_error
from flight_service.server.ranges import refs_of
from flight_service.server.stream import ServedStream
from quiver import BundleMeta, BundleRef, Store
from quiver.clock import Clock
from quiver.errors import NotFound
from quiver.metrics import SENT_BYTES

LOOK_BACK: Final = 64
"""Bundles looked at for a slot's schema, or for a time: those next to them may be lost."""

EMPTY: Final = pa.schema([])


def flight_info(
    stream: ServedStream,
    command: ReadCommand,
    descriptor: flight.FlightDescriptor,
    clock: Clock,
    gone: Callable[[], bool],
) -> flight.FlightInfo:
    """Claim for a subscriber, or list for a reader."""
    if command.subscriber is not None:
        return _claimed(stream, command, descriptor, clock, gone)
    refs: list[BundleRef] = []
    known: list[BundleMeta] = []
    nbytes, more = 0, False
    found = refs_of(stream.store, command)
    for ref in with_gone(stream.store, found) if command.refs is not None else found:
        if len(refs) >= command.max_bundles or (refs and nbytes >= command.max_bytes):
            more = True
            break
        try:
            meta = stream.store.meta(ref)
        except NotFound:
            continue  # deleted since it was listed
        nbytes += meta.nbytes
        refs.append(ref)
        known.append(meta)
    told = FlightMeta(
        refs=tuple(Ref(*ref) for ref in refs),
        more=more,
        sequences=_told(command, [one.sequence for one in known]),
        times_ns=_told(command, [one.ingestion_ts_ns for one in known]),
    )
    return _info(stream.store, command, descriptor, refs, told)


def _told(command: ReadCommand, numbers: list[int | None]) -> tuple[int, ...]:
    """Slot mode has no metadata beside its batches: who wants some gets it in the info."""
    if not command.describe:
        return ()
    return tuple(-1 if one is None else one for one in numbers)


def _claimed(
    stream: ServedStream,
    command: ReadCommand,
    descriptor: flight.FlightDescriptor,
    clock: Clock,
    gone: Callable[[], bool],
) -> flight.FlightInfo:
    assert command.subscriber is not None
    group = stream.group(command.subscriber, create=True)
    lease = group.lease(command.consumer, command.lease_ms)
    try:
        delivered: list[DeliveredBundle] = group.claim(
            lease,
            max_bundles=command.max_bundles,
            max_bytes=command.max_bytes,
            wait=command.wait_ms / 1000,
            gone=gone,
        )
        if not delivered:
            return _info(stream.store, command, descriptor, [], FlightMeta())
        refs = [one.handle.ref for one in delivered]
        meta = FlightMeta(
            lease=lease.id,
            expires_ns=clock.now_ns() + int(lease.seconds * 1e9),
            refs=tuple(Ref(*ref) for ref in refs),
        )
        return _info(stream.store, command, descriptor, refs, meta)
    except BaseException:
        group.release(lease, failed=False)  # nobody will ever hear of it
        raise


def _info(
    store: Store,
    command: ReadCommand,
    descriptor: flight.FlightDescriptor,
    refs: list[BundleRef],
    meta: FlightMeta,
) -> flight.FlightInfo:
    endpoints: list[flight.FlightEndpoint] = []
    rows = nbytes = 0
    if command.mode == "bundle":
        schema = BY_NUMBER
        for ref in refs:
            known = store.meta(ref)
            rows, nbytes = rows + known.rows, nbytes + known.nbytes
        if refs:
            endpoints.append(_endpoint(command, refs, meta, store.uuid))
    else:
        assert command.slot is not None
        runs, without = runs_of(store, refs, command.slot, command.columns)
        schema = runs[0].schema if runs else EMPTY
        endpoints = [_endpoint(command, run.refs, meta, store.uuid) for run in runs]
        rows, nbytes = sum(run.rows for run in runs), sum(run.nbytes for run in runs)
        meta = FlightMeta(**{**vars(meta), "without_slot": tuple(Ref(*ref) for ref in without)})
    return flight.FlightInfo(
        schema, descriptor, endpoints, rows, nbytes, ordered=True, app_metadata=meta.encode()
    )


def _endpoint(
    command: ReadCommand, refs: list[BundleRef], meta: FlightMeta, uuid: str
) -> flight.FlightEndpoint:
    told = Ticket(
        stream=command.stream,
        refs=tuple(Ref(*ref) for ref in refs),
        mode=command.mode,
        slot=command.slot,
        slots=command.slots,
        columns=command.columns,
        projection=command.projection,
        subscriber=command.subscriber,
        lease=meta.lease,
    )
    expires = None
    if meta.expires_ns is not None:
        expires = pa.scalar(meta.expires_ns, pa.timestamp("ns", tz="UTC"))
    # Clients of 0.1.0 read what is told, strictly, and hand the ticket back as it is.
    ticket = told.changed(uuid=uuid)
    return flight.FlightEndpoint(ticket.encode(), [], expires, told.encode())


# DoGet


def data_stream(
    stream: ServedStream, ticket: Ticket, max_slot_bytes: int
) -> flight.FlightDataStream:
    """The answer to a ticket."""
    check_uuid(stream.store, ticket.uuid)
    refs = [BundleRef(*ref) for ref in ticket.refs]
    delivered: dict[BundleRef, DeliveredBundle] = {}
    if ticket.subscriber is not None:
        assert ticket.lease is not None
        delivered = stream.group(ticket.subscriber).holds(ticket.lease, ticket.refs)
    if ticket.mode == "slot":
        return _slot_stream(stream.store, ticket, refs, max_slot_bytes)
    if ticket.subscriber is None:
        refs = list(with_gone(stream.store, refs))
    view = View(ticket.slots, ticket.projection)
    # The interpreter is entered anew for each message, with a stack of its own unless no
    # Python runs: so a group at a time is made there, and handed out by C.
    groups = _bundles(stream.store, refs, view, delivered)
    return flight.GeneratorStream(BY_NUMBER, itertools.chain.from_iterable(groups))


def _bundles(
    store: Store, refs: list[BundleRef], view: View, delivered: dict[BundleRef, DeliveredBundle]
) -> Iterator[list[Wrapped]]:
    """Group by group, as the client reads."""
    at = 0
    while at < len(refs):
        try:
            group = ready_next(store, refs[at : at + AT_ONCE], view, delivered).each()
        except NotFound as error:
            raise to_flight(gone_as_expired(error, refs[at])) from None
        except Exception as error:
            raise to_flight(service_error(error, "do_get")) from None
        at += len(group)
        yield group


def _slot_stream(
    store: Store, ticket: Ticket, refs: list[BundleRef], max_bytes: int
) -> flight.FlightDataStream:
    assert ticket.slot is not None
    batches: list[pa.RecordBatch] = []
    schema: pa.Schema | None = None
    nbytes = 0
    found = store.read_slot(refs, ticket.slot, ticket.columns)
    for ref in refs:
        try:
            batch = next(found)
        except NotFound as error:
            raise gone_as_expired(error, ref) from None
        if batch is None:
            raise ServiceError(
                "slot_not_in_bundle",
                f"bundle {ref} has no slot {ticket.slot!r}.",
                details={"ref": list(ref), "slot": ticket.slot},
            )
        if schema is not None and not schema.equals(batch.schema, check_metadata=True):
            raise ServiceError(
                "schema_changes",
                f"bundle {ref} has another schema: ask for one run of bundles per ticket.",
                details={"ref": list(ref)},
            )
        schema = batch.schema
        nbytes += batch.get_total_buffer_size()  # `nbytes` takes twice as long as reading it
        if nbytes > max_bytes:
            raise ServiceError(
                "limit_exceeded",
                f"the ticket names more than {max_bytes:,} bytes.",
                details={"limit": "calls.read_bytes", "maximum": max_bytes},
            )
        batches.append(batch)
    store.metrics.counter(SENT_BYTES).add(nbytes)
    return flight.RecordBatchStream(native_reader(batches, schema if schema else EMPTY))


# Discovery


def slot_schema(store: Store, slot: str) -> pa.Schema | None:
    """The newest schema of a slot, if one of the newest bundles has it."""
    looked = 0
    for seq, count in reversed(store.segments()):
        for index in range(count - 1, -1, -1):
            if looked >= LOOK_BACK:
                return None
            looked += 1
            with contextlib.suppress(NotFound):  # lost, or deleted since it was listed
                batch = next(store.read_slot([BundleRef(seq, index)], slot))
                if batch is not None:
                    return batch.schema
    return None


def listed(stream: ServedStream) -> list[flight.FlightInfo]:
    """A stream and its slots, for ListFlights."""
    store = stream.store
    infos = [_path_info([stream.name], BY_NUMBER, _stream_meta(store))]
    for slot in sorted(_recent_slots(store)):
        schema = slot_schema(store, slot)
        if schema is not None:
            infos.append(_path_info([stream.name, slot], schema))
    return infos


def _stream_meta(store: Store) -> StreamMeta:
    status = store.status()
    segments = store.segments()
    oldest_first = (BundleRef(seq, index) for seq, count in segments for index in range(count))
    newest_first = (
        BundleRef(seq, index)
        for seq, count in reversed(segments)
        for index in range(count - 1, -1, -1)
    )
    return StreamMeta(
        bundles=status.bundles,
        nbytes=status.usage.committed,
        oldest_ns=_first_time(store, oldest_first),
        newest_ns=_first_time(store, newest_first),
    )


def _first_time(store: Store, refs: Iterator[BundleRef]) -> int | None:
    """When the first of these was taken in that is there."""
    for ref in itertools.islice(refs, LOOK_BACK):
        with contextlib.suppress(NotFound):  # lost, or deleted since it was listed
            return store.meta(ref).ingestion_ts_ns
    return None


def _recent_slots(store: Store) -> set[str]:
    names: set[str] = set()
    segments = store.segments()
    if segments:
        seq, count = segments[-1]
        for index in range(max(0, count - LOOK_BACK), count):
            with contextlib.suppress(NotFound):
                names |= set(store.encoded(BundleRef(seq, index)))
    return names


def closed_info(name: str) -> flight.FlightInfo:
    """A stream that is asleep: its name, and that it is there."""
    return _path_info([name], BY_NUMBER)


def _path_info(
    path: list[str], schema: pa.Schema, meta: StreamMeta | None = None
) -> flight.FlightInfo:
    where = flight.FlightDescriptor.for_path(*path)
    if meta is None:
        return flight.FlightInfo(schema, where, [], -1, -1)
    return flight.FlightInfo(schema, where, [], -1, meta.nbytes, app_metadata=meta.encode())
