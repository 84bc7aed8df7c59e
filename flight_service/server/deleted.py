"""Deleted streams: where the numbers of a new stream of the same name begin.

A ref names a bundle for good.  A stream that is deleted and made again would give the refs of
the old bundles to new ones: a late ack, a ticket, a checkpoint or a dead letter of the old
stream would then hit data it never saw.  So a deletion first writes down, durably, which
segment numbers were used, and a new stream of that name goes on behind them; whatever still
names the old bundles finds them deleted.

``<root>/deleted.json`` is a checked JSON file: ``streams`` (by name: the first unused segment
number) and ``others``, which holds for every name that is not listed: when there are more
than :data:`MAX_NAMES`, the oldest entries are merged into it.

``<root>/deleted.kept`` is made after the first ``deleted.json``: a root that has it and no list has
lost the list.  A lost or damaged list is replaced by one with which every name begins far behind.
A list of a newer version is left as it is: no stream is created or deleted, all are served.
"""

from __future__ import annotations

import contextlib
from typing import Final

from flight_service.server.events import DELETED_DAMAGED, DELETED_NEWER, get_logger
from quiver.clock import Clock
from quiver.disk.disk import Disk
from quiver.errors import Busy, UnsupportedVersion
from quiver.offline.beside import (
    DELETED_FILE,
    check_root,
    decode_deleted,
    far_behind,
    mark_deleted,
    mend_root,
    write_deleted,
)
from quiver.offline.verify import Beside

MAX_NAMES: Final = 10_000

_log = get_logger()


class DeletedStreams:
    """First unused segment numbers of deleted streams; the caller's lock guards it."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._streams: dict[str, int] = {}
        self._others = 0
        self.problem: str | None = None
        """Why no stream can be created or deleted."""
        found = check_root(disk)
        if found.newer:
            self.problem = found.newer[0]
            _log.error(DELETED_NEWER, error=self.problem)
        elif found.problems:
            self._begin_far_behind(found, clock)
        else:
            self._read()

    def _read(self) -> None:
        try:
            self._streams, self._others = decode_deleted(self._disk.read(DELETED_FILE))
        except FileNotFoundError:
            return
        with contextlib.suppress(Busy):  # a full disk: the next start or deletion makes it
            mark_deleted(self._disk)

    def _begin_far_behind(self, found: Beside, clock: Clock) -> None:
        _log.error(DELETED_DAMAGED, error=found.problems[0].describe())
        self._others = far_behind(clock)
        with contextlib.suppress(Busy):  # the same: until then every start begins far behind
            mend_root(self._disk, found, self._others)

    def first_segment(self, name: str) -> int:
        """Where a new stream of this name begins."""
        self._check()
        return self._streams.get(name, self._others)

    def _check(self) -> None:
        if self.problem is not None:
            raise UnsupportedVersion(
                f"no stream can be created or deleted: {self.problem}", file=DELETED_FILE
            )

    def add(self, name: str, next_segment: int) -> None:
        """Write down, durably, that a stream's numbers below ``next_segment`` were used."""
        self._check()
        streams = {**self._streams, name: max(next_segment, self.first_segment(name))}
        others = self._others
        while len(streams) > MAX_NAMES:
            others = max(others, streams.pop(next(iter(streams))))
        write_deleted(self._disk, streams, others)
        self._streams, self._others = streams, others
