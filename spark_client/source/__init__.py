"""Reading with Spark: ``spark.read`` and ``spark.readStream`` with ``format("quiver")``.

::

    driver      schema   ─► union of all schemas the slot has, from the server's directories
                plan     ─► a range of bundles, cut into shares        (batch: once per frame)
    executors   each share ─► DoGet, projected by the server ─► cast ─► Spark
    streaming   offset N ─► … ─► checkpoint ─► all before it is acked for the query's subscriber

A frame's range is pinned when its first action is planned: every later action reads the same
bundles, or fails with ``expired`` if they were deleted meanwhile.  A streaming query registers
a subscriber, so that what it has not finished is held for it; positions, not claims, say how
far it got, so a restart from the checkpoint reads exactly what the checkpoint says.

===============  ==================================================================
source.py        the data source Spark knows, and :func:`register`
request.py       what is asked for, read from options once; travels to the executors
link.py          the way to the stream, made where it is used
offsets.py       positions: as options, and as a query's offsets
schema.py        one schema for a slot whose schemas drift
shares.py        a plan as partitions
batch.py         the reader of ``spark.read``
stream.py        the reader of ``spark.readStream``
progress.py      … its subscriber: registered, acked, losses noticed
fetch.py         on an executor: a share's bundles as Spark's batches
problems.py      what went wrong, and what to do about it
===============  ==================================================================
"""

from spark_client.source.source import QuiverDataSource, register

__all__ = ["QuiverDataSource", "register"]
