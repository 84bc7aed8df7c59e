"""The owner of segment numbers: every transition, what is seen, pins, readers, floors."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.disk.posix import PosixDisk
from quiver.errors import (
    BundleGone,
    IoFault,
    SegmentBadMagic,
    SegmentChecksum,
    SegmentDamage,
    SegmentTruncated,
    UnknownBundle,
    UnsupportedVersion,
)
from quiver.format.crc import crc32
from quiver.format.floor import Floor
from quiver.format.record import LOST_ATTRIBUTE, BundleMeta
from quiver.format.wal.commit import Commit, CommittedFile
from quiver.ids import BundleRef
from quiver.recovery.survey import SegmentFiles
from quiver.segment import SegmentReader, Segments, segment_path, write_segment
from quiver.segment.closing import Trigger
from quiver.segment.info import SegmentInfo, parse_name
from quiver.segment.open_segment import OpenSegment
from quiver.segment.reader import ReadMode
from quiver.segment.segments import (
    Gone,
    IllegalTransition,
    floor_of,
)
from tests.support.batches import same
from tests.support.faulty import Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.support.segments import memory_disk, meta_of, open_segment, slots_of

NUMBERS = pa.record_batch({"n": list(range(100))})


def store(disk: Disk, *seqs: int, config: Config | None = None) -> Segments:
    """An owner that has written these segments."""
    segments = Segments(disk, config)
    for seq in seqs:
        segments.sealed(write_segment(disk, open_segment([{1: NUMBERS}], seq=seq), {}))
    segments.begin(max(seqs, default=-1) + 1)
    return segments


def scanned(disk: Disk) -> SegmentFiles:
    """The look at the files that a start takes."""
    files = SegmentFiles(disk)
    files.scan(None)
    return files


def started(disk: Disk, config: Config | None = None) -> Segments:
    """An owner that knows what a start found."""
    segments = Segments(disk, config)
    segments.found(scanned(disk).infos.values())
    return segments


def put(segments: Segments, sequence: int) -> BundleRef:
    ref = segments.next_ref()
    slots = slots_of({1: NUMBERS})
    segments.append(slots, meta_of(slots, sequence), 0.0)
    return ref


def commit_of(segments: Segments, files: int, sequence: int = 1000) -> Commit:
    staged = tuple(CommittedFile(bytes(16), n, 1, 0, 1, 1, 1) for n in range(files))
    return Commit("app", 1, sequence, 0, segments.next_segment, staged)


def kind(segments: Segments, seq: int) -> str:
    place = segments.where(seq)
    return f"Gone({place.why})" if isinstance(place, Gone) else type(place).__name__


@pytest.fixture
def posix(tmp_path: Path) -> Disk:
    disk = Disk(PosixDisk(str(tmp_path / "store")))
    disk.mkdir("")
    disk.mkdir("segments")
    return disk


# Transitions, row by row


class Rows:
    """Segments 0 to 6, one in each place, and the infos that rows need."""

    def __init__(self) -> None:
        self.disk = memory_disk()
        self.segments = segments = store(self.disk, 0)
        segments.dropped([0])  # 0: Gone
        put(segments, 10)  # 1: File
        segments.closed(Trigger.SIZE)
        segments.durable(11)
        self.info = write_segment(self.disk, segments.unwritten[0], {})
        segments.sealed(self.info)
        put(segments, 11)  # 2: Closed
        segments.closed(Trigger.SIZE)
        segments.durable(12)
        self.commit = commit_of(segments, 1, 12)  # 3: Reserved
        segments.reserved(self.commit)
        put(segments, 13)  # 4: Open; 5: Free
        assert [kind(segments, seq) for seq in range(6)] == [*PLACES]

    def open_another(self) -> None:
        self.segments.closed(Trigger.AGE)
        self.segments.opened(0.0)

    def info_of(self, seq: int) -> SegmentInfo:
        return write_segment(self.disk, open_segment([{1: NUMBERS}], seq=seq), {})


PLACES: Final = ("Gone(deleted)", "File", "Closed", "Reserved", "Open", "Free")

Change = Callable[[Rows], object]

LEGAL: Final[dict[str, tuple[Change, dict[int, str]]]] = {
    "opened": (lambda r: r.open_another(), {4: "Closed", 5: "Open"}),
    "closed": (lambda r: r.segments.closed(Trigger.AGE), {4: "Closed"}),
    "reserved": (lambda r: r.segments.reserved(commit_of(r.segments, 1)), {5: "Reserved"}),
    "rolled_back an open one": (lambda r: r.segments.rolled_back(13), {4: "Free"}),
    "rolled_back a commit": (lambda r: r.segments.rolled_back(12), {3: "Free", 4: "Free"}),
    "rolled_back a closed one": (
        lambda r: r.segments.rolled_back(11),
        {2: "Free", 3: "Free", 4: "Free"},
    ),
    "sealed": (lambda r: r.segments.sealed(r.info_of(2)), {2: "File"}),
    "sealed a commit": (lambda r: r.segments.sealed(r.info_of(3), commit=r.commit), {3: "File"}),
    "sealed a commit without its file": (
        lambda r: r.segments.sealed(commit=r.commit, lost=[3]),
        {3: "Gone(lost)"},
    ),
    "finished": (lambda r: r.segments.finished(2), {2: "Gone(deleted)"}),
    "rebuilt": (
        lambda r: r.segments.rebuilt(open_segment([{1: NUMBERS}], seq=1)),
        {1: "Closed"},
    ),
    "dropped": (lambda r: r.segments.dropped([1]), {1: "Gone(deleted)"}),
    "damaged": (lambda r: r.segments.damaged(1), {1: "Gone(lost)"}),
    "hidden a file": (lambda r: r.segments.hidden(1), {}),
    "hidden in memory": (lambda r: r.segments.hidden(2), {}),
}


@pytest.mark.parametrize("row", LEGAL)
def test_each_row_moves_its_number_and_no_other(row: str) -> None:
    """Scenario: one number in each place, and one transition of the table. Guarantee: the
    number is where the table says, and every other one is where it was."""
    rows = Rows()
    change, moved = LEGAL[row]
    change(rows)
    places = [kind(rows.segments, seq) for seq in range(6)]
    assert places == [moved.get(seq, place) for seq, place in enumerate(PLACES)]


ILLEGAL: Final[dict[str, tuple[set[str], Callable[[Rows, int], object]]]] = {
    "sealed": (
        {"Closed", "Free"},
        lambda r, seq: r.segments.sealed(r.info_of(seq)),
    ),
    "finished": ({"Closed"}, lambda r, seq: r.segments.finished(seq)),
    "rebuilt": (
        {"File", "Free"},
        lambda r, seq: r.segments.rebuilt(open_segment([{1: NUMBERS}], seq=seq)),
    ),
    "dropped": ({"File"}, lambda r, seq: r.segments.dropped([seq])),
    "damaged": ({"File"}, lambda r, seq: r.segments.damaged(seq)),
}


@pytest.mark.parametrize("transition", ILLEGAL)
@pytest.mark.parametrize("seq", range(6))
def test_no_other_place_has_that_transition(transition: str, seq: int) -> None:
    """Scenario: a transition of a number that is not where the table says. Guarantee: an
    error, and nothing moves."""
    rows = Rows()
    allowed, change = ILLEGAL[transition]
    if PLACES[seq] in allowed:
        return
    with pytest.raises(IllegalTransition):
        change(rows, seq)
    assert [kind(rows.segments, n) for n in range(6)] == [*PLACES]


def test_no_number_of_a_commit_is_forgotten() -> None:
    """Scenario: a commit is made visible without one of its files, and nobody says that it is
    lost. Guarantee: an error, and nothing moves: a number is given up only by name."""
    rows = Rows()
    with pytest.raises(IllegalTransition):
        rows.segments.sealed(commit=rows.commit)
    assert [kind(rows.segments, n) for n in range(6)] == [*PLACES]


def test_only_one_is_open() -> None:
    """A second open segment would give two bundles one place."""
    rows = Rows()
    with pytest.raises(IllegalTransition):
        rows.segments.opened(0.0)


# What is shown


@pytest.mark.parametrize("deliver", ["durable", "sealed"])
def test_what_is_shown(deliver: str) -> None:
    """Durable bundles, or those of written segments: told as they come, and `end` is behind
    them; what is hidden is not shown any more."""
    disk = memory_disk()
    segments = store(disk, config=Config.load(env={}, deliver=deliver))
    put(segments, 0)
    put(segments, 1)
    durable = deliver == "durable"
    assert segments.durable(1) == ({0: 1} if durable else {})
    assert segments.visible() == ([(0, 1)] if durable else [])
    assert segments.end == (BundleRef(0, 1) if durable else BundleRef(0, 0))
    assert segments.latest == BundleRef(0, 1)
    segments.durable(2)
    segments.closed(Trigger.AGE)
    assert segments.growing == (1 if durable else 0)
    info = write_segment(disk, segments.unwritten[0], {})
    assert segments.sealed(info) == {0: 2}
    assert segments.visible() == [(0, 2)]
    assert segments.end == BundleRef(1, 0)
    segments.hidden(0)
    assert segments.visible() == []


def test_a_rebuilt_segment_stays_shown() -> None:
    """It was shown from its file: nobody is to miss it until it is written again."""
    segments = store(memory_disk(), 0, 1, config=Config.load(env={}, deliver="sealed"))
    segments.rebuilt(open_segment([{1: NUMBERS}], seq=0))
    assert segments.visible() == [(0, 1), (1, 1)]
    assert segments.growing == 2


# The floor


def test_a_floor_says_gone_only_of_what_is_gone() -> None:
    """Scenario: one number in each place. Guarantee: the floor stops at the first that never
    had a file, and of those below only the gone ones are gone."""
    rows = Rows()
    assert rows.segments.floor(Floor()) == Floor(5, 2, ((0, 1),))
    rows.segments.rebuilt(open_segment([{1: NUMBERS}], seq=1))
    assert rows.segments.floor(Floor()) == Floor(5, 2, ((0, 1),)), "1 is rebuilt, not gone"
    assert rows.segments.first_not_in_file == 1, "and its log is needed"


def test_a_floor_passes_what_was_rebuilt() -> None:
    """Scenario: the lowest of three segments is rebuilt, the next is deleted. Guarantee: the
    floor says that the deleted one is gone: after a crash the log must not bring it back."""
    segments = store(memory_disk(), 0, 1, 2)
    segments.rebuilt(open_segment([{1: NUMBERS}], seq=0))
    segments.dropped([1])
    assert segments.floor(Floor()) == Floor(3, 3, ((1, 2),))


@given(
    st.sets(st.integers(0, 12)),
    st.sets(st.integers(0, 12)),
    st.sets(st.integers(0, 12)),
    st.integers(0, 13),
)
def test_floors_only_rise(
    files: set[int], unsealed: set[int], rebuilt: set[int], before: int
) -> None:
    """Whatever is where: nothing that is somewhere is gone, and no number goes back."""
    old = Floor(13, before)
    new = floor_of(old, next_segment=13, files=files, unsealed=unsealed, rebuilt=rebuilt)
    assert new.replay_floor >= before
    assert new.next_segment >= 13
    for seq in files | unsealed | rebuilt:
        assert not new.is_gone(seq)
    for seq in set(range(new.replay_floor)) - files - unsealed - rebuilt:
        assert new.is_gone(seq)


# Files


def test_a_scan_finds_what_was_written() -> None:
    """After a restart the owner knows what it knew, oldest first."""
    disk = memory_disk()
    before = store(disk, 1, 2, 10)
    after = started(disk)
    assert after.infos() == before.infos()
    assert [info.seq for info in after.infos()] == [1, 2, 10]
    assert after.file_bytes == before.file_bytes == sum(info.file_bytes for info in after.infos())
    assert (len(after), 2 in after, 3 in after) == (3, True, False)
    assert after.info(10) == before.info(10)
    assert after.info(3) is None


def test_a_scan_of_nothing() -> None:
    """A new store has no directory yet."""
    assert started(Disk(MemoryDisk())).infos() == []


def test_a_scan_tells_damage_and_goes_on() -> None:
    """Partial and foreign files don't stop a start; each is named with its reason.  A version
    that has rotted is no newer version: the file's checksum tells them apart."""
    disk = memory_disk()
    store(disk, 1)
    good = disk.read(segment_path(1))
    flipped = bytearray(good)
    flipped[-50] = 9
    image = {
        segment_path(1): good,
        segment_path(2): good[:100],
        segment_path(3): b"",
        segment_path(4): bytes(flipped),
        "segments/README": b"not ours",
        "segments/0000000000000005.qseg.orig": b"not ours",
        "segments/00000000000000006.qseg": b"a number written otherwise",
    }
    files = scanned(memory_disk(image))
    assert {seq: type(error) for seq, error in files.damaged.items()} == {
        2: SegmentBadMagic,
        3: SegmentTruncated,
        4: SegmentChecksum,
    }
    assert list(files.infos) == [1]


