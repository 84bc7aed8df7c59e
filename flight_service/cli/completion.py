"""``quiver completion``."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer
from typer._completion_shared import get_completion_script

from flight_service.cli.frame import EXAMPLES, PANEL, exit_with, page, usage

SHELLS: Final = ("bash", "zsh", "fish")

HELP = f"""Print what makes a shell complete commands and options.

{EXAMPLES}

  quiver completion bash >> ~/.bashrc
  quiver completion zsh > ~/.zfunc/_quiver
  quiver completion fish > ~/.config/fish/completions/quiver.fish"""

Shell = Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("completion", help=page(HELP), rich_help_panel=PANEL)(exit_with(_completion))


def _completion(shell: Shell) -> int:
    if shell not in SHELLS:
        raise usage(f"{shell!r} is not a shell known here.", f"Known are {', '.join(SHELLS)}.")
    script = get_completion_script(prog_name="quiver", complete_var="_QUIVER_COMPLETE", shell=shell)
    sys.stdout.write(script + "\n")
    return 0
