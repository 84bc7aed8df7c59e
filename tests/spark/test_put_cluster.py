"""Putting from a cluster: executors on two hosts, which have none of this project."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from flight_service.client import Client
from tests.spark.cluster import Cluster
from tests.wire.process import ServerProcess

SPECULATION = {
    "spark__speculation": "true",
    "spark__speculation__interval": "100ms",
    "spark__speculation__quantile": "0.25",
    "spark__speculation__multiplier": "1.1",
    "spark__speculation__minTaskRuntime": "100ms",
}

JOB = """
import json, sys
from spark_client import RECEIPTS, put_slot
url, where = sys.argv[1:]

def twins(batches):
    import importlib.util, os, threading
    from pyspark import TaskContext
    task = TaskContext.get()
    found = [name for name in ("quiver", "spark_client", "pydantic", "structlog", "numpy")
             if importlib.util.find_spec(name)]
    with open(f"{where}/p{task.partitionId()}-{task.attemptNumber()}", "w") as out:
        out.write(f"{os.environ['SPARK_LOCAL_IP']} {found}")
    for batch in batches:
        yield batch.slice(0, batch.num_rows // 2)
        while task.partitionId() == 0 and not os.path.exists(f"{where}/p0-1"):
            threading.Event().wait(0.02)
        yield batch.slice(batch.num_rows // 2)

frame = spark.range(8_000, numPartitions=8).mapInArrow(twins, "id long")
put = put_slot(url, slot="Logs", job="twins", bundle_bytes="1KiB")
receipts = frame.mapInArrow(put, RECEIPTS).collect()
print(json.dumps(sum(row.rows for row in receipts)))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_task_that_runs_twice_at_once_is_kept_once(
    cluster: Cluster, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """Scenario: speculation runs a task on the second host while the first still sends; both
    send the same rows at the same time, and neither has the project installed. Guarantee: both
    ran, on both hosts, and each row is in the stream once."""
    url = f"quiver://127.0.0.1:{server.port}/logs"
    done = cluster.run(JOB, url, str(tmp_path), timeout=250, **SPECULATION)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("8000")
    said = {path.name: path.read_text() for path in tmp_path.glob("p*-*")}
    assert {"p0-0", "p0-1"} <= set(said)
    assert set(said.values()) == {"127.0.0.2 []", "127.0.0.3 []"}

    found: Counter[int] = Counter()
    for batch in client.stream("logs").batches("Logs", ["id"]):
        found.update(batch.column("id").to_pylist())
    assert len(found) == 8_000
    assert set(found.values()) == {1}
