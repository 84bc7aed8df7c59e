"""Every error Quiver raises, as one tree.

An error is part of the interface: it says what happened, whose fault it is, whether a
retry can help, and what to do about it.  ``str(error)`` is for people; ``code``,
``fault``, ``retryable`` and ``details`` are for programs (the Flight service sends them
as they are).

::

    QuiverError
    ├── InvalidInput                 the caller sent something that can't be taken
    │   ├── ConfigError              a setting is wrong, unknown or contradicts another
    │   ├── InvalidName              a stream, subscriber or slot name breaks the rules
    │   ├── InvalidBundle            not a bundle: no such slot, broken array, bad attribute
    │   ├── LimitExceeded            a named limit (slots, bytes, columns …) is exceeded
    │   ├── KeyConflict              an idempotency key came back with other content
    │   └── Forked                   a forked child used what its parent opened
    ├── NotFound                     it isn't here
    │   ├── UnknownSubscriber
    │   ├── UnknownBundle            this ref was never given out
    │   ├── StageNotFound            no finished attempt of that name: write it again
    │   └── BundleGone               it was here: acked, dropped or expired since
    ├── Busy                         it can be had, but not now
    │   ├── Backpressure             the store can't take more right now: retry later
    │   │   └── StorageFull          … because the disk itself is full
    │   ├── StoreLocked              another process is writing to this directory
    │   ├── OutOfResources           no descriptor or kernel memory to open a file with
    │   ├── OutOfTurn                the bundle that it follows could not be written
    │   ├── StoreClosed              this store has been closed
    │   └── WaitTimeout              the wait ended before the thing waited for
    ├── StorageFault                 the disk failed us
    │   ├── IoFault                  a read or write failed (EIO and its kin)
    │   └── Poisoned                 an fsync failed: writes are refused until a restart
    ├── UnsupportedVersion           written by a newer version: nothing is wrong with it
    └── Damage                       bytes on disk are not what was written
        ├── WalCorrupt               a log entry that was synced fails its check
        ├── ProgressCorrupt          a subscriber's progress file fails its check
        ├── StateCorrupt             cursor, segment floor or checkpoint fails its check
        ├── LayoutMismatch           written with another slot table
        └── SegmentDamage
            ├── SegmentTruncated     shorter than its own footer says
            ├── SegmentBadMagic      not a segment file
            ├── SegmentChecksum      the file's checksum disagrees
            ├── SegmentInvalidIpc    Arrow can't read a part that has a good checksum
            ├── StreamNotFound       the manifest names a stream that isn't there
            └── SlotNotInBundle      the bundle has no such slot
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Fault(StrEnum):
    """Whose fault an error is: who has to act so that it goes away."""

    CALLER = "caller"  # change the request
    OPERATOR = "operator"  # change the configuration or the machine
    STORAGE = "storage"  # the disk or its contents
    LOAD = "load"  # nobody: wait


class Reason(StrEnum):
    """Why a put was refused for now. One name per cause, so that dashboards can tell."""

    ADMISSION = "admission"  # too much is accepted and not yet durable
    ROLLOVER = "rollover"  # two segments wait to be written already
    DISK = "disk"  # the disk budget, or the disk, is used up
    MEMORY = "memory"  # open segments use all the memory they may
    WAL_FULL = "wal_full"  # the log is at its cap until a segment is written


class QuiverError(Exception):
    """Root of the tree: ``message`` says what happened, ``advice`` what to do."""

    code: ClassVar[str] = "error"
    fault: ClassVar[Fault] = Fault.STORAGE
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, advice: str = "", **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} {self.advice}".rstrip()


class InvalidInput(QuiverError):
    code = "invalid_input"
    fault = Fault.CALLER


class ConfigError(InvalidInput):
    code = "invalid_config"
    fault = Fault.OPERATOR


class InvalidName(InvalidInput):
    code = "invalid_name"


class InvalidBundle(InvalidInput):
    code = "invalid_bundle"


class LimitExceeded(InvalidInput):
    """``details`` carry ``limit`` (its name), ``value`` and ``maximum``."""

    code = "limit_exceeded"

    def __init__(self, limit: str, value: int, maximum: int, *, advice: str = "") -> None:
        super().__init__(
            f"{limit} is {value:,}, the limit is {maximum:,}.",
            advice=advice,
            limit=limit,
            value=value,
            maximum=maximum,
        )


class KeyConflict(InvalidInput):
    code = "key_conflict"


class Forked(InvalidInput):
    """``details`` carry ``owner``, the process that opened it, and ``pid``."""

    code = "forked"


class NotFound(QuiverError):
    code = "not_found"
    fault = Fault.CALLER


class UnknownSubscriber(NotFound):
    code = "unknown_subscriber"


class UnknownBundle(NotFound):
    code = "unknown_bundle"


class BundleGone(NotFound):
    """``details['outcome']`` says what became of it: acked, dropped, deleted, lost."""

    code = "bundle_gone"


class StageNotFound(NotFound):
    """An attempt that was never finished, or is aborted, expired or damaged since."""

    code = "stage_not_found"


class Busy(QuiverError):
    code = "busy"
    fault = Fault.LOAD
    retryable = True


class Backpressure(Busy):
    """Refused for now, fast, with a named reason; nothing of the bundle was kept."""

    code = "backpressure"

    def __init__(
        self, reason: Reason, message: str, *, retry_after_ms: int, **details: object
    ) -> None:
        super().__init__(
            f"put refused: {message}.",
            advice=f"Retry after {retry_after_ms} ms.",
            reason=str(reason),
            retry_after_ms=retry_after_ms,
            **details,
        )
        self.reason = reason
        self.retry_after_ms = retry_after_ms


class StorageFull(Backpressure):
    """The file system said ENOSPC. What was answered ``durable`` is safe."""

    code = "storage_full"

    def __init__(self, path: str, *, retry_after_ms: int = 1000) -> None:
        super().__init__(
            Reason.DISK, f"no space left on the disk ({path})", retry_after_ms=retry_after_ms
        )


class StoreLocked(Busy):
    code = "store_locked"
    fault = Fault.OPERATOR


class OutOfResources(Busy):
    """The process or the system is at a limit; nothing was changed, and nothing is damaged.

    ``details`` carry ``op``, ``file`` and ``errno``.
    """

    code = "out_of_resources"
    fault = Fault.OPERATOR


def check_memory(error: BaseException) -> None:
    """Raise :class:`OutOfResources` for a lack of memory.

    Arrow raises it with the same base class as errors about the data; it says nothing about them,
    so it must not be taken for damage or for a bad bundle.
    """
    if isinstance(error, MemoryError):
        raise OutOfResources(
            "the process has not enough memory for this.",
            advice="Try again; give it more memory, or lower the limits that it works with.",
            op="memory",
        ) from error


class StoreClosed(Busy):
    code = "store_closed"
    fault = Fault.CALLER
    retryable = False


class WaitTimeout(Busy):
    code = "timeout"


class OutOfTurn(Busy):
    """The bundle that this one was to follow could not be written: put that one again first."""

    code = "out_of_turn"


class StorageFault(QuiverError):
    code = "storage_fault"


class IoFault(StorageFault):
    code = "io_fault"


class Poisoned(StorageFault):
    """After a failed fsync nobody knows what the disk holds, so nothing is promised.

    The kernel marks the pages clean all the same, so a second fsync would succeed and
    mean nothing (Rebello et al., ATC '20).  Only a restart, which reads what is really
    there, clears this.
    """

    code = "poisoned"
    fault = Fault.OPERATOR


class UnsupportedVersion(QuiverError):
    """A file, or something in it, that only a newer version can read.

    It is not damage: such a file is never skipped, set aside, repaired or counted as lost.
    The store is refused and nothing in it is changed.
    """

    code = "unsupported_version"
    fault = Fault.OPERATOR


class Damage(QuiverError):
    """``details`` carry ``file`` and, where known, ``offset`` and ``sequence``."""

    code = "damaged"


class WalCorrupt(Damage):
    code = "wal_corrupt"


class ProgressCorrupt(Damage):
    code = "progress_corrupt"


class StateCorrupt(Damage):
    code = "state_corrupt"


class LayoutMismatch(Damage):
    code = "layout_mismatch"
    fault = Fault.OPERATOR


class SegmentDamage(Damage):
    code = "segment_damaged"


class SegmentTruncated(SegmentDamage):
    code = "segment_truncated"


class SegmentBadMagic(SegmentDamage):
    code = "segment_bad_magic"


class SegmentChecksum(SegmentDamage):
    code = "segment_checksum"


class SegmentInvalidIpc(SegmentDamage):
    code = "segment_invalid_ipc"


class StreamNotFound(SegmentDamage):
    code = "stream_not_found"


class SlotNotInBundle(SegmentDamage):
    code = "slot_not_in_bundle"
    fault = Fault.CALLER
