"""docs/formats.md says what the code does: offsets, sizes, columns."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from struct import Struct, calcsize

import pyarrow as pa
import pytest

from quiver.format import floor, keys, progress, state
from quiver.format.segment import file as segment
from quiver.format.segment import guard
from quiver.format.segment.blocks import BLOCK_SIZE
from quiver.format.segment.manifest import MANIFEST
from quiver.format.segment.stage import StageLabel
from quiver.format.wal import cursor
from quiver.format.wal import entry as wal_entry
from quiver.format.wal import header as wal_header

TEXT = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()
FIELD = re.compile(r"(\d*)([sxBHIQq])")
LOSS = state.Loss(1, 2, 3, "damaged", 4, {"a": 1})
ROW = re.compile(r"^\| (\d+) \| (\d+) \| (\w+) \| ?(.*?) ?\|$", re.M)


def rows(heading: str) -> list[tuple[int, int, str, str]]:
    """Offset, size, field and note of the first table of offsets under a heading."""
    part = TEXT.partition(f"{heading}\n")[2]
    table = part[part.index("| offset | size |") :].partition("\n\n")[0]
    return [(int(a), int(b), name, note) for a, b, name, note in ROW.findall(table)]


def layout(packed: Struct) -> list[tuple[int, int]]:
    """Offset and size of each field of a struct; padding counts as one."""
    found: list[tuple[int, int]] = []
    at = 0
    for count, kind in FIELD.findall(packed.format):
        one = calcsize(f"<{count}{kind}")
        # `4s` and `4x` are one field of four bytes, `HH` is two of two.
        found.append((at, one))
        at += one
    assert at == packed.size
    return found


@pytest.mark.parametrize(
    ("heading", "packed"),
    [
        ("### Head", wal_header._OWN),
        ("### Entry", wal_entry._PREFIX),
        ("## Segment floor — `quiver/format/floor.py`", floor._BODY),
        ("### Guard", guard._SEAL),
        ("## Progress — `quiver/format/progress.py`", progress._HEADER),
        ("## Checkpoint — `quiver/format/state.py`", state._HEADER),
        ("## Key run — `quiver/format/keys.py`", keys._HEADER),
    ],
)
def test_offsets_and_sizes(heading: str, packed: Struct) -> None:
    """Scenario: a field is added, and the page forgotten. Guarantee: each field of the code
    is where the page says, and what the page says follows is behind it."""
    said = rows(heading)
    expected = layout(packed)
    assert [(at, size) for at, size, _, _ in said][: len(expected)] == expected
    assert all(at >= packed.size for at, _, _, _ in said[len(expected) :])


@pytest.mark.parametrize(
    ("heading", "value"),
    [
        ("### Head", wal_header.HEADER_SIZE),
        ("## Segment floor — `quiver/format/floor.py`", floor._BODY.size),
        ("## Progress — `quiver/format/progress.py`", progress._HEADER.size + 8),
        ("## Checkpoint — `quiver/format/state.py`", state._HEADER.size),
        ("## Key run — `quiver/format/keys.py`", keys._HEADER.size),
    ],
)
def test_the_size_a_head_gives_of_itself(heading: str, value: int) -> None:
    """Scenario: the size in the file against the size in the page. Guarantee: one number."""
    [note] = [note for _, _, name, note in rows(heading) if name in ("size", "header_size")]
    assert re.match(r"\d+", note)
    assert int(note.partition(";")[0].partition(":")[0]) == value


def _columns(heading: str) -> list[str]:
    table = TEXT.partition(f"| {heading} | type |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| ([a-z_, ]+) \|", table, re.M)
    return [name for cell in cells for name in cell.split(", ")]


@pytest.mark.parametrize(
    ("heading", "schema"), [("directory", segment.DIRECTORY), ("manifest", MANIFEST)]
)
def test_columns(heading: str, schema: pa.Schema) -> None:
    """Scenario: a column is added. Guarantee: the page lists all, in their order."""
    assert _columns(heading) == schema.names


def test_summary_and_state_fields() -> None:
    """Scenario: what is kept as JSON. Guarantee: the page names every field."""
    told = TEXT.partition("under `quiver` a JSON object:")[2].partition("A start reads")[0]
    assert {one.name for one in fields(segment.SegmentSummary)} <= set(re.findall(r"`(\w+)`", told))
    kept = TEXT.partition("| 40 | json_len | JSON |")[2].partition("|")[0]
    others = {"through", "last_ts", "window"}
    label = TEXT.partition("and `stage` is an\nobject:")[2].partition("An attempt")[0]
    assert {one.name for one in fields(StageLabel)} == set(re.findall(r"`(\w+)`", label))
    names = {one.name for one in fields(state.Checkpoint)} - others
    assert set(re.findall(r"`(\w+)`", kept)) == names | {"needs"}
    table = TEXT.partition("| member | value |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| (\w+) \|", table, re.M)) == names | {"needs"}
    row = json.loads(state.encode_state(state.Checkpoint(losses=(LOSS,)))[40:-4])["losses"][0]
    assert set(row) <= set(re.findall(r"`(\w+)`", table))
    assert "`" + ", ".join(keys._SCHEMA.names) + "`" in TEXT


def test_magics_types_and_fixed_sizes() -> None:
    """Scenario: what can't be in a table of offsets. Guarantee: it is on the page as it is
    in the code."""
    for magic in (
        wal_header.MAGIC,
        cursor.MAGIC,
        floor.MAGIC,
        segment.MAGIC,
        guard.MAGIC,
        progress.MAGIC,
        state._MAGIC,
        keys.MAGIC,
    ):
        assert f"`{magic.decode().replace(chr(0), chr(92) + '0')}`" in TEXT
    assert wal_entry.MARKER.hex(" ").upper() in TEXT
    assert f"footer  {segment.FOOTER_SIZE}" in TEXT
    assert f"trailer {segment.TRAILER_SIZE}" in TEXT
    assert f"size u16 = {cursor.SIZE}" in TEXT
    assert f"*Seal*, {guard.SEAL_SIZE} bytes" in TEXT
    assert f"({guard.STRIPE:,} bytes)" in TEXT
    assert f"of each {guard.TABLE_BLOCK:,} bytes" in TEXT
    assert f"{BLOCK_SIZE >> 10} KiB of a message" in TEXT
    for kind, name in (
        (wal_entry.BUNDLE, "bundle"),
        (wal_entry.SLOT_NAME, "slot name"),
        (wal_entry.WATERMARK, "watermark"),
        (wal_entry.SEAL, "seal"),
        (wal_entry.COMMIT, "commit"),
    ):
        assert f"| {kind} | {name} |" in TEXT
