"""What a bad place in the log means."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import pytest

from quiver.disk.disk import Disk
from quiver.errors import LayoutMismatch, UnsupportedVersion, WalCorrupt
from quiver.format.wal.entry import MARKER, seal_bundle
from quiver.format.wal.header import layout_hash
from quiver.ids import BundleRef
from quiver.wal import scan
from quiver.wal.contents import LogEntry
from quiver.wal.files import ACTIVE
from quiver.wal.reader import read_log
from tests.support.memory_disk import MemoryDisk
from tests.support.wal import LAYOUT, TS, Log, as_v1, body, image, payloads, read, small


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


def one_file(groups: int = 4, per_group: int = 2) -> tuple[dict[str, bytes], list[LogEntry]]:
    """A log in one file, and its entries."""
    log = Log(config=small(rotation_target=1 << 20))
    for n in range(groups):
        for m in range(per_group):
            log.stage(bytes([16 * n + m + 1]) * 50)
        log.commit()
    files = image(log)
    return files, list(read(files).entries())


def several_files() -> dict[str, bytes]:
    log = Log()
    for n in range(20):
        log.put(bytes([n]) * 150)
    return image(log)


def test_an_empty_directory_is_an_empty_log() -> None:
    """Nothing there: nothing read, nothing wrong."""
    contents = read({})
    assert contents.files == ()
    assert (contents.next_sequence, contents.position, contents.torn) == (0, 0, None)


def test_visitors_see_what_is_there() -> None:
    """One pass over the log gives every entry in order, as reading again does."""
    files = several_files()
    seen: list[LogEntry] = []
    contents = read_log(Disk(MemoryDisk.from_image(files)), layout_hash=LAYOUT, visit=seen.append)
    again = list(contents.entries())
    assert [bytes(entry.body) for entry in seen] == [bytes(entry.body) for entry in again]
    assert [entry.sequence for entry in seen] == list(range(20))
    assert [entry.ref for entry in seen] == [(0, n) for n in range(20)]
    assert contents.bundles == 20
    assert contents.last_ts_ns == seen[-1].ingestion_ts_ns


def test_damage_that_a_later_entry_proves() -> None:
    """An entry below a later entry's synced_before was synced: refused, with the facts."""
    files, entries = one_file()
    bad = files | {ACTIVE: flipped(files[ACTIVE], entries[2].offset + 60)}
    with pytest.raises(WalCorrupt) as refused:
        read(bad)
    assert refused.value.details == {
        "file": ACTIVE,
        "offset": entries[2].offset,
        "sequence": 2,
        "sound_before": 2,
        "sound_after": 5,
    }
    text = str(refused.value)
    assert f"{ACTIVE} byte {entries[2].offset:,}" in text
    assert "Nothing was changed. 2 bundles before it and 5 after it are sound." in text
    for command in ("quiver verify", "quiver dump", "quiver repair"):
        assert command in text


def test_the_last_group_can_only_be_reported() -> None:
    """No later entry proves the last group, so a bad entry there is a torn tail."""
    files, entries = one_file()
    bad = files | {ACTIVE: flipped(files[ACTIVE], entries[6].offset + 60)}
    contents = read(bad)
    assert contents.torn is not None
    assert (contents.torn.offset, contents.torn.sequence) == (entries[6].offset, 6)
    assert contents.torn.length == len(files[ACTIVE]) - entries[6].offset
    assert contents.next_sequence == 6


def test_a_watermark_proves_the_last_group() -> None:
    """With a watermark behind it, the same flip is refused."""
    log = Log(config=small(rotation_target=1 << 20))
    log.put(bytes(100))
    log.writer.watermark()
    log.commit()
    files = image(log)
    with pytest.raises(WalCorrupt):
        read(files | {ACTIVE: flipped(files[ACTIVE], 130)})


def test_a_sound_neighbour_proves_nothing() -> None:
    """In one unsynced group a later entry may have arrived without an earlier one."""
    files, entries = one_file(groups=1, per_group=5)
    bad = files | {ACTIVE: flipped(files[ACTIVE], entries[1].offset + 60)}
    contents = read(bad)
    assert contents.torn is not None
    assert contents.next_sequence == 1


