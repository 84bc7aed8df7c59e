"""What all commands share: where errors go, what exit codes mean, which stores are meant."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Generic, ParamSpec, Protocol, TypeVar

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from quiver.cli.commands import DAMAGED, EXIT_CODES, FAILED, INTERRUPTED, NEWER, OK, UsageError
from quiver.disk.disk import Disk
from quiver.disk.posix import PosixDisk
from quiver.errors import Damage, InvalidInput, NotFound, QuiverError, UnsupportedVersion
from quiver.offline.beside import STORE
from quiver.offline.look import Watch, holds_a_store

DEBUG: Final = "QUIVER_DEBUG"
MAX_STORES: Final = 10_000
OF_A_SERVER: Final = f"streams/*/{STORE}"
BELOW: Final = ("*", f"*/{STORE}", OF_A_SERVER)
"""Where a directory may have stores: side by side, or as a server keeps its streams."""

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

P = ParamSpec("P")
T = TypeVar("T")

Directory = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="A store's directory, or one that has several of them below it.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs: one JSON document.")]


def help_text(*paragraphs: str, examples: Sequence[tuple[str, str]]) -> str:
    """A command's help: what it does, how it is typed, what its exit code means."""
    width = max(len(command) for command, _ in examples) + 2
    lines = [f"  {command:{width}}{what}".rstrip() for command, what in examples]
    return "\n\n".join([*paragraphs, "[bold]Examples[/bold]\n\n" + "\n".join(lines), EXIT_CODES])


def exit_with(command: Callable[P, int]) -> Callable[P, None]:
    """Exit with the code that a command returns; an error is reported in two lines."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except QuiverError as error:
            tell(error)
            code = _code_of(error)
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BrokenPipeError:
            code = FAILED  # whoever read our output has seen enough
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for the flush at exit
        except (typer.Exit, typer.Abort, UsageError):
            raise
        except Exception as error:
            if os.environ.get(DEBUG):
                raise
            _say(f"this is a defect of Quiver: {type(error).__name__}: {error}")
            _advise(f"Nothing more was done. Please report it; {DEBUG}=1 shows where it is.")
            code = FAILED
        raise typer.Exit(code)

    return run


def _code_of(error: QuiverError) -> int:
    if isinstance(error, UnsupportedVersion):
        return NEWER
    return DAMAGED if isinstance(error, Damage) else FAILED


class MayBeNewer(Protocol):
    """Says which files only a newer version can read."""

    @property
    def newer(self) -> tuple[str, ...]: ...


class Result(MayBeNewer, Protocol):
    """What a tool found out about a store."""

    @property
    def sound(self) -> bool: ...


def code_for(result: Result) -> int:
    """The exit code."""
    if result.newer:
        return NEWER
    return OK if result.sound else DAMAGED


def show_newer(result: MayBeNewer) -> None:
    """Files that were skipped, and why."""
    if result.newer:
        out.print("[red]written by a newer Quiver[/red], so not read and left as it is:")
        bullets(result.newer)


def tell(error: QuiverError, where: str = "") -> None:
    """An error for people: what happened, and below it what can be done."""
    place = where or str(error.details.get("where", ""))
    _say(error.message)
    if error.advice:
        _advise(error.advice.replace("DIR", place or "DIR"))


def _say(text: str) -> None:
    err.print(f"quiver: {text}", markup=False, soft_wrap=True)


def _advise(text: str) -> None:
    err.print(f"  {text}", markup=False, soft_wrap=True)


# Stores


@dataclass(frozen=True, slots=True)
class StoreDirectory:
    """One store to work on. ``name`` is empty when the directory itself is one."""

    name: str
    path: Path
    disk: Disk
    beside: Disk | None = None
    """The stream's own directory, in a server's root."""


def stores(directory: Path) -> list[StoreDirectory]:
    """The store in a directory, or those below it: all streams of a server's root, say."""
    _check_directory(directory)
    disk = Disk(PosixDisk(directory))
    if holds_a_store(disk):
        return [StoreDirectory("", directory, disk)]
    below = [
        StoreDirectory(_name(path, directory, pattern), path, found, _beside(path, pattern))
        for pattern in BELOW
        for path in sorted(directory.glob(pattern))[:MAX_STORES]
        if path.is_dir() and holds_a_store(found := Disk(PosixDisk(path)))
    ]
    if not below:
        raise NotFound(
            f"cannot open {directory}: there is no store in it.",
            advice="Name the directory that has wal/ and segments/ in it, or the one above.",
        )
    return below


