"""Bundles as messages, for those who send them on."""

from __future__ import annotations

import pyarrow as pa

from quiver.clock import ManualClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.disk.memory import MemoryDisk
from quiver.engine import Store

LOGS = pa.record_batch({"x": [1, 2]})
WORDS = pa.record_batch({"w": pa.array(["a", "b"]).dictionary_encode()})


def test_a_bundle_comes_out_as_messages() -> None:
    """Scenario: a bundle in memory and then in its file. Guarantee: the same slots,
    fingerprints and batches both times; of the slots named, those it has."""
    with Store(Disk(MemoryDisk()), Config.load(env={}), where="mem", clock=ManualClock()) as store:
        ref = store.put({"Logs": LOGS, "Words": WORDS}, fingerprints={"Logs": b"f" * 32}).wait().ref
        for _ in range(2):
            found = store.encoded(ref)
            assert list(found) == ["Logs", "Words"]
            assert found["Logs"].fingerprint == b"f" * 32
            assert found["Logs"].batch.decode().equals(LOGS)
            assert found["Words"].batch.decode().equals(WORDS)
            assert list(store.encoded(ref, ["Words", "Other"])) == ["Words"]
            store.flush()
