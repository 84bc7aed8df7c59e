"""Quiver for Spark: pipelines put into a stream and read from it.

::

    from spark_client import RECEIPTS, put_slot, register

    df.mapInArrow(put_slot("quiver://127.0.0.1:8815/telemetry", slot="Logs"), RECEIPTS)

    register(spark)
    spark.read.format("quiver").option("url", "quiver://127.0.0.1:8815/telemetry").load()

Executors need pyspark and pyarrow and nothing else: the code they run travels with the job.

===============  ==================================================================
url.py           where a stream is: ``quiver://host:port/stream``
credentials.py   who we are: tokens and certificates, never shown
options.py       every option: its name, its values, what it does; strict
kinds.py         … what an option's text may be
types.py         Arrow's types and Spark's, both ways: the rules
casting.py       … and the values
bundles.py       putting: ``put_slot``, ``put_bundles``, ``put_cogroups``, ``write_bundles``
layout.py        … which columns go into which slots
producer.py      … what runs in tasks: a window in flight, receipts out
groups.py        … the same for co-grouped frames
pieces.py        … batches cut to size
keys.py          … the same rows, the same key
receipts.py      … what comes back
failures.py      … what went wrong, for the person at the driver
source/          reading: ``spark.read`` and ``spark.readStream``
sink/            writing: ``df.write`` and ``df.writeStream``, exactly once
shipping.py      code that travels to machines on which this project isn't installed
===============  ==================================================================
"""

from spark_client.bundles import put_bundles, put_cogroups, put_slot, write_bundles
from spark_client.failures import PutFailed
from spark_client.layout import Nested
from spark_client.receipts import RECEIPTS, Summary
from spark_client.source import QuiverDataSource, register

__all__ = [
    "RECEIPTS",
    "QuiverDataSource",
    "register",
    "put_slot",
    "put_bundles",
    "put_cogroups",
    "write_bundles",
    "Nested",
    "Summary",
    "PutFailed",
]