def streams_without_store(root: Path, found: list[StoreDirectory]) -> list[Path]:
    """Streams of a server's root that nobody has used yet: they have settings and no data."""
    used = {store.name for store in found}
    below = sorted((root / "streams").iterdir())[:MAX_STORES]
    return [path for path in below if path.name not in used and _has_files(path)]


def _has_files(path: Path) -> bool:
    return any(one.is_file() for one in path.rglob("*"))


def _beside(path: Path, pattern: str) -> Disk | None:
    return Disk(PosixDisk(path.parent)) if pattern == OF_A_SERVER else None


def _name(path: Path, directory: Path, pattern: str) -> str:
    """What the ``*`` of the pattern stands for: in a server's root, the stream."""
    return path.relative_to(directory).parts[pattern.split("/").index("*")]


def _check_directory(directory: Path) -> None:
    try:
        os.listdir(directory)
    except FileNotFoundError:
        raise NotFound(
            f"cannot open {directory}: there is no such directory.", advice="Check the path."
        ) from None
    except NotADirectoryError:
        raise InvalidInput(
            f"cannot open {directory}: it is a file.",
            advice="Name the directory that has wal/ and segments/ in it.",
        ) from None
    except PermissionError:
        raise InvalidInput(
            f"cannot open {directory}: you may not read it.",
            advice="Run this as the user the store belongs to.",
        ) from None


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What a command found out about one store."""

    result: T
    code: int
    document: Callable[[], dict[str, Any]]
    """The result for programs; called only for ``--json``."""


def for_each_store(
    found: list[StoreDirectory],
    run: Callable[[StoreDirectory], Answer[T]],
    show: Callable[[StoreDirectory, T], None],
    *,
    as_json: bool,
    finish: Callable[[dict[str, Any]], int] | None = None,
) -> int:
    """Run a command on each store and show its result, or all results as one JSON document.

    A store that fails does not stop the others. ``finish`` comes after them: it may add to
    the JSON answers. Returns the highest exit code.
    """
    answers: dict[str, Any] = {}
    worst = OK
    for store in found:
        if store.name and not as_json:
            out.print(f"[bold]{store.name}[/bold]", soft_wrap=True)
        try:
            answer = run(store)
            if as_json:
                answers[store.name] = answer.document()
            else:
                show(store, answer.result)
            code = answer.code
        except QuiverError as error:
            error.details.setdefault("where", str(store.path))
            if len(found) == 1:
                raise
            tell(error, str(store.path))
            code = _code_of(error)
        worst = max(worst, code)
    if finish is not None:
        worst = max(worst, finish(answers))
    if as_json:
        _print_json(found, answers)
    return worst


def _print_json(found: list[StoreDirectory], answers: dict[str, Any]) -> None:
    """One document: of the store, or of all of them by name."""
    document = answers[""] if "" in answers and len(found) == 1 else {"stores": answers}
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


# What takes a while


def size_of(store: StoreDirectory) -> int:
    """Bytes a full check has to read, about."""
    total = 0
    for folder in ("wal", "segments"):
        for name in store.disk.listdir(folder):
            total += store.disk.stat_size(f"{folder}/{name}") or 0
    return total


@contextmanager
def reading(what: str, store: StoreDirectory, *, quiet: bool) -> Iterator[Watch]:
    """A progress bar over a store's bytes, where somebody is there to see it."""
    with Progress(
        TextColumn(what),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=quiet or not err.is_terminal,
    ) as bar:
        task = bar.add_task(what, total=size_of(store))
        yield lambda _, count: bar.advance(task, count)


def bullets(lines: Iterable[str]) -> None:
    for line in lines:
        out.print(f"  • {line}", markup=False, soft_wrap=True)
