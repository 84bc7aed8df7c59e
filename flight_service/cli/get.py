"""``quiver get`` and ``quiver tail``: look, without a subscriber and without claiming."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from flight_service.cli.files import OutputFile, format_of
from flight_service.cli.frame import (
    EXAMPLES,
    PANEL,
    AsJson,
    Stream,
    bar,
    out,
    page,
    print_json,
    read_ref,
    read_time,
    usage,
    with_client,
)
from flight_service.cli.show import ROWS, print_bundle, print_bundle_json
from flight_service.client import Bundle, Client

GET_HELP = f"""Read bundles of a stream, or save one slot of them to a file.

Nothing changes on the server: no subscriber is needed, and none is affected.

{EXAMPLES}

  quiver get telemetry                           (the first bundles, as tables)
  quiver get telemetry --ref 12.0 --ref 12.1
  quiver get telemetry --since 15m --slot Logs --columns body,level
  quiver get telemetry --slot Logs --to logs.parquet
  quiver get telemetry --limit 0 --json | jq .key  (all of them, one line each)"""

TAIL_HELP = f"""Show bundles as they come, like tail -f. Ctrl-C ends it.

It only looks: no subscriber, nothing claimed, nothing held back for it.

{EXAMPLES}

  quiver tail telemetry
  quiver tail telemetry --slot Logs --rows 3
  quiver tail telemetry --from 12.0 --json | jq -c '.slots.Logs\\[]'"""

RefOption = Annotated[
    list[str] | None, typer.Option("--ref", help="This bundle; may be given several times.")
]
From = Annotated[str | None, typer.Option("--from", metavar="REF", help="From this ref on.")]
UpTo = Annotated[str | None, typer.Option("--to-ref", metavar="REF", help="Up to it, excluded.")]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="Taken in since; 15m is 15 minutes ago.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Taken in before.")]
Slots = Annotated[list[str] | None, typer.Option("--slot", help="Only these slots.")]
Columns = Annotated[
    str | None, typer.Option(metavar="A,B", help="Only these columns of the one slot.")
]
Limit = Annotated[int, typer.Option(min=0, help="At most so many bundles; 0: all.")]
Rows = Annotated[int, typer.Option(min=0, help="Rows shown of each slot.")]
SaveTo = Annotated[
    Path | None, typer.Option("--to", metavar="FILE", help="Save the one slot to this file.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("get", help=page(GET_HELP), rich_help_panel=PANEL)(with_client(_get))
    app.command("tail", help=page(TAIL_HELP), rich_help_panel=PANEL)(with_client(_tail))


def _get(
    client: Client,
    stream: Stream,
    ref: RefOption = None,
    first: From = None,
    last: UpTo = None,
    since: Since = None,
    until: Until = None,
    slot: Slots = None,
    columns: Columns = None,
    limit: Limit = 10,
    rows: Rows = ROWS,
    to: SaveTo = None,
    as_json: AsJson = False,
) -> int:
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    if (names is not None or to is not None) and (slot is None or len(slot) != 1):
        raise usage("which slot?", "--columns and --to are about one slot: add --slot NAME.")
    source = client.stream(stream)
    if ref:
        found: Iterator[Bundle] = iter(source.get(*[read_ref(one) for one in ref]))
    else:
        found = source.read(
            None if first is None else read_ref(first),
            None if last is None else read_ref(last),
            since=None if since is None else read_time(since),
            until=None if until is None else read_time(until),
            slots=slot,
            columns=None if names is None or slot is None else {slot[0]: names},
        )
    if to is not None and slot is not None:
        return _save(found, slot[0], to, as_json)
    _show(found, slot, limit, rows, as_json)
    return 0


def _show(
    found: Iterator[Bundle], slot: list[str] | None, limit: int, rows: int, as_json: bool
) -> None:
    """Bundles one by one; whoever asks for slots doesn't want those without."""
    wanted = (bundle for bundle in found if slot is None or len(bundle))
    for bundle in islice(wanted, limit or None):
        if as_json:
            print_bundle_json(bundle)
        else:
            print_bundle(bundle, rows)


def _save(found: Iterator[Bundle], slot: str, to: Path, as_json: bool) -> int:
    """All bundles with that slot into one file, which appears when it is whole."""
    form = format_of(str(to), None)
    rows = bundles = 0
    target: OutputFile | None = None
    try:
        with bar(quiet=as_json) as progress:
            task = progress.add_task(str(to), total=None)
            for bundle in found:
                batch = bundle.get(slot)
                if batch is None:
                    continue
                if target is None:
                    target = OutputFile(to, form, batch.schema)
                target.write(_fitting(batch, target.schema, to))
                rows, bundles = rows + batch.num_rows, bundles + 1
                progress.update(task, completed=bundles)
        if target is None:
            raise usage(f"there is nothing with a slot {slot}.")
        target.commit()
    except BaseException:
        if target is not None:
            target.discard()
        raise
    if as_json:
        print_json({"file": str(to), "bundles": bundles, "rows": rows})
    else:
        out.print(f"{rows:,} rows of {bundles:,} bundles in {to}", markup=False, soft_wrap=True)
    return 0


def _fitting(batch: pa.RecordBatch, schema: pa.Schema, to: Path) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch
    try:
        return batch.cast(schema)
    except (pa.ArrowException, ValueError, KeyError):
        raise usage(
            f"the schema changes on the way: {to} can't hold both.",
            "Take the parts apart with --from and --to-ref, or the same --columns of all.",
        ) from None


def _tail(
    client: Client,
    stream: Stream,
    first: From = None,
    slot: Slots = None,
    rows: Rows = ROWS,
    limit: Limit = 0,
    as_json: AsJson = False,
) -> int:
    source = client.stream(stream)
    live = source.tail(None if first is None else read_ref(first), slots=slot)
    _show(live, slot, limit, rows, as_json)
    return 0
