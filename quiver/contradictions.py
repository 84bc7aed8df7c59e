"""Things that can't all be true: what one file says of another that isn't so.

A file that vanished, or was cut at a place where it looks whole, has no bad checksum to
give it away.  So the files vouch for each other: the floor for the log and the checkpoint,
everything of ours for the floor, and segments, checkpoint and progress for how far the log
must go.  None of the following is a state that a crash can leave.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from quiver.errors import Damage, StateCorrupt, WalCorrupt
from quiver.format.floor import FLOOR_PATH, Floor
from quiver.format.progress import Progress
from quiver.format.state import STATE_NAME, Checkpoint
from quiver.segment.info import SegmentInfo
from quiver.survey import Basics
from quiver.wal.contents import LogContents
from quiver.wal.files import ACTIVE


class Seen(Protocol):
    """What a look at a directory found: an open's, or an offline tool's."""

    @property
    def basics(self) -> Basics: ...

    @property
    def log(self) -> LogContents: ...


def contradictions(found: Seen, segments: Sequence[SegmentInfo]) -> Iterator[Damage]:
    """Every reason not to go on with what was found; damage inside the log comes before."""
    basics = found.basics
    for small in (basics.floor, basics.state):
        if isinstance(small, Damage):
            yield small
    if basics.floor is None:
        witness = _needs_floor(found, segments)
        if witness is not None:
            yield _missing(FLOOR_PATH, witness)
    elif isinstance(basics.floor, Floor):
        if basics.floor.has_state and basics.state is None:
            yield _missing(STATE_NAME, "one was written")
        yield from _log_against_floor(found, basics.floor)
    yield from _log_too_short(found, segments)


def _needs_floor(found: Seen, segments: Sequence[SegmentInfo]) -> str | None:
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
    if any(info.first_sequence is not None for info in segments):
        return "segments of this store are there"
    return None if basics.state is None else "a checkpoint is there"


def _log_against_floor(found: Seen, floor: Floor) -> Iterator[WalCorrupt]:
    if not floor.has_log:
        return
    files = found.log.files
    if not files:
        yield _short_log("the log is missing: it was begun and is gone.", ACTIVE)
        return
    first = files[0].header.first_sequence
    if first is not None and first > floor.log_first:
        yield _short_log(
            f"the log's oldest file is missing: it should begin with sequence"
            f" {floor.log_first:,}, and begins with {first:,}.",
            files[0].path,
        )


def _log_too_short(found: Seen, segments: Sequence[SegmentInfo]) -> Iterator[WalCorrupt]:
    """What a segment or the checkpoint holds was synced in the log before."""
    log = found.log
    if not log.files or log.foreign:
        return
    known = known_sequence(found.basics, segments)
    if log.next_sequence < known:
        yield _short_log(
            f"the log's end is missing: it has entries up to sequence {log.next_sequence - 1:,},"
            f" and {known - 1:,} was durable.",
            log.files[-1].path,
        )


def log_behind_progress(
    found: Seen, there: Mapping[int, int], excused: Collection[int]
) -> Iterator[WalCorrupt]:
    """A subscriber is shown a bundle only when the log has it, durably.

    ``there`` are the bundles of each segment, in its file or in the log; ``excused`` are
    segments that are known to be damaged.
    """
    log = found.log
    if not log.files or log.foreign:
        return
    for name, progress in found.basics.progress.items():
        if not isinstance(progress, Progress) or not progress.named:
            continue
        for seq, entry in progress.entries.items():
            if seq < found.basics.known_floor.replay_floor or seq in excused:
                continue
            if entry.bundle_count > there.get(seq, 0):
                yield _short_log(
                    f"the log's end is missing: {name} was shown {entry.bundle_count:,} bundles"
                    f" of segment {seq}, and there are {there.get(seq, 0):,}.",
                    log.files[-1].path,
                )


def known_sequence(basics: Basics, segments: Sequence[SegmentInfo]) -> int:
    """Every sequence below this was durable once, by what checkpoint and segments say."""
    state = basics.state
    through = state.through if isinstance(state, Checkpoint) else 0
    last = [info.last_sequence for info in segments if info.last_sequence is not None]
    return max(through, max(last, default=-1) + 1)


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
