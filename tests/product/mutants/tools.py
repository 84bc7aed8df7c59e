"""What mutants are made of: a list to be on, and what each is to be noticed by."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tests.product.facts import SENTENCES

Applied = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault, where it should show, and the sentences of which one notices it.

    ``of``: the defect that it brings back, the row of the owner's table that it breaks, or
    the interleaving that it belongs to.
    """

    name: str
    of: str
    what: str
    apply: Applied
    scenes: tuple[str, ...]
    """Profiles of the product; or an interleaving, or one ``:way`` of it; or a test."""
    by: tuple[str, ...]
    """Empty: the test says it."""


MUTANTS: list[Mutant] = []


def mutant(of: str, *scenes: str, by: tuple[str, ...] = ()) -> Callable[[Applied], Applied]:
    """List a mutant under its function's name."""
    unknown = set(by) - SENTENCES.keys()
    if unknown:
        raise ValueError(f"no sentences of the promise: {sorted(unknown)}")

    def add(apply: Applied) -> Applied:
        what = (apply.__doc__ or "").strip().splitlines()[0]
        MUTANTS.append(Mutant(apply.__name__, of, what, apply, scenes, by))
        return apply

    return add
