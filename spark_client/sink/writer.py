"""The two classes Spark knows: one for ``df.write``, one for ``df.writeStream``.

A batch job's writer is made once and travels to tasks and commit, so it can hold the
job's name.  A streaming writer is made anew for every commit, and Spark doesn't tell it
the query: the tasks know, and their messages say so.  A micro-batch without any partition
has no messages, and nothing to commit either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_client.shipping import Travels
from spark_client.sink.closing import abort, commit, ours, transaction_of
from spark_client.sink.plan import SinkPlan, batch_plan, query_plan
from spark_client.sink.share import Written, write_share

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"

Messages = list[WriterCommitMessage | None]


class BatchWriter(Travels, DataSourceArrowWriter):
    """One ``df.write``."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """On an executor, once per task attempt."""
        app, version = self._plan.batch_transaction()
        return write_share(self._plan, app, version, _task().partitionId(), iterator)

    def commit(self, messages: Messages) -> None:
        """On the driver: every task has succeeded."""
        commit(self._plan, *self._plan.batch_transaction(), ours(messages))

    def abort(self, messages: Messages) -> None:
        """On the driver: a task, or the commit, has failed."""
        abort(self._plan, *self._plan.batch_transaction())


class StreamWriter(Travels, DataSourceStreamArrowWriter):
    """One micro-batch of a ``df.writeStream``."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """On an executor, once per task attempt."""
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        app, version = self._plan.query_transaction(query, batch)
        return write_share(self._plan, app, version, task.partitionId(), iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """On the driver: every task of the batch has succeeded."""
        written = ours(messages)
        transaction = transaction_of(written, batchId)
        if transaction is not None and any(one.attempts or one.committed for one in written):
            commit(self._plan, *transaction, written)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """On the driver: a task, or the commit, has failed."""
        transaction = transaction_of(ours(messages), batchId)
        if transaction is not None:
            abort(self._plan, *transaction)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """For ``DataSource.writer``."""
    return BatchWriter(batch_plan(options, schema, overwrite))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """For ``DataSource.streamWriter``."""
    return StreamWriter(query_plan(options, schema, overwrite))


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None  # Spark calls write inside a task
    return task
