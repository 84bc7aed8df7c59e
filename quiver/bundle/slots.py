"""What a producer hands over, checked once, at the edge.

A *bundle* is up to 64 optional slots with one record batch each, plus an optional
idempotency key and small attributes.  :class:`SlotTable` gives slot names their ids;
the checks refuse what can't be kept before anything is encoded or written, and name the
limit that was hit.  Inside the store everything is already valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import pyarrow as pa

from quiver.errors import InvalidBundle, LayoutMismatch, LimitExceeded
from quiver.ids import MAX_SLOTS, slot_name

if TYPE_CHECKING:
    from quiver.config import LimitsConfig

T = TypeVar("T")
BySlot: TypeAlias = Mapping[str, T] | Mapping[int, T] | Mapping[str | int, T]
"""Something for each slot, by name or id. Spelt out, so that a ``dict[str, …]`` is one."""


class SlotTable:
    """Slot names and their ids, both ways.

    Declared (``OTAP_SLOTS``, say): only those names and ids exist.
    Undeclared: a new name takes the lowest free id, for ever.
    """

    def __init__(self, declared: Mapping[str, int] | None = None) -> None:
        self.declared = declared is not None
        self._ids: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._by_number: set[int] = set()
        for name, slot in (declared or {}).items():
            self.learn(name, slot)

    def learn(self, name: str, slot: int) -> None:
        """Take a pair from the configuration, the log or the checkpoint."""
        if not 0 <= slot < MAX_SLOTS:
            raise LimitExceeded("slot id", slot, MAX_SLOTS - 1)
        slot_name(name)
        if self._ids.get(name, slot) != slot or self._names.get(slot, name) != name:
            known = self._names.get(slot) or f"id {self._ids[name]}"
            raise LayoutMismatch(
                f"slot {name!r} = {slot} contradicts what this store knows ({known}).",
                advice="Open it with the slot table it was written with, or use a new directory.",
            )
        self._ids[name] = slot
        self._names[slot] = name

    def recall(self, name: str, slot: int) -> None:
        """Take a pair from a file of bundles, unless name or id is known already: log and
        checkpoint count."""
        if name not in self._ids and slot not in self._names:
            self.learn(name, slot)

    def use(self, slot: int) -> None:
        """Data is kept under this id, named or not: no new name may be given it."""
        self._by_number.add(slot)

    def id_of(self, slot: str | int) -> int | None:
        """The id of a name (or of an id given as such); ``None`` for a new name."""
        if isinstance(slot, bool) or not isinstance(slot, (str, int)):
            raise InvalidBundle(f"a slot is a name or a number, not {type(slot).__name__}.")
        if isinstance(slot, str):
            found = self._ids.get(slot)
            if found is None and self.declared:
                raise InvalidBundle(
                    f"this store has no slot {slot[:80]!r}.",
                    advice=f"Its slots: {', '.join(sorted(self._ids))}.",
                )
            return found
        if not 0 <= slot < MAX_SLOTS:
            raise LimitExceeded("slot id", slot, MAX_SLOTS - 1)
        if self.declared and slot not in self._names:
            raise InvalidBundle(
                f"this store has no slot {slot}.",
                advice=f"Its slots: {sorted(self._names)}.",
            )
        self.use(slot)
        return slot

    def free_id(self, taken: Iterable[int] = ()) -> int:
        """The lowest id that nothing is kept under and that isn't in ``taken``."""
        used = self._names.keys() | self._by_number | set(taken)
        for slot in range(MAX_SLOTS):
            if slot not in used:
                return slot
        raise LimitExceeded("slots in this store", MAX_SLOTS + 1, MAX_SLOTS)

    def name_of(self, slot: int) -> str:
        """The name of an id; unnamed ones (written by others) are shown by number."""
        return self._names.get(slot) or f"slot{slot}"

    def find(self, slot: str | int) -> int | None:
        """The id to read for a name or id; ``None`` if nothing is called that."""
        if isinstance(slot, int):
            return slot
        if slot in self._ids:
            return self._ids[slot]
        if slot.startswith("slot") and slot[4:].isdecimal():
            return int(slot[4:])
        return None

    @property
    def names(self) -> dict[int, str]:
        """A copy of the id → name mapping."""
        return dict(self._names)

    def names_of(self, slots: Iterable[int]) -> dict[int, str]:
        """The names of these ids, as far as they have some."""
        return {slot: self._names[slot] for slot in slots if slot in self._names}

    def __contains__(self, name: object) -> bool:
        return name in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)


def check_slots(slots: BySlot[T]) -> BySlot[T]:
    """A bundle is a mapping, and not too large a one."""
    if not isinstance(slots, dict) and not isinstance(slots, Mapping):
        raise InvalidBundle(
            f"a bundle is a mapping of slot to record batch, not {type(slots).__name__}.",
            advice='Try {"Logs": batch}.',
        )
    if len(slots) > MAX_SLOTS:
        raise LimitExceeded("slots in a bundle", len(slots), MAX_SLOTS)
    return slots


def not_a_batch(slot: object, value: object) -> InvalidBundle:
    """A slot holds something else."""
    hint = "Use table.to_batches()." if isinstance(value, pa.Table) else ""
    return InvalidBundle(
        f"slot {slot!r} holds a {type(value).__name__}, not a RecordBatch.", advice=hint
    )


def check_schema(schema: pa.Schema, limits: LimitsConfig) -> None:
    """Columns and nesting within the limits."""
    if len(schema) > limits.max_columns:
        raise LimitExceeded("columns in a slot", len(schema), limits.max_columns)
    for field in schema:
        if field.type.num_fields:
            _check_depth(field.type, limits.max_nesting, limits.max_nesting)


def _check_depth(kind: pa.DataType, left: int, maximum: int) -> None:
    if left <= 0:
        raise LimitExceeded("nesting of a column", maximum + 1, maximum)
    for index in range(kind.num_fields):
        child = kind.field(index).type
        if child.num_fields:
            _check_depth(child, left - 1, maximum)


def validate(slot: object, batch: pa.RecordBatch, level: str) -> None:
    """Let Arrow check the arrays: a bad offset stored is a reader crashed later."""
    if level == "off":
        return
    try:
        batch.validate(full=level == "full")
    except (pa.ArrowInvalid, pa.ArrowIndexError, UnicodeDecodeError) as error:
        raise InvalidBundle(f"slot {slot!r} is not valid Arrow data: {error}") from None


def check_key(key: object, limits: LimitsConfig) -> None:
    """An idempotency key: a non-empty string within its limit."""
    if not isinstance(key, str) or not key:
        raise InvalidBundle("an idempotency key is a non-empty string.")
    size = _utf8_size(key, "an idempotency key")
    if size > limits.max_key_bytes:
        raise LimitExceeded("idempotency key bytes", size, limits.max_key_bytes)


def check_attributes(attributes: object, limits: LimitsConfig) -> dict[str, str]:
    """Attributes: a small mapping of strings."""
    if not isinstance(attributes, Mapping):
        raise InvalidBundle("attributes are a mapping of string to string.")
    size = 0
    for name, value in attributes.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidBundle("attributes are a mapping of string to string.")
        size += _utf8_size(name, "an attribute name") + _utf8_size(value, "an attribute")
    if size > limits.max_attributes_bytes:
        raise LimitExceeded("attribute bytes", size, limits.max_attributes_bytes)
    return dict(attributes)


def _utf8_size(text: str, what: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidBundle(f"{what} is not valid Unicode text.") from None
