"""Finds commands by name and loads each one when it is used."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

OK: Final = 0
FAILED: Final = 1
DAMAGED: Final = 2
NEWER: Final = 3
INTERRUPTED: Final = 130

EXIT_CODES: Final = (
    "Exit codes: 0 sound, 1 wrong usage or another error, 2 damaged, 3 written by a newer Quiver;"
    " of several stores the highest."
)

GROUP: Final = "quiver.commands"
OWN: Final = ("inspect", "verify", "dump", "repair")
COMPLETE: Final = "_QUIVER_COMPLETE"
"""Set by a shell that asks for completions."""

# Typer has its own copy of click or uses an installed one, by version: this is its root error.
UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[2]


def _loaders() -> dict[str, Callable[[], ModuleType]]:
    """How each command's module is imported, in the order in which help lists them."""
    found: dict[str, Callable[[], ModuleType]] = {
        name: functools.partial(import_module, f"quiver.cli.{name}") for name in OWN
    }
    found |= {one.name: one.load for one in entry_points(group=GROUP)}
    return found


class Commands(TyperGroup):
    """The command group. Wrong usage exits with 1, since 2 means damage here."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._loaders = _loaders()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self._loaders)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in self._loaders:
            self.commands.update(self._load(cmd_name))
        return super().get_command(ctx, cmd_name)

    def _load(self, name: str) -> dict[str, Any]:
        """The commands of the module that has this one."""
        app = typer.Typer(rich_markup_mode="rich")
        app.callback()(lambda: None)
        try:
            self._loaders[name]().register(app)
        except ModuleNotFoundError as error:
            _add_stub(app, name, str(error.name))
        return dict(get_group(app).commands)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        if COMPLETE in os.environ:
            from typer._completion_classes import completion_init

            completion_init()
        run = functools.partial(
            super().main,
            args,
            prog_name,
            complete_var,
            standalone_mode=False,
            windows_expand_args=windows_expand_args,
            **extra,
        )
        if not standalone_mode:
            return run()
        try:
            code = run()
        except UsageError as error:
            # Found through typer, which has its own copy of click, by no type of its own.
            error.show()  # type: ignore[attr-defined]
            sys.exit(FAILED)
        except typer.Abort:
            sys.exit(INTERRUPTED)
        sys.exit(code if isinstance(code, int) else OK)


def _add_stub(app: typer.Typer, name: str, missing: str) -> None:
    """A command whose dependencies are not installed: it says what to install."""
    advice = "Install it with: pip install 'quiver-buffer[server]'"

    def unavailable() -> None:
        typer.echo(f"quiver: {name} needs the package {missing}, which is not installed.", err=True)
        typer.echo(f"  {advice}", err=True)
        raise typer.Exit(FAILED)

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command(name, help=f"Not installed. {advice}", context_settings=settings)(unavailable)
