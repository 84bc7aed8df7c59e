"""No way down: what this version has written to, 0.1.0 refuses, and leaves as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

import quiver
from tests.compat import golden
from tests.compat.reading import open_at
from tests.support.compat import release

BATCH: Final = pa.record_batch({"n": pa.array([1, 2], pa.int64())})
OPEN: Final = """
import sys, quiver
try:
    quiver.open(sys.argv[1]).close()
except quiver.QuiverError as error:
    print(error.code)
"""


def files_of(path: Path) -> dict[str, bytes]:
    """All files but the lock's, which every open takes."""
    return {
        str(one.relative_to(path)): one.read_bytes()
        for one in path.rglob("*")
        if one.is_file() and one.name != "LOCK"
    }


def refused(path: Path, tmp_path: Path) -> None:
    """0.1.0 opens it: refused by name, not a byte changed."""
    before = files_of(path)
    script = tmp_path / "open.py"
    script.write_text(OPEN)
    done = release("0.1.0").run([script, path])
    assert done.stdout.strip() == "unsupported_version", done
    assert files_of(path) == before


def test_a_new_store(tmp_path: Path) -> None:
    """Scenario: a store that this version made, empty or with bundles. Guarantee: refused."""
    path = tmp_path / "store"
    quiver.open(path).close()
    refused(path, tmp_path)
    with quiver.open(path) as store:
        store.put({"Logs": BATCH}).wait()
    refused(path, tmp_path)


@pytest.mark.parametrize("name", ["closed", "killed-log-only", "recycled-log", "many-lives"])
def test_a_store_that_this_version_has_put_to(name: str, tmp_path: Path) -> None:
    """Scenario: a directory of 0.1.0, opened and put to by this version. Guarantee: refused."""
    manifest = golden.manifest("directories", f"0.1.0/{name}")
    path = golden.unpacked("directories", f"0.1.0/{name}", tmp_path)
    with open_at(path, manifest["settings"], manifest["now_ns"]) as store:
        store.put({"Logs": BATCH}).wait()
    refused(path, tmp_path)
