"""Failed deliveries of a stream's bundles, in a file that grows: ``failures.log``.

A bundle that came back is counted until it gets an outcome; after ``max_deliveries`` it is
poison.  The counts outlive a restart.  Every second the changes of that second are appended
and synced, one line each; a file of mostly old lines is written anew.  A crash loses at most
the newest second, which costs some deliveries more.

::

    quiver failures 1 6f0c2a11
    9be1c5f0 ["exporter",3,17,2,"connection lost"]     two failed deliveries of bundle 3.17
    2f64d0aa ["exporter",3,17,0,""]                    it has its outcome: forget it
    71c02b9d ["exporter"]                              forget all of this subscriber

The first word is the CRC-32 of the rest of the line, the last of the title that of the title.  A
last line without its end was never synced.  Any other line that fails its check is damage, and
so is such a title: it is reported, passed over and, with the next rewrite, gone; it decided about
a count and about no data.  A newer version refuses the stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flight_service.server.claims import Failure
from quiver import BundleRef
from quiver.disk.disk import Disk
from quiver.format.checked_json import decode_lines, encode_line, encode_title
from quiver.offline.beside import FAILURES_TITLE, FAILURES_VERSION

SPARE_LINES: Final = 1_024
"""Old lines beyond twice the live ones that are left before the file is written anew."""

Table = dict[str, dict[BundleRef, Failure]]
"""Failed deliveries by subscriber and bundle."""


def encode_change(subscriber: str, ref: BundleRef, failure: Failure | None) -> bytes:
    """One line."""
    count, reason = (0, "") if failure is None else (failure.count, failure.reason)
    return encode_line([subscriber, *ref, count, reason])


def encode_leave(subscriber: str) -> bytes:
    """A line that forgets all of a subscriber."""
    return encode_line([subscriber])


def decode_failures(data: bytes, file: str) -> tuple[Table, int, list[int]]:
    """The table, how many lines there are, and the numbers of those that are damaged."""
    table: Table = {}
    damaged: list[int] = []
    last = 1
    for last, values in decode_lines(data, FAILURES_TITLE, FAILURES_VERSION, file):
        if not _apply(values, table):
            damaged.append(last)
    return table, last - 1, damaged


def _apply(values: list[Any] | None, table: Table) -> bool:
    """Carry a line out; ``False`` if it is not one that was written."""
    if values is None or len(values) not in (1, 5):
        return False
    subscriber = values[0]
    if len(values) == 1:
        table.pop(subscriber, None)
        return True
    segment, index, count, reason = values[1:]
    of_subscriber = table.setdefault(subscriber, {})
    ref = BundleRef(segment, index)
    of_subscriber.pop(ref, None)  # the newest failure is the last one, as in memory
    if count:
        of_subscriber[ref] = Failure(count, reason)
    return True


class FailureLog:
    """The file; one thread at a time writes it (the stream's saving lock)."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._lines = 0
        self._exists = False

    def load(self) -> tuple[Table, list[int]]:
        """What is on disk, and the numbers of lines that were damaged."""
        try:
            data = self._disk.read(self._path)
        except FileNotFoundError:
            return {}, []
        table, self._lines, damaged = decode_failures(data, self._path)
        # Behind a cut or a damaged line nothing is appended: the next save writes it anew.
        self._exists = data.endswith(b"\n") and not damaged
        return table, damaged

    def save(self, lines: list[bytes], live: Mapping[str, Mapping[BundleRef, Failure]]) -> None:
        """Make changes durable: append them, or write the file anew from what is ``live``."""
        count = sum(len(of_subscriber) for of_subscriber in live.values())
        if not self._exists or self._lines + len(lines) > 2 * count + SPARE_LINES:
            self.rewrite(live)
        elif lines:
            self._append(lines)

    def _append(self, lines: list[bytes]) -> None:
        self._exists = False  # a failed try may leave a part: then it is written anew
        with self._disk.open(self._path, write=True) as file:
            file.write_all([b"".join(lines)], file.size())
            file.fdatasync()
        self._lines += len(lines)
        self._exists = True

    def rewrite(self, live: Mapping[str, Mapping[BundleRef, Failure]]) -> None:
        """Write the file anew, without lines that count no more."""
        lines = [
            encode_change(subscriber, ref, failure)
            for subscriber, of_subscriber in live.items()
            for ref, failure in of_subscriber.items()
        ]
        self._disk.replace(
            self._path, b"".join([encode_title(FAILURES_TITLE, FAILURES_VERSION), *lines])
        )
        self._lines = len(lines)
        self._exists = True
