"""What looks like an entry and isn't: forged in a payload, replayed, or left by another file."""

from __future__ import annotations

import struct
import zlib

import pytest

from quiver.errors import WalCorrupt
from quiver.wal.files import ACTIVE
from tests.support.memory_disk import MemoryDisk
from tests.support.wal import Log, as_v1, image, payloads, read, reopened, small

MARKER = b"\xb5QV1"


def forged(sequence: int, *, prefix: int = 37, length: int | None = None) -> bytes:
    """An entry laid out by a producer: plausible in all but the salt, which it can't know."""
    body = struct.pack("<BqQQ4sQ", 66, 0, sequence, 0, MARKER, sequence).ljust(prefix, b"\0")
    size = len(body) if length is None else length
    return struct.pack("<I", size) + body + struct.pack("<I", zlib.crc32(body))


def after_torn_put(log: Log, payload: bytes, sector: int = 0) -> dict[str, bytes]:
    """The files as a crash leaves them that tears the put of this payload: of the write, one
    sector is not there."""
    before, end = image(log)[ACTIVE], read(image(log)).files[-1].end
    log.put(payload)
    after = image(log)[ACTIVE]
    first = max(end, (end // 512 + sector) * 512)
    last = (end // 512 + sector + 1) * 512
    hole = before[first:last].ljust(last - first, b"\0")
    return image(log) | {ACTIVE: after[:first] + hole + after[last:]}


@pytest.mark.parametrize("sector", [0, 1])
@pytest.mark.parametrize("prefix", [37, 45])
def test_a_forged_entry_in_a_payload_proves_nothing(prefix: int, sector: int) -> None:
    """Scenario: a payload holds the bytes of an entry that says the bundle before it was synced,
    and the write of exactly that bundle is torn.

    Guarantee: it is a torn tail.  The log is read up to it and not refused.
    """
    log = Log(config=small(rotation_target=1 << 20))
    for n in range(3):
        log.put(b"%d" % n)
    fakes = b"".join(forged(n, prefix=prefix) for n in range(4, 9))
    files = after_torn_put(log, b"x" * 2000 + fakes + b"x" * 2000, sector)
    contents = read(files)
    assert sorted(payloads(contents)) == [0, 1, 2]
    assert (contents.torn is None) is (sector == 0)
    again = reopened(MemoryDisk.from_image(files))
    again.put(b"3")
    assert payloads(read(image(again))) == {n: b"%d" % n for n in range(4)}


@pytest.mark.parametrize("sector", [0, 1])
def test_entries_of_another_file_of_the_store_prove_nothing(sector: int) -> None:
    """Scenario: a payload is a log file of the same store, from a copy that had gone further;
    its entries have the sequences that are expected next.  The write of it is torn.

    Guarantee: a torn tail, since each file has a salt of its own.
    """
    start = Log(config=small(rotation_target=1 << 20))
    for n in range(3):
        start.put(b"%d" % n)
    ahead = reopened(MemoryDisk.from_image(image(start)), small(rotation_target=1 << 20))
    for n in range(3, 12):
        ahead.put(b"%d" % n)
    log = reopened(MemoryDisk.from_image(image(start)), small(rotation_target=1 << 20))
    log.put(b"3")
    contents = read(after_torn_put(log, b"x" * 2000 + image(ahead)[ACTIVE], sector))
    assert sorted(payloads(contents)) == [0, 1, 2, 3]


def test_a_payload_full_of_long_forgeries_does_not_end_the_search() -> None:
    """Scenario: thousands of forged heads, each with a length up to the end of the file, so that
    checking them one by one would read the file thousands of times.

    Guarantee: the search is exact and short: a torn tail, not refused for want of an answer.
    """
    log = Log(config=small(rotation_target=1 << 25, max_size=1 << 27, max_group=1 << 24))
    log.put(b"good")
    size = 1 << 23
    fakes = b"".join(
        forged(2, length=size - at - 200).ljust(4096, b"\0") for at in range(0, size, 4096)
    )
    contents = read(after_torn_put(log, b"x" * 2000 + fakes, sector=1))
    assert payloads(contents) == {0: b"good"}


def test_real_entries_still_prove_damage() -> None:
    """The same place with a real entry behind it is damage, however much a payload pretends."""
    log = Log(config=small(rotation_target=1 << 20))
    log.put(b"good")
    files = after_torn_put(log, b"x" * 2000 + forged(2) * 100, sector=1)
    log.put(b"after")
    data = image(log)[ACTIVE]
    with pytest.raises(WalCorrupt):
        read({ACTIVE: files[ACTIVE][:1500] + data[1500:]})


def test_every_file_has_a_salt_of_its_own() -> None:
    """New, rotated, recycled, after a restart: no two files share one."""
    config = small(rotation_target=900, max_size=4000, max_rotated_files=3)
    log = Log(config=config)
    salts = set()
    for n in range(60):
        if n == 30:
            log = reopened(MemoryDisk.from_image(image(log)), config)
        log.put(bytes(150), segment=n)
        log.writer.retire(n - 1)
        salts |= {
            (file.header.first_sequence, file.header.framing) for file in read(image(log)).files
        }
    assert len({framing for _, framing in salts}) == len({first for first, _ in salts}) > 10
    assert all(framing.version == 2 and framing.seed for _, framing in salts)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("at", [*range(64), None])
def test_a_damaged_head_costs_no_entry(at: int | None, old: bool) -> None:
    """Scenario: any byte of a head is damaged, the salt's too, or all of it is lost.

    Guarantee: that is damage, and every entry is found all the same: two entries in a row, or
    the head's own checksum, give the salt away.
    """
    log = Log(config=small(rotation_target=1 << 20))
    for n in range(5):
        log.put(bytes([n]) * 40)
    data = image(log)[ACTIVE]
    data = as_v1(data) if old else data
    whole = payloads(read({ACTIVE: data}))
    head = bytes(64) if at is None else data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 : 64]
    # Another file beside it, or a lost head would be taken for a file that was never begun.
    later = reopened(MemoryDisk.from_image({ACTIVE: data}))
    later.put(b"later")
    rotated = image(later)["wal/quiver.wal.1"]
    files = image(later) | {"wal/quiver.wal.1": head + rotated[64:]}
    with pytest.raises(WalCorrupt):
        read(files)
    assert payloads(read(files, salvage=True)) == {**whole, 5: b"later"}


def test_a_lone_entry_behind_a_damaged_salt() -> None:
    """With one entry only, the head's checksum tells whether the salt it gives away is right."""
    log = Log(config=small(rotation_target=1 << 20))
    log.put(b"one")
    data = image(log)[ACTIVE]
    for at in (10, 49):
        bad = data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :]
        assert payloads(read({ACTIVE: bad}, salvage=True)) == {0: b"one"}
    worse = bytearray(data)
    worse[49] ^= 0x5A
    worse[-70] ^= 0x5A
    assert payloads(read({ACTIVE: bytes(worse)}, salvage=True)) == {}
