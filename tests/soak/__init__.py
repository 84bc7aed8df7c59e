"""The long run: ingest, deliver, ack, evict, restart, and nothing that grows.

==============  ========================================================================
``life``        a store kept busy by threads, closed and reopened again and again
``samples``     descriptors, memory, threads and disk bytes over time; are they flat?
``picture``     the same as a PNG
``__main__``    ``python -m tests.soak --minutes 60``, which is ``make soak MINUTES=60``
==============  ========================================================================
"""
