"""The states that are tried are the legal ones, and all kinds of them."""

from __future__ import annotations

import random

from tests.crash.disk import Fold, LostSync
from tests.crash.states import State, states
from tests.support.oplog import Create, Rename, Sync, SyncDir, Write

SECTOR = 4


def found(fold: Fold) -> list[State]:
    return list(states(fold, random.Random(1), SECTOR))


def folded(*records: object, files: dict[str, bytes] | None = None) -> Fold:
    fold = Fold(files or {})
    for record in records:
        fold.take(record)  # type: ignore[arg-type]
    return fold


def test_a_synced_file_with_a_synced_name_is_always_there() -> None:
    """Scenario: all is synced. Guarantee: one state, with the file in it."""
    fold = folded(Create("a", 1), Write(1, 0, b"12345678"), Sync(1, data_only=False), SyncDir(""))
    assert [state.files for state in found(fold)] == [{"a": b"12345678"}]


def test_a_name_may_be_there_without_bytes_and_bytes_without_a_name() -> None:
    """Scenario: a new file, nothing synced. Guarantee: nothing, an empty file, the whole
    file and torn ones are all tried."""
    fold = folded(Create("a", 1), Write(1, 0, b"12345678"))
    contents = {state.files.get("a") for state in found(fold)}
    assert {None, b"", b"12345678", b"1234", b"\0\0\0\0" + b"5678"} <= contents


def test_what_was_there_stands_where_a_torn_overwrite_did_not_arrive() -> None:
    """Scenario: eight synced bytes written over. Guarantee: old and new sectors mix, and
    no zeros or garbage come in: the file did not grow."""
    fold = folded(Write(1, 0, b"ABCDEFGH"), files={"a": b"abcdefgh"})
    contents = {state.files["a"] for state in found(fold)}
    assert contents == {b"abcdefgh", b"ABCDEFGH", b"ABCDefgh", b"abcdEFGH"}


def test_renames_without_a_sync_of_the_directory_come_in_any_order() -> None:
    """Scenario: two pending renames. Guarantee: both, none and each alone are tried."""
    fold = folded(
        Rename("a", "b", 1, None), Rename("c", "a", 2, None), files={"a": b"1", "c": b"2"}
    )
    names = {tuple(sorted(state.files.items())) for state in found(fold)}
    assert names == {
        (("a", b"1"), ("c", b"2")),
        (("b", b"1"), ("c", b"2")),
        (("a", b"2"),),
        (("a", b"2"), ("b", b"1")),
    }


def test_a_failed_sync_is_not_made_good_by_the_next() -> None:
    """Scenario: a write whose sync fails, and a second sync that succeeds. Guarantee: the
    write may be lost all the same."""
    fold = folded(Write(1, 0, b"new!"), LostSync(1), Sync(1, data_only=True), files={"a": b"old!"})
    assert {state.files["a"] for state in found(fold)} == {b"old!", b"new!"}
