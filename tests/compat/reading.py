"""Everything that can be read from a store, as plain values: what a manifest says of one.

The generators of the golden directories use this with the release's own code, and the tests
with the current code, so it asks for nothing that isn't in the public interface.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import quiver
from quiver import BundleRef, ManualClock, Store
from quiver.errors import BundleGone

LOSS: Final = ("segment_seq", "bundles", "nbytes", "reason", "at_ns", "subscribers")
"""The fields of a loss that every version has."""


def open_at(path: Path, settings: Mapping[str, Any], now_ns: int) -> Store:
    """Open a store at the time it was left: keys, commits and stages are not too old then."""
    return quiver.open(path, clock=ManualClock(now_ns), **settings)


def pack(batch: pa.RecordBatch) -> str:
    """A record batch as text: its IPC stream, compressed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return base64.b64encode(zlib.compress(sink.getvalue(), 9)).decode()


def unpack_stream(text: str) -> bytes:
    """The IPC stream of a packed batch."""
    return zlib.decompress(base64.b64decode(text))


def unpack(text: str) -> pa.RecordBatch:
    """What :func:`pack` packed."""
    with pa.ipc.open_stream(unpack_stream(text)) as reader:
        return reader.read_next_batch()


def look(store: Store) -> dict[str, Any]:
    """All there is, by the store's own answers. Registers every subscriber it knows."""
    if store.config.deliver == "sealed":
        store.flush()  # before that, what is only in the log is there but can't be read
    status = store.status()
    found: dict[str, Any] = {
        "bundles": [bundle(store, ref) for ref in refs(store)],
        "end": list(store.end),
        "next_sequence": status.next_sequence,
        "known_subscribers": {name: str(one) for name, one in sorted(store.subscribers.items())},
        "losses": [{name: getattr(loss, name) for name in LOSS} for loss in store.losses],
        "loss_totals": dict(status.loss_totals),
        "stages": sorted(
            (asdict(one) for one in store.stages()),
            key=lambda one: (one["app"], one["version"], one["attempt"]),
        ),
    }
    found["subscribers"] = {name: progress(store, name) for name in sorted(store.subscribers)}
    return found


def refs(store: Store) -> list[BundleRef]:
    """Every place a bundle can be read from, or a lost one is kept for."""
    return [BundleRef(seq, index) for seq, count in store.segments() for index in range(count)]


def bundle(store: Store, ref: BundleRef) -> dict[str, Any]:
    """A bundle: its metadata and its slots; or that damage took it and left its place."""
    try:
        meta = store.meta(ref)
    except BundleGone as error:
        return {"ref": list(ref), "gone": error.details["outcome"]}
    about: dict[str, Any] = {
        "ref": list(ref),
        "sequence": meta.sequence,
        "ingestion_ts_ns": meta.ingestion_ts_ns,
        "key": meta.key,
        "content_hash": None if meta.content_hash is None else meta.content_hash.hex(),
        "attributes": dict(meta.attributes),
        "event_time": None if meta.event_time is None else list(meta.event_time),
        "rows": meta.rows,
        "nbytes": meta.nbytes,
    }
    batches, encoded = store.read(ref), store.encoded(ref)
    assert list(batches) == list(encoded)
    return about | {
        "slots": {
            name: {
                "id": encoded[name].slot,
                "fingerprint": encoded[name].fingerprint.hex(),
                "data": pack(batch),
            }
            for name, batch in batches.items()
        }
    }


def progress(store: Store, name: str) -> dict[str, Any]:
    """Where a subscriber stands with every bundle that is there."""
    subscription = store.register(name)
    by_outcome: dict[str, list[list[int]]] = {}
    for ref in refs(store):
        by_outcome.setdefault(str(subscription.outcome(ref)), []).append(list(ref))
    return {
        "position": list(subscription.position),
        "left": subscription.pending_bundle_count,
        **dict(sorted(by_outcome.items())),
    }


def repeat(store: Store, put: Mapping[str, Any]) -> quiver.Receipt:
    """Put a bundle of a manifest once more, byte for byte as it was sent."""
    digest = put.get("content_hash")
    return store.put_ipc(
        by_slot(put["slots"]),
        key=put["key"],
        content_hash=None if digest is None else bytes.fromhex(digest),
    ).wait()


def by_slot(slots: Iterable[Any]) -> dict[str | int, bytes]:
    """``[[slot, packed], …]``: slots by name or number, which JSON's objects can't tell apart."""
    return {slot: unpack_stream(data) for slot, data in slots}
