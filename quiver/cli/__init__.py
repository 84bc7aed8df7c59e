"""The ``quiver`` command.

Each command is a file with a function ``register(app)``; other packages add theirs
through the entry point group ``quiver.commands``, which names such functions too, so that
``quiver`` is one command whatever is installed.

==========  =====================================================================
file        what it does
==========  =====================================================================
inspect     ``quiver inspect``: what is in a directory
verify      ``quiver verify``: checks every byte
repair      ``quiver repair``: says what it would do; does it with ``--yes``
dump        ``quiver dump``: saves all bundles as plain Arrow files
frame       exit codes, errors in two lines, one store or many
==========  =====================================================================
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Final

import typer

from quiver.cli.dump import register as _dump
from quiver.cli.frame import EXIT_CODES, Commands
from quiver.cli.inspect import register as _inspect
from quiver.cli.repair import register as _repair
from quiver.cli.verify import register as _verify

GROUP: Final = "quiver.commands"

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


@app.callback()
def _quiver() -> None:
    """So that a command needs its name even while there is only one."""


_OWN = (_inspect, _verify, _dump, _repair)


def _add_commands() -> None:
    for own in _OWN:
        own(app)
    for found in entry_points(group=GROUP):
        try:
            register = found.load()
        except ImportError:
            continue  # installed without what its commands need
        register(app)


_add_commands()