def test_rotated_files_are_synced_by_their_name() -> None:
    """Any bad entry in a file called N is damage, even in the last group of the last one."""
    files = several_files()
    rotated = sorted(name for name in files if name != ACTIVE)
    for name in rotated:
        with pytest.raises(WalCorrupt):
            read(files | {name: flipped(files[name], 130)})


def test_a_missing_active_file_is_damage() -> None:
    """There is always an active file, or a whole one about to take its place."""
    files = several_files()
    active = files.pop(ACTIVE)
    with pytest.raises(WalCorrupt, match="missing"):
        read(files)
    for ready in ("wal/quiver.wal.new", "wal/quiver.wal.spare"):
        assert payloads(read(files | {ready: active})) == payloads(read(files | {ACTIVE: active}))
    with pytest.raises(WalCorrupt, match="missing"):
        read(files | {"wal/quiver.wal.spare": files["wal/quiver.wal.1"]})


def test_a_file_that_ends_too_early() -> None:
    """Cut cleanly between two entries, a file is still short of the next one's start."""
    files = several_files()
    contents = read(files)
    entry = list(contents.entries())[1]
    assert entry.path != ACTIVE
    for rest in (b"", bytes(64), bytes(300)):
        with pytest.raises(WalCorrupt, match="missing"):
            read(files | {entry.path: files[entry.path][: entry.offset] + rest})


def test_a_missing_file_is_damage() -> None:
    """Sequences go on from file to file; the first may be anything, a gap may not."""
    files = several_files()
    names = [file.path for file in read(files).files]
    assert payloads(read({name: files[name] for name in names[1:]}))
    for name in names[1:-1]:
        with pytest.raises(WalCorrupt, match="missing"):
            read({path: data for path, data in files.items() if path != name})


def test_a_file_that_comes_twice_is_damage() -> None:
    """The same entries in two files: somebody has copied things about."""
    files = several_files()
    names = [file.path for file in read(files).files]
    with pytest.raises(WalCorrupt, match="repeats"):
        read(files | {names[1]: files[names[0]]})


def test_a_hole_at_the_beginning_of_an_entry() -> None:
    """Zeros where a synced entry began are no clean end if later entries know better."""
    files, entries = one_file()
    at = entries[2].offset
    data = files[ACTIVE]
    with pytest.raises(WalCorrupt, match="missing"):
        read(files | {ACTIVE: data[:at] + bytes(64) + data[at + 64 :]})


def test_salvage_goes_on_behind_a_hole() -> None:
    """A hole in the middle of a rotated file costs the entries in it, not those behind."""
    log = Log(config=small(rotation_target=2000))
    for n in range(30):
        log.put(bytes([n + 1]) * 150)
    files = image(log)
    entry = list(read(files).entries())[3]
    data = files[entry.path]
    hole = data[: entry.offset] + bytes(100) + data[entry.offset + 100 :]
    contents = read(files | {entry.path: hole}, salvage=True)
    assert sorted(payloads(contents)) == [n for n in range(30) if n != 3]
    assert [(d.sequence, d.until) for d in contents.damage] == [(3, 4)]


def test_salvage_goes_on_behind_damage() -> None:
    """Asked to salvage, reading lists the damage and gives all that is sound."""
    files = several_files()
    names = [file.path for file in read(files).files]
    whole = payloads(read(files))
    broken = dict(files)
    broken[names[1]] = flipped(files[names[1]], 130)
    broken[names[3]] = flipped(files[names[3]], 5)
    del broken[names[5]]
    contents = read(broken, salvage=True)
    found = payloads(contents)
    assert found == {n: whole[n] for n in found}
    lost = set(whole) - set(found)
    spans = [range(d.sequence, d.until) for d in contents.damage if d.until is not None]
    assert len(spans) == len(contents.damage) == 3
    assert {n for span in spans for n in span} == lost
    assert [damage.file for damage in contents.damage][:2] == [names[1], names[3]]


def newer_in(files: dict[str, bytes], salvage: bool) -> UnsupportedVersion:
    """What only a newer version can read of a log: refused, or listed when salvaging."""
    if salvage:
        [listed] = read(files, salvage=True).newer
        return listed
    with pytest.raises(UnsupportedVersion) as refused:
        read(files)
    return refused.value


