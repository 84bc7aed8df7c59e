"""``quiver verify``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer

from quiver.cli.commands import DAMAGED, NEWER, OK
from quiver.cli.frame import (
    Answer,
    AsJson,
    Directory,
    StoreDirectory,
    bullets,
    code_for,
    exit_with,
    for_each_store,
    help_text,
    out,
    reading,
    show_newer,
    stores,
    streams_without_store,
)
from quiver.disk.disk import Disk
from quiver.disk.posix import PosixDisk
from quiver.offline.beside import check_root, check_stream
from quiver.offline.verify import Beside, Verified, verify
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
    app.command("verify", help=HELP)(exit_with(_verify))


def _verify(directory: Directory, as_json: AsJson = False) -> int:
    def run(store: StoreDirectory) -> Answer[Verified]:
        with reading("checking", store, quiet=as_json) as watch:
            verdict = verify(store.disk, watch=watch)
        if store.beside is not None:
            verdict = verdict.with_files_beside(check_stream(store.beside))
        return Answer(
            verdict, code_for(verdict), lambda: {"sound": verdict.sound, **asdict(verdict)}
        )

    def finish(answers: dict[str, Any]) -> int:
        if found[0].beside is None:
            return OK
        code = OK
        for stream in streams_without_store(directory, found):
            beside = check_stream(Disk(PosixDisk(stream)))
            code = max(code, _show_beside(stream.name, beside, answers, quiet=as_json))
        beside = check_root(Disk(PosixDisk(directory)))
        return max(code, _show_beside(".", beside, answers, quiet=as_json))

    found = stores(directory)
    return for_each_store(found, run, _show, as_json=as_json, finish=finish)


def _show_beside(name: str, beside: Beside, answers: dict[str, Any], *, quiet: bool) -> int:
    """Files of a server where there is no store: of a stream not used yet, or of the root."""
    if quiet and (beside.problems or beside.newer):
        answers[name] = {"sound": False, **asdict(beside)}
    elif not quiet:
        lines = [*(problem.describe() for problem in beside.problems), *beside.newer]
        bullets(line if name == "." else f"{name}: {line}" for line in lines)
    if beside.newer:
        return NEWER
    return DAMAGED if beside.problems else OK


def _show(store: StoreDirectory, verdict: Verified) -> None:
    counted = (
        f"{verdict.bundles:,} bundles in {verdict.segments:,} segments and"
        f" {verdict.log_files:,} log files, {format_size(verdict.nbytes)}"
    )
    if verdict.sound:
        out.print(f"[green]sound[/green]: {counted}", soft_wrap=True)
    elif verdict.problems:
        out.print(f"[red]damaged[/red]: {counted} can be read", soft_wrap=True)
        bullets(problem.describe() for problem in verdict.problems)
    else:
        out.print(f"{counted} can be read", soft_wrap=True)
    show_newer(verdict)
    if verdict.notes:
        out.print("worth knowing:")
        bullets(verdict.notes)
    if verdict.newer:
        out.print("Nothing was changed. Use the Quiver that wrote it, or a newer one.")
    elif not verdict.sound:
        out.print(
            f"Nothing was changed. Save what is there: quiver dump {store.path} --out OUT"
            f"     Go on without the rest: quiver repair {store.path}",
            markup=False,
            soft_wrap=True,
        )
