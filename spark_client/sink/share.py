"""On an executor: one task attempt's rows, into a stage of its own.

Memory holds one part of the share (see :mod:`flight_service.client.staging`), not the
share: a part that is finished is on the server's disk.  A window of bundles is in flight;
when the server has no room the task waits, and with it whatever feeds it.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from flight_service.client.errors import ClientError
from flight_service.client.staging import Staged
from flight_service.client.stream import Stream
from spark_client.sink.cutting import bundles
from spark_client.sink.plan import SinkPlan

TOO_LATE: Final = frozenset({"already_committed", "stage_ended"})
"""Codes of a stage whose transaction may have been committed without it."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    app: str
    version: int
    partition: int
    attempts: tuple[str, ...] = ()
    rows: int = 0
    committed: bool = False
    """The transaction was there already: this task wrote nothing."""


def write_share(
    plan: SinkPlan, app: str, version: int, partition: int, batches: Iterator[pa.RecordBatch]
) -> Written:
    """Write a partition; nothing of it is seen before the driver commits."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return Written(app, version, partition)  # nothing to say, nobody to ask
    rest = itertools.chain([first], batches)
    with plan.stream() as stream:
        staged = None
        if not stream.begin(app, version).committed:
            staged = _stage(plan, stream, app, version, partition, rest)
    if staged is None:
        for _ in rest:
            pass  # Spark counts on being read to the end
        return Written(app, version, partition, committed=True)
    return Written(app, version, partition, staged.attempts, staged.rows)


def _stage(
    plan: SinkPlan,
    stream: Stream,
    app: str,
    version: int,
    partition: int,
    batches: Iterable[pa.RecordBatch],
) -> Staged | None:
    """The stage, finished; ``None`` if somebody committed this transaction meanwhile."""
    share = stream.stage(
        app,
        version,
        f"p{partition}-{uuid.uuid4().hex[:12]}",
        window=plan.window,
        window_bytes=plan.window_bytes,
    )
    try:
        with share:
            for batch in batches:
                for bundle in bundles(batch, plan.slot, plan.slot_column, plan.bundle_bytes):
                    share.put(bundle)
            return share.finish()
    except ClientError as error:
        if error.code in TOO_LATE and stream.begin(app, version).committed:
            return None
        raise
