"""Everything the service logs: event names in one place."""

from __future__ import annotations

from typing import Final

from quiver.events import get_logger

__all__ = ["get_logger"]

SERVER_STARTED: Final = "quiver.server.started"
SERVER_READY: Final = "quiver.server.ready"
SERVER_DRAINING: Final = "quiver.server.draining"
SERVER_STOPPED: Final = "quiver.server.stopped"
SERVER_FORCED: Final = "quiver.server.forced_exit"
CALL_FAILED: Final = "quiver.server.call_failed"
CALL_DENIED: Final = "quiver.server.call_denied"
LISTING_FAILED: Final = "quiver.server.listing_failed"
STREAM_OPENED: Final = "quiver.server.stream_opened"
STREAM_CLOSED: Final = "quiver.server.stream_closed"
STREAM_CLOSE_FAILED: Final = "quiver.server.stream_close_failed"
STREAM_CREATED: Final = "quiver.server.stream_created"
STREAM_DELETED: Final = "quiver.server.stream_deleted"
STREAM_REFUSED: Final = "quiver.server.stream_refused"
STREAM_LEFT_OVER: Final = "quiver.server.stream_left_over"
STREAM_DAMAGED: Final = "quiver.server.stream_damaged"
DELETED_DAMAGED: Final = "quiver.server.deleted_damaged"
DELETED_NEWER: Final = "quiver.server.deleted_newer"
FAILURES_DAMAGED: Final = "quiver.server.failures_damaged"
LEASE_EXPIRED: Final = "quiver.server.lease_expired"
BUNDLE_POISONED: Final = "quiver.server.bundle_poisoned"
DEAD_LETTER_FAILED: Final = "quiver.server.dead_letter_failed"
TOKENS_RELOADED: Final = "quiver.server.tokens_reloaded"
TOKENS_BROKEN: Final = "quiver.server.tokens_broken"
CLOSE_FAILED: Final = "quiver.server.close_failed"
TICK_FAILED: Final = "quiver.server.tick_failed"
