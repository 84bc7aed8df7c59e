"""Which columns of a frame go into which slots of a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from flight_service.client.errors import BadRequest
from flight_service.protocol.names import check_name
from spark_client.casting import cast_from_spark
from spark_client.types import is_list


@dataclass(frozen=True, slots=True)
class Nested:
    """A slot made from a column of lists of structs: the rows of a child table.

    ``keys`` repeats columns of the parent beside each of its children, under other names:
    ``Nested("attributes", keys={"id": "parent_id"})``.
    """

    column: str
    keys: Mapping[str, str] = field(default_factory=dict)


Columns = Sequence[str] | Nested
"""Columns by name, or a child table inside a column."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Slots with their columns, and the schema of each if one was declared."""

    slots: Mapping[str, Columns]
    schemas: Mapping[str, pa.Schema] = field(default_factory=dict)

    @classmethod
    def of(
        cls, slots: Mapping[str, Columns], schemas: Mapping[str, pa.Schema] | None = None
    ) -> Layout:
        """Check what was asked for, before anything runs."""
        if not slots:
            raise BadRequest("bad_request", "no slots: say which columns go where.")
        for slot in slots:
            check_name("slot", slot)
        for slot in schemas or {}:
            if slot not in slots:
                raise BadRequest("bad_request", f"a schema for {slot}, which is none of the slots.")
        return cls(dict(slots), dict(schemas or {}))

    @property
    def lone_slot(self) -> str | None:
        """The slot of all bundles, if they have one and its schema is the same in all."""
        return None

    def bundle(self, batch: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
        """A frame's batch as a bundle; child tables without rows are left out."""
        found = {}
        for slot, columns in self.slots.items():
            if isinstance(columns, Nested):
                table = _children(batch, columns, slot)
            else:
                table = batch.select([_known(batch, name, slot) for name in columns])
            if table.num_rows or not isinstance(columns, Nested):
                found[slot] = cast_from_spark(table, self.schemas.get(slot))
        return found


def whole_frame(slot: str, schema: pa.Schema | None) -> Layout:
    """Every column into one slot."""
    check_name("slot", slot)
    return _Whole({slot: ()}, {} if schema is None else {slot: schema})


class _Whole(Layout):
    @property
    def lone_slot(self) -> str | None:
        """A frame has one schema, so all of its batches do.

        Declared ones may hold what a call can't carry from batch to batch (dictionaries).
        """
        return None if self.schemas else next(iter(self.slots))

    def bundle(self, batch: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
        (slot,) = self.slots
        return {slot: cast_from_spark(batch, self.schemas.get(slot))}


def _known(batch: pa.RecordBatch, name: str, slot: str) -> str:
    if name not in batch.schema.names:
        raise BadRequest(
            "schema_mismatch",
            f"slot {slot} is to have column {name}, and the frame has"
            f" {', '.join(batch.schema.names)[:500]}.",
        )
    return name


def _children(batch: pa.RecordBatch, nested: Nested, slot: str) -> pa.RecordBatch:
    lists = batch.column(_known(batch, nested.column, slot))
    if not is_list(lists.type) or not pa.types.is_struct(lists.type.value_type):
        raise BadRequest(
            "schema_mismatch",
            f"slot {slot}: column {nested.column} must be an array of structs, the rows of the"
            f" child table; it is {str(lists.type)[:200]}.",
        )
    entries = lists.flatten()
    parents = pc.list_parent_indices(lists)
    columns = {
        given: batch.column(_known(batch, name, slot)).take(parents)
        for name, given in nested.keys.items()
    }
    for place, one in enumerate(lists.type.value_type):
        if one.name in columns:
            raise BadRequest(
                "schema_mismatch", f"slot {slot}: two columns would be called {one.name}."
            )
        columns[one.name] = pc.struct_field(entries, [place])
    return pa.RecordBatch.from_pydict(columns)
