"""Quiver beside others that keep messages: NATS JetStream and Redis Streams.

The same rows in the same batches go in through one or four producers and out to one
consumer that acks everything, at the same time.  A message counts as sent when the server
has synced it to the disk, on all sides.  Each peer is used as its makers recommend: their
own Python client, messages in flight without waiting for each answer, batched reads.

==============  ==========================================================================
``peer.py``     what a peer offers to be measured: a server, a producer, a consumer
``quiver.py``   Quiver as it is shipped
``nats.py``     JetStream, file storage, ``sync_interval: always``
``redis.py``    Streams, ``appendonly yes``, ``appendfsync always``
``measure.py``  one run: processes, clocks, processor time, bytes on disk
``run.py``      ``make peers``: all of them, a table, ``results.json``
==============  ==========================================================================

Kafka is not here: it needs a JVM and a broker of its own, and is compared elsewhere.
"""
