"""Odd directories of the Rust crate: what a dump saves and what an open serves.

No bundle may be lost; one may come twice only where the cursor can't be trusted, and then
both say so.  Bundles are numbered in the order they were put, so a list of numbers tells
everything.
"""

from __future__ import annotations

import zlib

import pytest

from quiver import Config, ManualClock, Store
from quiver.disk.disk import Disk
from quiver.errors import UnsupportedVersion, WalCorrupt
from quiver.format.state import Adoption, Checkpoint, encode_state
from quiver.offline.dump import dump
from quiver.offline.repair import RepairPlan
from quiver.offline.verify import verify
from tests.support.memory_disk import MemoryDisk
from tests.support.rust import (
    Image,
    data_length,
    directory,
    dumped,
    dumped_numbers,
    entry,
    head,
    log,
    number_of,
    numbered,
    numbers,
    opened,
    opened_numbers,
    progress,
    segment,
)

FIRST = numbers(0, 1, 2)
SECOND = numbers(3, 4)
REST = numbers(5, 6, 7)
ALL = [*FIRST, *SECOND, *REST]
SEGMENTS = {0: segment(FIRST), 1: segment(SECOND)}
IN_SEGMENTS = data_length(log([*FIRST, *SECOND]))


def killed(store: Store) -> Image:
    """The files of a store whose process is no more."""
    raw = store._disk.raw
    assert isinstance(raw, MemoryDisk)
    return dict(raw.image())


def exactly(image: Image, wanted: list[int]) -> None:
    """Dump and open give these bundles, each once, in this order, under the same refs."""
    saved, result = dumped_numbers(image)
    assert list(saved.values()) == wanted
    assert result.maybe_doubled is None
    delivered, store = opened_numbers(image)
    assert delivered == saved
    assert store.report.maybe_doubled is None
    assert store.report.lost == ()
    store.close()


def at_least(image: Image, wanted: list[int]) -> None:
    """All of them, some perhaps twice: and if so, both say so."""
    saved, result = dumped_numbers(image)
    assert set(saved.values()) == set(wanted)
    delivered, store = opened_numbers(image)
    assert delivered == saved
    if len(saved) > len(wanted):
        assert result.maybe_doubled is not None
        assert store.report.maybe_doubled == result.maybe_doubled
        assert store.report.degraded
    store.close()


def test_clean_directory_whose_log_still_has_everything() -> None:
    """A good cursor at the end: nothing comes twice, and times come from the log."""
    image = directory(SEGMENTS, [log([*FIRST, *SECOND])], cursor_at=IN_SEGMENTS)
    exactly(image, [0, 1, 2, 3, 4])
    result, _ = dumped(image)
    assert [saved.sequence for saved in result.saved] == [0, 1, 2, 3, 4]
    assert result.saved[4].ingestion_ts_ns == 1_700_000_000_000_000_004


def test_crashed_directory() -> None:
    """A good cursor in the middle: the entries behind it are bundles of their own."""
    exactly(directory(SEGMENTS, [log(ALL)], cursor_at=IN_SEGMENTS), list(range(8)))


def test_missing_cursor() -> None:
    """Without a cursor every entry of the log is taken."""
    at_least(directory(SEGMENTS, [log(ALL)]), list(range(8)))


def test_nothing_was_ever_finished() -> None:
    """No cursor because there was no segment yet: nothing can come twice."""
    exactly(directory({}, [log(REST)]), [5, 6, 7])


def test_regressed_cursor() -> None:
    """The cursor fell back to an earlier entry: what is behind it comes twice, and is told."""
    at = data_length(log(FIRST))
    image = directory(SEGMENTS, [log(ALL)], cursor_at=at)
    saved, result = dumped_numbers(image)
    assert sorted(saved.values()) == [0, 1, 2, 3, 3, 4, 4, 5, 6, 7]
    assert result.maybe_doubled is not None
    at_least(image, list(range(8)))


def test_regressed_cursor_before_the_oldest_file() -> None:
    """Below the first file's start it says nothing about what is in segments."""
    at_least(directory(SEGMENTS, [log(ALL, position=5000)], cursor_at=10), list(range(8)))


