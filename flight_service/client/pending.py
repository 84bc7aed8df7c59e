"""What goes into a writer and what comes out: data, and the promise of a receipt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from flight_service.client.errors import BadRequest, ClientError, Closed
from flight_service.protocol.names import Ref

Data: TypeAlias = "pa.RecordBatch | pa.Table"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the server answered for a bundle it has."""

    ref: Ref
    sequence: int | None
    durability: str | None
    duplicate: bool
    key: str | None


@dataclass(frozen=True, slots=True)
class WriterStats:
    """What a writer has done so far."""

    bundles: int
    nbytes: int
    duplicates: int
    rejected: int
    retries: int
    reconnects: int


class PendingOwner(Protocol):
    """The writer, as far as a pending bundle needs it."""

    def wait_for(self, ready: Callable[[], bool], timeout: float | None, what: str) -> None: ...


class Pending:
    """A bundle on its way: ``result()`` waits for its receipt."""

    __slots__ = ("_error", "_owner", "_receipt", "key", "nbytes")

    def __init__(self, owner: PendingOwner, key: str, nbytes: int) -> None:
        self._owner = owner
        self._receipt: Receipt | None = None
        self._error: ClientError | None = None
        self.key = key
        self.nbytes = nbytes
        """Of its batches, in memory."""

    @property
    def done(self) -> bool:
        """Whether the server has answered for good."""
        return self._receipt is not None or self._error is not None

    def result(self, timeout: float | None = None) -> Receipt:
        """Its receipt; raises ``Rejected``, or what ended the writer."""
        self._owner.wait_for(lambda: self.done, timeout, f"the receipt of {self.key}")
        if self._receipt is None:
            raise self._error or Closed("the writer")
        return self._receipt

    def settle(self, receipt: Receipt | None, error: ClientError | None) -> None:
        """For the writer only."""
        self._receipt, self._error = receipt, error


def as_batch(data: Data) -> pa.RecordBatch:
    """One batch of what a slot is given as."""
    if isinstance(data, pa.RecordBatch):
        return data
    if not isinstance(data, pa.Table):
        raise TypeError(f"a slot takes a RecordBatch or a Table, not {type(data).__name__}")
    batches = data.combine_chunks().to_batches()
    if len(batches) > 1:
        raise BadRequest("limit_exceeded", "the table is too long for one batch: split it.")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=data.schema)
