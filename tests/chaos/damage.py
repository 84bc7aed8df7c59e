"""Damage to a store's files: bytes flipped, files cut, files as a newer program writes them.

Every function returns the fields of the ``trouble`` note, or ``None`` if there was nothing
to damage.  ``segment`` and ``index`` say what a flip was aimed at: a byte inside the values of
the bundle with that ref, which then may cost that bundle and no other.  The ref comes from the
file, since of a bundle of a transaction that is lost before it came to anybody no client knows
it.  ``touched`` is what the bytes called the bundle, for who reads the notes: an earlier flip
may have made another name of it.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, Final

import pyarrow as pa

from tests.chaos.content import IN_FILE

Told = dict[str, Any]
Damager = Callable[[Path, Random], Told | None]
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_ENTRY: Final = struct.Struct("<BqQQ4sQq")
_SEGMENT_END: Final = struct.Struct("<HIIQIQI16x")
PROGRESS: Final = "quiver.sub."
SALT_AT: Final = 48
UNKNOWN_ENTRY: Final = 120
LOG_HEAD: Final = 64
LOG_VERSION: Final = 2
LOG_VERSION_AT: Final = 10
STATE_VERSION_AT: Final = 8
SEGMENT_VERSION_BEFORE_END: Final = 50
"""Footer (34 bytes, the version first) and trailer (16) end a segment."""


def segments(store: Path) -> list[Path]:
    """Segment files, oldest first."""
    return sorted(store.glob("segments/*.qseg"))


def number_of(segment: Path) -> int:
    return int(segment.stem)


def _flip(path: Path, at: int, bit: int) -> None:
    with path.open("r+b") as file:  # in place, as a disk does it: others have it open
        _flip_in(file, at, bit)


def _flip_in(file: BinaryIO, at: int, bit: int) -> None:
    file.seek(at)
    (byte,) = file.read(1)
    file.seek(at)
    file.write(bytes([byte ^ bit]))


def _writable(path: Path) -> None:
    path.chmod(0o640)


def flip_values(store: Path, chance: Random) -> Told | None:
    """One bit inside the values of one bundle of a sealed segment."""
    found = segments(store)
    if not found:
        return None
    path = chance.choice(found)
    _writable(path)
    with path.open("r+b") as file:  # once: a healed file may take this one's name meanwhile
        data = file.read()
        marks = list(IN_FILE.finditer(data))
        if not marks:
            return None
        mark = chance.choice(marks)
        _flip_in(file, mark.start(1) + chance.randrange(len(mark.group(1))), 1)
    told = {"how": "a bit of a bundle's values", "file": path.name, "segment": number_of(path)}
    index = bundle_at(data, mark.start(1))
    if index is None:  # its tables are damaged already: nothing tells what was hit
        return told
    return {**told, "index": index, "touched": mark.group(1).decode()}


def bundle_at(segment: bytes, at: int) -> int | None:
    """Which bundle of a segment file has this byte in one of its messages, by the manifest."""
    if len(segment) < SEGMENT_VERSION_BEFORE_END:
        return None
    end = len(segment) - SEGMENT_VERSION_BEFORE_END
    *_, start, length = _SEGMENT_END.unpack_from(segment, end)
    try:
        table = pa.ipc.open_file(pa.py_buffer(segment[start : start + length])).read_all()
        table.validate(full=True)
        rows = table.select(["bundle_index", "chunks"]).to_pylist()
    except (pa.ArrowException, KeyError, ValueError, OSError):
        return None
    for row in rows:
        for chunk in row["chunks"] or ():
            if chunk["offset"] <= at < chunk["offset"] + chunk["length"]:
                return int(row["bundle_index"])
    return None


def flip_segment(store: Path, chance: Random) -> Told | None:
    """One bit anywhere in a segment file."""
    found = segments(store)
    if not found:
        return None
    path = chance.choice(found)
    at = chance.randrange(path.stat().st_size)
    _writable(path)
    _flip(path, at, 1 << chance.randrange(8))
    return {"how": f"a bit at {at}", "file": path.name, "segment": number_of(path)}


def cut_segment(store: Path, chance: Random) -> Told | None:
    """A segment file loses its end."""
    found = segments(store)
    if not found:
        return None
    path = chance.choice(found)
    size = chance.randrange(path.stat().st_size)
    _writable(path)
    with path.open("r+b") as file:
        file.truncate(size)
    return {"how": f"cut to {size} bytes", "file": path.name, "segment": number_of(path)}


def flip_log(store: Path, chance: Random) -> Told | None:
    """One bit of a bundle in a closed log file."""
    found = sorted(store.glob("wal/quiver.wal.[0-9]*"))
    if not found:
        return None
    path = chance.choice(found)
    marks = list(IN_FILE.finditer(path.read_bytes()))
    if not marks:
        return None
    mark = chance.choice(marks)
    _flip(path, mark.start(1), 1)
    return {"how": "a bit of a log entry", "file": path.name, "segment": None}


def flip_progress(store: Path, chance: Random) -> Told | None:
    """One bit of a subscriber's progress: what it had acked may be forgotten, on record."""
    found = sorted(store.glob(f"{PROGRESS}*"))
    if not found:
        return None
    path = chance.choice(found)
    at = chance.randrange(path.stat().st_size)
    _flip(path, at, 1 << chance.randrange(8))
    also = {"what": "progress_lost", "subscriber": path.name.removeprefix(PROGRESS)}
    return {"how": f"a bit at {at}", "file": path.name, "segment": None, "also": also}


