"""``quiver health``."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from flight_service.cli.frame import EXAMPLES, PANEL, AsJson, exit_with, out, page, print_json
from flight_service.health import address, ask

HELP = f"""Ask whether a server is ready, as container engines and load balancers do.

It asks over HTTP, where no token is needed: of the server whose settings are in the
environment, or of another one by its address. Exit code 0 if it is ready, 1 if not, with
what it says about itself.

{EXAMPLES}

  quiver health
  quiver health http://127.0.0.1:8816
  until quiver health; do sleep 1; done"""

Url = Annotated[
    str | None, typer.Argument(metavar="URL", help="Its HTTP address.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("health", help=page(HELP), rich_help_panel=PANEL)(exit_with(_health))


def _health(url: Url = None, as_json: AsJson = False) -> int:
    ready, said = ask((url or address(os.environ)).rstrip("/"))
    if as_json:
        print_json({"ready": ready, "answer": said})
    else:
        out.print(said, markup=False, soft_wrap=True)
    return 0 if ready else 1
