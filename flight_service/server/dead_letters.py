"""Dead letters: poison goes to a stream of its own, with its story.

One thread puts them there, durably, and finishes the bundle at its origin only then.  The
key names the origin's uuid, the subscriber and the ref, so a crash between the two makes no
second copy, and a stream that was deleted and made again has keys of its own.  When the
stream of the dead can't take one now, it is tried again; the bundle stays claimed.

Attributes of a dead letter: those it had, and ``quiver.origin.stream``, ``.subscriber``,
``.ref``, ``.sequence``, ``.key``, ``.deliveries`` and ``.reason``.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import Final

import pyarrow as pa

from flight_service.protocol.errors import ServiceError
from flight_service.server.claims import PoisonBundle
from flight_service.server.events import DEAD_LETTER_FAILED, get_logger
from flight_service.server.streams import Streams
from quiver.errors import BundleGone, LimitExceeded, QuiverError

RETRY_SECONDS: Final = 1.0
MAX_REASON: Final = 500
ORIGIN: Final = "quiver.origin."

_log = get_logger()


class DeadLetters:
    """Takes poison, at once; buries it, in its own time."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._queue: deque[PoisonBundle] = deque()
        self._streams: Streams | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="quiver-dead", daemon=True)

    def start(self, streams: Streams) -> None:
        """Begin, once there are streams to put into."""
        self._streams = streams
        self._thread.start()

    def __call__(self, poison: PoisonBundle) -> None:
        """Take one; never waits. What is held is bounded by ``max_in_flight`` claims."""
        with self._changed:
            self._queue.append(poison)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                if self._stopping:
                    return
                poison = self._queue.popleft()
            if not self._try(poison):
                with self._changed:
                    self._queue.append(poison)
                    self._changed.wait_for(lambda: self._stopping, RETRY_SECONDS)

    def _try(self, poison: PoisonBundle) -> bool:
        try:
            self._deliver(poison)
        except (QuiverError, ServiceError) as error:
            _log.warning(
                DEAD_LETTER_FAILED,
                stream=poison.stream,
                ref=str(poison.handle.ref),
                error=str(error),
            )
            return False
        return True

    def _deliver(self, poison: PoisonBundle) -> None:
        assert self._streams is not None
        handle, target = poison.handle, poison.target
        with contextlib.suppress(ServiceError):
            self._streams.create(target, None, if_not_exists=True)
        with self._streams.use(target) as stream:
            try:
                batches: dict[str | int, pa.RecordBatch] = {name: handle[name] for name in handle}
            except BundleGone:  # lost, and so in the ledger, or deleted by retention
                poison.settled(handle.ref)
                return
            key = f"{poison.origin}/{poison.subscriber}/{handle.ref}"
            try:
                receipt = stream.store.put(batches, key=key, attributes=_story(poison, full=True))
            except LimitExceeded:
                receipt = stream.store.put(batches, key=key, attributes=_story(poison, full=False))
            receipt.wait()
        with contextlib.suppress(BundleGone):
            handle.hand_over(f"{target} {receipt.ref}")
        poison.settled(handle.ref)

    def close(self) -> None:
        """Stop; what has not reached the dead letters stays pending at its origin."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()


def _story(poison: PoisonBundle, *, full: bool) -> dict[str, str]:
    handle = poison.handle
    told = {
        "stream": poison.stream,
        "subscriber": poison.subscriber,
        "ref": str(handle.ref),
        "sequence": str(handle.sequence),
        "deliveries": str(poison.deliveries),
        "reason": poison.reason[: MAX_REASON if full else MAX_REASON // 4],
    }
    if handle.key is not None and full:
        told["key"] = handle.key
    own = dict(handle.attributes) if full else {}
    return {**own, **{f"{ORIGIN}{name}": value for name, value in told.items()}}
