"""The comparison with others still runs, for those of them that are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.measure import run_once
from benchmarks.peers.peer import Peer
from benchmarks.peers.run import PEERS


@pytest.mark.slow
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_is_measured(peer: Peer, tmp_path: Path) -> None:
    """Scenario: two producers, a few batches. Guarantee: all of it arrives, with figures."""
    if not peer.available():
        pytest.skip("its server or client is not installed")
    figures = run_once(peer, 10 << 10, 2, 200 << 10, tmp_path)
    assert figures.rows_per_s > 0
    assert figures.p99_ms >= figures.p50_ms > 0
    assert figures.disk_mb > 0
