"""The sink on a cluster: speculation, an executor killed, a driver killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flight_service.client import Client
from tests.spark.cluster import Cluster
from tests.spark.sink import rows, staged, url, wait_for
from tests.wire.process import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.kill]

SPECULATION = {
    "spark__speculation": "true",
    "spark__speculation__interval": "100ms",
    "spark__speculation__quantile": "0.25",
    "spark__speculation__multiplier": "1.1",
    "spark__speculation__minTaskRuntime": "100ms",
}

TWINS = """
import sys
from spark_client import register
register(spark)
url, where = sys.argv[1:]

def twins(batches):
    import os, threading
    from pyspark import TaskContext
    task = TaskContext.get()
    open(f"{where}/p{task.partitionId()}-{task.attemptNumber()}", "w").close()
    for batch in batches:
        yield batch.slice(0, batch.num_rows // 2)
        while task.partitionId() == 0 and not os.path.exists(f"{where}/p0-1"):
            threading.Event().wait(0.02)
        yield batch.slice(batch.num_rows // 2)

frame = spark.range(4_000, numPartitions=4).mapInArrow(twins, "id long")
frame.write.format("quiver").mode("append").option("url", url).save()
print("done")
"""

QUERY = """
import sys
from spark_client import register
register(spark)
url, where, once = sys.argv[1:]

def deadly(batches):
    import os, threading
    from pyspark import TaskContext
    task = TaskContext.get()
    mine = task.getLocalProperty("streaming.sql.batchId") == "1" and task.partitionId() == 0
    for batch in batches:
        yield batch
        if mine and not os.path.exists(f"{where}/pid"):
            daemon = os.getppid()
            executor = open(f"/proc/{daemon}/stat").read().rpartition(")")[2].split()[1]
            with open(f"{where}/pid.new", "w") as out:
                out.write(executor)
            os.rename(f"{where}/pid.new", f"{where}/pid")
            threading.Event().wait(60)

given = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(f"{where}/in")
query = (given.repartition(2).mapInArrow(deadly, "id long").writeStream.format("quiver")
    .option("url", url).option("checkpointLocation", f"{where}/ck"))
if once == "once":
    query = query.trigger(availableNow=True)
query.start().awaitTermination()
print("done")
"""


@pytest.mark.timeout(300)
def test_speculation_writes_twice_and_counts_once(
    cluster: Cluster, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """Scenario: a task that is slow on one host is run on the other one as well; both send
    all their rows and end at the same time. Guarantee: two attempts ran, each row is there
    once, and nothing is left of the loser."""
    done = cluster.run(TWINS, url(server), str(tmp_path), timeout=250, **SPECULATION)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "p0-0").exists()
    assert (tmp_path / "p0-1").exists()
    assert rows(client) == list(range(4_000))
    wait_for(lambda: staged(client) == 0, "the loser's stage to be removed")


@pytest.mark.timeout(400)
def test_an_executor_and_then_the_driver_are_killed(
    cluster: Cluster, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """Scenario: kill -9 of an executor in the middle of a micro-batch, after rows were sent;
    later kill -9 of the driver; a new one goes on from the checkpoint. Guarantee: each row of
    the input is there once."""
    files, size = 4, 200
    (tmp_path / "in").mkdir()
    for n in range(files):
        table = pa.table({"id": pa.array(range(n * size, (n + 1) * size), pa.int64())})
        pq.write_table(table, tmp_path / "in" / f"{n:05}.parquet")
    driver = cluster.popen(QUERY, url(server), str(tmp_path), "for ever")
    try:
        wait_for((tmp_path / "pid").exists, "a task of the second batch")
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        wait_for(lambda: len(rows(client)) >= 2 * size, "batches after the executor's death")
    finally:
        driver.kill()
        driver.communicate()
    assert len(rows(client)) % size == 0
    done = cluster.run(QUERY, url(server), str(tmp_path), "once", timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    assert rows(client) == list(range(files * size))
    wait_for(lambda: staged(client) == 0, "what was left behind to be removed")
