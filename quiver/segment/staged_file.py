"""Staged files: segments in all but their number, until a commit gives them one.

A staged file is complete and checks itself: streams, directory, manifest, footer, as in a
segment.  Only who wrote it is in its directory instead of a number, and its bundles have
neither sequence nor time.  When it is committed, the end of a real segment is *appended*
and the file moves to ``segments/``::

    streams · staged directory, manifest, footer, trailer · zeros · directory, manifest,
    footer, trailer

so data is written once, and an append that a crash cuts short harms nothing: the commit's
log entry knows where the staged part ends.  The old end stays as dead bytes.  A checksum
over bytes that end in their own checksum is always the same number, so the one for the
whole needs no look at the data; if a byte of that has changed since, it will disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from quiver.disk.disk import Disk
from quiver.errors import Damage, SegmentDamage
from quiver.format.segment.file import CRC_SIZE, STREAM_ALIGNMENT, SegmentSummary
from quiver.format.segment.stage import STAGES, StageLabel, parse_stage_name, stage_path
from quiver.format.wal.commit import Commit, CommittedFile
from quiver.format.wal.scan import RESIDUE
from quiver.segment.info import SEGMENTS, SegmentInfo, segment_path
from quiver.segment.open_segment import OpenSegment
from quiver.segment.reader import SegmentReader, load_info
from quiver.segment.writer import SEALED_MODE, Pieces, add_tail, lay_out, write_whole

STAGED: Final = 0
"""Stands where a segment has its number."""


@dataclass(frozen=True, slots=True)
class StageFile:
    """A staged file. ``fresh``: this process wrote it, so its bytes need no second look."""

    stage_id: bytes
    label: StageLabel
    length: int
    crc: int
    bundles: int
    rows: int
    nbytes: int
    slots: tuple[tuple[str, int], ...] = ()
    unnamed: tuple[int, ...] = ()
    fresh: bool = False

    @property
    def path(self) -> str:
        return stage_path(self.stage_id, self.label.number)

    def committed(self) -> CommittedFile:
        """As a commit's log entry names it."""
        return CommittedFile(
            self.stage_id,
            self.label.number,
            self.length,
            self.crc,
            self.bundles,
            self.rows,
            self.nbytes,
        )


def write_stage(
    disk: Disk, segment: OpenSegment, label: StageLabel, slot_names: Mapping[int, str]
) -> StageFile:
    """Write and sync a staged file; its name is durable once the directory is synced."""
    layout = lay_out(segment, slot_names, label)
    stage_id = label.key.id
    write_whole(disk, stage_path(stage_id, label.number), layout.buffers)
    crc = int.from_bytes(bytes(layout.buffers[-1])[-CRC_SIZE:], "little")
    info = SegmentInfo.of(STAGED, layout.size, layout.summary, layout.streams)
    return _described(stage_id, label, info, crc, fresh=True)


def load_stage(disk: Disk, name: str) -> StageFile:
    """What a staged file says of itself; reads its end, checks no checksum."""
    parsed = parse_stage_name(name)
    if parsed is None:
        raise ValueError(f"{name} is not the name of a staged file")
    path = stage_path(*parsed)
    with SegmentReader.open_staged(disk, path, verify=False) as reader:
        label = reader.label
    if label is None or (label.key.id, label.number) != parsed:
        raise SegmentDamage(f"{path}: by its own account it is another staged file.", file=path)
    return _described(parsed[0], label, reader.info, reader.crc)


def _described(
    stage_id: bytes, label: StageLabel, info: SegmentInfo, crc: int, *, fresh: bool = False
) -> StageFile:
    return StageFile(
        stage_id,
        label,
        info.file_bytes,
        crc,
        info.bundle_count,
        info.rows,
        info.nbytes,
        info.slots,
        info.unnamed,
        fresh,
    )


def check_committed(disk: Disk, file: CommittedFile) -> SegmentInfo:
    """Raise unless the staged part is there, every byte as it was committed."""
    with SegmentReader.open_staged(disk, file.path, file.length) as reader:
        pass
    if reader.crc != file.crc or len(reader) != file.bundles:
        raise SegmentDamage(f"{file.path}: it is not the file that was committed.", file=file.path)
    return reader.info


Published = tuple[list[SegmentInfo], dict[int, Damage]]
"""The segments that a commit's files are now, and why the others can't be."""


def publish_commit(
    disk: Disk,
    commit: Commit,
    guarded: Callable[[Callable[[], SegmentInfo]], SegmentInfo] = lambda write: write(),
) -> Published:
    """Make every file of a commit that is there a segment, their names durable.

    Whether one is there is for the disk alone to say: a segment of which some bundles are on
    record as lost has a file all the same.  ``guarded`` runs each small write.
    """
    infos: list[SegmentInfo] = []
    missing: dict[int, Damage] = {}
    for seq, file in commit.segments:
        try:
            infos.append(guarded(partial(publish_stage, disk, commit, seq, file)))
        except FileNotFoundError:
            gone = SegmentDamage(f"{file.path} is gone, and was committed.", file=file.path)
            missing[seq] = gone
        except Damage as damage:
            missing[seq] = damage
    # The new names first: a crash between may leave two names, never none.
    disk.fsync_dir(SEGMENTS)
    disk.fsync_dir(STAGES)
    return infos, missing


def publish_stage(disk: Disk, commit: Commit, seq: int, file: CommittedFile) -> SegmentInfo:
    """Make a committed file the segment that it is, whole or not at all; done twice, it is
    as if done once.  The names are durable once ``segments/``, then ``stages/`` are synced.

    ``FileNotFoundError`` if there is neither the staged file nor the segment.
    """
    target = segment_path(seq)
    if disk.stat_size(target) is not None:
        info = load_info(disk, seq)
        disk.unlink(file.path, missing_ok=True)  # a crash may leave a file with both names
        return info
    info = _append_tail(disk, commit, seq, file)
    disk.rename(file.path, target)
    disk.chmod(target, SEALED_MODE)
    return info


def _append_tail(disk: Disk, commit: Commit, seq: int, file: CommittedFile) -> SegmentInfo:
    with SegmentReader.open_staged(disk, file.path, file.length, seq=seq, verify=False) as reader:
        manifest = reader.stamped_manifest(commit.sequence, commit.ts)
    summary = SegmentSummary(
        bundles=file.bundles,
        rows=file.rows,
        nbytes=file.nbytes,
        first_sequence=commit.sequence,
        last_sequence=commit.sequence,
        first_ts=commit.ts,
        last_ts=commit.ts,
        last_store_ts=commit.store_ts,
        segment=seq,
        transaction=commit.transaction,
    )
    pieces = Pieces(file.length, RESIDUE)
    pieces.align(STREAM_ALIGNMENT)
    add_tail(pieces, reader.streams, summary, manifest)
    with disk.open(file.path, write=True) as opened:
        opened.write_all(pieces.buffers, file.length)
        opened.fsync()
    return SegmentInfo.of(seq, pieces.size, summary, reader.streams)
