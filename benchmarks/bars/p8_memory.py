"""P8: the most memory a server ever held while 20 GiB went in and out again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bar import Bar, Pair, Scale, limit
from benchmarks.flight.processes import producers, quiver_server
from benchmarks.flight.puts import Load, Side
from flight_service.client import connect

ALLOWED_MIB = 640.0
NBYTES = 20 << 30
STREAM = "through"


@contextlib.contextmanager
def prepare(directory: Path, scale: Scale) -> Iterator[Pair]:
    load = Load(1 << 20, nbytes=NBYTES)
    whole = Scale(2, NBYTES) if not scale.is_quick else scale
    with (
        producers(1) as workers,
        quiver_server(directory / "root", calls__put_wait=30) as server,
        connect(f"grpc://127.0.0.1:{server.port}") as client,
    ):
        stream = client.create_stream(STREAM)
        stream.register("out")

        def drain(count: int) -> None:
            with stream.subscribe("out") as subscription:
                for _ in range(count):
                    bundle = subscription.next_bundle(120)
                    if bundle is None:
                        raise RuntimeError("bundles that were put did not come")
                    bundle.ack()

        def measure() -> float:
            count = load.count(whole) + load.warm(whole)
            consumer = threading.Thread(target=drain, args=(count,))
            consumer.start()
            Side(server, load, workers).turn(STREAM, whole)
            consumer.join()
            return server.peak_rss / (1 << 20)

        yield limit(measure, ALLOWED_MIB)


P8 = Bar(
    name="P8",
    what="peak memory of the server while 20 GiB go in and out",
    unit="MiB",
    reference_name="what is allowed",
    prepare=prepare,
    mark=1.0,
    goal=0.6,
    lower_is_better=True,
    repetitions=1,
)
