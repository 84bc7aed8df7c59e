"""What the tests of the sink share: where rows went, and tasks that misbehave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameWriter

from flight_service.client import Client
from tests.wire.process import ServerProcess

SECONDS = 120.0


def url(server: ServerProcess, stream: str = "out") -> str:
    return f"quiver://127.0.0.1:{server.port}/{stream}"


def writing(frame: DataFrame, server: ServerProcess, **options: object) -> DataFrameWriter:
    """``df.write``, ready for ``save()``."""
    given = {"url": url(server), "retryTimeout": "60s", "connectTimeout": "20s", **options}
    return frame.write.format("quiver").mode("append").options(**given)  # type: ignore[arg-type]


def rows(client: Client, slot: str = "Rows", stream: str = "out") -> list[Any]:
    """The first column of every row anybody can see, sorted."""
    found = client.stream(stream).read()
    return sorted(n for one in found if slot in one for n in one[slot].column(0).to_pylist())


def staged(client: Client, stream: str = "out") -> int:
    """Attempts that are neither committed nor removed."""
    count: int = client.stream(stream).status()["stages"]["attempts"]
    return count


def wait_for(ready: Callable[[], object], what: str) -> None:
    """Until it is so."""
    pause = threading.Event()
    for _ in range(int(SECONDS / 0.05)):
        if ready():
            return
        pause.wait(0.05)
    raise AssertionError(f"waited {SECONDS:g} s for {what}")


Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def shuffling(fail: bool = True) -> Function:
    """Rows in another order and other batches each time; the first attempt of every task
    fails after it has handed over all of them."""

    def shuffled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import random

        from pyspark import TaskContext

        values = [n for batch in batches for n in batch.column(0).to_pylist()]
        random.shuffle(values)
        while values:
            size = random.randint(1, 40)
            yield pa.record_batch({"id": pa.array(values[:size], pa.int64())})
            values = values[size:]
        task = TaskContext.get()
        if fail and task is not None and task.attemptNumber() == 0:
            raise RuntimeError("this attempt fails after it has sent everything")

    return shuffled


def holding(where: Path) -> Function:
    """Partition 0 hands over its first batch, says so in a file, and waits for another."""
    reached, go = str(where / "reached"), str(where / "go")

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import threading

        from pyspark import TaskContext

        task = TaskContext.get()
        for number, batch in enumerate(batches):
            yield batch
            if number == 0 and task is not None and task.partitionId() == 0:
                open(reached, "w").close()
                while not os.path.exists(go):
                    threading.Event().wait(0.02)

    return held