def test_a_newer_segment_ends_the_scan() -> None:
    """A sound file of a newer version is raised by name, never listed as damaged."""
    disk = memory_disk()
    store(disk, 1)
    newer = bytearray(disk.read(segment_path(1)))
    newer[-50] = 9
    newer[-4:] = crc32(bytes(newer[:-4])).to_bytes(4, "little")
    with pytest.raises(UnsupportedVersion, match=segment_path(1)):
        scanned(memory_disk({segment_path(1): bytes(newer)}))


def test_a_scan_changes_nothing() -> None:
    """Half-written files of a crash stay until the whole store was looked at."""
    disk = memory_disk({segment_path(1) + ".tmp": b"half"})
    scanned(disk)
    assert len(disk.listdir("segments")) == 1


@pytest.mark.parametrize(
    ("name", "seq"),
    [
        ("0000000000000000.qseg", 0),
        ("0000000000000017.qseg", 17),
        ("18446744073709551615.qseg", 2**64 - 1),
        ("17.qseg", None),
        ("00000000000000017.qseg", None),
        ("0000000000000017.qseg.tmp", None),
        ("\u0660000000000000017.qseg", None),
        ("0000000000000017.QSEG", None),
    ],
)
def test_names(name: str, seq: int | None) -> None:
    """Only what we would have called it is a segment."""
    assert parse_name(name) == seq


