"""How ``spark/`` was made: a server's root and checkpoints of streaming queries, by 0.1.0.

Run by the code of 0.1.0 (see ``README.md``); needs Java.  Two queries read the stream ``in``:
``reader`` hands its batches to a function, which fails in the third; ``pipeline`` writes to the
stream ``out``, and Spark's own note of its last batch is missing, as after a crash between the
two commits.  Then more is put, and the server is killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

HERE = Path(__file__).parent
sys.path.append(str(HERE))  # behind the code of 0.1.0

import quiver  # noqa: E402

assert "/build/compat/" in quiver.__file__, quiver.__file__

from directories import TESTS, archive, load  # noqa: E402
from flight_service.client import connect  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402
from spark_client import register  # noqa: E402


def session(where):
    os.environ["PYSPARK_PYTHON"] = str(load(TESTS / "spark" / "bare.py").bare_python())
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return (
        SparkSession.builder.master("local[2,2]")
        .appName("quiver-0.1.0")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executorEnv.PYTHONSAFEPATH", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(where / "warehouse"))
        .config("spark.local.dir", str(where / "local"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def serve(root, log):
    """A server of 0.1.0 as a process of its own; it and its port."""
    settings = {"SERVER__ROOT": root, "SERVER__PORT": 0, "HTTP__PORT": 0, "RESERVE": 0}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "flight_service.server"],
        env={**os.environ, **{f"QUIVER_{name}": str(value) for name, value in settings.items()}},
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    return process, json.loads(process.stdout.readline())["flight"]


def put(stream, *numbers):
    for n in numbers:
        stream.put({"Logs": pa.record_batch({"n": pa.array([n, n + 1000], pa.int64())})},
                   key=f"in/{n}")
    stream.flush()


def main():
    out = HERE / "spark"
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        where = Path(scratch) / "streaming"
        where.mkdir()
        with open(Path(scratch) / "server.log", "w") as log:
            process, port = serve(where / "root", log)
        spark = session(Path(scratch))
        register(spark)
        url = f"quiver://127.0.0.1:{port}"
        client = connect(f"grpc://127.0.0.1:{port}")
        client.create_stream("in")
        stream = client.stream("in")
        put(stream, *range(6))

        batches = {}

        def take(frame, number):
            batches[number] = sorted(row.n for row in frame.collect())
            if number == 2:
                raise RuntimeError("the sink is down")

        def reading():
            reader = spark.readStream.format("quiver").option("slot", "Logs")
            return reader.option("maxBundlesPerTrigger", 2).load(f"{url}/in")

        query = (
            reading().writeStream.foreachBatch(take).trigger(availableNow=True)
            .option("checkpointLocation", str(where / "reader")).start()
        )
        try:
            query.awaitTermination(60)
        except Exception as error:
            assert "the sink is down" in str(error), error
        writer = reading().writeStream.format("quiver").trigger(availableNow=True)
        pipeline = writer.options(
            url=f"{url}/out", checkpointLocation=str(where / "pipeline")
        ).start()
        assert pipeline.awaitTermination(60)
        # Spark's note of the last batch is lost; the sink's commit is not.
        last = max(int(one.name) for one in (where / "pipeline/commits").iterdir()
                   if one.name.isdigit())
        for note in (where / "pipeline/commits").glob(f"*{last}*"):
            note.unlink()
        put(stream, 6, 7, 8)
        said = {
            "version": "0.1.0",
            "numbers": sorted(n for m in range(9) for n in (m, m + 1000)),
            "reader": {"tried": {str(n): rows for n, rows in batches.items()}, "failed": 2},
            "pipeline": {"app": f"spark/{pipeline.id}", "committed": last},
            "subscribers": sorted(stream.status()["subscribers"]),
            "out": sorted(n for one in client.stream("out").read()
                          for batch in dict(one).values() for n in batch.column(0).to_pylist()),
        }
        client.close()
        spark.stop()
        process.kill()
        process.wait()
        archive(where, out / "streaming.tar.xz")
        (out / "streaming.json").write_text(json.dumps(said, indent=1, sort_keys=True) + "\n")
        print(json.dumps(said), (out / "streaming.tar.xz").stat().st_size)


if __name__ == "__main__":
    main()
