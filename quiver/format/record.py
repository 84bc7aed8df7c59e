"""What a bundle is made of once its batches are bytes.

The log and the segments both store these values, so they live below both.  They are
named tuples: every put makes some, and a frozen dataclass takes four times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from quiver.format.arrow.ipc import EncodedBatch

FINGERPRINT_SIZE: Final = 32

LOST_ATTRIBUTE: Final = "quiver:lost"
"""Marks the place of a bundle that a repair could not save: it has no slots and is given
to nobody, but those behind it keep their refs."""

NO_ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType({})


class EncodedSlot(NamedTuple):
    """One slot of a bundle. ``fingerprint`` is kept as sent, and decides nothing."""

    slot: int
    fingerprint: bytes
    batch: EncodedBatch


class ProducerStamp(NamedTuple):
    """Who put a bundle, as the producer numbers its bundles: ``seq`` within ``epoch``."""

    name: str
    seq: int
    epoch: int


class BundleMeta(NamedTuple):
    """What is known about a bundle besides its rows.

    ``sequence`` and ``ingestion_ts_ns`` are ``None`` in segments of the Rust crate, which
    doesn't record them.  ``nbytes`` counts IPC stream bytes, as the log stores them.
    ``store_ts_ns`` is the store's own time, ``None`` where it was not recorded.
    """

    sequence: int | None = None
    ingestion_ts_ns: int | None = None
    key: str | None = None
    content_hash: bytes | None = None
    attributes: Mapping[str, str] = NO_ATTRIBUTES
    event_time: tuple[int, int] | None = None
    rows: int = 0
    nbytes: int = 0
    store_ts_ns: int | None = None
    producer: ProducerStamp | None = None

    @property
    def aged_from_ns(self) -> int | None:
        """What its age counts from: store time, or where none was recorded ingestion time."""
        return self.ingestion_ts_ns if self.store_ts_ns is None else self.store_ts_ns

    @property
    def lost(self) -> bool:
        """Whether this only keeps the place of a bundle that damage took."""
        return LOST_ATTRIBUTE in self.attributes
