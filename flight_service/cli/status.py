"""``quiver status``: one look, or a live view."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from flight_service.cli.frame import (
    EXAMPLES,
    PANEL,
    AsJson,
    out,
    page,
    print_json,
    print_line,
    table,
    with_client,
)
from flight_service.client import Client, ClientError
from quiver.units import format_duration, format_size

MIN_EVERY: Final = 0.1
HELP = f"""Show how a server is doing: streams, rates, disk, and who is behind.

{EXAMPLES}

  quiver status
  quiver status --watch                       (a live view; Ctrl-C ends it)
  quiver status --json | jq .server.health
  quiver status --watch --json --every 10     (one line each ten seconds)"""

WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Go on, for ever.")]
Every = Annotated[float, typer.Option("--every", min=MIN_EVERY, help="Seconds between two looks.")]
Count = Annotated[int, typer.Option("--count", min=0, help="So many looks; 0: for ever.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("status", help=page(HELP), rich_help_panel=PANEL)(with_client(_status))


def _status(
    client: Client,
    watch: WatchOption = False,
    every: Every = 1.0,
    count: Count = 0,
    as_json: AsJson = False,
) -> int:
    if watch:
        return _watch(client, every, count, as_json)
    report = client.status()
    if as_json:
        print_json(report)
    else:
        out.print(view(client.location, report, None, 0.0))
    return 0 if report["server"]["health"] == "ok" else 1


def _watch(client: Client, every: float, count: int, as_json: bool) -> int:
    """Look again and again; a server that goes away is waited for."""
    last: dict[str, Any] | None = None
    last_at = time.monotonic()
    looks = 0
    with Live(console=out, auto_refresh=False, screen=False) as live:
        while True:
            began = time.monotonic()
            try:
                report = client.status()
            except ClientError as error:
                if not error.retryable:
                    raise
                live.update(Text(f"{client.location}: {error.message}"), refresh=not as_json)
            else:
                if as_json:
                    print_line(report)
                else:
                    live.update(view(client.location, report, last, began - last_at), refresh=True)
                last, last_at = report, began
            looks += 1
            if looks == count:
                return 0
            client.pause(max(0.0, began + every - time.monotonic()))


def view(
    location: str, report: dict[str, Any], last: dict[str, Any] | None, seconds: float
) -> Group:
    """A report for people; with an earlier one, rates too."""
    server = report["server"]
    colour = {"ok": "green", "recovering": "yellow", "draining": "yellow"}.get(
        server["health"], "red"
    )
    uptime = format_duration(float(round(server["uptime_seconds"])))
    head = Text.assemble(
        (location, "bold"),
        f"  {server['version']}  up {uptime}  ",
        (server["health"], colour),
        f"  {server['open_streams']:,} of {server['streams']:,} streams open",
    )
    parts: list[Any] = [head, Text()]
    before = last["streams"] if last is not None else {}
    streams = report["streams"]
    made = table("stream", "state", "bundles", "in/s", "on disk", "log")
    for name, one in sorted(streams.items()):
        made.add_row(name, *_stream_cells(one, before.get(name), seconds))
    parts.append(made if streams else Text("no streams yet: a put makes one"))
    behind = table("subscriber", "behind", "bytes", "age", "done/s", "in flight")
    for name, one in sorted(streams.items()):
        for who, it in sorted(one.get("subscribers", {}).items()):
            behind.add_row(f"{name}/{who}", *_subscriber_cells(one, it, before.get(name), seconds))
    if behind.row_count:
        parts += [Text(), behind]
    parts += [Text(line) for name, one in sorted(streams.items()) if (line := _staged(name, one))]
    for name, one in sorted(streams.items()):
        told = [*one.get("problems", []), *([one["problem"]] if "problem" in one else [])]
        parts += [Text(f"{name}: {problem}", "red") for problem in told]
    return Group(*parts)


def _staged(name: str, stream: dict[str, Any]) -> str:
    """What is staged and neither committed nor aborted, if anything is."""
    stages = stream.get("stages") or {}
    if not stages.get("attempts"):
        return ""
    seconds = max(0.0, round((time.time_ns() - stages["oldest_ns"]) / 1e9))
    return (
        f"{name}: {stages['attempts']:,} attempts of {stages['transactions']:,} transactions are"
        f" staged ({format_size(stages['nbytes'])}, {stages['open']:,} being written), the oldest"
        f" for {format_duration(seconds)}"
    )


def _stream_cells(
    now: dict[str, Any], before: dict[str, Any] | None, seconds: float
) -> tuple[str, ...]:
    if "bundles" not in now:
        return str(now["state"]), "", "", "", ""
    rate = ""
    if before is not None and "next_sequence" in before and seconds > 0:
        rate = f"{(now['next_sequence'] - before['next_sequence']) / seconds:,.0f}"
    log = now.get("log") or {}
    cap = f" of {format_size(now['cap'])}" if now.get("cap") else ""
    return (
        str(now["state"]),
        f"{now['bundles']:,}",
        rate,
        f"{format_size(now['usage']['on_disk'])}{cap}",
        format_size(log.get("nbytes", 0)),
    )


def _subscriber_cells(
    stream: dict[str, Any], now: dict[str, Any], before: dict[str, Any] | None, seconds: float
) -> tuple[str, ...]:
    rate = ""
    earlier = (before or {}).get("subscribers", {}).get(now["name"])
    if earlier is not None and before is not None and seconds > 0:
        came = stream["next_sequence"] - before["next_sequence"]
        done = came - (now["lag"]["bundles"] - earlier["lag"]["bundles"])
        rate = f"{max(0, done) / seconds:,.0f}"
    delivery = now.get("delivery") or {}
    in_flight = "blocked" if delivery.get("blocked") else f"{delivery.get('in_flight', 0):,}"
    lag = now["lag"]
    return (
        f"{lag['bundles']:,}",
        format_size(lag["nbytes"]),
        format_duration(float(round(lag["age_seconds"]))),
        rate,
        in_flight,
    )
