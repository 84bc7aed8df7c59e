"""Staged writes: many producers write apart, and all of it appears at once, or nothing.

A *transaction* is named by an ``app`` (who writes) and a ``version`` (which step of it).
Versions of an app only rise: committing one that is not newer than the last committed one
is a success that changes nothing (``repeated``), so a commit may be asked for again until
it is answered::

    begin         is it committed already?  Then there is nothing to do
    DoPut         with a StageName in its command: bundles go into one attempt's stage
    finish_stage  the attempt is complete, and on disk when this is answered
    commit        these attempts, in this order, all at once; every other one is removed
    abort         none of them, or not these; changes nothing that is committed

An *attempt* is one DoPut and then ``finish_stage``; its name is used once.  An attempt
whose call broke can't be taken up again: the producer writes it once more under another
name, and only ever names the finished one in ``commit``.  What was finished survives a
restart of the server, what was not is gone with it.  The receipts of a staged DoPut say
``durability: staged``: taken, and nothing promised before ``finish_stage``, which brings
the number of those receipts so that nothing can be missing.

Attempts that nobody commits or aborts are removed after ``transactions.stage_ttl``.
"""

from __future__ import annotations

from typing import ClassVar, Final

from flight_service.protocol.message import (
    BOOL,
    COUNT,
    REF,
    STREAM,
    Message,
    listed,
    of,
    text,
    whole,
)
from flight_service.protocol.names import Ref

MAX_APP: Final = 256
MAX_ATTEMPT: Final = 128
MAX_VERSION: Final = 2**63 - 1
MAX_ATTEMPTS: Final = 65_536
"""Most attempts of one commit."""

STAGED: Final = "staged"
"""The durability of a bundle in a stage that is not finished."""

APP: Final = text(MAX_APP)
ATTEMPT: Final = text(MAX_ATTEMPT)
TRANSACTION_VERSION: Final = whole(0, MAX_VERSION)


class StageName(Message):
    """Which stage a DoPut writes."""

    app: str = of(APP, doc="Who writes.")
    version: int = of(TRANSACTION_VERSION, doc="Which step of it.")
    attempt: str = of(ATTEMPT, doc="This attempt's own name, used once.")


class Begin(Message):
    """Ask whether a transaction is committed; makes the stream if it may be made."""

    stream: str = of(STREAM, doc="The stream.")
    app: str = of(APP, doc="Who writes.")
    version: int = of(TRANSACTION_VERSION, doc="Which step of it.")


class Begun(Message):
    """Whether there is anything left to do."""

    committed: bool = of(BOOL, doc="It is committed: writing it again would be in vain.")
    last: int | None = of(
        TRANSACTION_VERSION, default=None, doc="The app's last committed version."
    )


class FinishStage(Message):
    """An attempt is complete."""

    stream: str = of(STREAM, doc="The stream.")
    app: str = of(APP, doc="Who writes.")
    version: int = of(TRANSACTION_VERSION, doc="Which step of it.")
    attempt: str = of(ATTEMPT, doc="Which attempt.")
    bundles: int = of(COUNT, doc="How many receipts said ok: the stage must hold as many.")


class StageFinished(Message):
    """The attempt is on disk."""

    bundles: int = of(COUNT, doc="Bundles in it.")
    rows: int = of(COUNT, doc="Rows in all their slots.")
    nbytes: int = of(COUNT, doc="Its size.")


class CommitStages(Message):
    """Publish attempts, all at once."""

    body_limit: ClassVar[int] = 16 << 20

    stream: str = of(STREAM, doc="The stream.")
    app: str = of(APP, doc="Who writes.")
    version: int = of(TRANSACTION_VERSION, doc="Which step of it.")
    attempts: tuple[str, ...] = of(
        listed(ATTEMPT, MAX_ATTEMPTS), doc="Finished attempts, in the order of their bundles."
    )


class CommitDone(Message):
    """The transaction is committed, durably."""

    bundles: int = of(COUNT, doc="Bundles published.")
    rows: int = of(COUNT, doc="Rows in them.")
    segments: int = of(COUNT, doc="Segments they are in.")
    first_ref: Ref | None = of(REF, default=None, doc="The first bundle; none if there is none.")
    repeated: bool = of(
        BOOL, default=False, doc="It was committed before: this request changed nothing."
    )


class Abort(Message):
    """Give a transaction up, or some attempts of it."""

    body_limit: ClassVar[int] = 16 << 20

    stream: str = of(STREAM, doc="The stream.")
    app: str = of(APP, doc="Who writes.")
    version: int = of(TRANSACTION_VERSION, doc="Which step of it.")
    attempts: tuple[str, ...] | None = of(
        listed(ATTEMPT, MAX_ATTEMPTS), default=None, doc="Only these; all if left out."
    )


class Aborted(Message):
    """What was removed."""

    attempts: int = of(COUNT, doc="Attempts removed.")
