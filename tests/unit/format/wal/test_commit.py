"""The entry that commits a transaction, and the label of a staged file."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.errors import LimitExceeded, WalCorrupt
from quiver.format.segment.stage import (
    StageKey,
    StageLabel,
    parse_stage_name,
    read_label,
    stage_name,
)
from quiver.format.wal.commit import Commit, CommittedFile, decode_commit, encode_commit
from quiver.format.wal.entry import COMMIT, MARKER, V1_FRAMING, Framing, encode_control
from quiver.format.wal.scan import scan_own

U32, U64 = 2**32 - 1, 2**64 - 1
FILE = CommittedFile(bytes(range(16)), 1, 4096, 0xDEADBEEF, 2, 30, 700)

files = st.builds(
    CommittedFile,
    st.binary(min_size=16, max_size=16),
    st.integers(0, U32),
    st.integers(0, U64),
    st.integers(0, U32),
    st.integers(0, U32),
    st.integers(0, U64),
    st.integers(0, U64),
)


FRAMING = Framing(2, 0x1234)


def entry(commit: Commit) -> bytes:
    payload = encode_commit(
        commit.app, commit.version, commit.first_segment, commit.files, commit.slots
    )
    return encode_control(
        COMMIT,
        payload,
        sequence=commit.sequence,
        synced_before=commit.sequence,
        ts=commit.ts,
        store_ts=commit.aged_from_ns,
        seed=FRAMING.seed,
    )


@given(
    app=st.text(max_size=50),
    version=st.integers(0, 2**63 - 1),
    first=st.integers(0, 2**32),
    some=st.lists(files, max_size=4),
    slots=st.sets(st.text(max_size=8), max_size=4),
)
def test_what_is_written_is_read_back(
    app: str, version: int, first: int, some: list[CommittedFile], slots: set[str]
) -> None:
    """Scenario: any commit. Guarantee: the same values come back, and a scan of the log knows
    the last segment that its file is needed for."""
    commit = Commit(app, version, 7, 123, first, tuple(some), tuple(sorted(slots)), 456)
    data = entry(commit)
    assert decode_commit(memoryview(data)[4:-4], FRAMING) == commit
    [found], end, _ = scan_own(memoryview(data + bytes(80)), 0, 7, FRAMING)
    assert end == len(data)
    assert found[2] == COMMIT
    assert found[5] == first + len(some) - 1


@given(cut=st.integers(1, 120))
def test_a_commit_that_makes_no_sense_is_damage(cut: int) -> None:
    """Scenario: an entry whose checksum is good and whose body is cut or too long. Guarantee:
    ``WalCorrupt``, never another error and never a half of it."""
    commit = Commit("app", 3, 7, 123, 5, (CommittedFile(bytes(16), 0, 100, 1, 2, 3, 4),))
    body = entry(commit)[4:-4]
    for bad in (body[:-cut], body + bytes(cut)):
        if len(bad) >= 45:
            with pytest.raises(WalCorrupt, match="makes no sense"):
                decode_commit(memoryview(bad), FRAMING)


def test_the_bytes_of_a_commit() -> None:
    """Scenario: one commit, written down. Guarantee: its bytes never change."""
    head = "0600000000000000" + "01000000" + "0900000000000000" + "0300" + "617070"
    rest = (
        "000102030405060708090a0b0c0d0e0f" + "01000000" + "0010000000000000" + "efbeadde"
        "02000000" + "1e00000000000000" + "bc02000000000000"
    )
    slots = "0900" + b'["a","b"]'.hex()
    assert encode_commit("app", 9, 5, [FILE]).hex() == head + "0200" + b"[]".hex() + rest
    assert encode_commit("app", 9, 5, [FILE], ("b", "a")).hex() == head + slots + rest
    # Version 1 named no slots, and is still read.
    old = struct.pack("<BqQQ4sQ", COMMIT, 123, 7, 0, MARKER, 7) + bytes.fromhex(head + rest)
    assert decode_commit(memoryview(old), V1_FRAMING) == Commit("app", 9, 7, 123, 5, (FILE,))


@pytest.mark.parametrize("slots", [b"[1]", b"{}", b"[", b"null"])
def test_slots_that_make_no_sense(slots: bytes) -> None:
    """Scenario: a commit whose list of slots is no list of names. Guarantee: damage."""
    good = encode_commit("app", 9, 5, [FILE])
    bad = good.replace(b"\x02\0[]", struct.pack("<H", len(slots)) + slots)
    assert bad != good
    body = struct.pack("<BqQQ4sQq", COMMIT, 123, 7, 0, MARKER, 7, 0) + bad
    with pytest.raises(WalCorrupt, match="makes no sense"):
        decode_commit(memoryview(body), FRAMING)


def test_too_many_slots_are_refused() -> None:
    """Scenario: a list of slots longer than its length can say. Guarantee: not written."""
    with pytest.raises(LimitExceeded, match="slots"):
        encode_commit("app", 9, 5, [FILE], [f"{n:0100}" for n in range(700)])


def test_names_of_staged_files() -> None:
    """Scenario: an attempt's files. Guarantee: fixed names, none for another attempt, nothing
    else taken for one."""
    key = StageKey("app", 7, "a/../b")
    assert key.id.hex() == "edc1249afa8b096ba3fa9be12dcd73df"
    assert parse_stage_name(stage_name(key.id, 3)) == (key.id, 3)
    assert len({StageKey(*k).id for k in (("a", 11, "b"), ("a", 1, "1b"), ("a1", 1, "b"))}) == 3
    for name in ("x.qstage", f"{key.id.hex()}-03.qstage", f"{key.id.hex()}-3.qstage.tmp"):
        assert parse_stage_name(name) is None


def test_a_label_is_believed_only_as_it_is_written() -> None:
    """Scenario: labels with values of other kinds. Guarantee: ``ValueError``."""
    good = {
        "app": "a",
        "version": 1,
        "attempt": "b",
        "number": 0,
        "last": True,
        "ts": 5,
        "merged": False,
    }
    assert read_label(good) == StageLabel("a", 1, "b", 0, True, 5)
    assert read_label(None) is None
    for name, known in good.items():
        wrong: list[object] = [None, 1.5, [], 3 if isinstance(known, str) else "x"]
        for value in wrong:
            with pytest.raises(ValueError, match="label"):
                read_label({**good, name: value})
