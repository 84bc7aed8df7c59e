"""``quiver repair``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from quiver.cli.commands import DAMAGED, NEWER, OK
from quiver.cli.frame import (
    Answer,
    AsJson,
    Directory,
    StoreDirectory,
    bullets,
    exit_with,
    for_each_store,
    help_text,
    out,
    reading,
    show_newer,
    stores,
)
from quiver.clock import SystemClock
from quiver.disk.disk import Disk
from quiver.disk.lock import StoreLock
from quiver.disk.posix import PosixDisk
from quiver.offline.beside import check_root, check_stream, far_behind, mend_root, mend_stream
from quiver.offline.mend import Mended, mend
from quiver.offline.repair import RepairPlan, RepairStep
from quiver.offline.verify import Beside

HELP = help_text(
    "Make a damaged store open again, without what is lost.",
    "Says what it would do, and does it only with [bold]--yes[/bold]. What is sound stays under"
    " its own refs; what is lost is recorded; every file that is replaced or removed is kept"
    " in quarantine/. No process may write to the store meanwhile.",
    "Save what there is first: quiver dump DIR --out OUT",
    examples=[
        ("quiver repair ./telemetry", "says what is wrong and what would be done"),
        ("quiver repair ./telemetry --yes", "does it; 0 when it is done"),
    ],
)

Yes = Annotated[bool, typer.Option("--yes", help="Do it.")]


_NUMBERS = "Written anew; a stream that is made again begins far behind."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("repair", help=HELP)(exit_with(_repair))


def _repair(directory: Directory, yes: Yes = False, as_json: AsJson = False) -> int:
    def run(store: StoreDirectory) -> Answer[tuple[str, ...]]:
        with reading("checking", store, quiet=as_json) as watch:
            plan = RepairPlan(store.disk, watch)
        mended = None
        kept: tuple[str, ...] = ()
        beside = Beside() if store.beside is None else check_stream(store.beside)
        is_needed = plan.is_needed or bool(beside.problems)
        if not as_json:
            _show_plan(store, plan, beside, yes)
        if yes and plan.is_needed:
            mended = mend(store.disk, SystemClock(), where=str(store.path))
            if not as_json:
                _show_done(store, mended)  # here: it is done, though what follows may fail
        if yes and store.beside is not None and beside.problems:
            kept = mend_stream(store.beside, beside)
        document = {
            "needed": is_needed,
            "plan": [asdict(action) for action in (*plan.actions, *_actions(beside))],
            "done": None if mended is None else asdict(mended),
        }
        code = OK if yes or not is_needed else DAMAGED
        return Answer(kept, NEWER if beside.newer else code, lambda: document)

    def show(store: StoreDirectory, kept: tuple[str, ...]) -> None:
        bullets(f"kept beside the store: {path}" for path in kept)

    def finish(answers: dict[str, Any]) -> int:
        if found[0].beside is None:
            return OK
        return _repair_root(directory, answers, yes, quiet=as_json)

    found = stores(directory)
    return for_each_store(found, run, show, as_json=as_json, finish=finish)


def _repair_root(directory: Path, answers: dict[str, Any], yes: bool, *, quiet: bool) -> int:
    """What a server keeps beside all of its streams."""
    disk, clock = Disk(PosixDisk(directory)), SystemClock()
    beside = check_root(disk)
    if beside.newer and not quiet:
        show_newer(beside)
    if not beside.problems:
        return NEWER if beside.newer else OK
    actions = [RepairStep(one.file, one.what, _NUMBERS) for one in beside.problems]
    answers["."] = {"needed": True, "plan": [asdict(action) for action in actions], "done": None}
    if not quiet:
        bullets(action.describe() for action in actions)
    if not yes:
        return DAMAGED
    lock = StoreLock.acquire(disk, clock, where=str(directory))
    try:
        kept = mend_root(disk, beside, far_behind(clock))
    finally:
        lock.release()
    if not quiet:
        bullets(f"kept beside the streams: {path}" for path in kept)
    return OK


def _actions(beside: Beside) -> list[RepairStep]:
    return [
        RepairStep(problem.file, problem.what, "Set aside; the stream begins with a new one.")
        for problem in beside.problems
    ]


def _show_plan(store: StoreDirectory, plan: RepairPlan, beside: Beside, yes: bool) -> None:
    show_newer(beside)
    if not plan.is_needed and not beside.problems:
        if beside.newer:
            return
        out.print("[green]sound[/green]: there is nothing to repair")
        return
    out.print(f"[red]damaged[/red]; this {'is' if yes else 'would be'} done:")
    bullets(action.describe() for action in (*plan.actions, *_actions(beside)))
    if not yes:
        out.print(
            f"Nothing was changed. Save what there is: quiver dump {store.path} --out OUT"
            f"     Then do it: quiver repair {store.path} --yes",
            markup=False,
            soft_wrap=True,
        )


def _show_done(store: StoreDirectory, mended: Mended) -> None:
    bundles = sum(loss.bundles for loss in mended.losses)
    exact = all(loss.exact for loss in mended.losses)
    out.print(
        f"[green]repaired[/green]: {len(mended.written):,} segments written,"
        f" {len(mended.set_aside):,} files kept in {store.path}/quarantine,"
        f" {'' if exact else 'at most '}{bundles:,} bundles recorded as lost",
        soft_wrap=True,
    )
