"""The Python client: pyarrow and the standard library, nothing else.

::

    from flight_service.client import connect

    with connect("grpc://127.0.0.1:8815") as q:
        telemetry = q.stream("telemetry")
        with telemetry.writer() as w:
            for number, batch in enumerate(batches):
                w.put({"Logs": batch}, key=f"{job}/{number}")
        for bundle in telemetry.subscribe("exporter"):
            ship(bundle["Logs"])
            bundle.ack()

A put that has its receipt is on the server's disk.  A bundle that was acked is not
delivered again, one that was not is.  Lost connections and restarts of the server are the
client's business, not yours: it tries again until its :class:`Retry` gives up.

===============  ================================================================
session.py       :func:`connect` and :class:`Client`: the server as a whole
stream.py        :class:`Stream`: one stream, all its words
writer.py        putting with a window in flight, and again after a failure
outbox.py        … which bundles are where, without any I/O
pending.py       … what goes in, and the promise of a receipt
put_stream.py    … one DoPut call
staging.py       a share of a transaction: written apart, published by its commit
subscription.py  receiving: iterate, ack
feed.py          … the threads behind it, and reconnecting
outcomes.py      … what was said and is not confirmed, without any I/O
call.py          … one DoExchange call
reading.py       looking without claiming
parts.py         … a share of a plan, by ref, whatever the connection does
bundle.py        bundles in a reader's hands
connection.py    addresses, identity, single calls
retry.py         how long to wait, when to give up
errors.py        every error, as one tree
===============  ================================================================
"""

from flight_service.client.bundle import Bundle, Delivered
from flight_service.client.errors import (
    AccessDenied,
    Backpressure,
    BadRequest,
    ClientError,
    Closed,
    Disconnected,
    Expired,
    Forked,
    NotFound,
    Rejected,
    Rejection,
    ServerFault,
    Timeout,
    Unavailable,
)
from flight_service.client.pending import Pending, Receipt, WriterStats
from flight_service.client.retry import Retry
from flight_service.client.session import Client, connect
from flight_service.client.staging import Staged, StageWriter
from flight_service.client.stream import Lag, Stream
from flight_service.client.subscription import Subscription
from flight_service.client.writer import Writer
from flight_service.protocol.names import Ref

__all__ = [
    "connect",
    "Client",
    "Stream",
    "Writer",
    "WriterStats",
    "StageWriter",
    "Staged",
    "Pending",
    "Receipt",
    "Subscription",
    "Bundle",
    "Delivered",
    "Lag",
    "Ref",
    "Retry",
    "ClientError",
    "Unavailable",
    "Disconnected",
    "Backpressure",
    "Timeout",
    "AccessDenied",
    "NotFound",
    "Expired",
    "BadRequest",
    "Rejected",
    "Rejection",
    "ServerFault",
    "Closed",
    "Forked",
]
