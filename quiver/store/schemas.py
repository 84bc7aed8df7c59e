"""Which schemas a store's slots have: learnt from directories, without reading any data.

A segment's directory names each of its streams with the hash of its schema, so a file is
opened for a schema only where the hash is new; files of the Rust crate have no hash, and
each is asked.  What a sealed segment said is kept: it never changes.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from quiver.bundle.slots import SlotTable
from quiver.disk.disk import Disk
from quiver.errors import Damage, LimitExceeded, NotFound
from quiver.segment.reader import stream_schemas
from quiver.segment.segments import Segments

MAX_SCHEMAS: Final = 10_000
"""Different schemas of a store that are kept in memory."""

_Found = tuple[tuple[int, bytes], ...]


class SchemaIndex:
    """The schemas of one store. Safe to use from any thread."""

    def __init__(self, disk: Disk, segments: Segments, slots: SlotTable) -> None:
        self._disk = disk
        self._segments = segments
        self._slots = slots
        self._lock = threading.Lock()
        self._sealed: dict[int, _Found] = {}
        self._known: dict[bytes, pa.Schema] = {}

    def by_slot(self, segments: Sequence[int], first: int = 0) -> dict[str, list[pa.Schema]]:
        """Every schema of each slot, in the order they came.

        ``segments`` are all there are, in order; those below ``first`` are passed over.
        """
        found: dict[int, dict[bytes, None]] = {}
        with self._lock:
            self._forget_gone(set(segments))
            for seq in segments[bisect_left(segments, first) :]:
                for slot, digest in self._of_segment(seq):
                    found.setdefault(slot, {})[digest] = None
            return {
                self._slots.name_of(slot): [self._known[digest] for digest in digests]
                for slot, digests in sorted(found.items())
            }

    def _of_segment(self, seq: int) -> _Found:
        kept = self._sealed.get(seq)
        if kept is not None:
            return kept
        try:
            if seq in self._segments:
                found = self._keep(stream_schemas(self._disk, seq, self._known))
                self._sealed[seq] = found
                return found
        except (Damage, FileNotFoundError):
            pass  # a pin knows what to do about it
        try:
            with self._segments.pin(seq) as view:
                return self._keep(view.schemas())
        except NotFound:
            return ()

    def _keep(self, streams: Iterable[tuple[int, bytes, pa.Schema | None]]) -> _Found:
        """Slots and hashes; the schemas are known from here on."""
        found: dict[tuple[int, bytes], None] = {}
        for slot, digest, schema in streams:
            if schema is not None and digest not in self._known:
                if len(self._known) >= MAX_SCHEMAS:
                    raise LimitExceeded("schemas of a store", len(self._known) + 1, MAX_SCHEMAS)
                self._known[digest] = schema
            found[slot, digest] = None
        return tuple(found)

    def _forget_gone(self, segments: set[int]) -> None:
        for gone in self._sealed.keys() - segments:
            del self._sealed[gone]
        used = {digest for found in self._sealed.values() for _, digest in found}
        for digest in self._known.keys() - used:
            del self._known[digest]
