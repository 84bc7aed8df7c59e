"""The idempotency window: which keys were taken lately, and by which bundle.

Bounded by count and by age, pure, no I/O.  A key that is here answers a repeat with the
first ref; one that has fallen out is new again, which is what the configured window
says.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Container, Iterable

from quiver.errors import KeyConflict
from quiver.format.keys import KeyRecord, sequence_of


class KeyWindow:
    """Keys in the order they came; the oldest leave first."""

    def __init__(self, max_count: int, max_age_ns: int) -> None:
        self._max_count = max_count
        self._max_age_ns = max_age_ns
        self._records: dict[str, KeyRecord] = {}
        self._order: deque[KeyRecord] = deque()
        """As they came, also those whose key has been taken again since: they go in their turn.
        Beside the table, since that can't be gone through as fast."""
        self._none_before = 0
        """No record is older: so most of the time nobody has to look for those that are."""

    def __len__(self) -> int:
        return len(self._records)

    def find(
        self, key: str, content_hash: bytes, now_ns: int, other_hashes: Container[bytes] = ()
    ) -> KeyRecord | None:
        """The first bundle with this key; refuses the same key with other content.

        ``other_hashes`` are what may have been remembered of the same content instead.
        """
        record = self._records.get(key)
        if record is None or now_ns - record.ts_ns > self._max_age_ns:
            return None
        if record.content_hash != content_hash and record.content_hash not in other_hashes:
            raise KeyConflict(
                f"the idempotency key {key[:80]!r} was used for other content ({record.ref}).",
                advice="A retry must send the same rows; a new bundle needs a new key.",
                ref=tuple(record.ref),
            )
        return record

    def add(self, record: KeyRecord) -> None:
        """Remember a key; called in sequence order."""
        self._records[record.key] = record
        self._order.append(record)
        oldest_ts = record.ts_ns - self._max_age_ns
        if len(self._records) > self._max_count or self._none_before < oldest_ts:
            self._drop_oldest(oldest_ts)

    def _drop_oldest(self, oldest_ts: int) -> None:
        """Let go of what is too old or too many."""
        records, order = self._records, self._order
        while order:
            first = order[0]
            if self._is_current(first):
                if len(records) <= self._max_count and first.ts_ns >= oldest_ts:
                    break
                del records[first.key]
            order.popleft()
        self._none_before = order[0].ts_ns if order else 0

    def _is_current(self, record: KeyRecord) -> bool:
        return self._records.get(record.key) is record

    def extend(self, records: Iterable[KeyRecord]) -> None:
        """Remember many, oldest first."""
        for record in records:
            self.add(record)

    def forget_from(self, sequence: int) -> None:
        """Undo the newest: their group was never written."""
        while self._order and self._order[-1].sequence >= sequence:
            self._records.pop(self._order.pop().key, None)

    @property
    def newest_sequence(self) -> int | None:
        """The sequence of the newest key."""
        return self._order[-1].sequence if self._order else None

    def snapshot(self, before: int) -> tuple[KeyRecord, ...]:
        """All records with a sequence below ``before``, oldest first.

        Called under the ingest lock, with up to 65,536 keys: so it looks at few of them.
        """
        found = tuple(self._order)
        found = found[: bisect_left(found, before, key=sequence_of)]
        if len(self._order) != len(self._records):
            found = tuple(filter(self._is_current, found))
        return found
