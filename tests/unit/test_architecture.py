"""docs/architecture.md tells the truth about the tree."""

from __future__ import annotations

import re

from docs.graph import PAGE, drawn, package_imports, page_with, without_shortcuts


def test_the_graph_is_the_codes_own() -> None:
    """Scenario: a package imports another one. Guarantee: the page draws it
    (``python -m docs.graph`` does that)."""
    assert PAGE.read_text() == page_with(drawn())


def test_packages_import_one_way() -> None:
    """Scenario: two packages import each other. Guarantee: it is noticed, also where a contract
    would let it pass."""
    imports = package_imports()
    done: set[str] = set()
    while len(done) < len(imports):
        free = {one for one, below in imports.items() if one not in done and below <= done}
        assert free, f"a circle among {sorted(imports.keys() - done)}"
        done |= free


def test_an_arrow_that_follows_from_others_is_left_out() -> None:
    """Scenario: a imports b and c, b imports c. Guarantee: two arrows show it."""
    assert without_shortcuts({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {
        "a": {"b"},
        "b": {"c"},
        "c": set(),
    }


def test_every_file_that_the_page_names_exists() -> None:
    """Scenario: a file is moved. Guarantee: the page's table moves with it."""
    root = PAGE.parents[1]
    named = re.findall(
        r"`((?:quiver|flight_service|spark_client)/[\w/]*(?:\.py)?)`", PAGE.read_text()
    )
    assert named
    for path in named:
        assert (root / path).exists(), path
