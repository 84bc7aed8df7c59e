"""``quiver.open``: a directory is all it needs."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from quiver.clock import Clock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.disk.posix import PosixDisk
from quiver.errors import ConfigError
from quiver.ingest.disk_budget import DiskBudget
from quiver.ingest.memory_budget import MemoryBudget
from quiver.recovery.recover import Watch
from quiver.store.store import Store
from quiver.upkeep.background import Background


def open(
    path: str | os.PathLike[str],
    config: Config | None = None,
    *,
    background: Background | bool = False,
    budget: DiskBudget | None = None,
    memory: MemoryBudget | None = None,
    clock: Clock | None = None,
    watch: Watch | None = None,
    **settings: Any,
) -> Store:
    """Open the store in a directory, made if it isn't there; recovers what a crash left.

    ``settings`` are those of :class:`~quiver.config.Config`, as sections or flat::

        quiver.open("./telemetry", wal__flush="every", segment={"target_size": "8MiB"})

    ``background=True`` starts threads that commit, write segments and clean up; without,
    those who wait do it, and :meth:`Store.maintain`.  Pass one
    :class:`~quiver.upkeep.background.Background` to several stores to share its threads, one
    :class:`~quiver.ingest.disk_budget.DiskBudget` to share a disk, and one
    :class:`~quiver.ingest.memory_budget.MemoryBudget` to share memory.  ``watch`` is called for
    each log entry that recovery reads: for a progress bar.
    """
    if config is not None and settings:
        raise ConfigError(
            f"a Config was given, and {', '.join(sorted(settings))} besides.",
            advice="Give one or the other: Config.load(..., **settings) takes both.",
        )
    chosen = Config.load(env={}, **settings) if config is None else config
    # Arrow looks for pandas when it is first given Python values.  In a put that found no
    # descriptor free, the import would fail with an error that says nothing about retrying.
    pa.array([0])
    where = os.fspath(path)
    return Store(
        Disk(PosixDisk(where)),
        chosen,
        where=where,
        clock=clock,
        background=background,
        budget=budget,
        memory=memory,
        watch=watch,
    )
