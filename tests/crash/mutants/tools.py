"""What mutants are made of: a list to be on, and ways to change a running engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from quiver.disk.disk import Disk, File

Applied = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault, and the profiles in which it should show."""

    name: str
    apply: Applied
    profiles: tuple[str, ...] = ("plain", "laps")


MUTANTS: list[Mutant] = []


def mutant(*profiles: str) -> Callable[[Applied], Applied]:
    """List a mutant under its function's name."""

    def add(apply: Applied) -> Applied:
        MUTANTS.append(Mutant(apply.__name__, apply, profiles or ("plain", "laps")))
        return apply

    return add


def instead(owner: object, name: str, function: object) -> AbstractContextManager[Any]:
    return patch.object(owner, name, function)


def skip_file_sync(call: str, wanted: Callable[[str], bool]) -> AbstractContextManager[Any]:
    original = getattr(File, call)

    def sync(self: File) -> None:
        if not wanted(self.path):
            original(self)

    return instead(File, call, sync)


def skip_dir_sync(*directories: str) -> AbstractContextManager[Any]:
    original = Disk.fsync_dir

    def fsync_dir(self: Disk, path: str) -> None:
        if path not in directories:
            original(self, path)

    return instead(Disk, "fsync_dir", fsync_dir)