def flip_state(store: Path, chance: Random) -> Told | None:
    """One bit of the checkpoint: keys and the ledger so far may be forgotten."""
    path = store / "quiver.state"
    if not path.exists():
        return None
    at = chance.randrange(path.stat().st_size)
    _flip(path, at, 1 << chance.randrange(8))
    also = {"what": "memory_lost"}
    return {"how": f"a bit at {at}", "file": path.name, "segment": None, "also": also}


def flip_active_log(store: Path, chance: Random) -> Told | None:
    """One bit of a bundle in the log that is written to, where a later entry proves it.

    Not in its last group: that can't be told from a write that never finished.
    """
    path = store / "wal" / "quiver.wal"
    data = path.read_bytes() if path.exists() else b""
    entries = _entries(data)
    proved = max((synced for *_, synced in entries), default=0)
    marks = [
        mark
        for start, end, sequence, _ in entries
        if sequence < proved
        for mark in IN_FILE.finditer(data, start, end)
    ]
    if not marks:
        return None
    _flip(path, chance.choice(marks).start(1), 1)
    return {"how": "a bit of a proved entry", "file": path.name, "segment": None}


def flip_keys(store: Path, chance: Random) -> Told | None:
    """One bit of a file of keys: a repeat of what it names may be stored again."""
    found = sorted(store.glob("keys/[0-9]*"))
    if not found:
        return None
    return _flip_any(chance.choice(found), chance, also={"what": "keys_lost"})


def flip_floor(store: Path, chance: Random) -> Told | None:
    """One bit of the floor: numbers that were used must not be given out again for it."""
    path = store / "segments" / "quiver.segment.seq"
    return _flip_any(path, chance) if path.exists() else None


def flip_stage(store: Path, chance: Random) -> Told | None:
    """One bit of a file of a transaction that is not committed: it is refused, or on record."""
    found = sorted(store.glob("stages/*.qstage"))
    return _flip_any(chance.choice(found), chance) if found else None


def _flip_any(path: Path, chance: Random, **more: Any) -> Told | None:
    size = path.stat().st_size
    if not size:
        return None
    at = chance.randrange(size)
    _writable(path)
    _flip(path, at, 1 << chance.randrange(8))
    return {"how": f"a bit at {at}", "file": path.name, "segment": None, **more}


AT_REST: Final[tuple[tuple[Damager, int], ...]] = (
    (flip_values, 8),
    (flip_segment, 3),
    (cut_segment, 2),
    (flip_log, 3),
    (flip_active_log, 2),
    (flip_keys, 1),
    (flip_floor, 1),
    (flip_stage, 1),
    (flip_progress, 1),
    (flip_state, 1),
)
"""What happens to files while nobody has them open, and how often."""


