"""Progress on disk: one file per subscriber, replaced as a whole.

Reading (:func:`scan_progress`) changes nothing, so that tools can use it too.  What to do
about a file that is damaged, or missing although its subscriber is known, is a decision
of its own (:func:`recover`): starting somewhere else means that bundles come twice or
never, so the default is to refuse, and damaged bytes are copied aside before anything
replaces them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from quiver.disk import quarantine
from quiver.disk.disk import TMP_SUFFIX, Disk
from quiver.errors import ProgressCorrupt, UnsupportedVersion
from quiver.format.progress import (
    Progress,
    decode_progress,
    encode_progress,
    progress_corrupt,
)
from quiver.ids import BundleRef
from quiver.subscriber.state import EARLIEST, SubscriberState

if TYPE_CHECKING:
    from quiver.config import CorruptProgress

FILE_PREFIX: Final = "quiver.sub."

# Any name that fits, reserved ones too: a file that is there holds data, whoever made it.
_FILE_NAME: Final = re.compile(re.escape(FILE_PREFIX) + r"([A-Za-z0-9_-]{1,64})")


@dataclass(frozen=True, slots=True)
class LoadedProgress:
    """A subscriber's state at start-up, and what is worth telling about it.

    ``problem`` is set when the policy had to decide, and ``copy`` names where the damaged
    file went.
    """

    name: str
    state: SubscriberState
    problem: ProgressCorrupt | None = None
    copy: str | None = None


def progress_file(name: str) -> str:
    """The file of a subscriber."""
    return FILE_PREFIX + name


def scan_progress(
    disk: Disk, known: Iterable[str] = (), *, newer: list[UnsupportedVersion] | None = None
) -> dict[str, Progress | ProgressCorrupt]:
    """Every subscriber with a file or among the ``known`` names, with what its file says.

    A file of a newer version goes into ``newer``, or is raised: no policy applies to it,
    since it isn't damaged.
    """
    matches = (_FILE_NAME.fullmatch(entry) for entry in disk.listdir(""))
    names = {match[1] for match in matches if match} | set(known)
    found: dict[str, Progress | ProgressCorrupt] = {}
    for name in sorted(names):
        try:
            found[name] = _read(disk, name)
        except UnsupportedVersion as error:
            if newer is None:
                raise
            newer.append(error)
    return found


def _read(disk: Disk, name: str) -> Progress | ProgressCorrupt:
    file = progress_file(name)
    try:
        return decode_progress(disk.read(file), file=file, subscriber=name)
    except FileNotFoundError:
        return progress_corrupt(file, "it is missing, but its subscriber is known")
    except ProgressCorrupt as problem:
        return problem


def recover(
    disk: Disk,
    name: str,
    scanned: Progress | ProgressCorrupt,
    totals: Mapping[int, int],
    *,
    policy: CorruptProgress,
    latest: BundleRef,
) -> LoadedProgress:
    """The state to go on with, given the segments that are here and their bundle counts."""
    if isinstance(scanned, Progress):
        try:
            state = SubscriberState.restore(scanned, totals, file=progress_file(name))
        except ProgressCorrupt as problem:
            return _start_over(disk, name, problem, totals, policy, latest)
        return LoadedProgress(name, state)
    return _start_over(disk, name, scanned, totals, policy, latest)


def _start_over(
    disk: Disk,
    name: str,
    problem: ProgressCorrupt,
    totals: Mapping[int, int],
    policy: CorruptProgress,
    latest: BundleRef,
) -> LoadedProgress:
    if policy == "fail":
        raise problem
    state = SubscriberState(latest if policy == "latest" else EARLIEST)
    for segment_seq in sorted(totals):
        state.observe(segment_seq, totals[segment_seq])
    return LoadedProgress(name, state, problem, set_aside(disk, name))


def set_aside(disk: Disk, name: str) -> str | None:
    """Copy a damaged file into quarantine; where to, or ``None`` if there is no file.

    A copy, so that there is no moment without a file; named after its contents, so that a
    crash and a second attempt don't make two.
    """
    file = progress_file(name)
    try:
        return quarantine.copy(disk, file)
    except FileNotFoundError:
        return None


def keep_progress(disk: Disk, name: str, progress: Progress) -> None:
    """Make this the subscriber's durable progress."""
    disk.replace(progress_file(name), encode_progress(progress, name))


def remove_progress(disk: Disk, name: str) -> None:
    """Remove a subscriber's file, durably; fine if there is none."""
    file = progress_file(name)
    disk.unlink(file + TMP_SUFFIX, missing_ok=True)
    disk.unlink(file, missing_ok=True)
    disk.fsync_dir("")


def remove_leftovers(disk: Disk) -> None:
    """Remove half-written files of a crash: nothing was promised about them."""
    for entry in disk.listdir(""):
        if entry.startswith(FILE_PREFIX) and entry.endswith(TMP_SUFFIX):
            disk.unlink(entry, missing_ok=True)