@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize("old", [False, True])
def test_unknown_types_refuse(old: bool, salvage: bool) -> None:
    """An entry of a later version is never stepped over: the log is refused by its type, or its
    file read up to there."""
    log = Log(config=small(rotation_target=1 << 20))
    log.stage(b"a")
    with log.lock:
        log.writer.stage_control(200, b"from the future")
    log.stage(b"b")
    log.commit()
    data = image(log)[ACTIVE]
    newer = newer_in({ACTIVE: as_v1(data) if old else data}, salvage)
    assert "type 200" in newer.message
    details = newer.details
    assert (details["file"], details["sequence"], details["type"]) == (ACTIVE, 1, 200)


@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize("kind", [0, 1, 200])
def test_unknown_types_without_a_marker(kind: int, salvage: bool) -> None:
    """Upstream's entry types have no marker: in turn, they are of a newer version all the same."""
    files, entries = one_file(groups=1, per_group=2)
    framing = entries[-1].framing
    end = entries[-1].offset + len(entries[-1].body) + 8
    data = struct.pack("<BqQQ", kind, 0, 2, 0)
    crc = zlib.crc32(data, framing.seed)
    strange = struct.pack("<I", len(data)) + data + struct.pack("<I", crc)
    newer = newer_in({ACTIVE: files[ACTIVE][:end] + strange + bytes(64)}, salvage)
    assert f"type {kind} " in newer.message


@pytest.mark.parametrize("salvage", [False, True])
def test_unknown_tags_refuse(salvage: bool) -> None:
    """A tag below 128 that this version doesn't know refuses the log, with file, sequence and
    tag; one from 128 on is ignored."""
    for tag in (128, 6):
        log = Log(config=small(rotation_target=1 << 20))
        log.put(b"a")
        ext = struct.pack("<BI", tag, 2) + b"xy"
        prepared = body(b"b")
        with log.lock:
            size = prepared.entry_size(ext)
            seed = log.writer.seed_for(size)
            ref = BundleRef(0, 1)
            entry = seal_bundle(prepared, 1, 1, ref, 0, ext, store_ts=0, seed=seed)
            log.writer.stage(entry, size, 1, 0, None)
        log.commit()
        files = image(log)
        if tag == 128:
            assert payloads(read(files, salvage=salvage)) == {0: b"a", 1: b"b"}
            continue
        newer = newer_in(files, salvage)
        assert "tag 6 (sequence 1" in newer.message
        details = newer.details
        assert (details["file"], details["sequence"], details["tag"]) == (ACTIVE, 1, 6)


@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize(("at", "data"), [(10, b"\x03\0"), (46, b"\x01\0")])
def test_a_newer_head_refuses(at: int, data: bytes, salvage: bool) -> None:
    """A sound head with a later version or a flag: refused by name; when salvaging, its file is
    passed over, and the files before and behind it are read without damage."""
    files = several_files()
    name = "wal/quiver.wal.3"
    head = bytearray(files[name][:64])
    head[at : at + 2] = data
    head[60:] = zlib.crc32(bytes(head[:60])).to_bytes(4, "little")
    files |= {name: bytes(head) + files[name][64:]}
    newer = newer_in(files, salvage)
    assert "quiver.wal.3" in newer.message
    assert newer.details["file"] == name
    contents = read({path: data for path, data in files.items() if path != name}, salvage=True)
    assert contents.damage
    if salvage:
        assert payloads(read(files, salvage=True)) == payloads(contents)
        assert read(files, salvage=True).damage == ()


def test_sequences_that_were_never_given_out() -> None:
    """Scenario: a file begins far behind the end of the one before it. Guarantee: damage, unless
    the checkpoint says that no sequence between them was given out."""
    files = several_files()
    name = "wal/quiver.wal.3"
    del files[name]
    [damage] = read(files, salvage=True).damage
    first, end = damage.sequence, damage.until
    assert end is not None
    disk = Disk(MemoryDisk.from_image(files))
    for gaps in ([(first, end)], [(first - 1, first + 1), (first + 1, end + 5)]):
        contents = read_log(disk, layout_hash=None, gaps=gaps)
        assert contents.damage == ()
    for gaps in ([(first, end - 1)], [(first + 1, end)], [(end, end + 9)]):
        with pytest.raises(WalCorrupt):
            read_log(disk, layout_hash=None, gaps=gaps)


