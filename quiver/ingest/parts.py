"""The parts of one store, as one value: for the steps that go across several of them.

The parts don't know each other.  The modules of :mod:`quiver.upkeep` and
:mod:`quiver.transaction` each need most of them, and are given this instead of a dozen arguments.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from structlog.stdlib import BoundLogger

from quiver.bundle.slots import SlotTable
from quiver.clock import Clock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.disk.reserve import Reserve
from quiver.ingest.disk_budget import Share, Usage
from quiver.ingest.ingest import Ingest
from quiver.metrics import Metrics
from quiver.record.ledger import Ledger
from quiver.segment.segments import Segments
from quiver.segment.stage_table import StageTable
from quiver.subscriber.registry import Registry
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
    segments: Segments
    wal: WalWriter | None
    registry: Registry
    slots: SlotTable
    ledger: Ledger
    reserve: Reserve
    share: Share
    stages: StageTable
    metrics: Metrics
    log: BoundLogger

    def usage(self) -> Usage:
        """Bytes by where they are; cheap enough for every put.

        The small files don't count, nor what the reserve has beyond its setting for them.
        """
        return Usage(
            segments=self.segments.file_bytes,
            log=0 if self.wal is None else self.wal.bytes_on_disk,
            reserve=min(self.reserve.held, self.config.reserve),
            stages=self.stages.file_bytes,
            unwritten=self.segments.nbytes + self.stages.memory,
        )
