"""Directories of the Rust crate as a beginning: its bundles were promised by somebody too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

import pyarrow as pa

from quiver.format.progress import decode_progress
from quiver.ids import BundleRef
from tests.crash import notes as n
from tests.crash.disk import CrashDisk
from tests.crash.oracle import EARLIEST, Put, Slots
from tests.crash.states import State

FIXTURES: Final = Path(__file__).parents[1] / "fixtures" / "rust"


@lru_cache(maxsize=8)
def foreign_state(name: str) -> State:
    """The files of a fixture."""
    root = FIXTURES / name / "data"
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
    return State(files, ["segments", "wal"])


def foreign_notes(disk: CrashDisk) -> Iterator[n.Note]:
    """Everything in it is durable; those that are only in its log have no ref yet."""
    files = disk.image()
    name = next(name for name in _names() if foreign_state(name).files == files)
    for put, place in _bundles(name):
        yield n.Offered(put)
        yield n.Promised(put.number, place)
    for path, data in files.items():
        if path.startswith("quiver.sub."):
            subscriber = path.removeprefix("quiver.sub.")
            yield n.Joining(subscriber, EARLIEST)
            yield n.Joined(subscriber)
            for seq, entry in decode_progress(data).entries.items():
                for index in range(entry.bundle_count):
                    if entry.done >> index & 1:
                        yield n.Resolved(subscriber, BundleRef(seq, index), "acked")
    yield n.Kept()


def _names() -> list[str]:
    return ["tiny-crashed", "tiny-clean"]


@lru_cache(maxsize=8)
def _bundles(name: str) -> list[tuple[Put, BundleRef | None]]:
    expected = json.loads((FIXTURES / name / "EXPECTED.json").read_text())
    found = []
    for bundle in expected["bundles"]:
        slots: Slots = {
            f"slot{slot['slot']}": _batch(FIXTURES / name / slot["file"])
            for slot in bundle["slots"]
        }
        place = None
        if bundle["segment"] is not None:
            place = BundleRef(bundle["segment"], bundle["bundle"])
        found.append((Put(bundle["index"], slots, None, {}), place))
    return found


def _batch(path: Path) -> pa.RecordBatch:
    with pa.ipc.open_stream(path.read_bytes()) as stream:
        return stream.read_next_batch()
