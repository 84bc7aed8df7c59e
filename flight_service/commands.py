"""The door through which the commands of :mod:`flight_service.cli` join ``quiver``.

It is what the entry point group ``quiver.commands`` names.  It stands outside of the
package since it is called while ``quiver.cli`` is being imported, perhaps by that package
itself.
"""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add all commands to ``quiver``."""
    from flight_service.cli import (
        bench,
        completion,
        get,
        health,
        put,
        serve,
        status,
        streams,
        subscribe,
    )

    for room in (serve, put, get, subscribe, streams, status, health, bench, completion):
        room.register(app)
