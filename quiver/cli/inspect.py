"""``quiver inspect``."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from rich.table import Table

from quiver.cli.frame import (
    Answer,
    AsJson,
    Directory,
    StoreDirectory,
    bullets,
    code_for,
    exit_with,
    for_each_store,
    help_text,
    out,
    show_newer,
    stores,
)
from quiver.clock import SystemClock
from quiver.offline.summary import SegmentRow, StoreSummary, summarize
from quiver.units import format_duration, format_size

HEAD: Final = 5
TAIL: Final = 15
"""Segments shown at either end when there are many."""

HELP = help_text(
    "Show what is in a store: files, segments, bundles, subscribers, lag, bytes.",
    "A quick look: reads the log and the tables of the segments. To check every byte, use"
    " [bold]quiver verify[/bold].",
    examples=[
        ("quiver inspect ./telemetry", ""),
        ("quiver inspect ./quiver-data", "all streams of a server"),
        ("quiver inspect ./telemetry --json", "for programs"),
    ],
)

All = Annotated[bool, typer.Option("--all", help="List every segment and every file.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("inspect", help=HELP)(exit_with(_inspect))


def _inspect(directory: Directory, as_json: AsJson = False, everything: All = False) -> int:
    def run(store: StoreDirectory) -> Answer[StoreSummary]:
        summary = summarize(store.disk, SystemClock())
        return Answer(
            summary, code_for(summary), lambda: {"sound": summary.sound, **asdict(summary)}
        )

    def show(store: StoreDirectory, summary: StoreSummary) -> None:
        _show(store, summary, everything)

    return for_each_store(stores(directory), run, show, as_json=as_json)


def _show(store: StoreDirectory, summary: StoreSummary, everything: bool) -> None:
    out.print(
        f"{store.path}: {summary.bundles:,} bundles, {summary.rows:,} rows,"
        f" {format_size(summary.bytes)} on disk; written by {summary.written_by}",
        markup=False,
        soft_wrap=True,
    )
    if summary.slots:
        names = ", ".join(f"{name} = {slot}" for name, slot in sorted(summary.slots.items()))
        out.print(f"slots: {names}", markup=False, soft_wrap=True)
    tables = (
        _segments(summary, everything),
        _log(summary),
        _stages(summary, everything),
        _transactions(summary, everything),
        _subscribers(summary),
    )
    for table in tables:
        if table.row_count:
            out.print(table)
    if everything:
        out.print(_files(summary))
    if summary.losses:
        out.print("on record as lost, dropped or rejected:")
        bullets(
            f"{_when(loss.at_ns)}: {'' if loss.exact else 'at most '}{loss.bundles:,} bundles of"
            f" segment {loss.segment_seq},"
            f" {loss.reason}"
            for loss in summary.losses
        )
    if summary.problems:
        out.print("[red]damaged[/red]:")
        bullets(summary.problems)
    show_newer(summary)
    if summary.notes:
        out.print("worth knowing:")
        bullets(summary.notes)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _segments(summary: StoreSummary, everything: bool) -> Table:
    table = _table("segments", "number", "state", "bundles", "rows", "size", "sequences", "newest")
    rows = list(summary.segments)
    skipped = 0 if everything else max(0, len(rows) - HEAD - TAIL)
    if skipped:
        rows = [*rows[:HEAD], *rows[-TAIL:]]
    for number, row in enumerate(rows):
        if skipped and number == HEAD:
            table.add_row("…", f"{skipped:,} more", "", "", "", "", "")
        _add_segment(table, row)
    return table


def _add_segment(table: Table, row: SegmentRow) -> None:
    sequences = (
        "" if row.first_sequence is None else f"{row.first_sequence:,} to {row.last_sequence:,}"
    )
    table.add_row(
        str(row.segment),
        row.state,
        f"{row.bundles:,}",
        f"{row.rows:,}",
        format_size(row.bytes),
        sequences,
        _when(row.last_ts_ns),
    )


def _log(summary: StoreSummary) -> Table:
    table = _table("log", "file", "state", "entries", "bundles", "size", "next sequence")
    for row in summary.log:
        table.add_row(
            row.file,
            row.state,
            f"{row.entries:,}",
            f"{row.bundles:,}",
            format_size(row.bytes),
            f"{row.next_sequence:,}",
        )
    return table


def _stages(summary: StoreSummary, everything: bool) -> Table:
    table = _table("staged writes", "app", "version", "attempt", "state", "bundles", "size", "when")
    for row in summary.stages if everything else summary.stages[:TAIL]:
        table.add_row(
            row.app,
            str(row.version),
            row.attempt,
            row.state,
            f"{row.bundles:,}",
            format_size(row.bytes),
            _when(row.written_ns),
        )
    return table


def _transactions(summary: StoreSummary, everything: bool) -> Table:
    table = _table("committed", "app", "version", "segments", "bundles", "rows", "when")
    for row in summary.transactions if everything else summary.transactions[-TAIL:]:
        table.add_row(
            row.app,
            str(row.version),
            f"{row.segments:,}",
            f"{row.bundles:,}",
            f"{row.rows:,}",
            _when(row.ts_ns),
        )
    return table


def _subscribers(summary: StoreSummary) -> Table:
    table = _table("subscribers", "name", "acked", "dropped", "behind", "rows", "size", "age")
    for row in summary.subscribers:
        age = "" if row.lag_seconds is None else format_duration(row.lag_seconds)
        table.add_row(
            row.name if row.problem is None else f"{row.name} (damaged)",
            f"{row.acked:,}",
            f"{row.dropped:,}",
            f"{row.lag_bundles:,}",
            f"{row.lag_rows:,}",
            format_size(row.lag_bytes),
            age,
        )
    return table


def _files(summary: StoreSummary) -> Table:
    table = _table("files", "file", "size")
    for row in summary.files:
        table.add_row(row.file, format_size(row.bytes))
    return table


def _when(ns: int | None) -> str:
    if ns is None:
        return ""
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
