"""The tables of ``docs/spark.md``, made from the code.

``python -m spark_client.reference docs/spark.md`` writes them between their markers; a test
holds the page to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from spark_client import options, types

TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "types": types.described,
    "options": options.described,
}


def update(page: str) -> str:
    """A page with its tables brought up to date."""
    for name, make in TABLES.items():
        begin = f"<!-- begin: {name}, written by spark_client.reference -->"
        end = f"<!-- end: {name} -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"the page has no place for the table {name!r}")
        page = f"{before}{begin}\n\n{make()}\n\n{end}{after}"
    return page


def main() -> None:
    """Rewrite the tables of the page named."""
    path = Path(sys.argv[1])
    path.write_text(update(path.read_text()))


if __name__ == "__main__":
    main()
