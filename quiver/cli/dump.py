"""``quiver dump``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from quiver.cli.frame import (
    Answer,
    AsJson,
    Directory,
    StoreDirectory,
    bullets,
    code_for,
    err,
    exit_with,
    for_each_store,
    help_text,
    out,
    show_newer,
    stores,
)
from quiver.disk.disk import Disk
from quiver.disk.posix import PosixDisk
from quiver.errors import InvalidInput
from quiver.offline.dump import LOST, MANIFEST, Dump, dump

HELP = help_text(
    "Save every bundle of a store as plain Arrow files.",
    "Reads only: works on a store that runs, that crashed, that is damaged, or that the Rust"
    " crate wrote. Bundles that are only in the log are saved too; what can't be saved is"
    " listed.",
    "OUT/<segment>.<index>/<slot>.arrows is an Arrow IPC stream, OUT/manifest.json lists all"
    " bundles in order with what each subscriber did with them, OUT/lost.json what is lost and"
    " what only a newer Quiver can read.",
    examples=[
        ("quiver dump ./telemetry --out ./saved", ""),
        ("quiver dump ./telemetry --out ./saved --force", "OUT isn't empty"),
    ],
)

Out = Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="Where to; new or empty.")]
Force = Annotated[bool, typer.Option("--force", help="Write into OUT though it isn't empty.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("dump", help=HELP)(exit_with(_dump))


def _dump(directory: Directory, to: Out, force: Force = False, as_json: AsJson = False) -> int:
    found = stores(directory)
    _check_apart(directory, to)

    def target_of(store: StoreDirectory) -> Path:
        return to / store.name if store.name else to

    def run(store: StoreDirectory) -> Answer[Dump]:
        target = target_of(store)
        with _bar(quiet=as_json) as bar:
            task = bar.add_task("saving", total=None)
            result = dump(
                store.disk,
                Disk(PosixDisk(target)),
                force=force,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
        return Answer(result, code_for(result), lambda: _summary(result, target))

    def show(store: StoreDirectory, result: Dump) -> None:
        _show(result, target_of(store))

    return for_each_store(found, run, show, as_json=as_json)


def _check_apart(directory: Path, to: Path) -> None:
    inside, outside = to.resolve(), directory.resolve()
    if inside == outside or outside in inside.parents:
        raise InvalidInput(
            f"cannot dump into {to}: it is inside of the store.",
            advice="Name a directory outside of it: the store itself is never changed.",
        )


def _bar(*, quiet: bool) -> Progress:
    return Progress(
        TextColumn("saving"),
        BarColumn(),
        MofNCompleteColumn(),
        console=err,
        transient=True,
        disable=quiet or not err.is_terminal,
    )


def _summary(result: Dump, target: Path) -> dict[str, Any]:
    return {
        "sound": result.sound,
        "out": str(target),
        "manifest": str(target / MANIFEST),
        "saved": len(result.saved),
        "lost": [asdict(one) for one in result.lost],
        "damage": list(result.damage),
        "torn": list(result.torn),
        "maybe_doubled": result.maybe_doubled,
        "newer": list(result.newer),
    }


def _show(result: Dump, target: Path) -> None:
    out.print(f"saved {len(result.saved):,} bundles to {target}", markup=False, soft_wrap=True)
    if result.lost or result.damage:
        out.print("[red]damaged[/red], lost or in doubt:")
        bullets(one.describe() for one in result.lost)
        bullets(result.damage)
    show_newer(result)
    if not result.sound:
        out.print(f"the same in {target / LOST}", markup=False, soft_wrap=True)
    if result.torn:
        out.print("cut short by a crash, never called durable:")
        bullets(result.torn)
    if result.maybe_doubled is not None:
        out.print(f"some bundles may be there twice: {result.maybe_doubled}", markup=False)
