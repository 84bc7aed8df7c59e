"""The idempotency window: which keys were taken lately, and by which bundle.

Bounded by count and by age, pure, no I/O.  A key that is here answers a repeat with the
first ref; one that has fallen out is new again, which is what the configured window
says.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeVar

from quiver.errors import KeyConflict
from quiver.format.state import AppRecord, KeyRecord

Remembered = TypeVar("Remembered", KeyRecord, AppRecord)


def drop_oldest(records: OrderedDict[str, Remembered], max_count: int, oldest_ts: int) -> None:
    """Let go of what is too old or too many, from the front: oldest first."""
    while records:
        if len(records) <= max_count and next(iter(records.values())).ts_ns >= oldest_ts:
            return
        records.popitem(last=False)


class KeyWindow:
    """Keys in the order they came; the oldest leave first."""

    def __init__(self, max_count: int, max_age_ns: int) -> None:
        self._max_count = max_count
        self._max_age_ns = max_age_ns
        self._records: OrderedDict[str, KeyRecord] = OrderedDict()
        self._none_before = 0
        """No record is older: so most of the time nobody has to look for those that are."""

    def __len__(self) -> int:
        return len(self._records)

    def find(self, key: str, content_hash: bytes, now_ns: int) -> KeyRecord | None:
        """The first bundle with this key; refuses the same key with other content."""
        record = self._records.get(key)
        if record is None or now_ns - record.ts_ns > self._max_age_ns:
            return None
        if record.content_hash != content_hash:
            raise KeyConflict(
                f"the idempotency key {key[:80]!r} was used for other content ({record.ref}).",
                advice="A retry must send the same bytes; a new bundle needs a new key.",
                ref=tuple(record.ref),
            )
        return record

    def add(self, record: KeyRecord) -> None:
        """Remember a key; called in sequence order."""
        records = self._records
        records.pop(record.key, None)
        records[record.key] = record
        oldest_ts = record.ts_ns - self._max_age_ns
        if len(records) > self._max_count or self._none_before < oldest_ts:
            drop_oldest(records, self._max_count, oldest_ts)
            self._none_before = next(iter(records.values())).ts_ns if records else 0

    def extend(self, records: Iterable[KeyRecord]) -> None:
        """Remember many, oldest first."""
        for record in records:
            self.add(record)

    def forget_from(self, sequence: int) -> None:
        """Undo the newest: their group was never written."""
        while self._records:
            key, record = next(reversed(self._records.items()))
            if record.sequence < sequence:
                return
            del self._records[key]

    @property
    def newest_sequence(self) -> int | None:
        """The sequence of the newest key."""
        return next(reversed(self._records.values())).sequence if self._records else None

    def snapshot(self, before: int) -> tuple[KeyRecord, ...]:
        """All records with a sequence below ``before``, oldest first."""
        return tuple(r for r in self._records.values() if r.sequence < before)
