"""Things that can't all be true: what one file says of another that isn't so.

A file that vanished, or was cut at a place where it looks whole, has no bad checksum to
give it away.  So the files vouch for each other: the floor for the log and the checkpoint,
everything of ours for the floor, and segments, checkpoint and progress for how far the log
must go.  None of the following is a state that a crash can leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from quiver.errors import Damage, StateCorrupt, WalCorrupt
from quiver.format.floor import FLOOR_PATH
from quiver.format.progress import Progress
from quiver.format.state import STATE_NAME
from quiver.recovery.fates import Fate, Found, SegmentFate, was_sealed
from quiver.recovery.survey import Basics
from quiver.segment.info import SegmentInfo
from quiver.wal.contents import LogDamage
from quiver.wal.files import ACTIVE
from quiver.wal.reader import behind_gaps

LET_GO: Final = "a repair was interrupted while it set the log aside"


def contradictions(found: Found, fates: Mapping[int, SegmentFate]) -> Iterator[Damage]:
    """Every reason not to go on with what was found; damage inside the log comes before.

    Where only a newer version knows what a file says, nothing contradicts it.
    """
    basics = found.basics
    for small in (basics.floor, basics.state, *basics.runs.values()):
        if isinstance(small, Damage):
            yield small
    if found.newer:
        return
    if basics.floor is None:
        witness = _needs_floor(found)
        if witness is not None:
            yield _missing(FLOOR_PATH, witness)
    elif basics.known_floor.has_state and basics.state is None:
        yield _missing(STATE_NAME, "one was written")
    if is_let_go(found):
        yield _short_log(f"{LET_GO}.", found.log.files[0].path)
        return
    for gone in missing_from_log(found):
        until = "on" if gone.until is None else f"to {gone.until - 1:,}"
        what = f"{gone.reason}: entries from sequence {gone.sequence:,} {until} were durable."
        yield _short_log(what, gone.file)
    if found.log.files and not found.log.foreign:
        yield from _log_behind_progress(found, fates)


def _needs_floor(found: Found) -> str | None:
    """What is there that is only ever made after the floor.

    While a log of the Rust crate is being adopted, segments and checkpoint come first.
    """
    basics = found.basics
    if any(not file.header.foreign for file in found.log.files):
        return "a log of this store is there"
    if any(isinstance(one, Progress) and one.named for one in basics.progress.values()):
        return "a progress file of this store is there"
    if basics.known_state.adoption is not None:
        return None
    if any(info.first_sequence is not None for info in found.files.infos.values()):
        return "segments of this store are there"
    return None if basics.state is None else "a checkpoint is there"


def is_let_go(found: Found) -> bool:
    """Whether what is left of the log is what a repair had still to set aside.

    The floor says that there is no log, and that the next one begins behind this one: all that
    could be read of it is in segments, the rest on record.
    """
    floor, files = found.basics.known_floor, found.log.files
    first = files[0].header.first_sequence if files and not found.log.foreign else None
    return first is not None and not floor.has_log and first < floor.log_first


def missing_from_log(found: Found) -> Iterator[LogDamage]:
    """Whole files that are gone leave no bad checksum: others have to vouch for them.

    The floor says that there is a log, and with which sequence it begins; what a segment or
    the checkpoint holds was synced in the log before.
    """
    floor, log = found.basics.known_floor, found.log
    if found.newer or log.foreign or is_let_go(found):
        return
    if not log.files:
        if floor.has_log:
            yield LogDamage(ACTIVE, 0, floor.log_first, None, "the log is missing")
        return
    first = log.files[0].header.first_sequence
    if floor.has_log and first is not None and first > floor.log_first:
        reason = "the log's oldest file is missing"
        yield LogDamage(log.files[0].path, 0, floor.log_first, first, reason)
    known = durable_before(found.basics, found.files.infos.values())
    gaps = [gap.sequences for gap in found.basics.known_state.gaps]
    if behind_gaps(log.next_sequence, gaps) < known:
        last = log.files[-1]
        yield LogDamage(last.path, last.end, log.next_sequence, known, "the log's end is missing")


def _log_behind_progress(found: Found, fates: Mapping[int, SegmentFate]) -> Iterator[WalCorrupt]:
    """A subscriber is shown a bundle only when the log has it, durably."""
    for fate in fates.values():
        if fate.fate is not Fate.DAMAGED or fate.error or was_sealed(found, fate.seq):
            continue
        name = next(
            (
                name
                for name, one in found.basics.known_progress.items()
                if fate.seq in one.entries and one.entries[fate.seq].bundle_count == fate.count
            ),
            "a subscriber",
        )
        yield _short_log(
            f"the log's end is missing: {name} was shown {fate.count:,} bundles of segment"
            f" {fate.seq}, and there are {len(fate.readable):,}.",
            found.log.files[-1].path,
        )


def durable_before(basics: Basics, segments: Iterable[SegmentInfo]) -> int:
    """Every sequence below this was durable once, or is in a gap, by what checkpoint and
    segments say."""
    last = [info.last_sequence for info in segments if info.last_sequence is not None]
    return max(basics.known_state.through, max(last, default=-1) + 1)


def known_sequence(basics: Basics, segments: Iterable[SegmentInfo]) -> int:
    """No sequence from this one on was ever given out, by what checkpoint and segments say."""
    gaps = [gap.sequences[1] for gap in basics.known_state.gaps]
    return max([durable_before(basics, segments), *gaps])


def _short_log(what: str, file: str) -> WalCorrupt:
    return WalCorrupt(
        f"{what} Nothing was changed.",
        advice="See what is left: quiver verify DIR. Go on without it: quiver repair DIR",
        file=file,
    )


def _missing(path: str, why: str) -> StateCorrupt:
    return StateCorrupt(
        f"{path} is missing although {why}. Nothing was changed.",
        advice="See what is left: quiver verify DIR. Go on without it: quiver repair DIR",
        file=path,
    )