@pytest.mark.parametrize("off", [-1, 1, 20])
def test_cursor_off_a_boundary(off: int) -> None:
    """In the middle of an entry it counts from somewhere else: everything is taken."""
    image = directory(SEGMENTS, [log(ALL)], cursor_at=IN_SEGMENTS + off)
    at_least(image, list(range(8)))
    _, result = dumped_numbers(image)
    assert result.maybe_doubled is not None


def test_cursor_behind_the_end() -> None:
    """A cursor that covers more than there is can't be trusted either."""
    at_least(directory(SEGMENTS, [log(ALL)], cursor_at=10**9), list(range(8)))


def test_torn_rotated_file() -> None:
    """A rotated file with a torn end, and the sequence going on: only the torn one is missing."""
    torn = log(numbers(5, 6))[:-10]
    following = log(REST[2:], position=data_length(torn), sequence=1)
    image = directory({0: segment(FIRST)}, [torn, following], cursor_at=0)
    at_least(image, [0, 1, 2, 5, 7])


def test_torn_end() -> None:
    """The active file ends in the middle of an entry: those before it are there."""
    exactly(directory(SEGMENTS, [log(ALL)[:-7]], cursor_at=IN_SEGMENTS), [*range(7)])


@pytest.mark.parametrize("length", [0, 1, 60, 2000, -1])
def test_partial_segment(length: int) -> None:
    """The crate was writing a segment when it stopped: its bundles are in the log."""
    partial = segment(REST)[:length]
    image = directory({**SEGMENTS, 2: partial}, [log(ALL)], cursor_at=IN_SEGMENTS)
    exactly(image, list(range(8)))
    result, _ = dumped(image)
    assert result.sound


def test_partial_first_segment() -> None:
    """The same before anything was ever finished."""
    at_least(directory({0: segment(FIRST)[:100]}, [log(FIRST)]), [0, 1, 2])


def test_sequence_restarts() -> None:
    """After a restart the crate may count from 0 again: nothing goes missing by it."""
    first = log(FIRST)
    second = log(SECOND, position=data_length(first), sequence=0)
    exactly(directory({}, [first, second]), [0, 1, 2, 3, 4])


def test_positions_go_back() -> None:
    """Positions that start over say nothing about what the cursor covers."""
    first = log([*FIRST, *SECOND], position=0)
    second = log(REST, position=100, sequence=5)
    at_least(directory(SEGMENTS, [first, second], cursor_at=IN_SEGMENTS), list(range(8)))


def test_header_only_active_file() -> None:
    """A file that was just begun has nothing in it yet."""
    rotated = log(ALL)
    image = directory(SEGMENTS, [rotated, head(data_length(rotated))], cursor_at=IN_SEGMENTS)
    exactly(image, list(range(8)))
    exactly(directory(SEGMENTS, [head(IN_SEGMENTS)], cursor_at=IN_SEGMENTS), [0, 1, 2, 3, 4])


def test_purged_files() -> None:
    """Older rotated files are gone: the rest counts from where they ended."""
    rest = log(REST, position=IN_SEGMENTS, sequence=5)
    image = directory(SEGMENTS, [rest], cursor_at=IN_SEGMENTS, first_number=7)
    exactly(image, list(range(8)))
    result, _ = dumped(image)
    assert [saved.sequence for saved in result.saved] == [None] * 5 + [5, 6, 7]


def test_progress_lists_deleted_segments() -> None:
    """Segments that are gone stay listed for a while: no reason to complain."""
    done = progress({0: (3, 0b111), 1: (2, 0b01)}, oldest=1)
    image = directory(
        {1: segment(SECOND)}, [log(ALL)], cursor_at=IN_SEGMENTS, subscribers={"exporter": done}
    )
    saved, result = dumped_numbers(image)
    assert list(saved.values()) == [3, 4, 5, 6, 7]
    standing = [one.subscribers["exporter"] for one in result.saved]
    assert standing == ["acked", "pending", "pending", "pending", "pending"]
    with opened(image) as store:
        left = [bundle.ref for bundle in store.subscribe("exporter", follow=False)]
        assert left == [(1, 1), (2, 0), (2, 1), (2, 2)]


