"""The readers of files, each with good files to start from.

A checksum stops nearly every change at the door, so half of the changed files get one that
fits: what is behind the door must hold by itself.  Bytes with a fitting checksum that no
writer wrote are not damage but malice, and even then a reader ends with a typed error.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Final

from quiver.disk.disk import Disk
from quiver.errors import QuiverError
from quiver.format.crc import crc32, crc32c
from quiver.format.floor import Floor, decode_floor, encode_floor
from quiver.format.keys import KeyRecord, KeyRun, decode_run, encode_run
from quiver.format.progress import Progress, SegmentProgress, decode_progress, encode_progress
from quiver.format.segment.stage import STAGES, stage_name
from quiver.format.state import decode_state
from quiver.format.wal.commit import Commit, CommittedFile
from quiver.format.wal.cursor import decode_cursor, encode_cursor
from quiver.format.wal.header import HEADER_SIZE, decode_header
from quiver.ids import BundleRef
from quiver.segment.reader import SegmentReader, load_info
from quiver.segment.staged_file import check_committed, load_stage, publish_stage
from quiver.wal.files import ACTIVE
from quiver.wal.reader import read_log
from tests.faults.damage import closed, crashed, staged
from tests.support.memory_disk import MemoryDisk
from tests.support.wal import as_v1

KEYS: Final = [
    KeyRecord(f"key {n}", bytes([n]) * 32, BundleRef(1, n), 10 + n, 1_000 + n) for n in range(5)
]


@dataclass(frozen=True)
class Target:
    """A reader: ``run`` feeds it, ``fix`` makes the checksums of changed bytes fit."""

    seeds: tuple[bytes, ...]
    fix: Callable[[bytes], bytes]
    run: Callable[[bytes], None]


def feed(target: Target, data: bytes) -> None:
    """Only Quiver's own errors may come out."""
    with suppress(QuiverError):
        target.run(data)


def _ending_in(checksum: Callable[[bytes], int]) -> Callable[[bytes], bytes]:
    def fix(data: bytes) -> bytes:
        body = data[:-4]
        return body + checksum(body).to_bytes(4, "little")

    return fix


def _read_wal(data: bytes) -> None:
    for salvage in (False, True):
        disk = Disk(MemoryDisk.from_image({ACTIVE: data, f"{ACTIVE}.1": data}, record=False))
        with suppress(QuiverError):
            contents = read_log(disk, layout_hash=None, salvage=salvage)
            for entry in contents.entries():
                with suppress(QuiverError):
                    entry.slot_name()
                    entry.commit()
                    if entry.is_bundle:
                        entry.bundle()


def _fix_wal(data: bytes) -> bytes:
    """Fit the head's checksum and each entry's, as far as the lengths lead."""
    out = bytearray(data)
    seed = 0
    if len(out) >= HEADER_SIZE:
        out[60:64] = crc32(bytes(out[:60])).to_bytes(4, "little")
        with suppress(QuiverError):
            seed = decode_header(bytes(out)).framing.seed
    at = HEADER_SIZE
    while at + 8 <= len(out):
        end = at + 4 + int.from_bytes(out[at : at + 4], "little")
        if end == at + 4 or end + 4 > len(out):
            break
        out[end : end + 4] = crc32(bytes(out[at + 4 : end]), seed).to_bytes(4, "little")
        at = end + 4
    return bytes(out)


def _read_segment(data: bytes) -> None:
    for mode in ("mmap", "pread"):
        path = "segments/0000000000000000.qseg"
        disk = Disk(MemoryDisk.from_image({path: data}, record=False))
        with suppress(QuiverError):
            load_info(disk, 0)
        with suppress(QuiverError):
            reader = SegmentReader.open(disk, 0, mode=mode)
            for index in range(min(len(reader), 8)):
                with suppress(QuiverError):
                    reader.meta(index)
                    reader.read(index)
                    reader.read(index, columns={0: ["n"]})


def _read_stage(data: bytes) -> None:
    name = stage_name(bytes(16), 0)
    disk = Disk(MemoryDisk.from_image({f"{STAGES}/{name}": data}, ["segments"], record=False))
    with suppress(QuiverError):
        load_stage(disk, name)
    file = CommittedFile(bytes(16), 0, len(data), 0, 3, 3, 3)
    with suppress(QuiverError):
        check_committed(disk, file)
    publish_stage(disk, Commit("app", 1, 2, 3, 0, (file,)), 0, file)


@cache
def targets() -> dict[str, Target]:
    """All of them, by name."""
    files = [closed().files, crashed().files, staged().files]
    logs = [d for one in files for p, d in one.items() if p.startswith(ACTIVE) and p[-1] != "r"]
    segments = [d for one in files for p, d in one.items() if p.endswith("0.qseg")]
    stages = [d for one in files for p, d in one.items() if p.endswith(".qstage")]
    progress = Progress(12, {4: SegmentProgress(2, 0b11, 0b10), 12: SegmentProgress(65, 1 << 64)})
    floor = Floor(41, 39, ((0, 7), (9, 30)), has_log=True, has_state=True, log_first=1234)
    return {
        "wal": Target(tuple(logs), _fix_wal, _read_wal),
        "wal_v1": Target(tuple(map(as_v1, logs)), _fix_wal, _read_wal),
        "segment": Target(tuple(segments), _ending_in(crc32), _read_segment),
        "stage": Target(tuple(stages), _ending_in(crc32), _read_stage),
        "progress": Target(
            (encode_progress(progress), encode_progress(progress, "a")),
            _ending_in(crc32c),
            lambda data: _drop(decode_progress(data, subscriber="a")),
        ),
        "cursor": Target(
            (encode_cursor(77),), _ending_in(crc32), lambda data: _drop(decode_cursor(data))
        ),
        "floor": Target(
            (encode_floor(floor),), _ending_in(crc32), lambda data: _drop(decode_floor(data))
        ),
        "state": Target(
            tuple(one["quiver.state"] for one in files if "quiver.state" in one),
            _ending_in(crc32),
            lambda data: _drop(decode_state(data)),
        ),
        "keys": Target(
            (encode_run(KEYS),),
            _ending_in(crc32),
            lambda data: _drop(decode_run(data, KeyRun.of(KEYS))),
        ),
    }


def _drop(_: object) -> None:
    """Decoding is all that is asked for."""
