"""``quiver put``."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from flight_service.cli.files import STDIN, InputFile, format_of
from flight_service.cli.frame import (
    EXAMPLES,
    PANEL,
    AsJson,
    Stream,
    bar,
    out,
    page,
    print_json,
    usage,
    with_client,
)
from flight_service.client import Client, Writer
from quiver.units import format_size

ROWS: Final = 10_000
DIGEST_CHUNK: Final = 1 << 20

HELP = f"""Put files into a stream, and return once everything is on the server's disk.

Parquet, Arrow, CSV and JSON lines, by the file's ending. Every bundle has a key made of
the file's content and its place in it: the same file put twice is kept once, so a put that
was interrupted can simply be run again.

{EXAMPLES}

  quiver put telemetry logs.parquet --slot Logs
  quiver put telemetry day-*.csv --slot Logs --rows 50000
  zcat logs.jsonl.gz | quiver put telemetry - --format jsonl
  quiver put telemetry logs.parquet --attr host=web-1 --attr run=42
  quiver put telemetry logs.parquet --again        (keep it a second time)"""

Files = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="What to put; - is standard input.")
]
Slot = Annotated[str, typer.Option("--slot", help="The slot the rows are for.")]
Rows = Annotated[int, typer.Option("--rows", min=1, max=10_000_000, help="Rows in a bundle.")]
Format = Annotated[
    str | None,
    typer.Option("--format", help="parquet, arrow, arrows, csv or jsonl; else by the ending."),
]
Attr = Annotated[
    list[str] | None,
    typer.Option("--attr", metavar="NAME=VALUE", help="Kept with each bundle.", show_default=False),
]
Again = Annotated[bool, typer.Option("--again", help="Keep it even if it is there already.")]
Window = Annotated[int, typer.Option("--window", min=1, max=65_536, help="Bundles in flight.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("put", help=page(HELP), rich_help_panel=PANEL)(with_client(_put))


def _put(
    client: Client,
    stream: Stream,
    files: Files,
    slot: Slot = "Logs",
    rows: Rows = ROWS,
    form: Format = None,
    attr: Attr = None,
    again: Again = False,
    window: Window = 256,
    as_json: AsJson = False,
) -> int:
    sources = [InputFile(path, format_of(path, form), rows) for path in files]
    attributes = dict(_attribute(one) for one in attr or [])
    began = time.monotonic()
    total = 0
    with client.stream(stream).writer(window=window) as writer, bar(quiet=as_json) as progress:
        for source in sources:
            task = progress.add_task(source.path, total=source.total_rows)
            total += _put_file(writer, source, slot, attributes, again, progress, task)
    _report(writer, stream, total, time.monotonic() - began, as_json)
    return 0


def _put_file(
    writer: Writer,
    source: InputFile,
    slot: str,
    attributes: dict[str, str],
    again: bool,
    progress: Any,
    task: Any,
) -> int:
    prefix = None if again or source.path == STDIN else _digest(Path(source.path))
    rows = 0
    for number, batch in enumerate(source.batches()):
        # How the file is cut is part of what makes a bundle the same.
        key = None if prefix is None else f"file/{prefix}/{slot}/{rows}+{batch.num_rows}"
        writer.put({slot: batch}, key=key, attributes=attributes or None)
        rows += batch.num_rows
        progress.update(task, completed=rows, description=f"{source.path} ({number + 1:,} bundles)")
    return rows


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            while chunk := file.read(DIGEST_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise usage(f"{path} can't be read: {error.strerror}.") from None
    return digest.hexdigest()


def _attribute(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise usage(f"{text!r} is not an attribute.", "Write --attr NAME=VALUE.")
    return name, value


def _report(writer: Writer, stream: str, rows: int, seconds: float, as_json: bool) -> None:
    stats = writer.stats
    if as_json:
        print_json(
            {
                "stream": stream,
                "bundles": stats.bundles,
                "duplicates": stats.duplicates,
                "rows": rows,
                "bytes": stats.nbytes,
                "seconds": round(seconds, 3),
            }
        )
        return
    rate = format_size(int(stats.nbytes / max(seconds, 1e-9)))
    known = f", {stats.duplicates:,} of them known already" if stats.duplicates else ""
    out.print(
        f"{stats.bundles:,} bundles, {rows:,} rows, {format_size(stats.nbytes)} durable"
        f" in {seconds:.1f} s ({rate}/s){known}",
        soft_wrap=True,
    )