# Files of a newer version: sound, with good checksums, and not for this program


def newer_segment(store: Path, chance: Random) -> Path | None:
    """A segment whose footer says the next version."""
    found = segments(store)
    if not found:
        return None
    path = chance.choice(found)
    data = bytearray(path.read_bytes())
    _raise_version(data, len(data) - SEGMENT_VERSION_BEFORE_END)
    data[-4:] = _U32.pack(zlib.crc32(data[:-4]))
    _writable(path)
    path.write_bytes(data)
    return path


def newer_log(store: Path, chance: Random) -> Path | None:
    """A log file whose head says the next version."""
    found = sorted(store.glob("wal/quiver.wal")) + sorted(store.glob("wal/quiver.wal.[0-9]*"))
    if not found:
        return None
    path = chance.choice(found)
    data = bytearray(path.read_bytes())
    if len(data) < LOG_HEAD:
        return None
    _raise_version(data, LOG_VERSION_AT)
    data[LOG_HEAD - 4 : LOG_HEAD] = _U32.pack(zlib.crc32(data[: LOG_HEAD - 4]))
    path.write_bytes(data)
    return path


def newer_state(store: Path, chance: Random) -> Path | None:
    """A checkpoint that says the next version."""
    path = store / "quiver.state"
    if not path.exists():
        return None
    data = bytearray(path.read_bytes())
    _raise_version(data, STATE_VERSION_AT)
    data[-4:] = _U32.pack(zlib.crc32(data[:-4]))
    path.write_bytes(data)
    return path


def newer_entry(store: Path, chance: Random) -> Path | None:
    """A log that goes on with an entry of a kind that this program does not know."""
    path = store / "wal" / "quiver.wal"
    if not path.exists():
        return None
    data = bytearray(path.read_bytes())
    entries = _entries(data)
    if not entries:
        return None
    start, at, *_ = entries[-1]
    salt = zlib.crc32(data[SALT_AT : SALT_AT + 4])
    _, ts, sequence, _, marker, _, store_ts = _ENTRY.unpack_from(data, start + 4)
    fields = (UNKNOWN_ENTRY, ts, sequence + 1, 0, marker, sequence + 1, store_ts)
    body = bytearray(_ENTRY.pack(*fields))
    entry = _U32.pack(len(body)) + body + _U32.pack(zlib.crc32(body, salt))
    data[at : at + len(entry)] = entry
    path.write_bytes(data)
    return path


def _entries(data: bytes | bytearray) -> list[tuple[int, int, int, int]]:
    """The whole entries of a log file: where they begin and end, their sequence, and which
    sequence they prove to be the first that was not synced before them."""
    if len(data) < LOG_HEAD or _U16.unpack_from(data, LOG_VERSION_AT)[0] != LOG_VERSION:
        return []
    salt = zlib.crc32(data[SALT_AT : SALT_AT + 4])
    at = LOG_HEAD
    found: list[tuple[int, int, int, int]] = []
    while at + 8 <= len(data):
        (length,) = _U32.unpack_from(data, at)
        body = data[at + 4 : at + 4 + length]
        if len(body) < _ENTRY.size or at + 8 + length > len(data):
            break
        if _U32.unpack_from(data, at + 4 + length)[0] != zlib.crc32(body, salt):
            break
        _, _, sequence, _, _, synced, _ = _ENTRY.unpack_from(body)
        found.append((at, at + 8 + length, sequence, synced))
        at += 8 + length
    return found


NEWER: Final[tuple[Callable[[Path, Random], Path | None], ...]] = (
    newer_segment,
    newer_log,
    newer_state,
    newer_entry,
)


def _raise_version(data: bytearray, at: int) -> None:
    (version,) = _U16.unpack_from(data, at)
    _U16.pack_into(data, at, version + 1)


def prints(directory: Path) -> dict[str, str]:
    """A hash of every file, to see that nothing was touched; locks are not data."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "LOCK"
    }
