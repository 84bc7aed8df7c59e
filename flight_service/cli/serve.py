"""``quiver serve`` and ``quiver token``."""

from __future__ import annotations

import secrets
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from flight_service.cli.frame import (
    EXAMPLES,
    PANEL,
    AsJson,
    err,
    exit_with,
    out,
    page,
    print_json,
    table,
    usage,
)
from flight_service.cli.logs import configure
from flight_service.server import Server, Settings
from flight_service.server.auth import hash_token
from flight_service.server.process import tune_process
from flight_service.server.settings import service_settings
from quiver.config.model import settings as store_settings
from quiver.config.sources import NESTING, parse_text

RECOVERY_LOOK: Final = 0.1
TOKEN_BYTES: Final = 32

HELP = f"""Run a server: Flight for data, HTTP for health and metrics.

No file is needed: everything has a default, and every setting has one name, in the file
(YAML or TOML), in the environment (QUIVER_WAL__MAX_SIZE) and here (--set wal.max_size=…).
What is here counts most, then the environment, then the file. Ctrl-C or SIGTERM: what is
in flight is answered, everything is written, then it ends.

{EXAMPLES}

  quiver serve                                 (./quiver-data, 127.0.0.1:8815)
  quiver serve --root /var/lib/quiver --config /etc/quiver.yaml
  quiver serve --set wal.max_size=1GiB --set retention.size_cap=100GiB
  quiver serve --host 0.0.0.0 --set tls.cert=c.pem --set tls.key=k.pem --set auth.file=a.yaml
  quiver serve --settings                      (list every setting and end)"""

TOKEN_HELP = f"""Make a token, and what the server's auth.file has to say about it.

The token is shown once and kept nowhere; the file holds only its hash.

{EXAMPLES}

  quiver token
  quiver token --json | jq -r .token > ~/.quiver-token"""

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings: YAML or TOML.")
]
Root = Annotated[str | None, typer.Option("--root", metavar="DIR", help="Where streams are kept.")]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[int | None, typer.Option("--port", help="Port of Flight; 0: any free one.")]
HttpPort = Annotated[int | None, typer.Option("--http-port", help="Port of HTTP; 0: any.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No TLS or tokens, though others can reach it.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting.", show_default=False),
]
Log = Annotated[str, typer.Option("--log", help="human or json, on standard error.")]
Name = Annotated[str, typer.Option("--name", help="Of the principal, for the file.")]
List = Annotated[bool, typer.Option("--settings", help="List every setting and end.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("serve", help=page(HELP), rich_help_panel=PANEL)(exit_with(_serve))
    app.command("token", help=page(TOKEN_HELP), rich_help_panel=PANEL)(exit_with(_token))


def _serve(
    config: Config = None,
    root: Root = None,
    host: Host = None,
    port: Port = None,
    http_port: HttpPort = None,
    insecure: Insecure = False,
    settings: SetOption = None,
    log: Log = "human",
    show: List = False,
    as_json: AsJson = False,
) -> int:
    if show:
        return _show_settings(as_json)
    given = {
        "server.root": root,
        "server.host": host,
        "server.port": port,
        "http.port": http_port,
        "server.insecure": insecure or None,
    }
    named = {name: value for name, value in given.items() if value is not None}
    named.update(_setting(one) for one in settings or [])
    overrides: dict[str, Any] = {name.replace(".", NESTING): value for name, value in named.items()}
    loaded = Settings.load(config, **overrides)
    configure(log)
    tune_process()
    server = Server(loaded)
    return server.run(lambda one: _announce(one, loaded, as_json))


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise usage(f"{text!r} is not a setting.", "Write --set wal.max_size=1GiB.")
    return name, parse_text(value)


def _announce(server: Server, settings: Settings, as_json: bool) -> None:
    """Where it is, and how far the start has got; never in the way of serving."""
    scheme = "grpc+tls" if settings.tls.cert is not None else "grpc"
    flight = f"{scheme}://{settings.server.host}:{server.port}"
    http = None if server.http_port is None else f"http://{settings.http.host}:{server.http_port}"
    if as_json:
        print_json({"flight": flight, "http": http, "root": settings.server.root})
        sys.stdout.flush()
    else:
        out.print(f"[bold]{flight}[/bold]  serving {settings.server.root}", soft_wrap=True)
        if http is not None:
            out.print(f"{http}  /healthz /readyz /metrics /status", soft_wrap=True)
    threading.Thread(target=_show_recovery, args=[server, as_json], daemon=True).start()


def _show_recovery(server: Server, quiet: bool) -> None:
    overview = server.overview
    with Progress(
        TextColumn("recovering streams"),
        BarColumn(),
        MofNCompleteColumn(),
        console=err,
        transient=True,
        disable=quiet or not err.is_terminal,
    ) as bar:
        task = bar.add_task("recovering", total=None)
        while not overview.recovered.wait(RECOVERY_LOOK) and not overview.stopping():
            bar.update(task, completed=overview.recovery_done, total=overview.recovery_total)


def _show_settings(as_json: bool) -> int:
    rows = [*service_settings(), *store_settings()]
    if as_json:
        print_json(
            [
                {"name": one.name, "default": one.default, "env": one.env, "doc": one.description}
                for one in rows
            ]
        )
        return 0
    made = table("setting", "default", "what it is")
    made.columns[2].justify = "left"
    for one in rows:
        made.add_row(one.name, one.default, one.description)
    out.print(made)
    return 0


def _token(name: Name = "exporter", as_json: AsJson = False) -> int:
    token = secrets.token_urlsafe(TOKEN_BYTES)
    digest = hash_token(token)
    if as_json:
        print_json({"token": token, "hash": digest})
        return 0
    out.print(f"token, shown once:  {token}", markup=False, soft_wrap=True)
    out.print("in the file that auth.file names:")
    entry = (
        f"principals:\n  {name}:\n    token: {digest}\n    grants:\n"
        '      - {verbs: [put, read, subscribe], streams: ["*"]}'
    )
    out.print(entry, markup=False, soft_wrap=True)
    return 0
