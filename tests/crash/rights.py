"""Whether a segment may go: what the files say about who has finished it."""

from __future__ import annotations

from quiver.errors import Damage
from quiver.format.progress import decode_progress
from quiver.format.state import STATE_NAME, decode_state
from quiver.subscriber.progress import progress_file
from tests.crash.disk import Image
from tests.crash.oracle import Oracle


def may_go(files: Image, oracle: Oracle, seq: int) -> bool:
    """Whether everyone has finished a segment, by what these files say, or it is on record."""
    everyone = [sub.name for sub in oracle.subs.values() if sub.phase == "joined"]
    whole = (1 << oracle.sizes().get(seq, 0)) - 1
    for name in everyone:
        try:
            progress = decode_progress(files[progress_file(name)])
        except (KeyError, Damage):
            return False
        entry = progress.entries.get(seq)
        if entry is None and seq >= progress.oldest_incomplete:
            return False
        if entry is not None and whole & ~entry.done:
            return False
    return bool(everyone) or seq in _ledger(files)


def _ledger(files: Image) -> set[int]:
    try:
        losses = decode_state(files[STATE_NAME]).losses
        return {loss.segment_seq for loss in losses if not loss.is_reject}
    except (KeyError, Damage):
        return set()
