"""How a segment is read, wherever it is: in memory or in its file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from quiver.format.record import BundleMeta, EncodedSlot


class SegmentView(Protocol):
    """The bundles of one segment, by index; may be used from any thread."""

    @property
    def seq(self) -> int: ...

    @property
    def visible(self) -> int:
        """How many bundles may be shown: those that are durable."""
        ...

    def meta(self, index: int) -> BundleMeta:
        """What is known about a bundle besides its rows."""
        ...

    def slot_ids(self, index: int) -> list[int]:
        """The slots a bundle has, ascending."""
        ...

    def check(self, index: int) -> None:
        """Raise if a bundle's bytes are not as they were written, where reads are verified."""
        ...

    def encoded(self, index: int, slots: Collection[int] | None = None) -> list[EncodedSlot]:
        """A bundle as messages, to be sent on; of ``slots``, those that it has."""
        ...

    def read(
        self,
        index: int,
        slots: Collection[int] | None = None,
        columns: Mapping[int, Sequence[str]] | None = None,
    ) -> dict[int, pa.RecordBatch]:
        """A bundle's batches by slot; of ``slots``, those that it has."""
        ...

    def read_slot(
        self, index: int, slot: int, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """One batch; :class:`~quiver.errors.SlotNotInBundle` if it has no such slot."""
        ...

    def schemas(self) -> Iterator[tuple[int, bytes, pa.Schema]]:
        """Slot, schema hash and schema of each stream."""
        ...
