"""What an open store holds, as plain values: the one place that looks behind its front.

A sealed segment's file never changes, so its bundles are read once per distinct file and
not once per state: reading through the engine is the most expensive part of a check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

import pyarrow as pa

from quiver.errors import NotFound
from quiver.format.record import BundleMeta
from quiver.format.segment.stage import StageKey, Transaction
from quiver.ids import BundleRef
from quiver.segment.info import segment_path
from quiver.segment.stage_table import StageInfo
from quiver.store.store import Store
from tests.crash.disk import Image
from tests.crash.oracle import Outcome, Reject

MAX_KEPT_FILES: Final = 512

Row = tuple[BundleMeta, Mapping[int, pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle as it was found."""

    ref: BundleRef
    meta: BundleMeta
    slots: Mapping[str, pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class View:
    """Everything the invariants ask about."""

    bundles: Mapping[BundleRef, Bundle]
    outcomes: Mapping[str, Mapping[BundleRef, Outcome]]
    losses: Mapping[int, str]
    """Segments of which something is on record as lost or dropped, and why."""
    rejects: frozenset[Reject]
    """What is on record as rejected, and by whom."""
    rejects_counted: int
    slot_names: Mapping[int, str]
    next_segment: int
    next_sequence: int
    segment_bytes: int
    log_bytes: int
    stage_bytes: int
    transactions: Mapping[int, Transaction]
    """Segments that came with a commit."""
    stages: Mapping[StageKey, StageInfo]
    committed: Mapping[str, int]


class Looker:
    """Looks at stores, one after the other, that share most of their files."""

    def __init__(self) -> None:
        self._files: dict[tuple[int, bytes], list[Row]] = {}

    def look(self, store: Store, image: Image) -> View:
        """What is there, with the files as they are."""
        names = store._parts.slots.names
        bundles: dict[BundleRef, Bundle] = {}
        for info in store._parts.segments.infos():
            path = segment_path(info.seq)
            for index, row in enumerate(self._sealed(store, info.seq, image.get(path, b""))):
                ref = BundleRef(info.seq, index)
                bundles[ref] = _bundle(ref, row, names)
        segments = store._parts.segments
        for segment in (*segments.unwritten, *filter(None, [segments.open])):
            for index in range(segment.bundle_count):
                ref = BundleRef(segment.seq, index)
                bundles[ref] = _bundle(ref, (segment.meta(index), segment.read(index)), names)
        usage = store._parts.usage()
        return View(
            bundles=bundles,
            outcomes=outcomes(store, bundles),
            losses={
                loss.segment_seq: loss.reason
                for loss in store._parts.ledger.losses
                if not loss.is_reject
            },
            rejects=frozenset(
                (name, BundleRef(loss.segment_seq, index))
                for loss in store._parts.ledger.losses
                if loss.is_reject
                for name in loss.subscribers
                for first, end in loss.indexes or ()
                for index in range(first, end)
            ),
            rejects_counted=store._parts.ledger.totals.get("rejected.bundles", 0),
            slot_names=names,
            next_segment=store._parts.segments.next_segment,
            next_sequence=store._parts.ingest.next_sequence,
            segment_bytes=usage.segments,
            log_bytes=usage.log,
            stage_bytes=usage.stages,
            transactions={
                info.seq: info.transaction
                for info in store._parts.segments.infos()
                if info.transaction is not None
            },
            stages={
                StageKey(info.app, info.version, info.attempt): info for info in store.stages()
            },
            committed={
                app: record.version
                for app, record in store._parts.ingest.transactions._records.items()
            },
        )

    def _sealed(self, store: Store, seq: int, data: bytes) -> list[Row]:
        rows = self._files.get((seq, data))
        if rows is None:
            reader = store._parts.segments.reader(seq)
            rows = [(reader.meta(index), reader.read(index)) for index in range(len(reader))]
            if len(self._files) >= MAX_KEPT_FILES:
                self._files.clear()
            self._files[seq, data] = rows
        return rows


def _bundle(ref: BundleRef, row: Row, names: Mapping[int, str]) -> Bundle:
    meta, batches = row
    return Bundle(ref, meta, {names.get(slot, f"slot{slot}"): b for slot, b in batches.items()})


def outcomes(
    store: Store, bundles: Mapping[BundleRef, object]
) -> dict[str, dict[BundleRef, Outcome]]:
    """How each subscriber stands with each bundle; a claim dies with the process."""
    found: dict[str, dict[BundleRef, Outcome]] = {}
    for subscriber in store._parts.registry.subscribers():
        standing = found[subscriber.name] = {}
        for ref in bundles:
            try:
                outcome = str(subscriber.outcome(ref))
            except NotFound:  # durable, but delivered only once its segment is written
                outcome = "pending"
            standing[ref] = cast(Outcome, "pending" if outcome == "claimed" else outcome)
    return found
