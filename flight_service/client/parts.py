"""Reading a share of a plan: bundles named by their refs, in their order, each once.

Nothing here changes anything on the server, so a read that loses its connection asks again
for what it has not given out yet.  A bundle may be gone by the time it is read: then the
read fails with ``expired``, or, if somebody takes note of such bundles, goes on without.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from flight_service.client.bundle import Bundle, read_bundle
from flight_service.client.connection import Connection
from flight_service.client.errors import ClientError
from flight_service.client.retry import Backoff, Retry
from flight_service.protocol.get import FlightMeta, ReadCommand, Ticket
from flight_service.protocol.names import Ref, write_refs
from flight_service.protocol.plan import Run

PAGE_BUNDLES: Final = 1_024
PAGE_BYTES: Final = 64 << 20
GONE: Final = frozenset({"expired", "unknown_bundle"})

T = TypeVar("T")
OnGone = Callable[[list[Ref]], None]


class SlotBatch(NamedTuple):
    """One slot of one bundle, in its own schema."""

    ref: Ref
    batch: pa.RecordBatch
    sequence: int | None
    ingestion_ts_ns: int | None


class TicketParts:
    """Reads of one stream, by ref."""

    def __init__(self, connection: Connection, stream: str, retry: Retry) -> None:
        self._connection = connection
        self._stream = stream
        self._retry = retry

    def slot(
        self,
        runs: Iterable[Run],
        slot: str,
        columns: Sequence[str] | None = None,
        on_gone: OnGone | None = None,
    ) -> Iterator[SlotBatch]:
        """One slot's batches; bundles without it are passed over."""
        form = {
            "mode": "slot",
            "slot": slot,
            "columns": None if columns is None else tuple(columns),
            "describe": True,
        }
        return self._read(runs, form, self._slot_page, on_gone)

    def bundles(
        self,
        runs: Iterable[Run],
        slots: Sequence[str] | None = None,
        projection: Mapping[str, Sequence[str]] | None = None,
        on_gone: OnGone | None = None,
    ) -> Iterator[Bundle]:
        """Whole bundles, or the slots and columns named."""
        form = {
            "slots": None if slots is None else tuple(slots),
            "projection": None
            if projection is None
            else {slot: tuple(names) for slot, names in projection.items()},
        }
        return self._read(runs, form, self._bundle_page, on_gone)

    def _read(
        self,
        runs: Iterable[Run],
        form: Mapping[str, Any],
        fetch: Callable[[Any], Iterator[tuple[Ref, T]]],
        on_gone: OnGone | None,
    ) -> Iterator[T]:
        """Page by page; ``fetch`` gives each ref of an answer with what there is to give out."""
        refs = _refs(runs)
        page: deque[Ref] = deque()
        most = PAGE_BUNDLES
        backoff = Backoff(self._retry)
        while True:
            if not page:
                page.extend(islice(refs, PAGE_BUNDLES))
            if not page:
                return
            try:
                command = self._command(form, refs=tuple(page), max_bundles=most)
                info = self._connection.info(command.descriptor())
                for ref, found in fetch(info):
                    _advance(page, ref)
                    backoff.reset()
                    yield found
                # Some at the end may have had nothing to send.
                _advance(page, FlightMeta.decode(info.app_metadata).refs[-1])
            except ClientError as error:
                if error.code in GONE and on_gone is not None:
                    page = self._still_there(page, on_gone)
                elif error.code == "limit_exceeded" and most > 1:
                    most = max(1, most // 8)  # packed on disk, they are larger than they look
                else:
                    self._connection.pause(backoff.after(error))

    def _slot_page(self, info: Any) -> Iterator[tuple[Ref, SlotBatch]]:
        meta = FlightMeta.decode(info.app_metadata)
        known = {
            ref: (_known(sequence), _known(time_ns))
            for ref, sequence, time_ns in zip(meta.refs, meta.sequences, meta.times_ns, strict=True)
        }
        for endpoint in info.endpoints:
            refs = iter(Ticket.decode(endpoint.app_metadata).refs)
            for chunk in self._connection.get(endpoint.ticket):
                ref = next(refs)
                yield ref, SlotBatch(ref, chunk.data, *known[ref])

    def _bundle_page(self, info: Any) -> Iterator[tuple[Ref, Bundle]]:
        for endpoint in info.endpoints:
            for chunk in self._connection.get(endpoint.ticket):
                found = read_bundle(chunk)
                yield found.ref, found

    def _still_there(self, page: deque[Ref], on_gone: OnGone) -> deque[Ref]:
        """Those of a page that can still be read; the others are told."""
        there: set[Ref] = set()
        for segment, first, *more in write_refs(page):
            end = Ref(segment, first + (more[0] if more else 1))
            command = self._command(
                {}, start=Ref(segment, first), end=end, max_bundles=PAGE_BUNDLES, max_bytes=1 << 40
            )
            info = self._connection.info(command.descriptor())
            there.update(FlightMeta.decode(info.app_metadata).refs)
        gone = [ref for ref in page if ref not in there]
        if gone:
            on_gone(gone)
        return deque(ref for ref in page if ref in there)

    def _command(self, form: Mapping[str, Any], **which: Any) -> ReadCommand:
        return ReadCommand(stream=self._stream, **{"max_bytes": PAGE_BYTES, **form, **which})


def _advance(page: deque[Ref], ref: Ref) -> None:
    while page and page[0] <= ref:
        page.popleft()


def _refs(runs: Iterable[Run]) -> Iterator[Ref]:
    for segment, first, count in runs:
        for index in range(first, first + count):
            yield Ref(segment, index)


def _known(number: int) -> int | None:
    return None if number < 0 else number
