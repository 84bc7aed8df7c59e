"""One name for one thing, across the product."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SAME_FOR_THE_USER: Final = frozenset(
    {"Backpressure", "Forked", "Lag", "NotFound", "Receipt", "Staged", "Subscription"}
)
"""The client's counterpart of what the library has: who moves from one to the other finds it under
the same name."""
PLACES: Final = frozenset({"Closed", "File"})
"""Places of a segment (`quiver.segment.segments`), which are only ever used beside each other."""


def test_no_class_name_stands_for_two_things() -> None:
    """Scenario: a class gets a name that another module has already. Guarantee: it is noticed."""
    found: dict[str, list[str]] = defaultdict(list)
    for package in ("quiver", "flight_service", "spark_client"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found[node.name.lstrip("_")].append(str(path.relative_to(ROOT)))
    twice = {name: files for name, files in found.items() if len(files) > 1}
    for name in SAME_FOR_THE_USER | PLACES:
        assert len(twice.pop(name)) == 2, name
    assert twice == {}
