"""What a put answers: where the bundle is, and a way to wait until it is durable."""

from __future__ import annotations

from typing import Protocol

from quiver.errors import QuiverError
from quiver.ids import BundleRef


class Waiter(Protocol):
    """Who can make a receipt come true: the log's group commit, or the segment writer."""

    def wait(self, receipt: Receipt, timeout: float | None) -> None:
        """Return when the receipt is done; raise ``WaitTimeout`` if it takes too long."""
        ...


class Receipt:
    """The answer to a put.

    ``ref`` and ``sequence`` are known at once, and final from the moment :meth:`wait`
    returns: before that the bundle is accepted, not promised.
    """

    __slots__ = (
        "_error",
        "_repeats",
        "_waiter",
        "done",
        "duplicate",
        "ingestion_ts_ns",
        "key",
        "nbytes",
        "ref",
        "replaces",
        "rows",
        "sequence",
    )

    def __init__(
        self,
        ref: BundleRef,
        sequence: int,
        ingestion_ts_ns: int,
        *,
        rows: int,
        nbytes: int,
        key: str | None,
        waiter: Waiter,
    ) -> None:
        self.ref = ref
        self.sequence = sequence
        self.ingestion_ts_ns = ingestion_ts_ns
        self.rows = rows
        self.nbytes = nbytes
        self.key = key
        self.duplicate = False
        self.replaces: BundleRef | None = None
        """A lost bundle that this repeat of its key makes up for."""
        self.done = False
        self._error: QuiverError | None = None
        self._repeats: list[Receipt] | None = None
        self._waiter = waiter

    def complete(self, error: QuiverError | None = None) -> None:
        """Called once, by whoever made it durable or found that it can't be."""
        self._error = error
        self.done = True
        for repeat in self._repeats or ():
            repeat.complete(error)

    @property
    def durable(self) -> bool:
        """Whether the bundle is on disk."""
        return self.done and self._error is None

    @property
    def error(self) -> QuiverError | None:
        """Why it will not become durable, if so."""
        return self._error

    def wait(self, timeout: float | None = None) -> Receipt:
        """Block until the bundle is durable; raise if it can't be, or in time."""
        if not self.done:
            self._waiter.wait(self, timeout)
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self

    def __repr__(self) -> str:
        state = "durable" if self.durable else "failed" if self._error else "accepted"
        return f"<Receipt {self.ref} sequence={self.sequence} {state}>"


class DuplicateReceipt(Receipt):
    """The answer to a repeat: the first bundle's ref, durable when the first one is."""

    __slots__ = ()

    def __init__(self, first: Receipt) -> None:
        super().__init__(
            first.ref,
            first.sequence,
            first.ingestion_ts_ns,
            rows=first.rows,
            nbytes=first.nbytes,
            key=first.key,
            waiter=first._waiter,
        )
        self.duplicate = True
        # Made under the ingest lock, completed without: told by the first, or told now.
        if first._repeats is None:
            first._repeats = []
        first._repeats.append(self)
        if first.done:
            self.complete(first.error)
