"""Failed deliveries in a file that grows: kept, bounded, and honest about damage."""

from __future__ import annotations

import pytest

from flight_service.server.claims import Failure
from flight_service.server.failures import (
    SPARE_LINES,
    FailureLog,
    Table,
    decode_failures,
    encode_change,
    encode_leave,
)
from quiver import BundleRef
from quiver.disk.disk import Disk
from quiver.errors import UnsupportedVersion
from quiver.format.checked_json import encode_title
from tests.support.memory_disk import MemoryDisk

PATH = "failures.log"
A, B = BundleRef(3, 17), BundleRef(4, 0)


@pytest.fixture
def disk() -> Disk:
    return Disk(MemoryDisk())


def loaded(disk: Disk) -> Table:
    table, damaged = FailureLog(disk, PATH).load()
    assert damaged == []
    return table


def test_changes_are_appended_and_read_back(disk: Disk) -> None:
    """Scenario: counts rise, one bundle is finished, a subscriber leaves. Guarantee: a
    restart finds what is left, and a change costs its own line, not the whole table."""
    log = FailureLog(disk, PATH)
    live = {"x": {A: Failure(1, "lost"), B: Failure(1)}, "y": {A: Failure(5)}}
    log.save([], live)
    before = disk.stat_size(PATH)
    assert before is not None
    change = encode_change("x", A, Failure(2, "lease expired"))
    log.save([change], live)
    assert disk.stat_size(PATH) == before + len(change)
    log.save([encode_change("x", B, None), encode_leave("y")], live)
    assert loaded(disk) == {"x": {A: Failure(2, "lease expired")}}


def test_the_file_is_bounded_by_what_is_live(disk: Disk) -> None:
    """Scenario: 65,536 changes of a single bundle. Guarantee: the file never holds many more
    lines than live entries, and the newest count is kept."""
    log = FailureLog(disk, PATH)
    log.load()
    most = 0
    for count in range(1, 65):
        failure = Failure(count * 1024)
        log.save([encode_change("x", A, failure)] * 1024, {"x": {A: failure}})
        most = max(most, len(disk.read(PATH).splitlines()))
    assert most <= 2 + SPARE_LINES + 2
    assert loaded(disk) == {"x": {A: Failure(64 * 1024)}}


def test_a_last_line_cut_short_was_never_promised(disk: Disk) -> None:
    """Scenario: a crash in the middle of an append, at every byte. Guarantee: all lines
    before it are read, nothing is damage, and the next save makes the file whole again."""
    log = FailureLog(disk, PATH)
    live = {"x": {A: Failure(1)}}
    log.save([], live)
    whole = disk.read(PATH)
    line = encode_change("x", A, Failure(2))
    for cut in range(len(line)):
        disk.replace(PATH, whole + line[:cut])
        torn = FailureLog(disk, PATH)
        assert torn.load() == (live, [])
        torn.save([line], {"x": {A: Failure(2)}})
        assert loaded(disk) == {"x": {A: Failure(2)}}


def test_a_damaged_line_is_named_and_costs_itself_only(disk: Disk) -> None:
    """Scenario: each byte of a line in the middle is flipped. Guarantee: that line is named,
    the others are read."""
    log = FailureLog(disk, PATH)
    log.save([], {"x": {A: Failure(1), B: Failure(2)}})
    data = disk.read(PATH)
    start, end = data.index(b"\n") + 1, data.index(b"\n", data.index(b"\n") + 1)
    for at in range(start, end):
        flipped = bytearray(data)
        flipped[at] ^= 0x04
        table, _, damaged = decode_failures(bytes(flipped), PATH)
        assert 2 in damaged
        assert table["x"][B] == Failure(2)


def test_a_failed_append_leaves_nothing_doubtful(disk: Disk) -> None:
    """Scenario: the disk refuses an append half way. Guarantee: the next save writes the file
    anew instead of adding to a part."""
    log = FailureLog(disk, PATH)
    log.save([], {"x": {A: Failure(1)}})
    with pytest.raises(TypeError):
        log.save([None], {"x": {A: Failure(1)}})  # type: ignore[list-item]
    log.save([encode_change("x", A, Failure(2))], {"x": {A: Failure(2)}})
    assert loaded(disk) == {"x": {A: Failure(2)}}


def test_a_damaged_title_costs_no_count(disk: Disk) -> None:
    """Scenario: each byte of the title is flipped. Guarantee: reported as line 1, the counts are
    read, and the next save writes the file anew."""
    log = FailureLog(disk, PATH)
    log.save([], {"x": {A: Failure(1), B: Failure(2)}})
    data = disk.read(PATH)
    for at in range(data.index(b"\n")):
        flipped = bytearray(data)
        flipped[at] ^= 0x02
        disk.replace(PATH, bytes(flipped))
        damaged = FailureLog(disk, PATH)
        assert damaged.load() == ({"x": {A: Failure(1), B: Failure(2)}}, [1])
        damaged.save([], {"x": {A: Failure(1), B: Failure(2)}})
        assert disk.read(PATH) == data


def test_a_flipped_last_byte_is_no_torn_write(disk: Disk) -> None:
    """Scenario: the end of the last line, which was synced, is flipped. Guarantee: reported."""
    FailureLog(disk, PATH).save([], {"x": {A: Failure(1), B: Failure(2)}})
    data = disk.read(PATH)
    table, _, damaged = decode_failures(data[:-1] + b"\x0b", PATH)
    assert (table, damaged) == ({"x": {A: Failure(1)}}, [3])


def test_newer_versions_are_refused(disk: Disk) -> None:
    """Scenario: a file of a later version lies there. Guarantee: said so."""
    with pytest.raises(UnsupportedVersion, match="version 2"):
        decode_failures(encode_title("quiver failures", 2), PATH)
