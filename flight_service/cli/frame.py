"""What the commands that talk to a server share: how to reach it, errors, output."""

from __future__ import annotations

import inspect
import json
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final, ParamSpec

import pyarrow as pa
import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from flight_service.client import Client, Disconnected, Ref, Rejected, connect
from flight_service.protocol.errors import ServiceError
from quiver.cli.frame import AsJson, err, exit_with, out
from quiver.errors import Fault, QuiverError
from quiver.units import parse_duration

DEFAULT_URL: Final = "grpc://127.0.0.1:8815"
EXAMPLES: Final = "[bold]Examples[/bold]"
PANEL: Final = "With a server"

__all__ = ["AsJson", "Ref", "err", "exit_with", "out", "with_client"]

P = ParamSpec("P")

Stream = Annotated[str, typer.Argument(metavar="STREAM", help="The stream.", show_default=False)]

_CONNECTION: Final = {
    "server": (
        Annotated[
            str,
            typer.Option(
                "--server", "-s", metavar="URL", envvar="QUIVER_URL", help="Where the server is."
            ),
        ],
        DEFAULT_URL,
    ),
    "token": (
        Annotated[
            str | None,
            typer.Option(
                metavar="TOKEN",
                envvar="QUIVER_TOKEN",
                help="Who you are; better in the environment than on the command line.",
                show_default=False,
            ),
        ],
        None,
    ),
    "ca": (
        Annotated[
            Path | None,
            typer.Option(
                metavar="PEM", envvar="QUIVER_CA", help="TLS: trust servers these have signed."
            ),
        ],
        None,
    ),
    "cert": (
        Annotated[
            Path | None,
            typer.Option(metavar="PEM", envvar="QUIVER_CERT", help="TLS: your certificate."),
        ],
        None,
    ),
    "key": (
        Annotated[
            Path | None,
            typer.Option(metavar="PEM", envvar="QUIVER_KEY", help="TLS: its private key."),
        ],
        None,
    ),
    "insecure": (
        Annotated[bool, typer.Option("--insecure", help="Allow a token to travel without TLS.")],
        False,
    ),
}


def page(text: str) -> str:
    """A help text: paragraphs flow, lines that are indented stay as they are."""
    return "\n\n".join(
        part if part.startswith("  ") else part.replace("\n", " ") for part in text.split("\n\n")
    )


class Refused(QuiverError):
    """An error of the server, or of the way to it, as commands report errors."""

    code = "refused"
    fault = Fault.CALLER


def usage(message: str, advice: str = "") -> Refused:
    """Something the user asked for can't be done."""
    return Refused(message, advice=advice)


def with_client(command: Callable[Concatenate[Client, P], int]) -> Callable[..., None]:
    """Make a command of a function that needs a client: adds the connection's options."""
    hints = typing.get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in list(inspect.signature(command).parameters.values())[1:]
    ]
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for name, (annotation, default) in _CONNECTION.items()
    ]

    def run(*args: Any, **kwargs: Any) -> int:
        options = {name: kwargs.pop(name) for name in _CONNECTION}
        with connect_from(options) as client:
            return as_cli_error(lambda: command(client, *args, **kwargs))

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    # What typer reads the options from; mypy knows no such attribute of a function.
    run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in [*own, *added]}
    return exit_with(run)


def connect_from(options: Mapping[str, Any]) -> Client:
    """A client for the options of a command."""
    return as_cli_error(
        lambda: connect(
            options["server"],
            token=options["token"],
            tls_ca=options["ca"],
            tls_cert=options["cert"],
            tls_key=options["key"],
            insecure=options["insecure"],
            wait=2.0,
        )
    )


T = typing.TypeVar("T")


def as_cli_error(work: Callable[[], T]) -> T:
    """Do it; an error of the client or the server becomes one that commands report."""
    try:
        return work()
    except Disconnected as error:
        raise Refused(error.message, advice="Is it running? Start one: quiver serve") from None
    except Rejected as error:
        raise Refused(error.message) from None
    except ServiceError as error:
        raise Refused(error.message, advice=_advice(error)) from None
    except pa.ArrowException as error:
        raise Refused(f"the data can't be handled: {error}") from None


def _advice(error: ServiceError) -> str:
    if error.code == "unknown_stream":
        return "See what there is: quiver streams"
    if error.code == "unauthenticated":
        return "Say who you are: QUIVER_TOKEN=…, or --token"
    wait = error.retry_after_ms
    return "" if wait is None else f"Retry after {wait} ms."


# Reading what people type


def read_ref(text: str) -> Ref:
    """``12.0``: segment and index."""
    segment, dot, index = text.partition(".")
    if not (dot and segment.isdecimal() and index.isdecimal()):
        raise usage(f"{text!r} is not a ref.", "A ref looks like 12.0: segment and index.")
    return Ref(int(segment), int(index))


def read_time(text: str) -> datetime:
    """A time, or how long ago: ``2026-05-01T12:00:00Z``, ``15m``."""
    try:
        when = datetime.fromisoformat(text)
        return when if when.tzinfo is not None else when.astimezone()
    except ValueError:
        pass
    try:
        seconds = parse_duration(text)
    except ValueError:
        raise usage(
            f"{text!r} is not a time.", "Write 2026-05-01T12:00:00Z, or 15m for 15 minutes ago."
        ) from None
    return datetime.fromtimestamp(datetime.now(tz=UTC).timestamp() - seconds, UTC)


def read_start(text: str) -> str | Ref | datetime:
    """Where to begin: a word, a ref or a time."""
    if text in ("earliest", "latest"):
        return text
    head, dot, tail = text.partition(".")
    return read_ref(text) if dot and head.isdecimal() and tail.isdecimal() else read_time(text)


# Writing what people and programs read


def print_json(document: Any) -> None:
    """One document."""
    sys.stdout.write(json.dumps(document, indent=1, default=str) + "\n")


def print_line(document: Any) -> None:
    """One document in one line, at once."""
    sys.stdout.write(json.dumps(document, default=str, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def table(*columns: str, rows: Iterable[Iterable[str]] = ()) -> Table:
    """A plain table: the first column to the left, numbers to the right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        made.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        made.add_row(*row)
    return made


def bar(*, quiet: bool) -> Progress:
    """Progress in bundles or rows, where somebody is there to see it."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=quiet or not err.is_terminal,
    )
