"""``quiver bench``: what a server does on this machine, from here."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Annotated, Any

import pyarrow as pa
import typer

from flight_service.cli.frame import (
    EXAMPLES,
    PANEL,
    AsJson,
    bar,
    out,
    page,
    print_json,
    table,
    usage,
    with_client,
)
from flight_service.client import Client, ClientError, Pending, Stream
from quiver.units import format_size, parse_size

HELP = f"""Put random bundles for a while, take them out again, and say how fast both went.

Works in a stream of its own, which is deleted afterwards. A put counts when its receipt
says durable. Figures of a shared machine vary: run it more than once.

{EXAMPLES}

  quiver bench
  quiver bench --size 1MiB --producers 4 --seconds 10
  quiver bench --json | jq .put.mb_per_s"""

Size = Annotated[str, typer.Option("--size", help="Bytes of a bundle.")]
Producers = Annotated[int, typer.Option("--producers", min=1, max=64, help="At a time.")]
Window = Annotated[int, typer.Option("--window", min=1, max=65_536, help="Bundles in flight.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.1, max=3600, help="How long to put.")]
Keep = Annotated[bool, typer.Option("--keep", help="Leave the stream there.")]


@dataclass(slots=True)
class Figures:
    """What one side did."""

    bundles: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    def add(self, other: Figures) -> None:
        """Together with another producer's."""
        self.bundles += other.bundles
        self.nbytes += other.nbytes
        self.latencies += other.latencies

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        seconds = max(self.seconds, 1e-9)
        found: dict[str, Any] = {
            "bundles": self.bundles,
            "bundles_per_s": round(self.bundles / seconds, 1),
            "mb_per_s": round(self.nbytes / seconds / 1e6, 2),
        }
        if self.latencies:
            ordered = sorted(self.latencies)
            for name, part in (("p50_ms", 0.5), ("p99_ms", 0.99)):
                at = min(len(ordered) - 1, int(len(ordered) * part))
                found[name] = round(ordered[at] * 1000, 3)
        return found


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench", help=page(HELP), rich_help_panel=PANEL)(with_client(_bench))


def _bench(
    client: Client,
    size: Size = "100KiB",
    producers: Producers = 1,
    window: Window = 64,
    seconds: Seconds = 5.0,
    keep: Keep = False,
    as_json: AsJson = False,
) -> int:
    try:
        nbytes = parse_size(size)
    except ValueError as error:
        raise usage(str(error)) from None
    name = f"bench-{secrets.token_hex(4)}"
    stream = client.create_stream(name)
    try:
        stream.register("bench")
        put = _produce(stream, _batch(nbytes), producers, window, seconds, as_json)
        get = _consume(stream, put.bundles, as_json)
    finally:
        if not keep:
            client.delete_stream(name, force=True)
    _report(name, nbytes, put, get, as_json)
    return 0


def _batch(nbytes: int) -> pa.RecordBatch:
    rows = max(1, nbytes // 8)
    noise = pa.py_buffer(secrets.token_bytes(rows * 8))
    return pa.record_batch({"value": pa.Array.from_buffers(pa.int64(), rows, [None, noise])})


def _produce(
    stream: Stream, batch: pa.RecordBatch, producers: int, window: int, seconds: float, quiet: bool
) -> Figures:
    total = Figures()
    results: list[Figures] = []
    errors: list[ClientError] = []
    stop = threading.Event()

    def work() -> None:
        try:
            results.append(_put_until(stream, batch, window, stop))
        except ClientError as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=work) for _ in range(producers)]
    began = time.monotonic()
    with bar(quiet=quiet) as progress:
        task = progress.add_task("putting", total=int(seconds * 10))
        for thread in threads:
            thread.start()
        for _ in range(int(seconds * 10)):
            progress.advance(task)
            if stop.wait(0.1):
                break
        stop.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    for one in results:
        total.add(one)
    total.seconds = time.monotonic() - began
    return total


def _put_until(
    stream: Stream, batch: pa.RecordBatch, window: int, stop: threading.Event
) -> Figures:
    """Put with a full window; the latency of each bundle, as its producer sees it."""
    figures = Figures()
    waiting: deque[tuple[float, Pending]] = deque()
    with stream.writer(window=window) as writer:
        while not stop.is_set():
            if len(waiting) >= window:
                _take_oldest(waiting, figures)
            waiting.append((time.monotonic(), writer.put({"Bench": batch})))
        while waiting:
            _take_oldest(waiting, figures)
        figures.bundles, figures.nbytes = writer.stats.bundles, writer.stats.nbytes
    return figures


def _take_oldest(waiting: deque[tuple[float, Pending]], figures: Figures) -> None:
    sent, pending = waiting.popleft()
    pending.result()
    figures.latencies.append(time.monotonic() - sent)


def _consume(stream: Stream, bundles: int, quiet: bool) -> Figures:
    figures = Figures()
    began = time.monotonic()
    with bar(quiet=quiet) as progress, stream.subscribe("bench", follow=False) as received:
        task = progress.add_task("receiving", total=bundles)
        for bundle in received:
            figures.nbytes += bundle["Bench"].nbytes
            figures.bundles += 1
            bundle.ack()
            progress.advance(task)
        received.flush(durable=True)
    figures.seconds = time.monotonic() - began
    return figures


def _report(name: str, size: int, put: Figures, get: Figures, as_json: bool) -> None:
    sides = {"put": put.as_dict(), "receive": get.as_dict()}
    if as_json:
        print_json({"stream": name, "bundle_bytes": size, **sides})
        return
    made = table(f"{format_size(size)} bundles", "bundles", "bundles/s", "MB/s", "p50", "p99")
    for side, found in sides.items():
        delays = [f"{found[key]:,.1f} ms" if key in found else "" for key in ("p50_ms", "p99_ms")]
        made.add_row(
            side,
            f"{found['bundles']:,}",
            f"{found['bundles_per_s']:,.0f}",
            f"{found['mb_per_s']:,.1f}",
            *delays,
        )
    out.print(made)
