"""A fault for each of the named interleavings (:mod:`tests.product.interleavings`)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from quiver.errors import WaitTimeout
from quiver.ingest.ingest import Ingest
from quiver.ingest.receipt import Receipt
from quiver.recovery import recover as recovery
from quiver.store.store import Store
from quiver.upkeep.sealing import Sealing
from quiver.wal.group_commit import Commits
from quiver.wal.writer import WalWriter
from tests.crash.mutants.tools import instead
from tests.product.mutants.tools import mutant


@mutant("a forced seal", "forced_seal_in_group_commit", by=("opens",))
def seal_does_not_wait_for_the_group() -> AbstractContextManager[Any]:
    """A forced seal writes a segment whose newest group is not durable yet."""

    def next_closed(self: Sealing) -> Any:
        return self._parts.segments.next_closed()

    return instead(Sealing, "_next_closed", next_closed)


@mutant("a forced seal", "forced_seal_in_group_commit", by=("goes_on",))
def two_commits_at_once() -> AbstractContextManager[Any]:
    """A forced seal commits groups while another thread is in the middle of one."""
    original = WalWriter.commit

    def commit(self: WalWriter) -> int:
        with patch.object(self, "_turn", contextlib.nullcontext()):
            return original(self)

    return instead(WalWriter, "commit", commit)


@mutant("a second sync", "watermark_over_a_second_sync", by=("durable_present",))
def mark_covers_what_is_staged() -> AbstractContextManager[Any]:
    """After the first sync the durability mark covers all that is staged, in the next file too."""
    original = WalWriter._publish

    def publish(self: WalWriter, group: Any) -> None:
        original(self, group)
        with self._lock:
            self.durable_before = self.next_sequence

    return instead(WalWriter, "_publish", publish)


@mutant("a second sync", "watermark_over_a_second_sync:segment3", by=("durable_present",))
def mark_covers_the_next_segment() -> AbstractContextManager[Any]:
    """Without a log: the first segment's sync moves the mark over the next segment's bundles."""

    def settle_sealed(self: Ingest, receipts: Sequence[Receipt]) -> None:
        if self._wal is None:
            self._sealed_before = self._sequence
            self.settle(self._sealed_before)

    return instead(Ingest, "settle_sealed", settle_sealed)


@mutant("a failed group, sent again", "failed_group_sent_again:sync1", by=("keys_kept",))
def replayed_key_forgotten() -> AbstractContextManager[Any]:
    """A bundle whose sync had failed is replayed, and its key is not."""
    original = recovery._Recovery._window

    def window(self: Any, found: Any, in_segments: Any) -> Any:
        del found.replay.keys[-1:]
        return original(self, found, in_segments)

    return instead(recovery._Recovery, "_window", window)


@mutant("an answer on a time-out", "answered_on_a_time_out", by=("durable_present",))
def time_out_is_an_answer() -> AbstractContextManager[Any]:
    """Who runs out of time is answered as if the bundle were durable."""
    original = Commits.wait, Store.wait_durable

    def wait(self: Commits, receipt: Any, timeout: float | None = None) -> None:
        with contextlib.suppress(WaitTimeout):
            original[0](self, receipt, timeout)

    def wait_durable(self: Store, sequence: int, timeout: float | None = None) -> None:
        with contextlib.suppress(WaitTimeout):
            original[1](self, sequence, timeout)

    stack = ExitStack()
    stack.enter_context(instead(Commits, "wait", wait))
    stack.enter_context(instead(Store, "wait_durable", wait_durable))
    return stack
