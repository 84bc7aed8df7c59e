"""Quiver: a durable buffer for Arrow data, as a library.

::

    import quiver

    with quiver.open("./telemetry") as store:
        receipt = store.put({"Logs": logs, "LogAttrs": attrs})
        receipt.wait()                                   # durable from here on

        for bundle in store.subscribe("exporter", follow=False):
            ship(bundle["Logs"], bundle.get("LogAttrs"))
            bundle.ack()

The tree is the way of the data: ``bundle`` → ``wal`` (made durable) → ``segment`` (made
readable) → ``subscriber`` (made delivered).  Imports point downwards in this table:

=======================================  =================================================
``cli``                                  the offline commands of ``quiver``
``opening`` ``engine``                   ``open()``, and the store people use
``subscription``                         a subscriber's view of it
``assembly`` ``puts`` ``status``         introduces the parts; takes puts in; tells how it is
``committing`` ``membership``            transactions as a whole; subscribers that come and go
``upkeep`` ``delivery`` ``background``   when what is due; who gets what next; the threads
``sealing`` ``sweeping`` ``records``     writes segments; deletes, on record; the small files
``admission`` ``ingest`` ``preparing``   is there room; under the lock; before the lock
``staging`` ``merging`` ``publishing``   transactions: written, put together, made segments
``healing`` ``lag`` ``parts``            damage while serving; how far behind; what is shared
``schemas``                              which schemas the slots have, from directories
``recovery`` ``survey`` ``replay``       from what a crash left to a store; ``fsck``: offline
``receipt`` ``window`` ``ledger``        answers; keys; losses
``stages`` ``transactions``              what is staged; which versions are committed
``wal`` ``segment`` ``subscriber``       the three steps, which don't know each other
``format`` ``disk``                      bytes ↔ values; the only door to the system
``retention`` ``budget`` ``memory``      pure policy: what may go, what may come in
``config`` ``ids`` ``errors`` …          the words that everything else uses
=======================================  =================================================
"""

from quiver.clock import Clock, ManualClock, SystemClock
from quiver.config import Config
from quiver.errors import Backpressure, QuiverError, Reason
from quiver.format.record import BundleMeta
from quiver.ids import BundleRef
from quiver.ingest.disk_budget import DiskBudget
from quiver.ingest.memory_budget import MemoryBudget
from quiver.ingest.receipt import Receipt
from quiver.otap import OTAP_SLOTS
from quiver.segment.stage_table import Staged, StageInfo
from quiver.store.opening import open
from quiver.store.status import StoreStatus
from quiver.store.store import Store
from quiver.subscriber.handle import ClaimedBundle
from quiver.subscriber.lag import Lag
from quiver.subscriber.state import Outcome
from quiver.subscriber.subscription import Subscription
from quiver.transaction.commit import Committed
from quiver.transaction.stage import Stage
from quiver.upkeep.background import Background
from quiver.upkeep.sweeping import Maintenance

__all__ = [
    "OTAP_SLOTS",
    "Background",
    "Backpressure",
    "BundleMeta",
    "BundleRef",
    "ClaimedBundle",
    "Clock",
    "Committed",
    "Config",
    "DiskBudget",
    "Lag",
    "Maintenance",
    "ManualClock",
    "MemoryBudget",
    "Outcome",
    "QuiverError",
    "Reason",
    "Receipt",
    "Stage",
    "StageInfo",
    "Staged",
    "Store",
    "StoreStatus",
    "Subscription",
    "SystemClock",
    "open",
]
