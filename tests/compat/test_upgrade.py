"""The first open of a directory of 0.1.0: from then on 0.1.0 refuses it, before it touches it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from quiver import Config, ManualClock, Store
from quiver.disk.disk import Disk
from quiver.format.keys import KEYS
from quiver.format.state import STATE_NAME
from tests.compat import golden
from tests.compat.reading import open_at
from tests.support.compat import release
from tests.support.memory_disk import MemoryDisk
from tests.support.oplog import Create, Op, Rename, Truncate, Unlink, Write

VERSION: Final = "0.1.0"
DIRECTORIES: Final = [
    name
    for name in golden.names("directories")
    if name.startswith(VERSION) and "refused" not in golden.manifest("directories", name)
]
OPEN: Final = textwrap.dedent(
    """
    import json, sys
    import quiver
    for path, settings in json.loads(sys.argv[1]).items():
        try:
            quiver.open(path, **settings).close()
            print("opened")
        except quiver.errors.QuiverError as error:
            print(error.code)
    """
)


def files(path: Path) -> dict[str, bytes]:
    """Every file but the lock, which names its last holder."""
    return {
        str(one.relative_to(path)): one.read_bytes()
        for one in sorted(path.rglob("*"))
        if one.is_file() and one.name != "LOCK"
    }


def test_the_older_program_refuses_and_changes_nothing(tmp_path: Path) -> None:
    """Scenario: each directory of 0.1.0 was opened once by this version; then somebody goes back.
    Guarantee: 0.1.0 refuses it as of a newer version and changes no byte; this version opens it
    again with the same uuid."""
    stores: dict[Path, tuple[str, dict[str, Any]]] = {}
    for number, name in enumerate(DIRECTORIES):
        manifest = golden.manifest("directories", name)
        path = golden.unpacked("directories", name, tmp_path / str(number))
        with open_at(path, manifest["settings"], manifest["now_ns"]) as store:
            stores[path] = store.uuid, manifest
    before = {path: files(path) for path in stores}
    script = tmp_path / "open.py"
    script.write_text(OPEN)
    asked = json.dumps({str(path): manifest["settings"] for path, (_, manifest) in stores.items()})
    done = release(VERSION).run([script, asked])
    assert done.stdout.split() == ["unsupported_version"] * len(stores), done.stderr
    for path, (uuid, manifest) in stores.items():
        assert files(path) == before[path], path
        with open_at(path, manifest["settings"], manifest["now_ns"]) as store:
            assert store.uuid == uuid


@pytest.mark.parametrize("name", DIRECTORIES)
def test_the_refusal_comes_first(name: str, tmp_path: Path) -> None:
    """Scenario: what an open of a directory of 0.1.0 writes, in order. Guarantee: key runs, which
    0.1.0 doesn't look at, and then the checkpoint that it refuses, come before anything else."""
    manifest = golden.manifest("directories", name)
    path = golden.unpacked("directories", name, tmp_path)
    raw = MemoryDisk.from_image(files(path))
    config = Config.load(env={}, **manifest["settings"])
    Store(Disk(raw), config, where="mem", clock=ManualClock(manifest["now_ns"])).close()
    changed = [*_changed(raw.ops)]
    first = changed.index(STATE_NAME)
    assert all(path.startswith((f"{KEYS}/", f"{STATE_NAME}.tmp")) for path in changed[:first])


def _changed(ops: Iterable[Op]) -> Iterator[str]:
    """The files that come, change or go, in order."""
    names: dict[int, str] = {}
    for one in ops:
        if isinstance(one, Create):
            names[one.inode] = one.path
            yield one.path
        elif isinstance(one, Rename):
            yield from (one.source, one.target)
        elif isinstance(one, Unlink):
            yield one.path
        elif isinstance(one, (Write, Truncate)):
            yield names.get(one.inode, "a file of before")
