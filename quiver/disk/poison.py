"""The latch that a failed fsync throws.

After a failed fsync the kernel marks the pages clean although they never reached the
disk, so asking again succeeds and means nothing (Rebello et al., "Can Applications
Recover from fsync Failures?", ATC '20).  The only honest reaction is to stop writing
and say why; a restart reads what is really there.  Reads go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from quiver.errors import Poisoned

ADVICE = "Nothing more is written until a restart. Check the disk first; reading still works."


class Poison:
    """Starts clear; the first failure latches it for the life of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cause: Poisoned | None = None
        self.on_trip: Callable[[Poisoned], None] | None = None
        """Told once, with the first cause, by whoever met it: must not wait."""

    @property
    def cause(self) -> Poisoned | None:
        """The failure that latched it, or ``None`` while all is well."""
        return self._cause

    def trip(self, op: str, path: str, exc: BaseException) -> Poisoned:
        """Latch; the first cause stays, since later ones are mostly its echoes.

        Gives the error for *this* failure, to be raised by the one who met it.
        """
        error = Poisoned(
            f"{op} of {path or 'the store directory'} failed: {exc}.",
            advice=ADVICE,
            op=op,
            file=path,
            errno=getattr(exc, "errno", None),
        )
        error.__cause__ = exc
        with self._lock:
            first = self._cause is None
            if first:
                self._cause = error
        if first and self.on_trip is not None:
            self.on_trip(error)
        return error

    def check(self) -> None:
        """Raise ``Poisoned`` if latched.

        A fresh error each time: raising one shared exception from many threads would
        grow its traceback without end.
        """
        cause = self._cause
        if cause is not None:
            raise Poisoned(cause.message, advice=cause.advice, **cause.details) from cause