def test_store_time_comes_back() -> None:
    """Each entry gives its store time; those of version 1 have none."""
    files, entries = one_file()
    assert {entry.store_ts_ns for entry in entries} == {TS}
    assert {entry.bundle().store_ts_ns for entry in entries} == {TS}
    old = list(read({ACTIVE: as_v1(files[ACTIVE])}).entries())
    assert {entry.store_ts_ns for entry in old} == {None}
    assert [entry.ref for entry in old] == [entry.ref for entry in entries]


def test_hostile_lengths_cost_no_memory() -> None:
    """A length is checked against the limit and the file before anything is read for it."""
    files, entries = one_file()
    end = entries[-1].offset + len(entries[-1].body) + 8
    for length in (2**28, 2**28 + 1, 2**32 - 1, 24, 1):
        data = files[ACTIVE][:end] + struct.pack("<I", length) + b"x" * 100
        tracemalloc.start()
        contents = read({ACTIVE: data})
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert contents.torn is not None
        assert peak < 8 * 1024 * 1024


def test_a_payload_full_of_markers_ends_the_search() -> None:
    """The search behind a bad entry is bounded, whatever a payload looks like."""
    log = Log(config=small(rotation_target=1 << 22, max_size=1 << 24))
    log.put(b"good")
    end = read(image(log)).files[-1].end
    fake = struct.pack("<IBqQQ4sQ", 37, 64, 0, 5, 0, MARKER, 4)
    log.put(fake * 1000)
    data = image(log)[ACTIVE]
    contents = read({ACTIVE: flipped(data, end + 60)})
    assert contents.torn is not None
    assert payloads(contents) == {0: b"good"}


def test_entries_larger_than_a_chunk() -> None:
    """Entries of many chunks and of a few bytes, in any order, are read back."""
    log = Log(config=small(rotation_target=1 << 23, max_size=1 << 26, max_group=1 << 24))
    sizes = [3_000_000, 0, 10, 1_048_576, 1_048_500, 5, 2_500_000, 100]
    for size in sizes:
        log.put(bytes([size % 251]) * size)
    found = payloads(read(image(log)))
    assert [len(data) for data in found.values()] == sizes


@pytest.mark.parametrize("window", [64, 1000, 5000])
def test_what_was_read_stays_as_it_was(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: a log of many windows, each entry kept while the rest is read, as replay does.

    Guarantee: none of them is written over.
    """
    monkeypatch.setattr(scan, "CHUNK", 300)
    monkeypatch.setattr(scan, "WINDOW", window)
    log = Log(config=small(rotation_target=1 << 20))
    sent = [bytes([n]) * (37 * n % 400) for n in range(100)]
    for data in sent:
        log.put(data)
    seen: list[LogEntry] = []
    read_log(log.disk, layout_hash=LAYOUT, visit=seen.append)
    assert [bytes(entry.bundle().slots[0].payload) for entry in seen] == sent


def test_another_slot_table_is_refused() -> None:
    """A log made for other slots says so, and names the file; tools may look anyway."""
    files = several_files()
    disk = Disk(MemoryDisk.from_image(files))
    with pytest.raises(LayoutMismatch) as refused:
        read_log(disk, layout_hash=layout_hash({"Logs": 1}))
    assert refused.value.details["file"] == "wal/quiver.wal.1"
    assert read_log(disk, layout_hash=None).bundles == 20


def test_reading_changes_nothing() -> None:
    """Sound, torn or damaged: not a single write."""
    files, entries = one_file()
    for at in (entries[2].offset + 60, entries[6].offset + 60, 3):
        raw = MemoryDisk.from_image(files | {ACTIVE: flipped(files[ACTIVE], at)})
        read(Disk(raw), salvage=True)
        assert raw.ops == []
