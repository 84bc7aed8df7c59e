"""The schemas of a stream's slots: those that bundles have, and those that bundles had.

A stream whose subscribers have finished everything holds no bundles, and yet a reader that
comes back wants to know what to expect.  So schemas are remembered with the stream, the
newest :data:`MAX_EARLIER` of each slot; one that came and went within a tick may be missed.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from flight_service.protocol.plan import Schemas, SlotSchemas
from quiver import BundleRef, Store

MAX_EARLIER: Final = 32
MAX_MESSAGE: Final = 64 << 10
"""Longer ones are told while bundles have them, and not remembered."""


def are_schemas(kept: object) -> bool:
    """Whether these are schemas as :meth:`KnownSchemas.write` gives them."""
    try:
        return isinstance(kept, dict) and all(
            isinstance(messages, list) and all(base64.b64decode(one) for one in messages)
            for messages in kept.values()
        )
    except (TypeError, ValueError):
        return False


class KnownSchemas:
    """What one stream's slots look like. Safe to use from any thread."""

    def __init__(self, store: Store, kept: Mapping[str, Sequence[str]]) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._looked: BundleRef | None = None
        self._known: dict[str, dict[bytes, None]] = {
            slot: {base64.b64decode(one): None for one in messages}
            for slot, messages in kept.items()
        }
        self.changed = False
        """Whether something must be written down."""

    def look(self) -> None:
        """Take note of what is new since the last look; costs nothing if nothing is."""
        with self._lock:
            self._look()

    def _look(self) -> None:
        end = self._store.end
        if end == self._looked:
            return
        first = 0 if self._looked is None else self._looked.segment_seq
        self._looked = end
        self._note(_messages(self._store.schemas(first)))

    def answer(self, slot: str | None) -> Schemas:
        """For the wire: of each slot, or of one."""
        with self._lock:
            self._look()
            present = _messages(self._store.schemas())
            names = dict.fromkeys([*present, *self._known])
            return Schemas(
                slots=tuple(
                    self._of_slot(name, present.get(name, {}))
                    for name in names
                    if slot in (None, name)
                )
            )

    def _of_slot(self, name: str, present: Mapping[bytes, None]) -> SlotSchemas:
        known = self._known.get(name, {})
        return SlotSchemas(
            slot=name,
            schemas=tuple(present),
            earlier=tuple(one for one in known if one not in present),
        )

    def _note(self, found: Mapping[str, Mapping[bytes, None]]) -> None:
        for slot, messages in found.items():
            known = self._known.setdefault(slot, {})
            for message in messages:
                if message not in known and len(message) <= MAX_MESSAGE:
                    known[message] = None
                    self.changed = True
            while len(known) > MAX_EARLIER:
                del known[next(iter(known))]

    def write(self) -> dict[str, Any]:
        """For ``service.json``."""
        with self._lock:
            self.changed = False
            return {
                slot: [base64.b64encode(one).decode() for one in messages]
                for slot, messages in self._known.items()
            }


def _messages(found: Mapping[str, Sequence[pa.Schema]]) -> dict[str, dict[bytes, None]]:
    """As messages, metadata left out; those that differ in nothing else are one."""
    return {
        slot: {
            pa.schema([field.remove_metadata() for field in schema]).serialize().to_pybytes(): None
            for schema in schemas
        }
        for slot, schemas in found.items()
    }
