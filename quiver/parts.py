"""The parts of one store, as one value: for the steps that go across several of them.

The parts don't know each other.  The rooms of upkeep (:mod:`quiver.records`,
:mod:`quiver.sealing`, :mod:`quiver.sweeping`, :mod:`quiver.admission`) each need most of
them, and are given this instead of a dozen arguments.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from structlog.stdlib import BoundLogger

from quiver.budget import Share, Usage
from quiver.bundle import SlotTable
from quiver.clock import Clock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.disk.reserve import Reserve
from quiver.ingest import Ingest
from quiver.ledger import Ledger
from quiver.metrics import Metrics
from quiver.segment.catalog import Catalog
from quiver.stages import StageTable
from quiver.subscriber.registry import Registry
from quiver.tail import Tail
from quiver.wal.writer import WalWriter


@dataclass(frozen=True, slots=True)
class Parts:
    """What a store is made of."""

    disk: Disk
    config: Config
    clock: Clock
    lock: threading.Lock
    """The ingest lock: never held over I/O."""
    ingest: Ingest
    tail: Tail
    wal: WalWriter | None
    catalog: Catalog
    registry: Registry
    slots: SlotTable
    ledger: Ledger
    reserve: Reserve
    share: Share
    stages: StageTable
    metrics: Metrics
    log: BoundLogger

    def usage(self) -> Usage:
        """Bytes by where they are; cheap enough for every put."""
        return Usage(
            segments=self.catalog.file_bytes,
            log=0 if self.wal is None else self.wal.bytes_on_disk,
            reserve=self.reserve.held,
            stages=self.stages.file_bytes,
            mapped=self.catalog.unlinked_bytes,
            unwritten=self.tail.nbytes + self.stages.memory,
        )

    def growing(self) -> int:
        """The lowest segment that may still get visible bundles. Ingest lock held."""
        if self.config.deliver == "durable" and self.wal is not None:
            return self.tail.growing
        return self.tail.oldest
