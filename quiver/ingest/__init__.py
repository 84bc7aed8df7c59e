"""A put under the ingest lock: its place, its receipt, and whether there is capacity for it.

::

    prepared ──► Ingest.stage ──► key known? ──► the log, the open segment ──► Receipt

:mod:`quiver.store.puts` is the whole way of a put; this package is the part below it, which
knows the log, the segments and the keys, and no upkeep.

=================  =================================================================
``ingest``         a sequence, a ref and a place in the log, all or nothing
``receipt``        the answer to a put, which becomes durable or fails
``seal_wait``      waiting for segments where there is no log
``disk_budget``    how many bytes stores may use together, and each store's share
``memory_budget``  how much memory open segments may use together
``parts``          the parts of one store as one value
=================  =================================================================
"""
