"""Files written past the page cache: the same bytes as any other way."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pyarrow as pa
import pytest

from quiver.disk import direct
from quiver.disk.disk import Disk
from quiver.disk.posix import PosixDisk

SIZES = [
    [0],
    [1],
    [direct.BLOCK],
    [direct.BLOCK - 1, 2],
    [direct.SMALL, direct.SMALL - 1, 7, 64 << 10],
    [direct.STAGE - 3, 10, direct.STAGE],
    [100] * 3000,
    [10_000] * 1500,
]


def _pieces(sizes: list[int]) -> list[bytes | pa.Buffer]:
    rng = random.Random(len(sizes))
    data = [rng.randbytes(size) for size in sizes]
    return [pa.py_buffer(one) if index % 2 else one for index, one in enumerate(data)]


def _written(root: Path, pieces: list[bytes | pa.Buffer]) -> bytes:
    disk = Disk(PosixDisk(root))
    disk.mkdir("")
    with disk.create("file", bulk=True) as file:
        assert file.write_all(pieces, 0) == sum(len(piece) for piece in pieces)
        file.fsync()
    return (root / "file").read_bytes()


@pytest.mark.parametrize("sizes", SIZES, ids=range(len(SIZES)))
def test_every_byte_is_where_it_belongs(tmp_path: Path, sizes: list[int]) -> None:
    """Scenario: pieces around every boundary. Guarantee: the file holds them, end to end."""
    pieces = _pieces(sizes)
    assert _written(tmp_path, pieces) == b"".join(bytes(piece) for piece in pieces)


def test_what_follows_an_odd_end_is_written_too(tmp_path: Path) -> None:
    """Scenario: two writes, the first fills no block. Guarantee: both are there."""
    disk = Disk(PosixDisk(tmp_path))
    with disk.create("file", bulk=True) as file:
        file.write_all([b"a" * 5000], 0)
        file.write_all([b"b" * 9000], 5000)
        file.fsync()
    assert (tmp_path / "file").read_bytes() == b"a" * 5000 + b"b" * 9000


@pytest.mark.parametrize("where", ["open", "write"])
def test_a_file_system_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Scenario: EINVAL, as some file systems say. Guarantee: written the usual way."""
    refused: list[str] = []
    real_open, real_write = os.open, os.pwrite

    def no_open(path: str, flags: int, mode: int = 0o777) -> int:
        if where == "open" and flags & direct.FLAG:
            refused.append(where)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_open(path, flags, mode)

    def no_write(fd: int, data: memoryview, offset: int) -> int:
        if where == "write":
            refused.append(where)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_write(fd, data, offset)

    monkeypatch.setattr(os, "open", no_open)
    monkeypatch.setattr(os, "pwrite", no_write)
    pieces = _pieces([10_000, 4096, 1])
    assert _written(tmp_path, pieces) == b"".join(bytes(piece) for piece in pieces)
    assert refused == [where]


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: ENOSPC. Guarantee: it comes out as it is, and the buffer is used again."""

    def full(fd: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    raw = PosixDisk(tmp_path)
    monkeypatch.setattr(os, "pwrite", full)
    file = raw.create("file", bulk=True)
    with pytest.raises(OSError, match="No space"):
        file.pwritev([bytes(direct.BLOCK)], 0)
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pwritev([b"late"], 0)
