"""The ``quiver`` command.

Each command is a module with a function ``register(app)``.  Other packages add theirs through the
entry point group ``quiver.commands``, where an entry's name is the command's and its value the
module.  A module is imported when its command is used: ``quiver inspect`` loads neither a server
nor a client.

==========  =====================================================================
file        what it does
==========  =====================================================================
inspect     ``quiver inspect``: what is in a directory
verify      ``quiver verify``: checks every byte
repair      ``quiver repair``: says what it would do; does it with ``--yes``
dump        ``quiver dump``: saves all bundles as plain Arrow files
commands    finds a command by its name, and loads it
frame       exit codes, errors in two lines, one store or many
==========  =====================================================================
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Final

import typer

from quiver.cli.commands import EXIT_CODES, Commands

DISTRIBUTION: Final = "quiver-buffer"

app = typer.Typer(
    name="quiver",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="A durable buffer for Arrow data.\n\n"
    "[bold]inspect, verify, dump[/bold] and [bold]repair[/bold] work on a store's directory,"
    " without a server and without an engine; all but repair only read, and can be used while"
    " something writes.\n\n" + EXIT_CODES,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"quiver {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def _quiver(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Options of ``quiver`` itself."""
