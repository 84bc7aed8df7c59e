"""Deleted streams: where the numbers of a new stream of the same name begin.

A ref names a bundle for good.  A stream that is deleted and made again would give the refs of
the old bundles to new ones: a late ack, a ticket, a checkpoint or a dead letter of the old
stream would then hit data it never saw.  So a deletion first writes down, durably, which
segment numbers were used, and a new stream of that name goes on behind them; whatever still
names the old bundles finds them deleted.

``<root>/deleted.json`` is a checked JSON file: ``streams`` (by name: the first unused segment
number) and ``others``, which holds for every name that is not listed: when there are more
than :data:`MAX_NAMES`, the oldest entries are merged into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flight_service.server.events import DELETED_DAMAGED, get_logger
from quiver.clock import Clock
from quiver.disk.disk import Disk
from quiver.errors import StateCorrupt
from quiver.format.checked_json import decode_checked, encode_checked
from quiver.fsck.beside import ASIDE, DELETED_FILE

MAX_NAMES: Final = 10_000

_log = get_logger()


class DeletedStreams:
    """First unused segment numbers of deleted streams; the caller's lock guards it."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._streams: dict[str, int] = {}
        self._others = 0
        try:
            data = disk.read(DELETED_FILE)
        except FileNotFoundError:
            return
        try:
            self._read(decode_checked(data, DELETED_FILE))
        except StateCorrupt as damage:
            self._begin_far_behind(clock, damage)

    def _read(self, body: dict[str, Any]) -> None:
        streams, others = body.get("streams"), body.get("others")
        if (
            not isinstance(streams, dict)
            or not all(type(number) is int for number in streams.values())
            or type(others) is not int
        ):
            raise StateCorrupt(f"{DELETED_FILE} holds values of the wrong kind.", file=DELETED_FILE)
        self._streams, self._others = streams, others

    def _begin_far_behind(self, clock: Clock, damage: StateCorrupt) -> None:
        """The file is damaged: every name begins above any number that was ever used.

        Time in microseconds is that: no stream makes a million segments a second.
        """
        _log.error(DELETED_DAMAGED, error=str(damage))
        self._streams, self._others = {}, clock.now_ns() // 1_000
        self._disk.rename(DELETED_FILE, f"{DELETED_FILE}{ASIDE}")
        self._write(self._streams, self._others)

    def first_segment(self, name: str) -> int:
        """Where a new stream of this name begins."""
        return self._streams.get(name, self._others)

    def add(self, name: str, next_segment: int) -> None:
        """Write down, durably, that a stream's numbers below ``next_segment`` were used."""
        streams = {**self._streams, name: max(next_segment, self.first_segment(name))}
        others = self._others
        while len(streams) > MAX_NAMES:
            others = max(others, streams.pop(next(iter(streams))))
        self._write(streams, others)
        self._streams, self._others = streams, others

    def _write(self, streams: Mapping[str, int], others: int) -> None:
        body = {"streams": dict(streams), "others": others}
        self._disk.replace(DELETED_FILE, encode_checked(body))
