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
readable) → ``subscriber`` (made delivered).  Imports point downwards in this table, and each
package's own page says what its files do:

============================================  ============================================
``cli``                                       the offline commands of ``quiver``
``store``                                     ``open()`` and ``Store``: what people call
``offline``                                   inspect, verify, dump and repair a directory
``transaction``                               stages and commits: seen together or not at all
``upkeep``                                    seal, sweep, heal, checkpoint; the background
``recovery``                                  from what a crash left to a store
``ingest``                                    a put under the lock; budgets; receipts
``subscriber``                                who gets which bundle, and who has done what
``record``                                    keys, committed versions, the loss ledger
``bundle`` ``wal`` ``segment``                checked and encoded; made durable; made readable
``format`` ``disk``                           bytes ↔ values; the only door to the system
``config`` ``errors`` ``ids`` ``clock`` …     the words that everything else uses
============================================  ============================================
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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

_MODULES: Final = {
    "Background": "quiver.upkeep.background",
    "Backpressure": "quiver.errors",
    "BundleMeta": "quiver.format.record",
    "BundleRef": "quiver.ids",
    "ClaimedBundle": "quiver.subscriber.handle",
    "Clock": "quiver.clock",
    "Committed": "quiver.transaction.commit",
    "Config": "quiver.config",
    "DiskBudget": "quiver.ingest.disk_budget",
    "Lag": "quiver.subscriber.lag",
    "Maintenance": "quiver.upkeep.sweeping",
    "ManualClock": "quiver.clock",
    "MemoryBudget": "quiver.ingest.memory_budget",
    "OTAP_SLOTS": "quiver.otap",
    "Outcome": "quiver.subscriber.state",
    "QuiverError": "quiver.errors",
    "Reason": "quiver.errors",
    "Receipt": "quiver.ingest.receipt",
    "Stage": "quiver.transaction.stage",
    "StageInfo": "quiver.segment.stage_table",
    "Staged": "quiver.segment.stage_table",
    "Store": "quiver.store.store",
    "StoreStatus": "quiver.store.status",
    "Subscription": "quiver.subscriber.subscription",
    "SystemClock": "quiver.clock",
    "open": "quiver.store.opening",
}
"""Where each public name is. Its module is imported when the name is first used, so that commands
and tools load only what they need."""


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'quiver' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
