"""What is known about a sealed segment without reading its bundles, and how files are named."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from quiver.errors import SegmentDamage, SegmentInvalidIpc
from quiver.format.segment.file import Footer, SegmentSummary, StreamEntry
from quiver.format.segment.stage import Transaction
from quiver.format.state import MAX_COUNTS

SEGMENTS: Final = "segments"
SUFFIX: Final = ".qseg"
TMP_SUFFIX: Final = ".tmp"

_NAME = re.compile(r"([0-9]{16,20})\.qseg", re.ASCII)


def segment_name(seq: int) -> str:
    """The file's name: sixteen digits, so that names sort as numbers do."""
    return f"{seq:016}{SUFFIX}"


def segment_path(seq: int) -> str:
    """The file's path below the store's root."""
    return f"{SEGMENTS}/{segment_name(seq)}"


def parse_name(name: str) -> int | None:
    """The number of a segment file; ``None`` for any other name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    seq = int(found[1])
    return seq if segment_name(seq) == name else None


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A sealed segment in a few numbers.

    Sequences and times are ``None`` where the Rust crate wrote the file: it records none.
    ``nbytes`` are the bytes its bundles had in the log, ``file_bytes`` those on disk.
    """

    seq: int
    file_bytes: int
    bundle_count: int
    rows: int
    nbytes: int
    first_sequence: int | None = None
    last_sequence: int | None = None
    first_ts: int | None = None
    last_ts: int | None = None
    slots: tuple[tuple[str, int], ...] = ()
    """Names and ids of its slots, as far as they have names."""
    unnamed: tuple[int, ...] = ()
    """Ids of the others: slots put by number, and those of the Rust crate."""
    transaction: Transaction | None = None
    """The one it was committed with, if any."""
    last_store_ts: int | None = None
    """Newest store time of its bundles, where that is recorded."""

    @property
    def aged_from_ns(self) -> int | None:
        """What its age counts from: store time, or where none was recorded ingestion time."""
        return self.last_ts if self.last_store_ts is None else self.last_store_ts

    @classmethod
    def of(
        cls, seq: int, file_bytes: int, summary: SegmentSummary, entries: Sequence[StreamEntry]
    ) -> SegmentInfo:
        named = {(entry.slot_name, entry.slot_id) for entry in entries if entry.slot_name}
        unnamed = {entry.slot_id for entry in entries if not entry.slot_name}
        return cls(
            seq,
            file_bytes,
            summary.bundles,
            summary.rows,
            summary.nbytes,
            summary.first_sequence,
            summary.last_sequence,
            summary.first_ts,
            summary.last_ts,
            tuple(sorted(named)),
            tuple(sorted(unnamed)),
            summary.transaction,
            summary.last_store_ts,
        )

    @classmethod
    def read(
        cls,
        seq: int,
        file_bytes: int,
        footer: Footer,
        entries: Sequence[StreamEntry],
        summary: SegmentSummary | None,
        *,
        staged: bool = False,
    ) -> SegmentInfo:
        """From a directory: its summary, or what can be counted without one."""
        if summary is None:
            summary = SegmentSummary(
                footer.bundle_count,
                sum(entry.row_count for entry in entries),
                sum(entry.byte_length for entry in entries),
            )
        elif summary.bundles != footer.bundle_count:
            raise SegmentInvalidIpc(
                f"the summary counts {summary.bundles} bundles, the footer {footer.bundle_count}."
            )
        elif summary.segment not in (None, seq):
            raise SegmentDamage(f"by its own account the file is segment {summary.segment}.")
        elif (summary.stage is not None) is not staged:
            raise SegmentDamage("a staged file is no segment, and a segment no staged file.")
        return cls.of(seq, file_bytes, summary, entries)


def bundle_counts(infos: Iterable[SegmentInfo]) -> dict[int, int]:
    """How many bundles each segment has, for the checkpoint: of the newest ones."""
    counts = sorted((info.seq, info.bundle_count) for info in infos)
    return dict(counts[-MAX_COUNTS:])
