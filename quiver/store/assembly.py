"""Putting a store together from what recovery found: who is given what.

The parts don't know each other; here, and only here, they are introduced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from structlog.stdlib import BoundLogger

from quiver import metrics as m
from quiver.bundle.preparing import Preparation
from quiver.clock import Clock
from quiver.config import Config
from quiver.disk.descriptors import DESCRIPTORS
from quiver.disk.disk import Disk
from quiver.disk.reserve import Reserve
from quiver.errors import QuiverError
from quiver.format.wal.header import layout_hash
from quiver.ingest.disk_budget import DiskBudget
from quiver.ingest.ingest import Ingest
from quiver.ingest.memory_budget import MemoryBudget, MemoryShare
from quiver.ingest.parts import Parts
from quiver.ingest.seal_wait import SealWait
from quiver.metrics import Metrics
from quiver.recovery.recover import Recovered
from quiver.subscriber.delivery import Delivery
from quiver.transaction.stage import Staging
from quiver.upkeep.upkeep import Upkeep
from quiver.wal.group_commit import Commits
from quiver.wal.writer import WalWriter


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the parts call the store for."""

    on_durable: Callable[[int], None]
    on_rollback: Callable[[int, QuiverError], None]
    flush: Callable[[], object]
    check: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Assembly:
    """A store's parts, ready to work."""

    parts: Parts
    preparation: Preparation
    commits: Commits | None
    seal_wait: SealWait
    staging: Staging
    upkeep: Upkeep
    delivery: Delivery
    memory: MemoryShare | None

    def close(self) -> None:
        """Let go of what is shared with others."""
        with ExitStack() as last:
            last.callback(self.parts.share.close)
            if self.memory is not None:
                last.callback(self.memory.close)
            last.callback(self.parts.segments.close)
            if self.parts.wal is not None:
                self.parts.wal.close()


def assemble(
    disk: Disk,
    config: Config,
    clock: Clock,
    recovered: Recovered,
    *,
    where: str,
    metrics: Metrics,
    log: BoundLogger,
    hooks: Hooks,
    budget: DiskBudget | None,
    memory: MemoryBudget | None,
) -> Assembly:
    """Make every part and introduce them."""
    lock = threading.Lock()
    segments = recovered.segments
    times = recovered.times
    wal = None
    if config.durability == "wal":
        wal = WalWriter(
            disk,
            config.wal,
            layout_hash=layout_hash(config.slots),
            lock=lock,
            start=recovered.log,
            clock=clock,
            times=times,
            on_durable=hooks.on_durable,
            on_rollback=hooks.on_rollback,
        )
        wal.on_group = _group_counter(metrics, wal)
    commits = None if wal is None else Commits(wal, config.wal, clock)
    seal_wait = SealWait(hooks.flush, hooks.check, clock)
    preparation = Preparation(config, recovered.slots, lock)
    ingest = Ingest(
        config,
        lock=lock,
        clock=clock,
        times=times,
        preparation=preparation,
        window=recovered.window,
        transactions=recovered.transactions,
        ledger=recovered.ledger,
        segments=segments,
        wal=wal,
        waiter=commits or seal_wait,
        next_sequence=recovered.next_sequence,
        metrics=metrics,
        refuse=lambda size: upkeep.admission.refusal(size),
    )
    parts = Parts(
        disk=disk,
        config=config,
        clock=clock,
        lock=lock,
        ingest=ingest,
        segments=segments,
        wal=wal,
        registry=recovered.registry,
        slots=recovered.slots,
        ledger=recovered.ledger,
        reserve=Reserve(disk, config.reserve),
        share=(budget or DiskBudget(config.retention.size_cap)).register(where, config),
        stages=recovered.stages,
        metrics=metrics,
        log=log,
    )
    share = None if memory is None else memory.join(lambda: segments.nbytes + parts.stages.memory)
    staging = Staging(parts, preparation)
    upkeep = Upkeep(
        parts,
        floor=recovered.floor,
        state=recovered.state,
        memory=share,
        stages=staging,
        on_sealed=seal_wait.tell,
    )
    delivery = Delivery(recovered.registry, segments, recovered.slots, clock, metrics)
    _watch_gauges(parts, where)
    parts.ledger.show_in(metrics)
    return Assembly(parts, preparation, commits, seal_wait, staging, upkeep, delivery, share)


def _group_counter(metrics: Metrics, wal: WalWriter) -> Callable[[int, float], None]:
    syncs = metrics.counter(m.WAL_SYNCS)
    nbytes = metrics.counter(m.WAL_BYTES_WRITTEN)
    seconds = metrics.histogram(m.WAL_SYNC_SECONDS)
    sizes = metrics.histogram(m.WAL_GROUP_BYTES)
    rotations = metrics.counter(m.WAL_ROTATIONS)

    def count(size: int, took: float) -> None:
        syncs.add()
        nbytes.add(size)
        seconds.observe(took)
        sizes.observe(size)
        rotations.value = wal.rotations  # counted there already, one thread at a time

    return count


def _watch_gauges(parts: Parts, where: str) -> None:
    """Gauges are read when somebody looks: nothing to keep up to date on the way."""
    gauge = parts.metrics.gauge
    gauge(m.SEGMENT_OPEN_BYTES).watch(lambda: parts.segments.nbytes)
    gauge(m.SEGMENT_COUNT).watch(lambda: len(parts.segments))
    gauge(m.SEGMENT_MAPPED).watch(lambda: parts.segments.open_readers)
    gauge(m.SEGMENT_DISK_BYTES).watch(lambda: parts.usage().segments)
    gauge(m.STAGES).watch(lambda: len(parts.stages))
    gauge(m.STAGE_DISK_BYTES).watch(lambda: parts.stages.file_bytes)
    gauge(m.STAGE_MEMORY_BYTES).watch(lambda: parts.stages.memory)
    gauge(m.WAL_BYTES).watch(lambda: parts.usage().log)
    gauge(m.POISONED).watch(lambda: parts.disk.poison.cause is not None)
    gauge(m.DESCRIPTORS_FREE).watch(lambda: DESCRIPTORS.headroom().free)
    gauge(m.CORE_BYTES, core_id=where).watch(lambda: parts.usage().on_disk)
    gauge(m.CORE_CAP_FRACTION, core_id=where).watch(
        lambda: parts.usage().on_disk / cap if (cap := parts.share.cap) else 0.0
    )
