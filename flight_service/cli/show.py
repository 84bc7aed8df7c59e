"""Bundles for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from rich.table import Table

from flight_service.cli.frame import out, print_line, table
from flight_service.client import Bundle
from quiver.units import format_size

ROWS: Final = 10
WIDTH: Final = 60
COLUMNS: Final = 8


def time_of(ns: int | None) -> str:
    """A time for people."""
    if ns is None:
        return ""
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")


def describe(bundle: Bundle) -> dict[str, Any]:
    """A bundle without its data, for JSON."""
    return {
        "ref": str(bundle.ref),
        "sequence": bundle.sequence,
        "time": time_of(bundle.ingestion_ts_ns),
        "ingestion_ts_ns": bundle.ingestion_ts_ns,
        "key": bundle.key,
        "attributes": dict(bundle.attributes),
        "rows": bundle.rows,
        "bytes": bundle.nbytes,
    }


def print_bundle_json(bundle: Bundle) -> None:
    """A bundle with its data, in one line."""
    slots = {slot: batch.to_pylist() for slot, batch in bundle.items()}
    print_line({**describe(bundle), "slots": slots})


def print_bundle(bundle: Bundle, rows: int) -> None:
    """A bundle as a table per slot, the first rows of each."""
    head = (
        f"[bold]{bundle.ref}[/bold]  {time_of(bundle.ingestion_ts_ns)}  "
        f"{bundle.rows:,} rows, {format_size(bundle.nbytes)}"
    )
    out.print(head, soft_wrap=True)
    if bundle.attributes:
        told = "  ".join(f"{name}={value}" for name, value in bundle.attributes.items())
        out.print(f"  {told}", markup=False, soft_wrap=True)
    for slot, batch in bundle.items():
        out.print(f"  {slot}", style="cyan", markup=False)
        if rows:
            out.print(rows_of(batch, rows))
        if batch.num_rows > rows:
            out.print(f"  … {batch.num_rows - rows:,} more rows", style="dim")


def rows_of(batch: pa.RecordBatch, rows: int) -> Table:
    """The first rows of a batch; wide ones are cut."""
    names = batch.schema.names[:COLUMNS]
    made = table(*names)
    for row in batch.slice(0, rows).select(list(range(len(names)))).to_pylist():
        made.add_row(*(_cell(value) for value in row.values()))
    if len(batch.schema) > COLUMNS:
        made.caption = f"and {len(batch.schema) - COLUMNS} more columns"
    return made


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    text = text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
    return text.replace("[", r"\[")


def lag_row(name: str, lag: Mapping[str, Any]) -> list[str]:
    """A subscriber's lag as a row."""
    return [
        name,
        f"{lag['bundles']:,}",
        f"{lag['rows']:,}",
        format_size(lag["nbytes"]),
        f"{lag['age_seconds']:,.0f} s",
    ]