def test_a_reader_is_kept_and_its_file_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verified once: the checksum is looked at on the first read in a process, not on each."""
    disk = memory_disk()
    segments = store(disk, 1, 2)
    small = started(disk, Config.load(env={}, read_mode="mmap", max_mapped_segments=1))
    modes = []
    real = SegmentReader.open

    def spy(disk: Disk, seq: int, *, mode: ReadMode, verify: bool, always: bool) -> SegmentReader:
        modes.append((seq, verify))
        return real(disk, seq, mode=mode, verify=verify, always=always)

    monkeypatch.setattr(SegmentReader, "open", spy)
    first = small.reader(1)
    assert small.reader(1) is first
    small.reader(2)
    assert small.reader(1) is not first
    assert modes == [(1, True), (2, True), (1, False)]
    same(segments.reader(1).read(0)[1], NUMBERS)


def test_damage_shows_when_a_segment_is_first_read() -> None:
    """A start doesn't read the data, so a flip there is found later, and each time."""
    disk = memory_disk()
    store(disk, 1)
    data = bytearray(disk.read(segment_path(1)))
    data[400] ^= 1
    for mode in ("mmap", "pread"):
        disk = memory_disk({segment_path(1): bytes(data)})
        segments = started(disk, Config.load(env={}, read_mode=mode))
        for _ in range(2):
            with pytest.raises(SegmentChecksum):
                segments.reader(1).read(0)


