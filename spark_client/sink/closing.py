"""On the driver: publish what the tasks wrote, or have it removed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

from pyspark.sql.datasource import WriterCommitMessage

from flight_service.client.errors import BadRequest, ServerFault
from spark_client.failures import PutFailed
from spark_client.sink.plan import ABORT_PATIENCE, SinkPlan
from spark_client.sink.share import Written


def commit(plan: SinkPlan, app: str, version: int, written: Sequence[Written]) -> None:
    """Publish every partition's rows at once; asked again, nothing happens twice."""
    ordered = sorted(written, key=lambda one: one.partition)
    with plan.stream(wait=max(plan.patience, plan.connect_timeout)) as stream:
        if any(one.committed for one in ordered):
            _must_be_committed(stream.begin(app, version).committed, app, version)
            return
        attempts = [attempt for one in ordered for attempt in one.attempts]
        stream.commit(app, version, attempts)


def _must_be_committed(committed: bool, app: str, version: int) -> None:
    if not committed:
        raise ServerFault(
            "internal",
            f"version {version:,} of {app} was committed when its tasks ran and isn't any more:"
            " the server's memory of it has ended, or its data was replaced.",
        )


def abort(plan: SinkPlan, app: str, version: int) -> None:
    """Remove what was staged.

    Nothing depends on it: nobody sees a stage, and one that is left behind goes with the
    next commit of the same app, or in time.
    """
    hurried = dataclasses.replace(plan, patience=min(plan.patience, ABORT_PATIENCE))
    with contextlib.suppress(PutFailed), hurried.stream(wait=hurried.patience) as stream:
        stream.abort(app, version)


def ours(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """The messages of tasks that succeeded."""
    return [one for one in messages if isinstance(one, Written)]


def transaction_of(written: Sequence[Written], batch: int) -> tuple[str, int] | None:
    """The transaction of a micro-batch, as its tasks saw it; ``None`` if there was no task."""
    names = {(one.app, one.version) for one in written}
    if not names:
        return None
    if len(names) > 1 or next(iter(names))[1] != batch:
        raise BadRequest(
            "bad_request", f"tasks of batch {batch:,} wrote for others: {sorted(names)}."
        )
    return names.pop()
