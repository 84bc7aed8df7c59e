"""Schemas as IPC messages, made once and shared by all batches that have them."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import pyarrow as pa

from quiver.errors import InvalidBundle
from quiver.format.arrow import message as msg
from quiver.format.arrow.fingerprint import dictionary_ids, message_fingerprint
from quiver.format.arrow.flatbuf import FlatbufferError
from quiver.format.crc import crc32

MAX_CACHED_SCHEMAS: Final = 1024
MAX_CACHED_SCHEMA_BYTES: Final = 64 * 1024
RECENT_SCHEMAS: Final = 64
"""As many as a bundle may have slots; comparing with one takes less than 0.1 µs."""


class SchemaMessage:
    """A schema and its encapsulated IPC message; made once, shared by all its batches."""

    __slots__ = (
        "crc",
        "dictionary_ids",
        "has_dictionaries",
        "message",
        "portable",
        "schema",
        "schema_hash",
    )

    def __init__(self, message: bytes, schema: pa.Schema | None = None) -> None:
        data = pa.py_buffer(message)
        parsed = msg.expect(msg.read_message(data, 0), msg.SCHEMA)
        if parsed.body != parsed.end:
            raise FlatbufferError("a schema message has a body")
        self.message: Final = message
        self.schema: Final = pa.ipc.read_schema(data) if schema is None else schema
        self.crc: Final = crc32(message)
        self.schema_hash: Final = message_fingerprint(message)
        self.dictionary_ids: Final = dictionary_ids(message)
        self.has_dictionaries: Final = bool(self.dictionary_ids)
        # Of today's version and byte order: such a message can stand in a file as it is.
        self.portable: Final = parsed.portable and parsed.header.i16(0) == msg.LITTLE_ENDIAN

    @staticmethod
    def of(schema: pa.Schema) -> SchemaMessage:
        """The one of a schema. Comparing with the last few is far cheaper than encoding."""
        for known in _recent.schemas:
            if known.schema.equals(schema, check_metadata=True):
                return known
        message = schema.serialize().to_pybytes()
        found = SchemaMessage.parse(message)
        if not found.schema.equals(schema, check_metadata=True):
            # An extension type isn't registered, or wasn't when the cached one was read.
            found = SchemaMessage(message, schema)
            _check_expressed(schema, message)
        _recent.schemas = (found, *_recent.schemas[: RECENT_SCHEMAS - 1])
        return found

    @staticmethod
    def parse(message: bytes) -> SchemaMessage:
        """The one of an encapsulated message, from the cache if it was seen before."""
        if len(message) > MAX_CACHED_SCHEMA_BYTES:
            return SchemaMessage(message)
        return _cached_schema(message)


# Schemas are few and come back with every batch; hostile ones are many: bounded.
_cached_schema: Final = lru_cache(maxsize=MAX_CACHED_SCHEMAS)(SchemaMessage)


def _check_expressed(schema: pa.Schema, message: bytes) -> None:
    """Refuse what Arrow's messages can't say, such as dictionaries of dictionaries.

    Arrow itself doesn't: it drops the inner type and writes something else.
    """
    for given, read in zip(schema, pa.ipc.read_schema(pa.py_buffer(message)), strict=True):
        if not _expressed(given.type, read.type):
            raise InvalidBundle(f"column {given.name!r}: Arrow IPC has no way to say {given.type}.")


def _expressed(given: pa.DataType, read: pa.DataType) -> bool:
    """Whether a type came through, extension types set aside."""
    if given == read:
        return True
    if isinstance(given, pa.BaseExtensionType):
        inner = read.storage_type if isinstance(read, pa.BaseExtensionType) else read
        return _expressed(given.storage_type, inner)
    if given.id != read.id or given.num_fields != read.num_fields:
        return False
    if pa.types.is_dictionary(given):
        return given.index_type == read.index_type and _expressed(given.value_type, read.value_type)
    children = range(given.num_fields)
    return bool(children) and all(
        _expressed(given.field(index).type, read.field(index).type) for index in children
    )


class _RecentMessages:
    """The last schemas seen: replaced as a whole, so that it is read without a lock."""

    schemas: tuple[SchemaMessage, ...] = ()


_recent: Final = _RecentMessages()
