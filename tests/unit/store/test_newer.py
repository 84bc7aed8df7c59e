"""Stores of other versions: an older one opens as it is, a newer one is refused untouched."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import pyarrow as pa
import pytest

from quiver.disk.disk import Disk
from quiver.errors import UnsupportedVersion
from quiver.format.wal.entry import SLOT_NAME
from quiver.format.wal.header import decode_header
from quiver.offline.dump import dump
from quiver.offline.repair import RepairPlan
from quiver.offline.verify import verify
from quiver.wal.files import ACTIVE
from tests.support.memory_disk import MemoryDisk
from tests.support.rust import batches_of
from tests.support.stores import World, number_of
from tests.support.wal import as_v1

RUN = "keys/00000000000000000001-00000000000000000001"
LEFTOVER = "segments/0000000000000099.qseg.tmp"


def crashed() -> World:
    """A store whose process died: a segment, a subscriber, a key in a run, and bundles in the
    log only."""
    world = World()
    world.store.register("reader")
    world.put(0, key="k").wait()
    world.sealed(1)
    world.store.register("another")  # writes a checkpoint
    world.put_durable(2, 3)
    return world


def resealed(data: bytes, start: int, end: int, seed: int = 0) -> bytes:
    """The checksum behind ``end`` made to fit the bytes before it."""
    crc = zlib.crc32(data[start:end], seed)
    return data[:end] + struct.pack("<I", crc) + data[end + 4 :]


def with_head(at: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda data: resealed(data[:at] + value + data[at + len(value) :], 0, 60)


def with_type(data: bytes) -> bytes:
    """The first entry, which names a slot, gets another type."""
    assert data[68] == SLOT_NAME
    end = 68 + int.from_bytes(data[64:68], "little")
    return resealed(data[:68] + b"\x7f" + data[69:], 68, end, decode_header(data).framing.seed)


def with_tag(data: bytes, first: int = 0) -> bytes:
    """Each bundle, from one on, gets a tag from the future."""
    seed = decode_header(data).framing.seed
    out, at, bundles = data[:64], 64, 0
    while length := int.from_bytes(data[at : at + 4], "little"):
        body = data[at + 4 : at + 4 + length]
        bundles += body[0] == 64
        if body[0] == 64 and bundles > first:
            ext = struct.pack("<BI", 77, 0)
            body = body[:57] + struct.pack("<I", len(ext)) + ext + body[61:]
        out += struct.pack("<I", len(body)) + body + struct.pack("<I", zlib.crc32(body, seed))
        at += 8 + length
    return out + bytes(64)


def with_tag_in_last(data: bytes) -> bytes:
    return with_tag(data, 1)


def with_flags(data: bytes) -> bytes:
    """A progress file of the Rust crate, its flag for a watermark set."""
    body = data[:10] + struct.pack("<HH", 32, 1) + data[14:32] + data[40:-4]
    return body + struct.pack("<I", zlib.crc32(body))


def with_version(at: int) -> Callable[[bytes], bytes]:
    """A small file whose number at an offset becomes 2."""
    return lambda data: resealed(data[:at] + b"\x02\0" + data[at + 2 :], 0, len(data) - 4)


NEWER = [
    (ACTIVE, with_head(10, b"\x03\0"), "version 3"),
    (ACTIVE, with_head(46, b"\0\x80"), "flags 0x8000"),
    (ACTIVE, with_type, "type 127"),
    (ACTIVE, with_tag, "tag 77"),
    (RUN, with_version(8), "version 2"),
    ("quiver.state", with_version(12), "flags 0x0002"),
    ("quiver.sub.reader", with_flags, "flags 0x0001"),
]


@pytest.mark.parametrize(("path", "edit", "named"), NEWER, ids=[named for *_, named in NEWER])
def test_a_newer_file_refuses_the_store_and_nothing_is_touched(
    path: str, edit: Callable[[bytes], bytes], named: str
) -> None:
    """Scenario: a file has a version, flag, entry type or tag of a newer version.

    Guarantee: an open and every tool name the file and what is new in it, under any policy, and
    not a byte of the directory is changed, not even what a crash left half written.
    """
    world = crashed()
    before = world.raw.image()
    image = before | {path: edit(before[path]), LEFTOVER: b"half"}
    for policy in ("fail", "earliest"):
        raw = MemoryDisk.from_image(image, world.raw.directories())
        with pytest.raises(UnsupportedVersion, match=named) as refused:
            World(raw).open(subscribers={"corrupt_progress": policy})
        assert refused.value.details["file"] == path
        assert path in str(refused.value)
        assert {name: data for name, data in raw.image().items() if name != "LOCK"} == {
            name: data for name, data in image.items() if name != "LOCK"
        }
    disk = Disk(MemoryDisk.from_image(image))
    for told in (verify(disk).newer, dump(disk, Disk(MemoryDisk())).newer):
        assert [path in one and named in one for one in told] == [True]
    with pytest.raises(UnsupportedVersion, match=named):
        RepairPlan(disk)


def test_a_dump_saves_what_lies_before_and_behind_a_newer_part_of_the_log() -> None:
    """Scenario: of three log files one has a head, or an entry, of a newer version.

    Guarantee: a dump names it and saves the bundles of the others, and of the same file those
    before the entry; nothing is called lost.
    """
    world = World()
    world.put_durable(0, 1)
    world.kill()  # a log that is found is never appended to
    world.put_durable(2, 3)
    world.kill()
    world.put_durable(4, 5)
    image = world.raw.image()
    logs = ["wal/quiver.wal.1", "wal/quiver.wal.2", ACTIVE]
    assert [path for path in sorted(image) if "quiver.wal" in path] == sorted(logs)
    for number, path in enumerate(logs):
        others = [n for n in range(6) if n // 2 != number]
        for edit, before in ((with_head(10, b"\x03\0"), []), (with_tag_in_last, [2 * number])):
            disk = Disk(MemoryDisk.from_image(image | {path: edit(image[path])}))
            out = Disk(MemoryDisk())
            result = dump(disk, out)
            saved = [number_of(batches_of(one, out)[0]) for one in result.saved]
            assert saved == sorted(others + before)
            assert (result.lost, result.damage, len(result.newer)) == ((), (), 1)
            assert path in result.newer[0]
            verdict = verify(disk)
            assert (verdict.problems, verdict.lost_bundles, verdict.newer) == ((), 0, result.newer)


def test_a_log_of_version_1_opens_and_serves() -> None:
    """Scenario: the log files are as 0.1.0 wrote them.

    Guarantee: every bundle is there, once; what is written from now on is of version 2.
    """
    world = crashed()
    image = {
        path: as_v1(data) if path.startswith("wal/quiver.wal") else data
        for path, data in world.raw.image().items()
    }
    assert decode_header(image[ACTIVE]).framing.version == 1
    old = World(MemoryDisk.from_image(image, world.raw.directories()))
    assert verify(Disk(MemoryDisk.from_image(image))).sound
    old.put_durable(4)
    assert decode_header(old.raw.image()[ACTIVE]).framing.version == 2
    old.kill()
    assert old.drain("reader") == [0, 1, 2, 3, 4]


def test_a_forged_log_entry_in_a_bundle_and_a_torn_write() -> None:
    """Scenario: a bundle's column holds the bytes of log entries which say that this very bundle
    was synced.  The machine dies while the bundle is written, and a part of it is missing.

    Guarantee: the store opens with all that was durable; the rest is kept in quarantine.
    """
    world = World()
    world.put_durable(0)
    end = len(world.raw.image()[ACTIVE]) - 64
    sequence = world.store.put({"Logs": pa.record_batch({"n": [1]})}).sequence
    fakes = b""
    for n in range(sequence + 2, sequence + 20):
        body = struct.pack("<BqQQ4sQ", 66, 0, n, 0, b"\xb5QV1", n)
        fakes += struct.pack("<I", 37) + body + struct.pack("<I", zlib.crc32(body))
    column = pa.array([b"x" * 3000 + fakes + b"x" * 3000])
    world.store.put({"Logs": pa.record_batch({"blob": column})}).wait()
    at = end + 2000
    world.change(ACTIVE, lambda data: data[:at] + bytes(512) + data[at + 512 :])
    store = world.open()
    assert [text for text in store.report.torn_tails if "last write is incomplete" in text]
    assert len(world.files("quarantine/")) == 1
    assert world.drain()[:1] == [0]
