"""``make lines``: how many lines each package has, by what they are."""

from __future__ import annotations

import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("quiver", "flight_service", "spark_client")


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of Python: code, documentation (docstrings and comments), and empty ones."""

    code: int = 0
    prose: int = 0
    empty: int = 0

    def __add__(self, other: Lines) -> Lines:
        return Lines(self.code + other.code, self.prose + other.prose, self.empty + other.empty)

    @property
    def all(self) -> int:
        return self.code + self.prose + self.empty


def count(source: str) -> Lines:
    """The lines of one file."""
    code: set[int] = set()
    prose: set[int] = set()
    begins_statement = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        lines = range(token.start[0], token.end[0] + 1)
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and begins_statement):
            prose.update(lines)
        elif token.type in (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            begins_statement = begins_statement or token.type == tokenize.NEWLINE
            continue
        elif token.type not in (tokenize.ENDMARKER, tokenize.ENCODING):
            code.update(lines)
        begins_statement = token.type == tokenize.COMMENT and begins_statement
    total = len(source.splitlines())
    return Lines(len(code), len(prose - code), total - len(code | prose))


def _files(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.rglob("*.py")):
        if not any(part[0].isdigit() for part in path.relative_to(ROOT).parts[:-1]):
            yield path


def _row(name: str, lines: Lines) -> str:
    return f"{name:<34}{lines.code:>9,}{lines.prose:>9,}{lines.empty:>9,}{lines.all:>10,}"


def main() -> None:
    """Print the table."""
    write = sys.stdout.write
    write(f"{'':<34}{'code':>9}{'prose':>9}{'empty':>9}{'all':>10}\n")
    for title, tops in (("product", PRODUCT), ("tests", ("tests", "benchmarks", "examples"))):
        whole = Lines()
        for top in tops:
            groups: dict[str, Lines] = {}
            for path in _files(ROOT / top):
                parts = path.relative_to(ROOT).parts
                group = "/".join(parts[:2]) + "/" if len(parts) > 2 else parts[0] + "/*.py"
                groups[group] = groups.get(group, Lines()) + count(path.read_text())
            for group, lines in groups.items():
                write(_row(group, lines) + "\n")
                whole += lines
        write(_row(title, whole) + "\n\n")
    pages = sum(len(path.read_text().splitlines()) for path in ROOT.glob("docs/**/*.md"))
    pages += sum(len(path.read_text().splitlines()) for path in ROOT.glob("*.md"))
    write(f"{'documentation':<34}{'':>27}{pages:>10,}\n")


if __name__ == "__main__":
    main()
