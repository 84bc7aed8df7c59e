"""When a segment is full, and why one was closed."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from quiver.segment.open_segment import OpenSegment

if TYPE_CHECKING:
    from quiver.config import SegmentConfig


class Trigger(StrEnum):
    """Why a segment was closed; also the ``trigger`` label of its counter."""

    SIZE = "size"
    BUNDLES = "bundles"
    STREAMS = "streams"
    VARIANTS = "variants"
    ROWS = "rows"
    AGE = "age"
    FLUSH = "flush"
    PRESSURE = "pressure"
    COMMIT = "commit"
    SHUTDOWN = "shutdown"
    RECOVERY = "recovery"


def full_by(segment: OpenSegment, rows: int, config: SegmentConfig) -> Trigger | None:
    """Which of its limits a segment has reached, if any."""
    if segment.nbytes >= config.target_size:
        return Trigger.SIZE
    if segment.bundle_count >= config.max_bundles:
        return Trigger.BUNDLES
    if segment.stream_count >= config.max_streams:
        return Trigger.STREAMS
    if segment.variant_count >= config.max_variants:
        return Trigger.VARIANTS
    if config.max_rows is not None and rows >= config.max_rows:
        return Trigger.ROWS
    return None
