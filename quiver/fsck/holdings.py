"""Which bundles a directory holds, where each is read best, and which are lost.

The rules are those of :mod:`quiver.recovery`, so that a dump shows what an open would
serve; but where recovery refuses, this goes on and lists what is missing.

A bundle is read from its segment if that is sound, else from the log.  Segments that
were deleted are not brought back from a log that happens to have them still.
"""

from __future__ import annotations

from quiver.disk.disk import Disk
from quiver.fsck.held import Holdings
from quiver.fsck.look import MAX_LOOKS, Look, Watch, look, too_busy
from quiver.fsck.own import OwnHolding
from quiver.fsck.rust import RustHolding


def hold(found: Look) -> Holdings:
    """Work out what a directory holds."""
    return (RustHolding if found.log.foreign else OwnHolding)(found).work()


def survey_holdings(
    disk: Disk, *, watch: Watch | None = None, check: bool = True
) -> tuple[Look, Holdings]:
    """Look, and work out what is there; again, if files go away meanwhile."""
    for _ in range(MAX_LOOKS):
        found = look(disk, watch=watch, check=check)
        try:
            return found, hold(found)
        except FileNotFoundError:
            continue  # a segment was finished and deleted in between
    raise too_busy()
