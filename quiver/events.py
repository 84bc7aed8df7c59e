"""Everything the store logs: event names in one place, and the logger to use.

An event is a name and fields, never a sentence::

    log = get_logger(store=name)
    log.warning(WAL_TRUNCATED, file="wal/quiver.wal", offset=81_920, nbytes=312)

Events go through the standard library's ``quiver`` logger, so that an application that
embeds the store decides, in the way it always does, what is shown and where: a library
must not print.  The message reads ``name key=value …``; the fields are also on the
record (``record.event``, ``record.fields``) for handlers that write JSON.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Final, cast

import structlog

LOGGER: Final = "quiver"

STORE_OPENED: Final = "quiver.store.opened"
STORE_CLOSED: Final = "quiver.store.closed"
STORE_POISONED: Final = "quiver.store.poisoned"
STORE_DEGRADED: Final = "quiver.store.degraded"
RECOVERY_PROGRESS: Final = "quiver.recovery.progress"
WAL_TRUNCATED: Final = "quiver.wal.truncated"
WAL_WRITE_FAILED: Final = "quiver.wal.write_failed"
SEGMENT_FINALIZED: Final = "quiver.segment.finalized"
SEGMENT_UNWRITTEN: Final = "quiver.segment.unwritten"
SEGMENT_FINALIZE_FAILED: Final = "quiver.segment.finalize_failed"
SEGMENT_QUARANTINED: Final = "quiver.segment.quarantined"
SEGMENT_REBUILT: Final = "quiver.segment.rebuilt"
SEGMENT_RECLAIMED: Final = "quiver.segment.reclaimed"
SEGMENT_DROPPED: Final = "quiver.segment.dropped"
SEGMENT_DELETED: Final = "quiver.segment.deleted"
BUNDLES_LOST: Final = "quiver.bundles.lost"
CLOCK_JUMPED: Final = "quiver.clock.jumped"
BUNDLE_RESENT: Final = "quiver.bundles.resent"
INGEST_THROTTLED: Final = "quiver.ingest.throttled"
INGEST_RESUMED: Final = "quiver.ingest.resumed"
DISK_FULL: Final = "quiver.disk.full"
DISK_RECOVERED: Final = "quiver.disk.recovered"
SUBSCRIBER_REGISTERED: Final = "quiver.subscriber.registered"
SUBSCRIBER_UNREGISTERED: Final = "quiver.subscriber.unregistered"
SUBSCRIBER_ORPHANED: Final = "quiver.subscriber.orphaned"
PROGRESS_DAMAGED: Final = "quiver.subscriber.progress_damaged"
BUNDLE_REJECTED: Final = "quiver.bundle.rejected"
BUNDLE_HANDED_OVER: Final = "quiver.bundle.handed_over"
FOREIGN_ADOPTED: Final = "quiver.recovery.foreign_log_adopted"
TRANSACTION_COMMITTED: Final = "quiver.transaction.committed"
TRANSACTION_ABORTED: Final = "quiver.transaction.aborted"
STAGE_EXPIRED: Final = "quiver.stage.expired"
STAGE_DAMAGED: Final = "quiver.stage.damaged"
STAGE_LEFT_BEHIND: Final = "quiver.stage.left_behind"
BACKGROUND_FAILED: Final = "quiver.background.failed"


def _render(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> tuple[tuple[str], dict[str, Any]]:
    """The arguments for the standard logger: text for people, fields for programs."""
    name = str(event.pop("event"))
    exc_info = event.pop("exc_info", None)
    fields = dict(event)
    text = " ".join([name, *(f"{key}={value!r}" for key, value in fields.items())])
    # A percent sign in a value must not be taken for a format: no arguments, no formatting.
    return (text,), {"extra": {"event": name, "fields": fields}, "exc_info": exc_info}


def get_logger(name: str = LOGGER, /, **fields: object) -> structlog.stdlib.BoundLogger:
    """A logger whose events all carry ``fields``; it never configures anything global.

    ``name`` may be a module's ``__name__``: those are below ``quiver`` in the tree.
    """
    logger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, _render],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    return cast(structlog.stdlib.BoundLogger, logger.bind(**fields))
