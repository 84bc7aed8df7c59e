"""All bars, in the order of the performance page."""

from __future__ import annotations

from benchmarks.bar import Bar
from benchmarks.bars.p2s_single import P2S
from benchmarks.bars.p2w_window import P2W
from benchmarks.bars.p3_segment_only import P3
from benchmarks.bars.p5_read import P5
from benchmarks.bars.p6_recovery import P6

BARS: tuple[Bar, ...] = (P2W, P2S, P3, P5, P6)
