"""A bundle in the hands of a reader: a mapping from slot names to record batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

import pyarrow as pa

from flight_service.client.errors import BadRequest, ServerFault
from flight_service.protocol.get import BundleInfo
from flight_service.protocol.names import Ref
from flight_service.protocol.wrapper import Row, SlotStream, check_rows, rows_of, unwrap_batch

ACKED = "acked"
REJECTED = "rejected"
DEFERRED = "deferred"
CLAIMED = "claimed"


class Bundle(Mapping[str, pa.RecordBatch]):
    """``bundle["Logs"]``: batches are decoded when asked for, once, without a copy."""

    def __init__(self, info: BundleInfo, rows: Sequence[Row]) -> None:
        if len(rows) != len(info.slots):
            raise ServerFault(
                "internal",
                f"bundle {info.ref} has {len(rows)} slots and {len(info.slots)} names.",
            )
        self.info = info
        self._rows = rows
        self._batches: dict[str, pa.RecordBatch] = {}

    @property
    def ref(self) -> Ref:
        """Where it is; stays the same for ever."""
        return self.info.ref

    @property
    def sequence(self) -> int | None:
        """Its place in the log."""
        return self.info.sequence

    @property
    def ingestion_ts_ns(self) -> int | None:
        """When the server took it, in nanoseconds since the epoch."""
        return self.info.ingestion_ts_ns

    @property
    def key(self) -> str | None:
        """The producer's idempotency key."""
        return self.info.key

    @property
    def attributes(self) -> Mapping[str, str]:
        """What the producer said about it."""
        return self.info.attributes or {}

    @property
    def rows(self) -> int:
        """Rows in all its slots."""
        return self.info.rows

    @property
    def nbytes(self) -> int:
        """Bytes of all its slots."""
        return self.info.nbytes

    def __getitem__(self, slot: str) -> pa.RecordBatch:
        batch = self._batches.get(slot)
        if batch is None:
            row = self.info.slots.index(slot) if slot in self.info.slots else None
            if row is None:
                raise KeyError(f"no slot {slot!r}; it has {', '.join(self.info.slots) or 'none'}")
            batch = unwrap_batch(check_rows(self._rows[row : row + 1])[0])
            self._batches[slot] = batch
        return batch

    def streams(self) -> list[SlotStream]:
        """Its slots as they travelled, each an Arrow IPC stream, in the order of the names."""
        return check_rows(self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self.info.slots)

    def __len__(self) -> int:
        return len(self.info.slots)

    def __bool__(self) -> bool:
        # A bundle without slots is a bundle: `while bundle := …` must see it.
        return True

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ref} {', '.join(self)}>"


def read_bundle(chunk: Any) -> Bundle:
    """A bundle out of a message in bundle mode."""
    return Bundle(BundleInfo.decode(chunk.app_metadata.to_pybytes()), rows_of(chunk.data))


class Resolver(Protocol):
    """Who takes the outcomes of bundles."""

    def finish(
        self, ref: Ref, kind: str, *, reason: str, delay: float | None, durable: bool
    ) -> None: ...

    def flush(self, timeout: float | None, *, durable: bool) -> None: ...

    def abandon(self, ref: Ref) -> None:
        """From ``__del__``: must not take a lock, wait or raise."""
        ...


class Delivered(Bundle):
    """A bundle claimed for a subscriber: ``ack()``, ``reject()`` or ``defer()`` it.

    As a context manager it is given back at the end of the block unless it got an outcome
    inside; so is one that disappears without an outcome.
    """

    def __init__(self, info: BundleInfo, rows: Sequence[Row], resolver: Resolver) -> None:
        self.outcome = CLAIMED
        self._resolver = resolver
        super().__init__(info, rows)

    @property
    def delivery(self) -> int:
        """How often it was handed out, this time included."""
        return self.info.delivery or 1

    @property
    def last_reason(self) -> str | None:
        """Why it came back the last time."""
        return self.info.reason

    def ack(self, *, durable: bool = False) -> None:
        """It was dealt with.  ``durable``: return once that is on the server's disk.

        A second ack may ask for the disk too, also one that follows an ack that raised.
        """
        self._finish(ACKED, durable=durable)

    def reject(self, reason: str = "", *, durable: bool = False) -> None:
        """It can never be dealt with: dropped, on record, not delivered again."""
        self._finish(REJECTED, reason=reason, durable=durable)

    def defer(self, delay: float | None = None, reason: str = "") -> None:
        """Not now: deliver it again after ``delay`` seconds, or after the server's backoff."""
        self._finish(DEFERRED, reason=reason, delay=delay)

    nack = defer
    """The word that users of other queues look for."""

    def _finish(
        self,
        outcome: str,
        *,
        reason: str = "",
        delay: float | None = None,
        durable: bool = False,
    ) -> None:
        if self.outcome == DEFERRED and outcome != DEFERRED:
            raise BadRequest(
                "bad_request", f"bundle {self.ref} was given back: it will be delivered again."
            )
        if self.outcome != CLAIMED:
            if durable:
                self._resolver.flush(None, durable=True)
            return
        self.outcome = outcome
        self._resolver.finish(self.ref, outcome, reason=reason, delay=delay, durable=durable)

    def __enter__(self) -> Delivered:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        reason = "" if error is None else f"{type(error).__name__}: {error}"[:500]
        self.defer(reason=reason)

    def __del__(self) -> None:
        if self.outcome == CLAIMED:
            self._resolver.abandon(self.ref)
