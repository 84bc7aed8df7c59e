"""``quiver verify``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer

from quiver.cli.frame import (
    DAMAGED,
    OK,
    AsJson,
    Directory,
    Store,
    bullets,
    help_text,
    out,
    over_all,
    print_json,
    reading,
    stores,
    told,
)
from quiver.fsck.verify import Verdict, verify
from quiver.units import format_size

HELP = help_text(
    "Check every byte of a store, and whether its files fit together.",
    "Reads only, and needs no lock. Says for each damage in which file and where it is, and"
    " which bundles it costs.",
    examples=[
        ("quiver verify ./telemetry", ""),
        ("quiver verify ./quiver-data", "all streams of a server"),
        ("quiver verify ./telemetry --json", "for programs"),
    ],
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify", help=HELP)(told(_verify))


def _verify(directory: Directory, as_json: AsJson = False) -> int:
    found = stores(directory)
    answers: dict[str, Any] = {}

    def work(store: Store) -> int:
        with reading("checking", store, quiet=as_json) as watch:
            verdict = verify(store.disk, watch=watch)
        if as_json:
            answers[store.name] = {"sound": verdict.sound, **asdict(verdict)}
        else:
            _show(store, verdict)
        return OK if verdict.sound else DAMAGED

    code = over_all(found, work, quiet=as_json)
    if as_json:
        print_json(found, answers)
    return code


def _show(store: Store, verdict: Verdict) -> None:
    counted = (
        f"{verdict.bundles:,} bundles in {verdict.segments:,} segments and"
        f" {verdict.log_files:,} log files, {format_size(verdict.nbytes)}"
    )
    if verdict.sound:
        out.print(f"[green]sound[/green]: {counted}", soft_wrap=True)
    else:
        out.print(f"[red]damaged[/red]: {counted} can be read", soft_wrap=True)
        bullets(problem.describe() for problem in verdict.problems)
    if verdict.notes:
        out.print("worth knowing:")
        bullets(verdict.notes)
    if not verdict.sound:
        out.print(
            f"Nothing was changed. Save what is there: quiver dump {store.path} --out OUT"
            f"     Go on without the rest: quiver repair {store.path}",
            markup=False,
            soft_wrap=True,
        )
