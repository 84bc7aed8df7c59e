"""The import graph of ``docs/architecture.md``, drawn from the code.

``python -m docs.graph`` writes it between its markers; a test holds the page to it.  Packages are
nodes, and an arrow points from a package to one it imports.  Arrows that follow from others are
left out, so that the picture shows the layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import grimp

PAGE: Final = Path(__file__).with_name("architecture.md")
BEGIN: Final = "<!-- graph: begin -->"
END: Final = "<!-- graph: end -->"
WORDS: Final = frozenset(
    {"config", "errors", "ids", "units", "clock", "events", "metrics", "otap", "forking"}
)
"""Modules that every package may import; as nodes they would hide the rest."""


def package_imports(root: str = "quiver") -> dict[str, set[str]]:
    """Which packages directly below ``root`` import which others."""
    graph = grimp.build_graph(root)
    packages = {one.removeprefix(f"{root}.") for one in graph.find_children(root)} - WORDS
    found: dict[str, set[str]] = {one: set() for one in packages}
    for importer in packages:
        for imported in packages - {importer}:
            if graph.direct_import_exists(
                importer=f"{root}.{importer}", imported=f"{root}.{imported}", as_packages=True
            ):
                found[importer].add(imported)
    return found


def without_shortcuts(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The same order with as few arrows as can show it."""

    def reach(package: str) -> set[str]:
        found: set[str] = set()
        for one in imports[package]:
            found |= {one} | reach(one)
        return found

    return {
        package: {one for one in below if not any(one in reach(other) for other in below - {one})}
        for package, below in imports.items()
    }


def drawn() -> str:
    """The graph as a Mermaid diagram."""
    arrows = without_shortcuts(package_imports())
    lines = [
        f"    {package} --> {below}"
        for package in sorted(arrows)
        for below in sorted(arrows[package])
    ]
    return "\n".join(["```mermaid", "graph TD", *lines, "```"])


def page_with(graph: str) -> str:
    """The page with this graph between its markers."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{graph}\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(page_with(drawn()))
