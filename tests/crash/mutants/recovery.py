"""Faults of starting up: something not read back, not finished, or done twice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from quiver.disk.disk import Disk
from quiver.format.progress import Progress
from quiver.record.key_window import KeyWindow
from quiver.recovery import fates, survey
from quiver.recovery import recover as recovery
from quiver.recovery.replay import Replay
from quiver.recovery.rust import adoption
from quiver.segment.writer import write_segment
from quiver.store import store as engine
from quiver.subscriber import progress
from quiver.wal import repair
from tests.crash.mutants.tools import instead, mutant


@mutant("plain", "restarts")
def tail_not_rewritten() -> AbstractContextManager[Any]:
    """What a killed process left in the page cache is served before it is synced."""
    return instead(repair, "_rewrite", lambda disk, last, proven_end: 0)


@mutant("plain", "restarts")
def torn_tail_left() -> AbstractContextManager[Any]:
    """A torn tail is reported, and neither cut off nor closed with a terminator."""
    stack = contextlib.ExitStack()
    stack.enter_context(instead(repair, "_cut", lambda disk, path, end: 0))
    stack.enter_context(instead(repair, "TERMINATOR", b""))
    return stack


@mutant("consumers", "kept")
def replay_forgets_deletions() -> AbstractContextManager[Any]:
    """The log rebuilds segments that everyone has finished and that were deleted."""
    stack = contextlib.ExitStack()
    stack.enter_context(instead(fates, "is_deleted", lambda found, seq: False))
    stack.enter_context(
        instead(
            recovery,
            "_replay",
            lambda files, basics: Replay(files.is_sound, basics.known_state.through),
        )
    )
    return stack


@mutant("consumers", "kept")
def deletions_not_finished() -> AbstractContextManager[Any]:
    """A segment whose deletion was decided, but not carried out, is served again."""
    return instead(recovery._Recovery, "_finish_deletions", lambda self, *_: ())


@mutant("consumers", "kept")
def numbers_from_files_only() -> AbstractContextManager[Any]:
    """The next segment's number is one above what lies there."""
    return instead(
        survey.Findings,
        "first_free_segment",
        lambda self, used=(): max([0, *(seq + 1 for seq in (*used, *self.replay.numbers))]),
    )


@mutant()
def keys_forgotten() -> AbstractContextManager[Any]:
    """The idempotency window starts empty."""
    return instead(
        recovery._Recovery,
        "_window",
        lambda self, *_: KeyWindow(self._config.idempotency.window_count, 10**18),
    )


@mutant("laps")
def keys_from_log_only() -> AbstractContextManager[Any]:
    """Keys in runs are not read back."""

    def window(self: Any, found: Any, *_: Any) -> KeyWindow:
        kept = KeyWindow(self._config.idempotency.window_count, 10**18)
        kept.extend(found.replay.keys)
        return kept

    return instead(recovery._Recovery, "_window", window)


@mutant()
def keys_from_checkpoint_only() -> AbstractContextManager[Any]:
    """Keys that are still in the log are not read back."""

    def window(self: Any, found: Any, *_: Any) -> KeyWindow:
        kept = KeyWindow(self._config.idempotency.window_count, 10**18)
        kept.extend(found.basics.known_keys)
        return kept

    return instead(recovery._Recovery, "_window", window)


@mutant("segment_only")
def sequences_start_over() -> AbstractContextManager[Any]:
    """Without a log, the next sequence is not above those of the segments."""
    return instead(recovery, "known_sequence", lambda basics, segments: 0)


@mutant("jumpy")
def time_goes_back() -> AbstractContextManager[Any]:
    """The newest ingestion time is not read back."""
    return instead(recovery._Recovery, "_last_ts", lambda self, found: 0)


@mutant("consumers")
def progress_forgotten() -> AbstractContextManager[Any]:
    """Subscribers start over."""
    return instead(
        survey,
        "scan_progress",
        lambda disk, known=(), **_: {name: Progress(0, {}) for name in _scan(disk, known)},
    )


_scan = progress.scan_progress


@mutant("restarts", "plain")
def names_not_made_durable() -> AbstractContextManager[Any]:
    """A rotation that a kill cut short is ended before the names it left are synced."""

    def recover(disk: Disk, *args: Any, **kwargs: Any) -> Any:
        with _skip_first_syncs(disk):
            return _recover(disk, *args, **kwargs)

    return instead(engine, "recover", recover)


_recover = recovery.recover


@contextlib.contextmanager
def _skip_first_syncs(disk: Disk) -> Iterator[None]:
    """Directory syncs are left out until the first other change."""
    original = disk.fsync_dir
    changed = False

    def fsync_dir(path: str) -> None:
        if changed or path == "":
            original(path)

    def change(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal changed
            changed = True
            return call(*args, **kwargs)

        return wrapped

    with (
        patch.object(disk, "fsync_dir", fsync_dir),
        patch.object(disk, "rename", change(disk.rename)),
        patch.object(disk, "unlink", change(disk.unlink)),
    ):
        yield


@mutant("foreign")
def adopted_twice() -> AbstractContextManager[Any]:
    """The refs given to a Rust log's bundles are not written down before they are used."""
    return instead(adoption._Adopting, "_keep_adoption", lambda self, adoption: None)


@mutant("foreign")
def adopted_log_removed_first() -> AbstractContextManager[Any]:
    """A Rust log goes before its bundles are in segments."""
    original = adoption._Adopting._write

    def write(self: Any, segments: Any) -> None:
        self._remove_log(keep=False)
        original(self, segments)

    return instead(adoption._Adopting, "_write", write)


@mutant("switch")
def log_ended_before_sealed() -> AbstractContextManager[Any]:
    """A store that goes on without its log lets it go before its segments are written."""

    def seal_without_log(self: Any, found: Any, restaged: Any) -> None:
        self._remove_log()
        for segment in found.replay.segments:
            self._segments.sealed(write_segment(self._disk, segment, self._slots.names))

    return instead(recovery._Recovery, "_seal_without_log", seal_without_log)


@mutant()
def strays_left() -> AbstractContextManager[Any]:
    """Half-written files stay."""
    return instead(recovery, "_remove_leftovers", lambda disk: None)
