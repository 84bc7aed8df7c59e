"""``quiver streams``, ``quiver subscribers`` and ``quiver lag``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flight_service.cli.frame import (
    EXAMPLES,
    PANEL,
    AsJson,
    Stream,
    out,
    page,
    print_json,
    read_start,
    table,
    usage,
    with_client,
)
from flight_service.cli.show import lag_row
from flight_service.client import Client
from quiver.config.sources import read_file
from quiver.units import format_size

STREAMS_HELP = f"""List the streams of a server; make or delete one.

{EXAMPLES}

  quiver streams
  quiver streams --create telemetry
  quiver streams --create telemetry --settings telemetry.yaml
  quiver streams --delete telemetry --yes
  quiver streams --json | jq -r '.\\[].name'"""

SUBSCRIBERS_HELP = f"""List the subscribers of a stream; add, move or remove one.

A subscriber that is known holds data until it has finished it, whether it is there or not.

{EXAMPLES}

  quiver subscribers telemetry
  quiver subscribers telemetry --add archive --start latest
  quiver subscribers telemetry --seek archive --start 2h     (have the last two hours again)
  quiver subscribers telemetry --remove archive --yes"""

LAG_HELP = f"""Show how far the subscribers of a stream are behind.

{EXAMPLES}

  quiver lag telemetry
  quiver lag telemetry --subscriber exporter --json | jq .exporter.bundles
  quiver lag telemetry --most 10000     (exit code 1 if one is further behind: for alerts)"""

Create = Annotated[str | None, typer.Option("--create", metavar="NAME", help="Make this stream.")]
Delete = Annotated[
    str | None, typer.Option("--delete", metavar="NAME", help="Delete it with all its data.")
]
SettingsFile = Annotated[
    Path | None, typer.Option("--settings", metavar="FILE", help="Its settings: YAML or TOML.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it.")]
Force = Annotated[bool, typer.Option("--force", help="Even if subscribers have not finished.")]
Add = Annotated[str | None, typer.Option("--add", metavar="NAME", help="Make it known.")]
Remove = Annotated[str | None, typer.Option("--remove", metavar="NAME", help="Forget it.")]
SeekOption = Annotated[
    str | None, typer.Option("--seek", metavar="NAME", help="Make it go on from --start.")
]
Start = Annotated[str, typer.Option(help="earliest, latest, a ref, or a time.")]
One = Annotated[str | None, typer.Option("--subscriber", metavar="NAME", help="Only this one.")]
Most = Annotated[
    int | None, typer.Option("--most", min=0, help="Exit with 1 if one has more bundles to go.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("streams", help=page(STREAMS_HELP), rich_help_panel=PANEL)(with_client(_streams))
    app.command("subscribers", help=page(SUBSCRIBERS_HELP), rich_help_panel=PANEL)(
        with_client(_subscribers)
    )
    app.command("lag", help=page(LAG_HELP), rich_help_panel=PANEL)(with_client(_lag))


def _streams(
    client: Client,
    create: Create = None,
    delete: Delete = None,
    settings: SettingsFile = None,
    force: Force = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    if create is not None:
        client.create_stream(create, _settings(settings))
    if delete is not None:
        if not yes:
            raise usage(
                f"{delete} and all its data would be deleted.", "Say --yes if that is meant."
            )
        client.delete_stream(delete, force=force)
    found = client.streams()
    if as_json:
        print_json(found)
        return 0
    states = client.status()["streams"]
    rows = [_stream_row(one["name"], states.get(one["name"], {"state": "?"})) for one in found]
    if rows:
        out.print(table("stream", "state", "bundles", "on disk", "subscribers", rows=rows))
    else:
        out.print("no streams yet: a put makes one")
    return 0


def _settings(path: Path | None) -> dict[str, Any] | None:
    return None if path is None else read_file(path)


def _stream_row(name: str, status: dict[str, Any]) -> list[str]:
    if "bundles" not in status:
        return [name, str(status["state"]), "", "", ""]
    return [
        name,
        str(status["state"]),
        f"{status['bundles']:,}",
        format_size(status["usage"]["on_disk"]),
        f"{len(status['subscribers']):,}",
    ]


def _subscribers(
    client: Client,
    stream: Stream,
    add: Add = None,
    remove: Remove = None,
    seek: SeekOption = None,
    start: Start = "earliest",
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    target = client.stream(stream)
    if add is not None:
        target.register(add, read_start(start))
    if seek is not None:
        target.seek(seek, read_start(start))
    if remove is not None:
        lag = target.lag(remove)
        if not yes:
            raise usage(
                f"{remove} would be forgotten; it has {lag.bundles:,} bundles to go.",
                "Say --yes if that is meant.",
            )
        target.unregister(remove)
    found: dict[str, Any] = target.status()["subscribers"]
    if as_json:
        print_json(found)
        return 0
    made = table("subscriber", "status", "behind", "bytes", "age", "in flight", "consumers")
    for name, one in sorted(found.items()):
        lag_, delivery = one["lag"], one.get("delivery") or {}
        made.add_row(
            name,
            str(one["status"]) if not delivery.get("blocked") else "blocked",
            f"{lag_['bundles']:,}",
            format_size(lag_["nbytes"]),
            f"{lag_['age_seconds']:,.0f} s",
            f"{delivery.get('in_flight', 0):,}",
            ", ".join(delivery.get("consumers", [])),
        )
    out.print(made if found else "no subscribers yet: quiver subscribe makes one")
    return 0


def _lag(
    client: Client,
    stream: Stream,
    subscriber: One = None,
    most: Most = None,
    as_json: AsJson = False,
) -> int:
    lags = client.stream(stream).lags(subscriber)
    plain = {
        name: {
            "bundles": lag.bundles,
            "rows": lag.rows,
            "nbytes": lag.nbytes,
            "age_seconds": lag.age_seconds,
        }
        for name, lag in sorted(lags.items())
    }
    if as_json:
        print_json(plain)
    else:
        rows = [lag_row(name, one) for name, one in plain.items()]
        out.print(table("subscriber", "bundles", "rows", "bytes", "age", rows=rows))
    late = most is not None and any(lag.bundles > most for lag in lags.values())
    return 1 if late else 0
