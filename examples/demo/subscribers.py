"""Two who receive: each checks every row, and remembers which it has had."""

from __future__ import annotations

import threading

from examples.demo.rows import SLOT, expected
from flight_service.client import Delivered, Ref, Stream

DURABLE_EVERY = 32
"""Bundles after which a careful subscriber has its acks put on disk."""


class Subscriber:
    """Receives in a thread of its own; ``pace`` is what it takes for each bundle."""

    def __init__(self, stream: Stream, name: str, rows: int, *, pace: float, careful: bool) -> None:
        self.name = name
        self.rows = rows
        self.hurry = threading.Event()
        self.wrong = 0
        self.again = 0
        self.received = 0
        """Rows, each counted when it came first."""
        self._times = bytearray(rows)
        self._refs: set[Ref] = set()
        self._pace = pace
        self._careful = careful
        self._enough = threading.Event()
        self.bundles = stream.subscribe(name)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self.bundles:
            while not self._enough.is_set():
                bundle = self.bundles.next_bundle(timeout=0.2)
                if bundle is not None:
                    self._take(bundle)

    def _take(self, bundle: Delivered) -> None:
        if bundle.ref in self._refs:
            self.again += 1  # acked before the kill, and that was not on disk yet
        else:
            self._refs.add(bundle.ref)
            self._check(bundle)
        bundle.ack()
        if self._careful and len(self._refs) % DURABLE_EVERY == 0:
            self.bundles.flush(durable=True)
        if self._pace:
            self.hurry.wait(self._pace)

    def _check(self, bundle: Delivered) -> None:
        logs = bundle[SLOT]
        self.wrong += not logs.equals(expected(logs.column("id")))
        for number in logs.column("id").to_pylist():
            self.received += not self._times[number]
            self._times[number] = min(self._times[number] + 1, 255)

    def finish(self) -> None:
        """It has had everything: end."""
        self._enough.set()
        self._thread.join()

    @property
    def lost(self) -> int:
        """Rows it never had."""
        return self._times.count(0)

    @property
    def doubled(self) -> int:
        """Rows that are in the stream more than once."""
        return len(self._times) - self._times.count(0) - self._times.count(1)

    @property
    def kept(self) -> bool:
        """Whether the promise was."""
        return not (self.lost or self.doubled or self.wrong)
