"""Progress files: how far one subscriber has come, as bytes and back.

::

    header   32 B   magic "QUIVSUB\\0" 8 · version u16 · header_size u16 · flags u16
                    · oldest_incomplete u64 · entry_count u32 · zero 6
              8 B   under FLAG_NAMED: first 8 bytes of BLAKE3 of the subscriber's name
    entry    14 B   segment_seq u64 · bundle_count u32 · bitmap_words u16
                    then bitmap_words * u64: bit i is set when bundle i is done
                    then, under FLAG_DROPPED, as many words again: done, but dropped
    checksum  4 B   over everything before it

What a file doesn't list has a meaning too: segments below ``oldest_incomplete`` are
finished, segments from there on are untouched.  An entry always wins over that rule: the
Rust crate lists every segment it tracks, and writes ``oldest_incomplete = 0`` when
nothing is left to do.

The name's hash tells two subscribers' files apart: swapped or copied, each would speak for
the wrong one, with a good checksum.

The checksum is written as CRC-32C and read as that or as CRC-32/IEEE, which the Rust
crate writes.  It is checked before anything else but the magic is believed, so a damaged
file is called damaged, and never a file of some future version.

It also says whose flags these are.  Ours are the two highest bits, and count under our
checksum only; Quiver 0.1.0 wrote them as the two lowest, which are read likewise.  The Rust
crate writes no flags so far and is about to give its lowest bits meanings of their own.  A
file with a flag that is unknown under its checksum is refused: it may say of bundles that are
done that they are not, or the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from types import MappingProxyType
from typing import Final, NamedTuple

import blake3

from quiver.errors import LimitExceeded, ProgressCorrupt, UnsupportedVersion
from quiver.format.crc import crc32, crc32c
from quiver.ids import MAX_BUNDLES_PER_SEGMENT

MAGIC: Final = b"QUIVSUB\0"
VERSION: Final = 1
FLAG_NAMED: Final = 0x8000
FLAG_DROPPED: Final = 0x4000
OLD_FLAG_DROPPED: Final = 0x0001
OLD_FLAG_NAMED: Final = 0x0002
MAX_BITMAP_WORDS: Final = MAX_BUNDLES_PER_SEGMENT // 64
MAX_ENTRIES: Final = 1_000_000

_HEADER: Final = Struct("<8sHHHQI6x")
_ENTRY: Final = Struct("<QIH")
_CHECKSUM: Final = Struct("<I")
_WORD: Final = 8
_OWNER_SIZE: Final = 8

if (_HEADER.size, _ENTRY.size) != (32, 14):
    raise AssertionError("the layouts above are what the format page says")


class SegmentProgress(NamedTuple):
    """One segment: how many bundles were seen, which are done, which of those were dropped.

    The bitmaps are integers, bundle 0 in the lowest bit.
    """

    bundle_count: int
    done: int
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """The contents of a progress file.

    ``named`` says that the file names its subscriber, as ours do and the Rust crate's don't.
    """

    oldest_incomplete: int = 0
    entries: Mapping[int, SegmentProgress] = field(default_factory=lambda: MappingProxyType({}))
    named: bool = field(default=False, compare=False)

    @property
    def first_unused_segment(self) -> int:
        """The lowest segment number this file says nothing about.

        A new segment with a lower number could be taken for one that is done already.
        """
        return max(self.oldest_incomplete, max(self.entries, default=-1) + 1)


def encode_progress(progress: Progress, subscriber: str | None = None) -> bytes:
    """A progress file's bytes: the same value always gives the same bytes.

    Without a ``subscriber`` the file could be anyone's, like those of the Rust crate.
    """
    if len(progress.entries) > MAX_ENTRIES:
        raise LimitExceeded("segments in a progress file", len(progress.entries), MAX_ENTRIES)
    with_drops = any(entry.dropped for entry in progress.entries.values())
    owner = b"" if subscriber is None else _owner(subscriber)
    parts = [
        _HEADER.pack(
            MAGIC,
            VERSION,
            _HEADER.size + len(owner),
            FLAG_DROPPED * with_drops | FLAG_NAMED * bool(owner),
            progress.oldest_incomplete,
            len(progress.entries),
        ),
        owner,
    ]
    for segment_seq in sorted(progress.entries):
        entry = progress.entries[segment_seq]
        words = _words_for(entry)
        parts.append(_ENTRY.pack(segment_seq, entry.bundle_count, words))
        parts.append(entry.done.to_bytes(words * _WORD, "little"))
        if with_drops:
            parts.append(entry.dropped.to_bytes(words * _WORD, "little"))
    body = b"".join(parts)
    return body + _CHECKSUM.pack(crc32c(body))


def _owner(subscriber: str) -> bytes:
    return blake3.blake3(subscriber.encode()).digest(_OWNER_SIZE)


def _words_for(entry: SegmentProgress) -> int:
    if entry.bundle_count > MAX_BUNDLES_PER_SEGMENT:
        raise LimitExceeded("bundles in a segment", entry.bundle_count, MAX_BUNDLES_PER_SEGMENT)
    if entry.done >> entry.bundle_count or entry.dropped & ~entry.done:
        raise ValueError("a bundle is marked that isn't there, or dropped but not done")
    return -(-entry.bundle_count // 64)


def decode_progress(data: bytes, *, file: str = "", subscriber: str | None = None) -> Progress:
    """Read a progress file; ``file`` is its name, for the error.

    With a ``subscriber``, a file that says it is another's is damage.

    Raises ``ProgressCorrupt`` for anything that no writer could have written, and
    ``UnsupportedVersion`` for a sound file of another version, or with flags unknown here.
    """
    return _Decoder(data, file, subscriber).decode()


class _Decoder:
    def __init__(self, data: bytes, file: str, subscriber: str | None) -> None:
        self._data = data
        self._file = file
        self._subscriber = subscriber
        self._end = len(data) - _CHECKSUM.size

    def decode(self) -> Progress:
        ours = self._check_whole()
        _, version, header_size, flags, oldest, count = _HEADER.unpack_from(self._data)
        if version != VERSION:
            raise self._newer(f"version {version}", version=version)
        named, with_drops = self._meaning(flags, ours=ours)
        if not _HEADER.size <= header_size <= self._end:
            raise self._corrupt(f"a header of {header_size} bytes can't be", offset=10)
        if count > MAX_ENTRIES:
            raise self._corrupt(f"{count:,} segments are listed, more than {MAX_ENTRIES:,}", 22)
        if named:
            self._check_owner(header_size)
        entries = self._entries(header_size, count, bitmaps=2 if with_drops else 1)
        return Progress(oldest, MappingProxyType(entries), named)

    def _meaning(self, flags: int, *, ours: bool) -> tuple[bool, bool]:
        """Whether a name's hash, and whether dropped bitmaps are there."""
        old = OLD_FLAG_NAMED | OLD_FLAG_DROPPED
        known = (old if flags & old else FLAG_NAMED | FLAG_DROPPED) if ours else 0
        if flags & ~known:
            raise self._newer(f"flags {flags:#06x}", flags=flags)
        return bool(flags & (FLAG_NAMED | OLD_FLAG_NAMED)), bool(
            flags & (FLAG_DROPPED | OLD_FLAG_DROPPED)
        )

    def _newer(self, what: str, **details: object) -> UnsupportedVersion:
        return UnsupportedVersion(
            f"progress file {self._file} has {what}, which this Quiver does not know.",
            advice="Open the store with the program that wrote it, or a newer Quiver."
            " Nothing was changed.",
            file=self._file,
            **details,
        )

    def _check_owner(self, header_size: int) -> None:
        owner = self._data[_HEADER.size : _HEADER.size + _OWNER_SIZE]
        if header_size < _HEADER.size + _OWNER_SIZE:
            raise self._corrupt(f"a header of {header_size} bytes can't hold a name", offset=10)
        if self._subscriber is not None and owner != _owner(self._subscriber):
            raise self._corrupt("it belongs to another subscriber", _HEADER.size)

    def _check_whole(self) -> bool:
        """Check magic and checksum; whether it is the checksum that Quiver writes."""
        if self._end < _HEADER.size:
            raise self._corrupt(f"{len(self._data)} bytes are too few", offset=0)
        if not self._data.startswith(MAGIC):
            raise self._corrupt("it doesn't start like a progress file", offset=0)
        body = memoryview(self._data)[: self._end]
        (stored,) = _CHECKSUM.unpack_from(self._data, self._end)
        if stored == crc32c(body):
            return True
        if stored != crc32(body):
            raise self._corrupt("its checksum disagrees", self._end)
        return False

    def _entries(self, at: int, count: int, *, bitmaps: int) -> dict[int, SegmentProgress]:
        entries: dict[int, SegmentProgress] = {}
        for _ in range(count):
            if at + _ENTRY.size > self._end:
                raise self._corrupt("an entry is cut short", at)
            segment_seq, bundles, words = _ENTRY.unpack_from(self._data, at)
            size = words * _WORD
            following = at + _ENTRY.size + size * bitmaps
            if following > self._end or words > MAX_BITMAP_WORDS:
                raise self._corrupt(f"a bitmap of {words:,} words can't be", at)
            done = self._bitmap(at + _ENTRY.size, size)
            dropped = self._bitmap(at + _ENTRY.size + size, size) if bitmaps == 2 else 0
            if bundles > MAX_BUNDLES_PER_SEGMENT or done >> bundles or dropped & ~done:
                raise self._corrupt(f"segment {segment_seq} has bundles that can't be", at)
            if segment_seq in entries:
                raise self._corrupt(f"segment {segment_seq} is listed twice", at)
            entries[segment_seq] = SegmentProgress(bundles, done, dropped)
            at = following
        if at != self._end:
            raise self._corrupt(f"{self._end - at} bytes follow the last entry", at)
        return entries

    def _bitmap(self, at: int, size: int) -> int:
        return int.from_bytes(self._data[at : at + size], "little")

    def _corrupt(self, why: str, offset: int) -> ProgressCorrupt:
        return progress_corrupt(self._file, why, offset=offset)


def progress_corrupt(file: str, why: str, **details: object) -> ProgressCorrupt:
    """The one error text for a progress file that can't be believed."""
    return ProgressCorrupt(
        f"progress file {file} is damaged: {why}.".replace("  ", " "),
        advice="Choose where its subscriber starts again with subscribers.corrupt_progress:"
        " earliest (some bundles come twice) or latest (some are never seen).",
        file=file,
        **details,
    )
