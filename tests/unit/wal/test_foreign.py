"""Logs that the Rust crate wrote."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from quiver.disk.disk import Disk
from quiver.errors import QuiverError, UnsupportedVersion, WalCorrupt
from quiver.format.wal.header import FOREIGN_LAYOUT
from quiver.wal.contents import LogContents
from quiver.wal.files import ACTIVE, read_cursor, write_cursor
from tests.support.memory_disk import MemoryDisk
from tests.support.wal import Log, payloads, read, reopened

FIXTURES = Path(__file__).parents[2] / "fixtures" / "rust"
NAMES = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())


def fixture(name: str) -> dict[str, bytes]:
    directory = FIXTURES / name / "data" / "wal"
    return {f"wal/{path.name}": path.read_bytes() for path in directory.iterdir()}


def expected(name: str) -> dict[int, Any]:
    found = json.loads((FIXTURES / name / "EXPECTED.json").read_text())
    return {bundle["wal_sequence"]: bundle for bundle in found["bundles"]}


def sequences(contents: LogContents) -> list[int]:
    return [entry.sequence for entry in contents.entries()]


def header(position: int = 0) -> bytes:
    return struct.pack("<10sHH16sQ", b"QUIVER\0WAL", 1, 38, FOREIGN_LAYOUT, position)


def entry(sequence: int, kind: int = 0, extra: bytes = b"") -> bytes:
    data = struct.pack("<BqQQ", kind, 1, sequence, 0) + extra
    return struct.pack("<I", len(data)) + data + struct.pack("<I", zlib.crc32(data))


@pytest.mark.parametrize("name", NAMES)
def test_fixtures_are_read_whole(name: str) -> None:
    """Every entry, slot by slot, holds the very bytes that went in."""
    contents = read(fixture(name))
    assert contents.foreign
    assert contents.torn is None
    wanted = expected(name)
    found = list(contents.entries())
    assert [log.sequence for log in found] == sorted(wanted)
    for log in found:
        bundle, want = log.bundle(), wanted[log.sequence]
        assert bundle.ingestion_ts_ns == want["ingestion_ts_ns"]
        assert bundle.ref is None
        slots = {
            s.slot: (s.fingerprint.hex(), s.rows, hashlib.sha256(s.payload).hexdigest())
            for s in bundle.slots
        }
        assert slots == {s["slot"]: (s["fp"], s["rows"], s["ipc_sha256"]) for s in want["slots"]}


def test_positions_agree_with_their_cursor() -> None:
    """The cursor of a crashed directory lies on the end of the last entry in a segment."""
    files = fixture("crashed")
    cursor = read_cursor(Disk(MemoryDisk.from_image(files)))
    wanted = expected("crashed")
    covered = [e.sequence for e in read(files).entries() if e.end_position <= (cursor or 0)]
    assert covered == [n for n, bundle in wanted.items() if bundle["segment"] is not None][:6]


def test_a_flip_in_a_rotated_file_is_refused() -> None:
    """A later file has gone past the bad entry, so it was there once."""
    files = fixture("crashed")
    data = files["wal/quiver.wal.2"]
    for at in (60, 5000, len(data) - 1):
        bad = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(WalCorrupt, match=r"quiver\.wal\.2"):
            read(files | {"wal/quiver.wal.2": bad})
        salvaged = read(files | {"wal/quiver.wal.2": bad}, salvage=True)
        assert len(sequences(salvaged)) == 47


def test_every_byte_of_a_small_log() -> None:
    """Flipped anywhere, it is refused, reported as torn, or reads the same bundles."""
    files = fixture("tiny-crashed")
    data = files[ACTIVE]
    for at in range(len(data)):
        bad = files | {ACTIVE: data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :]}
        try:
            contents = read(bad)
        except QuiverError:
            continue
        assert contents.torn is not None or sequences(contents) == [0, 1, 2], at


def test_every_cut_of_the_active_file() -> None:
    """A crash may leave any prefix: what is whole is read, the rest is reported."""
    files = fixture("tiny-crashed")
    ends = [38, *(e.offset + len(e.body) + 8 for e in read(files).entries())]
    for cut in range(len(files[ACTIVE])):
        contents = read(files | {ACTIVE: files[ACTIVE][:cut]})
        assert len(sequences(contents)) == max(0, sum(end <= cut for end in ends) - 1)
        assert (contents.torn is None) == (cut in ends)


def test_a_torn_rotated_file() -> None:
    """Torn, and nothing later goes past it: a torn tail, and the later files are read."""
    first = header() + entry(0) + entry(1) + entry(2)[:-3]
    assert read({"wal/quiver.wal.1": first}).torn is not None
    for following in (entry(2), entry(0)):
        files = {"wal/quiver.wal.1": first, ACTIVE: header(99) + following}
        contents = read(files)
        assert len(sequences(contents)) == 3
        assert [torn.file for torn in contents.torn_tails] == ["wal/quiver.wal.1"]
    with pytest.raises(WalCorrupt):
        read({"wal/quiver.wal.1": first, ACTIVE: header(99) + entry(3)})


def test_nothing_need_go_on() -> None:
    """Sequences restart, positions go back, numbers have gaps: all of it has been seen."""
    files = {
        "wal/quiver.wal.1": header(500) + entry(7) + entry(8),
        "wal/quiver.wal.4": header(20) + entry(0),
        "wal/quiver.wal.10": header(90),
        ACTIVE: header(0) + entry(0) + entry(1),
    }
    contents = read(files)
    assert sequences(contents) == [7, 8, 0, 0, 1]
    assert contents.torn is None
    assert contents.next_sequence == 9


def newer_in(files: dict[str, bytes], salvage: bool) -> UnsupportedVersion:
    """What only a newer version can read of a log: refused, or listed when salvaging."""
    if salvage:
        [listed] = read(files, salvage=True).newer
        return listed
    with pytest.raises(UnsupportedVersion) as refused:
        read(files)
    return refused.value


@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize("kind", [1, 63, 64, 99])
def test_unknown_types_refuse(kind: int, salvage: bool) -> None:
    """Upstream's next entry type is a bundle too: a log with an entry of a type that this
    version doesn't know is refused by name, or named when salvaging, never read without it."""
    log = header() + entry(0) + entry(1, kind, b"k" * 16) + entry(2)
    newer = newer_in({ACTIVE: log}, salvage)
    assert f"type {kind} (sequence 1" in newer.message
    details = {"file": ACTIVE, "offset": 38 + len(entry(0)), "sequence": 1, "type": kind}
    assert newer.details == details
    again = newer_in({"wal/quiver.wal.1": log, ACTIVE: header() + entry(3)}, salvage)
    assert again.details["type"] == kind


