"""Whole log files, written once: every later version reads them as they were meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver.format.wal.commit import Commit, CommittedFile
from quiver.ids import BundleRef
from quiver.wal.files import ACTIVE
from tests.support.wal import LAYOUT, TS, payloads, read

GOLDEN = Path(__file__).parents[2] / "golden" / "wal"
FILE = CommittedFile(bytes(range(16)), 1, 4096, 0xDEADBEEF, 2, 30, 700)


@pytest.mark.parametrize("version", [1, 2])
def test_a_whole_log(version: int) -> None:
    """A slot name, bundles, a commit, a watermark, a seal, each with all it says.  Slots of a
    commit and store times came with version 2."""
    contents = read({ACTIVE: (GOLDEN / f"v{version}.wal").read_bytes()})
    [file] = contents.files
    assert file.header.framing.version == version
    assert (file.header.layout_hash, file.header.first_sequence) == (LAYOUT, 0)
    assert contents.sealed
    assert (contents.next_sequence, contents.damage, contents.torn) == (6, (), None)
    entries = list(contents.entries())
    assert [entry.kind for entry in entries] == [65, 64, 68, 64, 66, 67]
    assert entries[0].slot_name() == (3, "Lögs")
    assert payloads(contents) == {1: b"one", 3: b"two"}
    assert [entry.ref for entry in entries if entry.is_bundle] == [BundleRef(0, 1), BundleRef(2, 3)]
    commit = entries[2].commit()
    slots = ("a", "b") if version == 2 else ()
    store_ts = entries[2].store_ts_ns
    ts = entries[2].ingestion_ts_ns
    assert commit == Commit("app", 9, 2, ts, 1, (FILE,), slots, store_ts)
    times = [entry.store_ts_ns for entry in entries if entry.is_bundle]
    assert times == ([TS, TS] if version == 2 else [None, None])