def test_deleted_segment_in_the_middle_and_at_the_end() -> None:
    """What is matched to the log is matched by content, so holes don't shift it."""
    segments = {0: segment(FIRST), 2: segment(REST[:1])}
    end = data_length(log(ALL))
    image = directory(segments, [log(ALL)], cursor_at=end)
    exactly(image, [0, 1, 2, 5])
    result, _ = dumped(image)
    assert [saved.sequence for saved in result.saved] == [0, 1, 2, 5]


def test_nothing_incomplete_is_written_as_zero() -> None:
    """``oldest`` 0 with everything done: the next bundles are new all the same."""
    done = progress({0: (3, 0b111), 1: (2, 0b11)}, oldest=0)
    image = directory(SEGMENTS, [log(ALL)], cursor_at=IN_SEGMENTS, subscribers={"e": done})
    result, _ = dumped(image)
    assert [one.subscribers["e"] for one in result.saved] == ["acked"] * 5 + ["pending"] * 3


def test_no_progress_file() -> None:
    """A subscriber without any outcome has no file: nobody is known."""
    result, _ = dumped(directory(SEGMENTS, [log(ALL)], cursor_at=IN_SEGMENTS))
    assert all(saved.subscribers == {} for saved in result.saved)


def test_bundle_without_slots_and_high_slots() -> None:
    """No slots at all, slot 63, and slots out of order are all bundles."""
    batch = numbered(1)[0]
    bundles = [{}, {63: batch, 0: batch}, {5: batch.slice(0, 0)}]
    image = directory({0: segment(bundles)}, [log(bundles)], cursor_at=0)
    image["wal/quiver.wal.cursor"] = directory(cursor_at=data_length(log(bundles)))[
        "wal/quiver.wal.cursor"
    ]
    result, _ = dumped(image)
    assert result.sound
    assert [[slot.slot for slot in saved.slots] for saved in result.saved] == [[], [0, 63], [5]]
    assert [saved.sequence for saved in result.saved] == [0, 1, 2]
    with opened(image) as store:
        assert store.segments() == [(0, 3)]
        assert store.read((0, 0)) == {}


@pytest.mark.parametrize("kind", [1, 63, 64])
def test_a_log_that_is_not_fully_understood_stays(kind: int) -> None:
    """An entry type of a later crate may be a bundle: neither an open nor a tool goes on, and
    the log is there afterwards as it was, with all that belongs to it."""
    body = bytes([kind]) + entry(1, {})[5:-4]
    odd = len(body).to_bytes(4, "little") + body + zlib.crc32(body).to_bytes(4, "little")
    refused(directory({}, [head() + entry(0, FIRST[0]) + odd + entry(2, FIRST[1])]), f"type {kind}")


def refused(image: Image, named: str) -> None:
    """Refused by an open and by repair, named by the tools that read, and nothing is changed."""
    image["segments/0000000000000009.qseg.tmp"] = b"half"
    raw = MemoryDisk.from_image(image)
    with pytest.raises(UnsupportedVersion, match=named):
        Store(Disk(raw), Config(), where="store", clock=ManualClock())
    assert {path: data for path, data in raw.image().items() if path != "LOCK"} == image
    disk = Disk(MemoryDisk.from_image(image))
    for told in (verify(disk).newer, dump(disk, Disk(MemoryDisk())).newer):
        assert [named in one for one in told] == [True]
    with pytest.raises(UnsupportedVersion, match=named):
        RepairPlan(disk)