@pytest.mark.parametrize("salvage", [False, True])
def test_a_newer_head_refuses(salvage: bool) -> None:
    """A head of the crate's with another version is a newer one's: its entries may be anything."""
    newer = header()[:10] + b"\x02\0" + header()[12:]
    found = newer_in({ACTIVE: newer + entry(0)}, salvage)
    assert "quiver.wal: " in found.message
    assert "version 2" in found.message


@pytest.mark.parametrize("head", [b"", header()[:20], bytes(38), bytes(500)])
def test_a_file_without_a_head(head: bytes) -> None:
    """The crate doesn't sync a new file's head: one that never arrived is a torn tail."""
    files = {"wal/quiver.wal.1": header() + entry(0), ACTIVE: head}
    contents = read(files)
    assert contents.torn is not None
    assert contents.torn.offset == 0
    raw = MemoryDisk.from_image(files)
    log = reopened(raw)
    assert ACTIVE not in raw.image()
    log.put(b"ours")
    assert payloads_of_ours(read(raw.image())) == [b"ours"]


def test_our_own_file_always_has_its_head() -> None:
    """Next to files of ours the same is damage: we sync a head before the file is named."""
    log = Log()
    for n in range(10):
        log.put(bytes(200) + bytes([n]))
    raw = log.raw
    assert isinstance(raw, MemoryDisk)
    for head in (b"", bytes(64)):
        with pytest.raises(WalCorrupt):
            read(raw.image() | {ACTIVE: head})


def payloads_of_ours(contents: LogContents) -> list[bytes]:
    return [
        bytes(log.bundle().slots[0].payload) for log in contents.entries() if log.ref is not None
    ]


def test_going_on_from_their_log() -> None:
    """Our entries go to a file of ours; theirs are not touched, and never recycled."""
    raw = MemoryDisk.from_image(fixture("crashed"))
    before = raw.image()
    log = reopened(raw)
    ack = log.put(b"ours", segment=3)
    assert ack.sequence == 48
    after = raw.image()
    assert after["wal/quiver.wal.6"] == before[ACTIVE]
    assert all(after[name] == data for name, data in before.items() if name != ACTIVE)
    contents = read(after)
    assert sequences(contents) == list(range(49))
    assert payloads_of_ours(contents) == [b"ours"]
    assert log.writer.retire(2) == 6
    assert sorted(raw.image()) == [ACTIVE, "wal/quiver.wal.cursor"]
    assert payloads(read(raw.image())) == {48: b"ours"}


def test_cursor_file() -> None:
    """Written durably, read back; none is none."""
    raw = MemoryDisk.from_image({}, ["wal"])
    disk = Disk(raw)
    assert read_cursor(disk) is None
    write_cursor(disk, 4711)
    assert read_cursor(disk) == 4711
    assert raw.durability().image() == raw.image()
