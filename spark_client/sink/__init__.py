"""Writing with Spark, exactly once: ``df.write`` and ``df.writeStream`` with ``format("quiver")``.

::

    task attempt    rows ─► bundles ─► its own stage ─► finished, on the server's disk
                                                            │ Written: which attempts
    driver          commit ─► all winners' bundles appear at once  (or abort: none)

Every attempt of every task writes apart: one that fails, is killed, or runs twice by
speculation leaves nothing that anybody sees.  Spark tells the driver which attempt of each
partition won, and the driver's commit publishes those, in one step, under a name that can
be committed once only:

=========  ===================================  ==========================================
job        app                                  version
=========  ===================================  ==========================================
streaming  ``spark/<query id>``                 the batch's number
batch      ``spark/<random>``                   0
batch      the option ``app``                   the option ``version``
=========  ===================================  ==========================================

A query that is started again from its checkpoint runs its last batch once more if Spark had
not noted its end; the server answers that it has it, and nothing is written twice.  The rows
may come in another order or in other tasks than the first time: it doesn't matter.

===============  ==================================================================
plan.py          what every part of a job needs to know; all mistakes are found here
share.py         on an executor: one task attempt's rows into a stage
cutting.py       … record batches into bundles, without any I/O
closing.py       on the driver: commit and abort
writer.py        the two classes Spark knows
===============  ==================================================================
"""

from spark_client.sink.writer import batch_writer, stream_writer

__all__ = ["batch_writer", "stream_writer"]
