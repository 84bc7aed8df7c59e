"""Bundles that a directory holds, or should hold: values, and what is the same for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from quiver.alignment import Sealed
from quiver.errors import QuiverError
from quiver.foreign import ForeignPlan
from quiver.format.progress import Progress
from quiver.fsck.index import Place
from quiver.fsck.look import Look
from quiver.fsck.staged import Waiting
from quiver.ids import BundleRef
from quiver.segment.info import segment_path

MAX_LISTED: Final = 10_000
"""Lost bundles listed one by one; the number is right in any case."""


@dataclass(frozen=True, slots=True)
class Held:
    """A bundle that can be read: from a segment, or from a place in the log."""

    ref: BundleRef
    sequence: int | None
    ingestion_ts_ns: int | None
    source: Sealed | Place


@dataclass(frozen=True, slots=True)
class Lost:
    """Something that should be there and can't be read.

    ``bundles`` is how many are lost; with ``at_most`` the log can't tell them from its own
    small entries.  ``None``: nothing is left that knows.  ``refs`` are those that can be
    named.
    """

    file: str
    reason: str
    offset: int | None = None
    sequences: tuple[int, int | None] | None = None
    bundles: int | None = None
    at_most: bool = False
    refs: tuple[BundleRef, ...] = ()

    def describe(self) -> str:
        """For people."""
        where = self.file if self.offset is None else f"{self.file} byte {self.offset:,}"
        return f"{where}: {self.reason}; {self.what()}"

    def what(self) -> str:
        """What it means for the data."""
        if self.bundles is None:
            return "how many bundles that were can't be told any more"
        if not self.bundles:
            return "no bundle is lost by it"
        count = f"{'at most ' if self.at_most else ''}{self.bundles:,} bundle"
        named = f" ({spans(self.refs)})" if self.refs else ""
        return f"{count}{'s' if self.bundles != 1 else ''} lost{named}"


@dataclass(slots=True)
class Holdings:
    """What there is, in order, and what there isn't."""

    bundles: list[Held] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    maybe_doubled: str | None = None
    plan: ForeignPlan[Place] | None = None
    unfinished: list[str] = field(default_factory=list)
    """Segments the Rust crate was writing when it stopped: their bundles are in the log."""
    counts: dict[int, int] = field(default_factory=dict)
    """Bundles of each segment, lost ones included as far as they are known."""
    voids: set[BundleRef] = field(default_factory=set)
    """Places of bundles that were lost before, and left out by a repair."""
    waiting: list[Waiting] = field(default_factory=list)
    """Committed files that are no segments yet."""
    vanished: set[int] = field(default_factory=set)
    """Segments that should be there and of which nothing is left."""

    @property
    def lost_bundles(self) -> int:
        """How many are known to be lost."""
        return sum(one.bundles or 0 for one in self.lost)


def outcome(progress: Progress | QuiverError, ref: BundleRef) -> str:
    """What a progress file says about a bundle: acked, dropped or pending."""
    if not isinstance(progress, Progress):
        return "pending"
    entry = progress.entries.get(ref.segment_seq)
    if entry is None:
        return "acked" if ref.segment_seq < progress.oldest_incomplete else "pending"
    bit = 1 << ref.bundle_index
    if not entry.done & bit:
        return "pending"
    return "dropped" if entry.dropped & bit else "acked"


def spans(refs: Iterable[BundleRef]) -> str:
    """Refs for people, runs put together: ``3.4, 3.7 to 3.9``."""
    runs: list[list[BundleRef]] = []
    for ref in refs:
        if runs and runs[-1][-1] == (ref.segment_seq, ref.bundle_index - 1):
            runs[-1].append(ref)
        else:
            runs.append([ref])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs)


class Holding:
    """What both kinds of directory have in common: segment files."""

    def __init__(self, found: Look) -> None:
        self.found = found
        self.result = Holdings()
        self.files: dict[int, Sealed] = {}

    def check_segments(self) -> None:
        segments = self.found.segments
        for seq in list(segments.numbers):
            reader = segments.sound(seq)
            if reader is not None:
                self.files[seq] = Sealed(seq, len(reader), segments.open)

    def count_of(self, seq: int) -> int | None:
        """How many bundles an unreadable segment had, if anything still says so."""
        counted = self.found.segments.count_of(seq)
        if counted is not None:
            return counted
        listed = [p.entries[seq].bundle_count for p in self.progress if seq in p.entries]
        return max(listed, default=None)

    @property
    def progress(self) -> list[Progress]:
        return list(self.found.progress.values())

    def hold_segment(
        self, sealed: Sealed, origins: Mapping[BundleRef, Place] | None = None
    ) -> None:
        self.result.counts[sealed.seq] = sealed.count
        reader = sealed.open()
        for index in range(sealed.count):
            ref = BundleRef(sealed.seq, index)
            origin = (origins or {}).get(ref)
            if origin is not None:
                held = Held(ref, origin.sequence, origin.ingestion_ts_ns, sealed)
            elif reader.info.first_sequence is None:  # the Rust crate records none
                held = Held(ref, None, None, sealed)
            else:
                meta = reader.meta(index)
                if meta.lost:  # since an earlier repair, and on record
                    self.result.voids.add(ref)
                    continue
                held = Held(ref, meta.sequence, meta.ingestion_ts_ns, sealed)
            self.result.bundles.append(held)

    def hold_place(self, ref: BundleRef, place: Place) -> None:
        self.result.bundles.append(Held(ref, place.sequence, place.ingestion_ts_ns, place))

    def lose_segment(self, seq: int, indices: Iterable[int] | None, error: object) -> None:
        refs = None if indices is None else [BundleRef(seq, index) for index in indices]
        damage = self.found.segments.damaged.get(seq)
        reason = "the file is missing" if damage is None else getattr(error, "message", str(error))
        self.result.lost.append(
            Lost(
                segment_path(seq),
                reason.rstrip("."),
                bundles=None if refs is None else len(refs),
                refs=tuple(refs[:MAX_LISTED]) if refs else (),
            )
        )

    def finish(self) -> Holdings:
        self.result.bundles.sort(key=lambda held: held.ref)
        return self.result

    def lose_unreadable(self) -> None:
        """Entries that pass their checksum and make no sense."""
        for damage in self.found.index.unreadable:
            offset = damage.details.get("offset")
            self.result.lost.append(
                Lost(
                    str(damage.details.get("file", "wal")),
                    damage.message.rstrip("."),
                    offset if isinstance(offset, int) else None,
                    bundles=1,
                )
            )
