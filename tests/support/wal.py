"""Logs made of plain bytes: the log doesn't care what a payload is."""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Mapping
from typing import Any

from quiver.config import WalConfig
from quiver.disk.disk import Disk
from quiver.disk.seam import RawDisk
from quiver.errors import QuiverError
from quiver.format.wal.entry import COMMIT, PREFIX_SIZE, V1_PREFIX_SIZE, PreparedBody, seal_bundle
from quiver.format.wal.header import decode_header, layout_hash
from quiver.format.wal.scan import Found, read_one
from quiver.ids import BundleRef
from quiver.wal.contents import LogContents, LogStart
from quiver.wal.reader import read_log
from quiver.wal.repair import repair_tail
from quiver.wal.writer import WalWriter
from tests.support.memory_disk import MemoryDisk

LAYOUT = layout_hash(None)
TS = 1_700_000_000_000_000_000


def small(**changes: Any) -> WalConfig:
    """A log whose files fill up after a few entries."""
    settings: dict[str, Any] = {
        "rotation_target": 1024,
        "max_size": 1 << 20,
        "max_rotated_files": 1000,
        "max_group": 4096,
    }
    return WalConfig(**(settings | changes))


def body(payload: bytes) -> PreparedBody:
    """A bundle with one slot that holds these bytes."""
    block = struct.pack("<H32sII", 3, b"f" * 32, 1, len(payload)) + payload
    return PreparedBody([block], [], len(block), 1 << 3)


class Ack:
    """A receipt that remembers what it was told, and insists on being told once."""

    def __init__(self, sequence: int, payload: bytes) -> None:
        self.sequence = sequence
        self.payload = payload
        self.done = False
        self.error: QuiverError | None = None

    def complete(self, error: QuiverError | None = None) -> None:
        assert not self.done
        self.done, self.error = True, error

    @property
    def durable(self) -> bool:
        return self.done and self.error is None


class Log:
    """A writer with what goes around it."""

    def __init__(
        self,
        raw: RawDisk | None = None,
        config: WalConfig | None = None,
        start: LogStart | None = None,
        disk: Disk | None = None,
    ) -> None:
        self.raw = raw if raw is not None else MemoryDisk()
        self.disk = disk if disk is not None else Disk(self.raw)
        self.config = config if config is not None else small()
        self.lock = threading.Lock()
        self.durable: list[int] = []
        self.rollbacks: list[tuple[int, QuiverError]] = []
        self.acks: list[Ack] = []
        self.writer = WalWriter(
            self.disk,
            self.config,
            layout_hash=LAYOUT,
            lock=self.lock,
            start=start if start is not None else LogStart(),
            on_durable=self.durable.append,
            on_rollback=lambda first, error: self.rollbacks.append((first, error)),
        )

    def stage(self, payload: bytes = b"", segment: int = 0) -> Ack:
        prepared = body(payload)
        with self.lock:
            sequence = self.writer.next_sequence
            ack = Ack(sequence, payload)
            size = prepared.entry_size()
            entry = seal_bundle(
                prepared,
                sequence,
                self.writer.durable_before,
                BundleRef(segment, sequence),
                TS,
                store_ts=TS,
                seed=self.writer.seed_for(size),
            )
            self.writer.stage(entry, size, sequence, segment, ack)
        self.acks.append(ack)
        return ack

    def commit(self) -> None:
        while self.writer.commit():
            pass

    def put(self, payload: bytes = b"", segment: int = 0) -> Ack:
        ack = self.stage(payload, segment)
        self.commit()
        return ack


def read(files: Mapping[str, bytes] | Disk, *, salvage: bool = False) -> LogContents:
    """Read a log from an image."""
    disk = files if isinstance(files, Disk) else Disk(MemoryDisk.from_image(files, record=False))
    return read_log(disk, layout_hash=LAYOUT, salvage=salvage)


def payloads(contents: LogContents) -> dict[int, bytes]:
    """What the log says, by sequence; control entries left out."""
    return {
        entry.sequence: bytes(entry.bundle().slots[0].payload)
        for entry in contents.entries()
        if entry.is_bundle
    }


def reopened(raw: RawDisk, config: WalConfig | None = None) -> Log:
    """Go on with a log as a store does: read, repair, write."""
    disk = Disk(raw)
    contents = read_log(disk, layout_hash=LAYOUT)
    repair_tail(disk, contents)
    return Log(raw, config, contents.start(), disk)


def as_v1(data: bytes) -> bytes:
    """The same log file as 0.1.0 would have written it: no salt, no store time, no slots."""
    header = decode_header(data)
    view, at, entries = memoryview(data), header.size, b""
    while isinstance(found := read_one(view, at, header.framing), Found):
        body = data[at + 4 : found.end - 4]
        rest = body[PREFIX_SIZE:]
        if found.kind == COMMIT:
            slots = 22 + int.from_bytes(rest[20:22], "little")
            rest = (
                rest[:slots] + rest[slots + 2 + int.from_bytes(rest[slots : slots + 2], "little") :]
            )
        old = body[:V1_PREFIX_SIZE] + rest
        entries += struct.pack("<I", len(old)) + old + struct.pack("<I", zlib.crc32(old))
        at = found.end
    head = data[:10] + struct.pack("<H", 1) + data[12:48] + bytes(4) + data[52:60]
    return head + struct.pack("<I", zlib.crc32(head)) + entries + data[at:]


def image(log: Log) -> dict[str, bytes]:
    """The files of a log on a memory disk."""
    assert isinstance(log.raw, MemoryDisk)
    return log.raw.image()
