"""The table: what was put beside what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from examples.demo.subscribers import DURABLE_EVERY, Subscriber


def report(console: Console, put: Mapping[str, Any], subscribers: Sequence[Subscriber]) -> None:
    """One column for who put, one for each who received."""
    table = Table(title="What was put, and what is there")
    table.add_column("")
    table.add_column("put", justify="right")
    for one in subscribers:
        table.add_column(one.name, justify="right")
    table.add_row("rows", f"{put['rows']:,}", *(f"{one.received:,}" for one in subscribers))
    for name in ("lost", "doubled"):
        counts = (getattr(one, name) for one in subscribers)
        table.add_row(f"[bold]{name}", "", *(f"[bold]{count:,}" for count in counts))
    table.add_row("bundles not as put", "", *(f"{one.wrong:,}" for one in subscribers))
    table.add_row("bundles delivered again", "", *(f"{one.again:,}" for one in subscribers))
    table.add_row("connections lost", "", *(f"{one.bundles.reconnects}" for one in subscribers))
    empty = ["" for _ in subscribers]
    table.add_row(
        "MB/s, the outage included", f"{put['nbytes'] / put['seconds'] / 1e6:,.1f}", *empty
    )
    table.add_row("rows/s, the outage included", f"{put['rows'] / put['seconds']:,.0f}", *empty)
    console.print(table)
    console.print(
        "  Delivered again: acked just before the kill, and that was not on disk yet."
        f"\n  The archive makes its acks durable every {DURABLE_EVERY} bundles;"
        " ack(durable=True): none."
    )


def next_steps(console: Console) -> None:
    """Three things to try."""
    console.print(
        "\nNow try:\n"
        "  .venv/bin/quiver serve        a server of your own; then, in another shell:\n"
        "  .venv/bin/quiver put telemetry FILE.parquet && .venv/bin/quiver tail telemetry\n"
        "  make example                  a pipeline with Spark, there and back (docs/spark.md)",
        soft_wrap=True,
    )