def test_taken_over_in_two_attempts() -> None:
    """A crash came after the refs were written down: the second open goes on with them.

    And it forgets them again: an old note that a takeover is under way would make a
    later open remove the store's own log.
    """
    image = directory(SEGMENTS, [log(ALL)], cursor_at=IN_SEGMENTS)
    image["quiver.state"] = encode_state(Checkpoint(adoption=Adoption(2, (3,))))
    store = opened(image)
    store.register("exporter")
    store.put({"Logs": numbered(8)[0]}).wait()
    for _ in range(3):
        store = opened(killed(store))
    left = store.subscribe("exporter", follow=False)
    found = [number_of(bundle[name]) for bundle in left for name in bundle]
    assert found == list(range(9))
    store.close()


# Damage


def test_a_damaged_segment_is_written_again_from_the_log() -> None:
    """The log goes when the directory is taken over: so it is used for all it has first."""
    bad = bytearray(SEGMENTS[0])
    bad[70] ^= 1
    image = directory({**SEGMENTS, 0: bytes(bad)}, [log(ALL)], cursor_at=IN_SEGMENTS)
    delivered, store = opened_numbers(image)
    assert list(delivered.values()) == list(range(8))
    assert store.report.rebuilt == (0,)
    assert len(store.report.quarantined) == 1
    assert store.report.lost == ()
    store.close()


def test_a_log_that_could_not_help_is_kept() -> None:
    """A segment is damaged and the log is too short for it: both stay, set aside."""
    bad = SEGMENTS[0][:-200]
    rest = log(REST, position=IN_SEGMENTS, sequence=5)
    image = directory({**SEGMENTS, 0: bad}, [rest], cursor_at=IN_SEGMENTS)
    store = opened(image)
    assert [loss.segment_seq for loss in store.report.lost] == [0]
    store.close()
    aside = store._disk.listdir("quarantine")
    assert "quiver.wal" in aside
    assert any(name.endswith(".qseg") for name in aside)


def test_a_flip_below_the_cursor_costs_nothing() -> None:
    """The entry is in a segment; those behind it are still found."""
    data = bytearray(log(ALL))
    data[60] ^= 1
    image = directory(SEGMENTS, [bytes(data)], cursor_at=IN_SEGMENTS)
    saved, result = dumped_numbers(image)
    assert list(saved.values()) == list(range(8))
    assert not result.sound
    delivered, store = opened_numbers(image)
    assert delivered == saved
    assert store.report.torn_tails
    store.close()


def test_a_flip_behind_the_cursor_costs_one_bundle() -> None:
    """The bad entry is lost, and told; the ones behind it are kept."""
    data = bytearray(log(ALL))
    data[38 + IN_SEGMENTS + 60] ^= 1
    image = directory(SEGMENTS, [bytes(data)], cursor_at=IN_SEGMENTS)
    saved, result = dumped_numbers(image)
    assert list(saved.values()) == [0, 1, 2, 3, 4, 6, 7]
    assert [lost.bundles for lost in result.lost] == [1]
    delivered, store = opened_numbers(image)
    assert delivered == saved
    assert store.report.torn_tails
    store.close()


def test_a_damaged_head() -> None:
    """An open refuses; a dump saves the entries behind the head all the same."""
    data = bytearray(log(ALL))
    data[3] ^= 1
    image = directory(SEGMENTS, [bytes(data)], cursor_at=IN_SEGMENTS)
    saved, result = dumped_numbers(image)
    assert list(saved.values()) == list(range(8))
    assert not result.sound
    with pytest.raises(WalCorrupt):
        opened(image)


def test_a_head_of_a_newer_crate() -> None:
    """Nothing in the crate's head tells a newer version from a damaged one: both are refused."""
    data = bytearray(log(ALL))
    data[10] = 2
    refused(directory(SEGMENTS, [bytes(data)], cursor_at=IN_SEGMENTS), "version 2")


@pytest.mark.parametrize("at", range(12, 38))
def test_every_byte_of_a_head(at: int) -> None:
    """Whatever became of the head: no bundle is lost, in a dump or by an open that succeeds."""
    data = bytearray(log(ALL))
    data[at] ^= 0x41
    image = directory(SEGMENTS, [bytes(data)], cursor_at=IN_SEGMENTS)
    saved, _ = dumped_numbers(image)
    assert set(saved.values()) == set(range(8))
