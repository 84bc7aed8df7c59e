"""Putting small staged files together, so that a commit makes few segments.

Two hundred tasks that wrote a little each would otherwise leave two hundred segments.
What is large stays as it is; only what is small is written a second time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from quiver.errors import QuiverError
from quiver.format.record import BundleMeta, EncodedSlot
from quiver.format.segment.stage import STAGES, StageKey, StageLabel, Transaction
from quiver.ingest.parts import Parts
from quiver.segment.closing import full_by
from quiver.segment.open_segment import OpenSegment
from quiver.segment.reader import SegmentReader
from quiver.segment.stage_table import Finished
from quiver.segment.staged_file import STAGED, StageFile, write_stage

MERGED: Final = "\0merged"
"""The attempt that merged files belong to: no producer can use this name."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Files that become segments: some of them ``made`` here; and files that don't (``left``),
    since their bundles are in others, or they have none."""

    files: tuple[StageFile, ...]
    made: tuple[StageFile, ...]
    left: tuple[StageFile, ...]


def merge(parts: Parts, transaction: Transaction, winners: Sequence[Finished]) -> Merge:
    """Write small files together if there is room to have them twice for a while.

    The bundles of an attempt keep their order: only the small files at its end take part.
    """
    large, small, empty = _sorted(winners, parts.config.segment.target_size // 2)
    if len(small) < 2 or not _is_room(parts, sum(file.length for file in small)):
        return Merge((*large, *small), (), empty)
    made = _written(parts, transaction, small)
    return Merge((*large, *made), tuple(made), (*small, *empty))


def _sorted(
    winners: Sequence[Finished], limit: int
) -> tuple[list[StageFile], list[StageFile], tuple[StageFile, ...]]:
    large: list[StageFile] = []
    small: list[StageFile] = []
    empty: list[StageFile] = []
    for winner in winners:
        files = [file for file in winner.files if file.bundles]
        empty += [file for file in winner.files if not file.bundles]
        end = len(files)
        while end and files[end - 1].nbytes < limit:
            end -= 1
        large += files[:end]
        small += files[end:]
    return large, small, tuple(empty)


def _is_room(parts: Parts, nbytes: int) -> bool:
    marks = parts.share.marks
    return marks is None or parts.usage().committed + nbytes <= marks.hard


def _written(parts: Parts, transaction: Transaction, small: Sequence[StageFile]) -> list[StageFile]:
    made: list[StageFile] = []
    key = StageKey(*transaction, MERGED)

    def write(segment: OpenSegment) -> None:
        label = StageLabel(*key, len(made), False, parts.ingest.times.now_ns(), merged=True)
        made.append(write_stage(parts.disk, segment, label, parts.slots.names))
        parts.stages.grow(files=made[-1].length)

    try:
        segment, rows = OpenSegment(STAGED), 0
        for slots, meta in _bundles(parts, small):
            if full_by(segment, rows, parts.config.segment) is not None:
                write(segment)
                segment, rows = OpenSegment(STAGED), 0
            segment.append(slots, meta)
            rows += meta.rows
        write(segment)
        parts.disk.fsync_dir(STAGES)
    except BaseException:
        discard(parts, made)
        raise
    return made


def _bundles(
    parts: Parts, files: Sequence[StageFile]
) -> Iterator[tuple[list[EncodedSlot], BundleMeta]]:
    for file in files:
        with SegmentReader.open_staged(parts.disk, file.path, file.length, always=True) as reader:
            for index in range(len(reader)):
                yield reader.encoded(index), reader.meta(index)


def discard(parts: Parts, made: Sequence[StageFile]) -> None:
    """The commit came to nothing: its merged files mean nothing then."""
    for file in made:
        with suppress(QuiverError):
            parts.disk.unlink(file.path, missing_ok=True)
            parts.stages.grow(files=-file.length)