def test_a_dropped_segment_is_gone(posix: Disk) -> None:
    """From the list and for readers at once, from the disk when it is deleted."""
    segments = store(posix, 1, 2, 3)
    size = segments.file_bytes
    segments.dropped([1, 3])
    assert [info.seq for info in segments.infos()] == [2]
    assert segments.file_bytes == size
    with pytest.raises(BundleGone):
        segments.reader(1)
    freed = segments.delete_files()
    assert posix.listdir("segments") == ["0000000000000002.qseg"]
    assert segments.file_bytes == size - freed
    assert segments.delete_files() == 0


@pytest.mark.parametrize("mode", ["mmap", "pread"])
def test_a_pinned_file_is_not_deleted(posix: Disk, mode: str) -> None:
    """Scenario: a segment is dropped while somebody reads it. Guarantee: the reader goes on,
    the file stays and its bytes count until the pin ends; nobody else gets it."""
    segments = store(posix, 1, 2, config=Config.load(env={}, read_mode=mode))
    size = segments.file_bytes
    with segments.pin(1) as view:
        segments.dropped([1])
        assert not segments.deletable
        assert segments.delete_files() == 0
        with pytest.raises(BundleGone):
            segments.pin(1)
        same(view.read(0)[1], NUMBERS)
        assert segments.file_bytes == size
    del view
    assert segments.delete_files() > 0
    assert segments.file_bytes < size


def test_a_mapping_holds_its_pin(posix: Disk) -> None:
    """Scenario: a batch out of a mapped segment outlives the read. Guarantee: the file stays
    until the batch is freed."""
    segments = store(posix, 1, config=Config.load(env={}, read_mode="mmap"))
    with segments.pin(1) as view:
        batch = view.read(0)[1]
    del view
    segments.dropped([1])
    assert segments.delete_files() == 0
    same(batch, NUMBERS)
    del batch
    assert segments.delete_files() > 0


