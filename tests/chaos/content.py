"""What is put: batches that say which bundle they are, and a hash taken from values.

Everything of a bundle follows from its identity, so sending it again sends the same.  The
text of the identity stands in every row: damage to a file can be aimed at one bundle.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

MARK: Final = "chaos:"
IN_FILE: Final = re.compile(rb"chaos:([A-Za-z0-9/._-]+);")
"""Finds identities in the bytes of a file."""
UNREADABLE: Final = "unreadable"
SCHEMA: Final = pa.schema([("id", pa.utf8()), ("n", pa.int64()), ("text", pa.utf8())])


def batch_of(identity: str, slot: str, rows: int) -> pa.RecordBatch:
    """The batch of one slot of a bundle."""
    words = [hashlib.sha256(f"{identity}|{slot}|{row}".encode()).hexdigest() for row in range(rows)]
    return pa.record_batch(
        [
            pa.array([f"{MARK}{identity};"] * rows, pa.utf8()),
            pa.array(range(rows), pa.int64()),
            pa.array(words, pa.utf8()),
        ],
        schema=SCHEMA,
    )


def bundle_of(identity: str, slots: Sequence[str], rows: int) -> dict[str, pa.RecordBatch]:
    """All slots of a bundle."""
    return {slot: batch_of(identity, slot, rows) for slot in slots}


def content_hash(bundle: Mapping[str, pa.RecordBatch]) -> str:
    """A hash of slot names, column names, types and values, whatever the layout is."""
    digest = hashlib.sha256()
    for slot in sorted(bundle):
        batch = bundle[slot]
        digest.update(f"{slot}|{batch.schema.to_string()}|".encode())
        try:
            digest.update(json.dumps(batch.to_pydict()).encode())
        except (ValueError, pa.ArrowException):  # text that is no UTF-8 any more
            return UNREADABLE
    return digest.hexdigest()[:32]


def identity_of(bundle: Mapping[str, pa.RecordBatch]) -> str:
    """Which bundle it says it is: what most of its rows say."""
    found: list[str] = []
    for batch in bundle.values():
        try:
            found += [one for one in batch.column(0).to_pylist() if isinstance(one, str)]
        except (ValueError, pa.ArrowException):
            continue
    texts = [one[len(MARK) : -1] for one in found if one.startswith(MARK)]
    return max(sorted(set(texts)), key=texts.count, default=UNREADABLE)
