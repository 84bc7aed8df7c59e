"""Which states a crash may leave, told from the log."""

from __future__ import annotations

from quiver.disk.disk import Disk
from tests.support.memory_disk import MemoryDisk
from tests.support.oplog import Create, Rename, Truncate, Unlink, Write, linked, settle, touches


def test_unsynced_bytes_are_at_risk_and_synced_ones_are_not() -> None:
    """Scenario: write, sync, write again, cut. Guarantee: only what came after is pending."""
    disk = MemoryDisk.from_image({"a": b"base"})
    file = disk.open("a", write=True)
    file.pwritev([b"SAFE"], 0)
    file.fdatasync()
    file.pwritev([b"risk"], 4)
    file.truncate(6)
    state = disk.durability()
    assert state.image() == {"a": b"SAFE"}
    assert state.pending == {1: [Write(1, 4, b"risk"), Truncate(1, 6)]}
    assert settle(state.contents[1], state.pending[1]) == b"SAFEri"
    assert state.image(contents={1: b"torn"}) == {"a": b"torn"}


def test_a_file_has_no_name_before_its_directory_is_synced() -> None:
    """Scenario: a new file is written and fsynced, but not its directory.

    Guarantee: it may be gone, or be there with all its bytes.
    """
    disk = MemoryDisk()
    file = disk.create("a")
    file.pwritev([b"x"], 0)
    file.fsync()
    state = disk.durability()
    assert state.image() == {}
    assert state.image(entries=state.pending_entries) == {"a": b"x"}


def test_a_name_may_be_there_without_its_bytes() -> None:
    """Scenario: the directory is synced, the file isn't. Guarantee: an empty file is legal."""
    disk = MemoryDisk()
    disk.create("a").pwritev([b"x"], 0)
    disk.fsync_dir("")
    assert disk.durability().image() == {"a": b""}


def test_a_rename_is_all_or_nothing_within_a_directory() -> None:
    """Scenario: a file replaces another, the directory not yet synced.

    Guarantee: old contents under the old names, or the new one; after the sync, the new.
    """
    disk = MemoryDisk.from_image({"a": b"old", "a.tmp": b"new"})
    disk.rename("a.tmp", "a")
    state = disk.durability()
    assert state.pending_entries == [Rename("a.tmp", "a", 2, 1)]
    assert state.image() == {"a": b"old", "a.tmp": b"new"}
    assert state.image(entries=state.pending_entries) == {"a": b"new"}
    disk.fsync_dir("")
    assert disk.durability().image() == {"a": b"new"}


def test_a_rename_between_directories_needs_the_target_synced_first() -> None:
    """Scenario: a file moves to another directory; then one of the two is synced.

    Guarantee: target synced: safe there, perhaps still at the old name too.
    Source synced: at risk of being nowhere.
    """
    start = MemoryDisk.from_image({"s/a": b"x"}, ["t"])
    start.rename("s/a", "t/a")
    both = start.durability()
    rename = both.pending_entries[0]
    assert isinstance(rename, Rename)
    assert touches(rename, "s")
    assert touches(rename, "t")
    assert both.image() == {"s/a": b"x"}
    assert both.image(entries=[rename]) == {"t/a": b"x"}
    assert both.image(entries=[linked(rename)]) == {"s/a": b"x", "t/a": b"x"}

    start.fsync_dir("t")
    target_first = start.durability()
    assert target_first.image() == {"s/a": b"x", "t/a": b"x"}
    assert target_first.pending_entries == [Unlink("s/a", 1)]

    other = MemoryDisk.from_image({"s/a": b"x"}, ["t"])
    other.rename("s/a", "t/a")
    other.fsync_dir("s")
    source_first = other.durability()
    assert source_first.image() == {}
    assert source_first.pending_entries == [Create("t/a", 1)]


def test_an_unlink_may_be_undone_by_a_crash() -> None:
    """Scenario: a file is unlinked, its directory not synced. Guarantee: it may come back."""
    disk = MemoryDisk.from_image({"a": b"x"})
    disk.unlink("a")
    assert disk.durability().image() == {"a": b"x"}
    disk.fsync_dir("")
    assert disk.durability().image() == {}


def test_syncing_one_directory_leaves_others_at_risk() -> None:
    """Scenario: names made in two directories, one synced. Guarantee: only its names are safe."""
    disk = MemoryDisk.from_image({}, ["d", "e"])
    disk.create("d/a")
    disk.create("e/a")
    disk.fsync_dir("d")
    state = disk.durability()
    assert state.image() == {"d/a": b""}
    assert state.pending_entries == [Create("e/a", 2)]


def test_files_in_a_lost_directory_are_lost() -> None:
    """Scenario: a directory is made and synced itself, but not the root that names it.

    Guarantee: after a crash neither it nor anything in it need be there.
    """
    disk = MemoryDisk()
    disk.mkdir("d")
    disk.mkdir("d/e")
    disk.create("d/e/a")
    disk.fsync_dir("d/e")
    disk.fsync_dir("d")
    state = disk.durability()
    assert state.image() == {}
    assert state.directories() == []
    assert state.image(entries=state.pending_entries) == {"d/e/a": b""}
    assert sorted(state.directories(state.pending_entries)) == ["d", "d/e"]


def test_each_prefix_of_a_replacement_leaves_old_or_new() -> None:
    """Scenario: a crash between any two steps of ``Disk.replace``, any names arriving.

    Guarantee: the file is the old or the new one, whole; this is what the order is for.
    """
    disk = MemoryDisk.from_image({"a": b"old"})
    Disk(disk).replace("a", b"new")
    seen = set()
    for length in range(len(disk.ops) + 1):
        state = MemoryDisk.from_image({"a": b"old"}).durability()
        for op in disk.ops[:length]:
            state.apply(op)
        for chosen in range(1 << len(state.pending_entries)):
            made_it = [op for n, op in enumerate(state.pending_entries) if chosen >> n & 1]
            seen.add(state.image(entries=made_it)["a"])
    assert seen == {b"old", b"new"}
