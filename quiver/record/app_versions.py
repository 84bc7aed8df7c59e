"""Which version each app committed last: what makes a repeated commit do nothing.

Bounded by count and by age, pure, no I/O.  An entry is added when its log entry is staged
and counts once that is durable; a group that could not be written takes it back.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable

from quiver.format.state import AppRecord
from quiver.format.wal.commit import Commit
from quiver.segment.info import SegmentInfo


def record_of(commit: Commit) -> AppRecord:
    """What is remembered of a commit."""
    return AppRecord(
        commit.app,
        commit.version,
        commit.first_segment,
        len(commit.files),
        commit.bundles,
        commit.rows,
        commit.sequence,
        commit.aged_from_ns,
        commit.slots,
    )


class Transactions:
    """Apps in the order of their last commit; the oldest leave first."""

    def __init__(self, max_count: int, max_age_ns: int) -> None:
        self._max_count = max_count
        self._max_age_ns = max_age_ns
        self._records: OrderedDict[str, AppRecord] = OrderedDict()
        self._staged: list[AppRecord] = []

    def __len__(self) -> int:
        return len(self._records)

    def find(self, app: str, now_ns: int) -> AppRecord | None:
        """The last durable commit of an app, while it is remembered."""
        record = self._records.get(app)
        if record is None or now_ns - record.ts_ns > self._max_age_ns:
            return None
        return record

    @property
    def unsettled(self) -> bool:
        """Whether a commit is staged and nobody knows yet what becomes of it."""
        return bool(self._staged)

    def stage(self, record: AppRecord) -> None:
        """A commit's entry is on its way; called in sequence order."""
        self._staged.append(record)

    def settle(self, before: int) -> None:
        """Entries below ``before`` are durable."""
        while self._staged and self._staged[0].sequence < before:
            self.add(self._staged.pop(0))

    def rollback(self, sequence: int) -> None:
        """Entries from ``sequence`` on were never written."""
        self._staged = [record for record in self._staged if record.sequence < sequence]

    def add(self, record: AppRecord) -> None:
        """Remember a durable commit; what is known of a newer one stays."""
        records = self._records
        known = records.get(record.app)
        if known is not None and known.version >= record.version:
            return
        records.pop(record.app, None)
        records[record.app] = record
        _drop_oldest(records, self._max_count, record.ts_ns - self._max_age_ns)

    def extend(self, records: Iterable[AppRecord]) -> None:
        """Remember many, oldest first."""
        for record in records:
            self.add(record)

    @property
    def newest_sequence(self) -> int | None:
        """The sequence of the newest commit."""
        return next(reversed(self._records.values())).sequence if self._records else None

    def snapshot(self, before: int) -> tuple[AppRecord, ...]:
        """All records with a sequence below ``before``, oldest first."""
        return tuple(record for record in self._records.values() if record.sequence < before)


def _drop_oldest(records: OrderedDict[str, AppRecord], max_count: int, oldest_ts: int) -> None:
    """Let go of what is too old or too many, from the front: oldest first."""
    while records:
        if len(records) <= max_count and next(iter(records.values())).ts_ns >= oldest_ts:
            return
        records.popitem(last=False)


def committed_versions(
    known: Iterable[AppRecord], commits: Iterable[Commit], segments: Iterable[SegmentInfo] = ()
) -> tuple[AppRecord, ...]:
    """The last commit of each app, by all that still tells of it: for tools."""
    found: dict[str, AppRecord] = {}
    for record in (*known, *(record_of(commit) for commit in commits), *_by_segments(segments)):
        other = found.get(record.app)
        if other is None or record.version > other.version:
            found[record.app] = record
    return tuple(sorted(found.values(), key=lambda record: record.sequence))


def _by_segments(segments: Iterable[SegmentInfo]) -> list[AppRecord]:
    parts: dict[tuple[str, int], list[SegmentInfo]] = defaultdict(list)
    for info in segments:
        if info.transaction is not None:
            parts[info.transaction].append(info)
    return [
        AppRecord(
            app,
            version,
            min(info.seq for info in infos),
            len(infos),
            sum(info.bundle_count for info in infos),
            sum(info.rows for info in infos),
            infos[0].first_sequence or 0,
            infos[0].first_ts or 0,
        )
        for (app, version), infos in parts.items()
    ]