def test_a_file_deleted_behind_our_back() -> None:
    """It is damage like any other, and told as such; a deletion finds nothing to do."""
    disk = memory_disk()
    segments = store(disk, 1)
    disk.unlink(segment_path(1))
    with pytest.raises(SegmentDamage):
        segments.pin(1)
    segments.dropped([1])
    segments.delete_files()
    assert segments.infos() == []


def test_a_deletion_that_fails_half_way() -> None:
    """What is unlinked is gone and made durable; the rest is tried again."""
    memory = MemoryDisk()
    raw = FaultyDisk(memory, Fault(4, errno.EIO, ops=frozenset({"unlink"})))
    raw.mkdir("segments")
    segments = store(Disk(raw), 1, 2, 3)
    segments.dropped([1, 2, 3])
    with pytest.raises(IoFault):
        segments.delete_files()
    assert raw.calls[-1] == ("fsync_dir", "segments")
    assert segments.file_bytes > 0
    segments.delete_files()
    assert segments.file_bytes == 0
    assert not [path for path in memory.image() if path.endswith(".qseg")]


def test_a_rewritten_segment_replaces_its_reader() -> None:
    """Written again after damage, a segment is checked and read anew, and counted once."""
    disk = memory_disk()
    segments = store(disk, 1, 2)
    first = segments.reader(1)
    other = open_segment([{1: NUMBERS.slice(5)}], seq=1)
    segments.rebuilt(other, replaces_file=True)
    segments.sealed(write_segment(disk, other, {}))
    assert segments.reader(1) is not first
    same(segments.reader(1).read(0)[1], NUMBERS.slice(5))
    assert [info.seq for info in segments.infos()] == [1, 2]
    assert segments.file_bytes == sum(info.file_bytes for info in segments.infos())


# Pins and damage


def test_a_pin_reads_what_became_of_a_damaged_segment() -> None:
    """Scenario: a pinned file turns out damaged in the middle of a read; of two bundles one is
    saved. Guarantee: the view goes on with it, and the other one is `lost`, by itself."""
    disk = memory_disk()
    segments = store(disk)
    segment = open_segment([{1: NUMBERS}, {1: NUMBERS}], seq=0)
    segments.rebuilt(segment)
    segments.sealed(write_segment(disk, segment, {}))
    found: list[SegmentInfo] = []

    def heal(info: SegmentInfo, damage: SegmentDamage) -> None:
        found.append(info)
        saved = OpenSegment(0)
        slots = slots_of({1: NUMBERS})
        saved.append(slots, meta_of(slots, 0))
        saved.append((), BundleMeta(attributes={LOST_ATTRIBUTE: "damaged"}))
        segments.rebuilt(saved)

    segments.on_damage = heal
    info = segments.info(0)
    with segments.pin(0) as view:
        same(view.read(0)[1], NUMBERS)
        reader = segments.reader(0)

        def damaged(*_: object) -> None:
            raise SegmentDamage("it rotted.")

        for method in ("read", "encoded", "meta", "slot_ids"):
            setattr(reader, method, damaged)
        same(view.read(0)[1], NUMBERS)
        for ask in (view.read, view.encoded, view.meta, view.slot_ids):
            with pytest.raises(BundleGone) as gone:
                ask(1)
            assert gone.value.details["outcome"] == "lost"
        assert view.slot_ids(0) == [1]
    assert found == [info]


def test_a_pin_of_what_is_not_there() -> None:
    """Each kind of absence is told as what it is."""
    rows = Rows()
    for seq, error in ((0, BundleGone), (3, UnknownBundle), (5, BundleGone)):
        with pytest.raises(error):
            rows.segments.pin(seq)
    rows.segments.damaged(1)
    with pytest.raises(BundleGone) as gone:
        rows.segments.pin(1)
    assert gone.value.details["outcome"] == "lost"


def test_a_pinned_open_segment_grows() -> None:
    """Who holds a pin of the open segment sees what became durable since."""
    segments = store(memory_disk())
    put(segments, 0)
    segments.durable(1)
    with segments.pin(0) as view:
        put(segments, 1)
        with pytest.raises(UnknownBundle):
            view.meta(1)
        segments.durable(2)
        assert view.meta(1).sequence == 1
