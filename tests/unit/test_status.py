"""docs/status.md tells the truth: every row is there, every test it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"\| ([QJADSC]\d+) \| (.+?) \| (.+?) \|")
LAST = {"Q": 45, "J": 29, "A": 84, "D": 79, "S": 11, "C": 9}
TEST = re.compile(r"`([^`]+)::([^`]+)`")


def _rows() -> list[tuple[str, str, str]]:
    text = (ROOT / "docs" / "status.md").read_text()
    found = [ROW.fullmatch(line) for line in text.splitlines() if line.startswith("| ")]
    return [(match[1], match[2], match[3]) for match in found if match]


ROWS = _rows()


@cache
def _tests_in(path: str) -> frozenset[str]:
    """Names of the test functions in a file, `Class::method` for those in classes."""
    names: set[str] = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
            names |= {f"{node.name}::{m.name}" for m in node.body if isinstance(m, ast.FunctionDef)}
    return frozenset(names)


def test_every_capability_has_exactly_one_row() -> None:
    """Scenario: a row is lost or doubled in editing. Guarantee: it is noticed."""
    expected = [f"{letter}{n}" for letter, last in LAST.items() for n in range(1, last + 1)]
    assert [row for row, _, _ in ROWS] == expected


@pytest.mark.parametrize(
    ("row", "shown_by"), [pytest.param(row, shown, id=row) for row, _, shown in ROWS]
)
def test_a_row_names_tests_that_exist_or_says_that_there_are_none(row: str, shown_by: str) -> None:
    """Scenario: a test is renamed, removed or made up. Guarantee: its row fails."""
    if shown_by == "not yet" or re.fullmatch(r"not planned: \S.*", shown_by):
        return
    named = TEST.findall(shown_by)
    rest = TEST.sub("", shown_by).replace(",", "").strip()
    assert named, f"{row}: neither a test nor «not yet»"
    assert rest == "", f"{row}: {rest!r} is no test"
    for path, name in named:
        assert (ROOT / path).is_file(), f"{row}: there is no {path}"
        assert name.partition("[")[0] in _tests_in(path), f"{row}: {path} has no {name}"
