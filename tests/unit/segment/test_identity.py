"""A segment file knows its own number: under another's name it is damaged."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiver.disk.disk import Disk
from quiver.errors import SegmentDamage
from quiver.recovery.survey import SegmentFiles
from quiver.segment import SegmentReader, load_info, segment_path, write_segment
from tests.support.segments import memory_disk, open_segment


def store(*seqs: int) -> dict[str, bytes]:
    disk = memory_disk()
    for seq in seqs:
        batch = pa.record_batch({"n": [seq]})
        write_segment(disk, open_segment([{1: batch}], seq=seq), {})
    return {segment_path(seq): disk.read(segment_path(seq)) for seq in seqs}


def damaged(disk: Disk) -> list[int]:
    files = SegmentFiles(disk)
    files.scan(None)
    return sorted(files.damaged)


def test_swapped_files_are_noticed() -> None:
    """Both have a good checksum and the right size; each would be read as the other."""
    files = store(1, 2, 3)
    one, two = segment_path(1), segment_path(2)
    disk = memory_disk(files | {one: files[two], two: files[one]})
    assert damaged(disk) == [1, 2]
    with pytest.raises(SegmentDamage, match="is segment 2") as caught:
        SegmentReader.open(disk, 1)
    assert caught.value.details == {"file": one, "segment": 1}


def test_a_copy_under_another_number_is_noticed() -> None:
    """A duplicate would deliver the same bundles twice."""
    files = store(1)
    disk = memory_disk(files | {segment_path(9): files[segment_path(1)]})
    assert damaged(disk) == [9]
    with pytest.raises(SegmentDamage):
        load_info(disk, 9)
    assert load_info(disk, 1).bundle_count == 1
