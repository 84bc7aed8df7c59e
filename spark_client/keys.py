"""Idempotency keys: the same rows sent again have the same key, and are kept once.

==================  ==================================================
a batch job         ``<job>/<partition>/<ordinal>``
a streaming query   ``<query>/<batch>/<job or slot>/<partition>/<ordinal>``
co-grouped frames   ``…/<digest of the group's key>`` in place of the last two
==================  ==================================================

Never an attempt's number: Spark runs a task again after a failure, and twice at the same time
when it speculates, and both must meet the keys of the first.  A query's id and the number of
its batch are the same after a restart from the checkpoint, so ``job`` is not needed there; it
tells two puts of one batch into one stream apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext

QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class Keys:
    """How the bundles of one put are named."""

    job: str
    """Given by the caller, or drawn when the put was made."""
    sink: str
    """What tells this put from others of the same streaming batch."""

    def prefix(self) -> str:
        """The part all tasks of this run have in common."""
        task = TaskContext.get()
        query = task and task.getLocalProperty(QUERY)
        batch = task and task.getLocalProperty(BATCH)
        return f"{query}/{batch}/{self.sink}" if query and batch else self.job

    def of_task(self) -> str:
        """The part that all bundles of this task have in common."""
        return f"{self.prefix()}/{partition()}"

    def of_group(self, key: Sequence[pa.Scalar]) -> str:
        """The name of a group, wherever it is worked on."""
        values = [pa.array([one.as_py()], one.type) for one in key]
        row = pa.RecordBatch.from_arrays(values, [str(number) for number in range(len(values))])
        digest = hashlib.sha256(row.serialize()).hexdigest()[:32]
        return f"{self.prefix()}/{digest}"


def partition() -> int:
    """Which partition this task works on."""
    task = TaskContext.get()
    return 0 if task is None else int(task.partitionId())
