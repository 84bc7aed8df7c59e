"""All bars, in the order of the performance page."""

from __future__ import annotations

from benchmarks.bar import Bar
from benchmarks.bars.acks import ACKS
from benchmarks.bars.idle import IDLE
from benchmarks.bars.live import LIVE
from benchmarks.bars.p1_put import P1
from benchmarks.bars.p1d_put import P1D
from benchmarks.bars.p1m_put import P1M
from benchmarks.bars.p1s_put import P1S
from benchmarks.bars.p1x_put import P1X
from benchmarks.bars.p2s_single import P2S
from benchmarks.bars.p2w_window import P2W
from benchmarks.bars.p3_segment_only import P3
from benchmarks.bars.p4_replay import P4
from benchmarks.bars.p4b_replay import P4B
from benchmarks.bars.p5_read import P5, P5V
from benchmarks.bars.p6_recovery import P6
from benchmarks.bars.p7_backlog import P7
from benchmarks.bars.p8_memory import P8
from benchmarks.bars.p9_spark import P9
from benchmarks.bars.p11_tail import P11
from benchmarks.bars.start import START
from benchmarks.bars.streams import STREAMS_BAR

BARS: tuple[Bar, ...] = (
    *(P1, P1D, P1M, P1S, P1X),
    *(P2S, P2W, P3),
    *(P4, P4B, P5, P5V, P6),
    *(P7, P8, P9, P11),
    *(LIVE, ACKS, IDLE, START, STREAMS_BAR),
)
