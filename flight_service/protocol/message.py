"""Strict JSON objects as frozen values.

A message class declares its fields once, each with a kind (what values it takes), a
default and a line of explanation; reading, writing and the documentation follow from
that::

    class Ack(Message):
        stream: str = of(STREAM, doc="The stream.")
        refs: tuple[Ref, ...] = of(REFS, doc="Which bundles.")
        durable: bool = of(BOOL, default=False, doc="Answer once this is on disk.")

Reading is strict: UTF-8 only, one object, no name twice, ``"v"`` must be 1, no unknown
field, every value of its kind and within its bounds.  What is left out has its default;
``null`` is the same as left out.  Writing leaves defaults out.

To a type checker a message is a frozen dataclass with keyword arguments.  Its methods are in the
base class and go by the table of fields: `dataclass` would compile eight functions for each of
some sixty classes, 20 ms of every import of the client, more than all the rest of it takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, FrozenInstanceError, dataclass
from typing import Any, ClassVar, Final, Never, Self, dataclass_transform

from flight_service.protocol.errors import ServiceError
from flight_service.protocol.names import MAX_SLOTS, check_name, read_ref, read_refs, write_refs

VERSION: Final = 1
MAX_BODY: Final = 4 << 20
"""Largest JSON object that is read at all; most messages allow far less."""
MAX_TEXT: Final = 1_024
MAX_COLUMNS: Final = 2_000
MAX_TIME_NS: Final = 2**63 - 1

_MISSING: Final[Any] = MISSING


def bad(message: str, **details: object) -> ServiceError:
    """A request that can't be taken as it is."""
    return ServiceError("bad_request", message, details=details)


@dataclass(frozen=True, slots=True)
class Kind:
    """A set of allowed values: how to read one from JSON, and how to write it."""

    name: str
    read: Callable[[Any, str], Any]
    write: Callable[[Any], Any] = lambda value: value


def whole(minimum: int, maximum: int) -> Kind:
    """A whole number within bounds."""

    def read(value: Any, where: str) -> int:
        if type(value) is not int or not minimum <= value <= maximum:
            raise bad(f"{where} must be a whole number from {minimum:,} to {maximum:,}.")
        return value

    return Kind(f"whole number {minimum:,}..{maximum:,}", read)


def text(max_bytes: int = MAX_TEXT, *, empty: bool = False) -> Kind:
    """Unicode text of bounded size."""

    def read(value: Any, where: str) -> str:
        if not isinstance(value, str) or (not value and not empty):
            raise bad(f"{where} must be {'' if empty else 'non-empty '}text.")
        size = _utf8_size(value, where)
        if size > max_bytes:
            raise ServiceError(
                "limit_exceeded",
                f"{where} has {size:,} bytes, the limit is {max_bytes:,}.",
                details={"limit": where, "value": size, "maximum": max_bytes},
            )
        return value

    return Kind(f"text, at most {max_bytes:,} bytes", read)


def choice(*values: str) -> Kind:
    """One of a few words."""

    def read(value: Any, where: str) -> str:
        if value not in values or not isinstance(value, str):
            raise bad(f"{where} must be one of {', '.join(values)}.")
        return value

    return Kind(" | ".join(values), read)


def name(kind: str) -> Kind:
    """The name of a stream, subscriber or slot."""
    return Kind(f"{kind} name", lambda value, where: check_name(kind, value))


def listed(item: Kind, maximum: int) -> Kind:
    """A list of things of one kind."""

    def read(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > maximum:
            raise bad(f"{where} must be a list of at most {maximum:,}.")
        return tuple(item.read(one, where) for one in value)

    return Kind(f"list of {item.name}", read, lambda value: [item.write(one) for one in value])


def nested(message: type[Message], maximum: int) -> Kind:
    """A list of messages inside a message; only the outer one has ``"v"``."""

    def read(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > maximum:
            raise bad(f"{where} must be a list of at most {maximum:,}.")
        return tuple(message.from_fields(one, where) for one in value)

    return Kind(
        f"list of {message.__name__}", read, lambda value: [one.to_fields() for one in value]
    )


def inner(message: type[Message]) -> Kind:
    """One message inside a message."""
    return Kind(message.__name__, message.from_fields, lambda value: value.to_fields())


def _read_bool(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise bad(f"{where} must be true or false.")
    return value


def _read_hash(value: Any, where: str) -> bytes:
    if isinstance(value, str) and len(value) == 64:
        try:
            return bytes.fromhex(value)
        except ValueError:
            pass
    raise bad(f"{where} must be 64 hexadecimal digits.")


def _read_strings(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise bad(f"{where} must be an object with texts.")
    for key, item in value.items():
        if not isinstance(item, str):
            raise bad(f"{where}.{key[:80]} must be text.")
        _utf8_size(key, where)
        _utf8_size(item, where)
    return value


def _read_columns(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_COLUMNS:
        raise bad(f"{where} must be a list of at most {MAX_COLUMNS:,} column names.")
    for column in value:
        if not isinstance(column, str):
            raise bad(f"{where} must hold column names.")
        _utf8_size(column, where)
    return tuple(value)


def _read_projection(value: Any, where: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict) or len(value) > MAX_SLOTS:
        raise bad(f"{where} must be an object: slot name to a list of columns.")
    return {
        check_name("slot", slot): _read_columns(columns, f"{where}.{slot}")
        for slot, columns in value.items()
    }


def _read_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad(f"{where} must be an object.")
    return value


def _read_pair(value: Any, where: str) -> tuple[int, int]:
    number = whole(-MAX_TIME_NS - 1, MAX_TIME_NS)
    if not isinstance(value, list) or len(value) != 2:
        raise bad(f"{where} must be [lowest, highest].")
    low, high = number.read(value[0], where), number.read(value[1], where)
    if low > high:
        raise bad(f"{where} must be [lowest, highest].")
    return low, high


def _utf8_size(value: str, where: str) -> int:
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise bad(f"{where} is not valid Unicode text.") from None


BOOL: Final = Kind("true | false", _read_bool)
STREAM: Final = name("stream")
SUBSCRIBER: Final = name("subscriber")
SLOT: Final = name("slot")
SLOTS: Final = listed(SLOT, MAX_SLOTS)
REF: Final = Kind("ref", read_ref, list)
REFS: Final = Kind("list of refs", read_refs, write_refs)
HASH: Final = Kind("64 hex digits", _read_hash, lambda value: value.hex())
STRINGS: Final = Kind("object of texts", _read_strings, dict)
COLUMNS: Final = Kind("list of column names", _read_columns, list)
PROJECTION: Final = Kind(
    "object: slot to column names",
    _read_projection,
    lambda value: {slot: list(columns) for slot, columns in value.items()},
)
OBJECT: Final = Kind("object", _read_object)
TIME_NS: Final = whole(0, MAX_TIME_NS)
TIME_RANGE: Final = Kind("[lowest, highest] in ns", _read_pair, list)
COUNT: Final = whole(0, MAX_TIME_NS)
TEXT: Final = text(empty=True)


class FieldInfo:
    """A declared field."""

    __slots__ = ("default", "doc", "kind", "name", "required")

    def __init__(self, kind: Kind, default: Any, doc: str) -> None:
        self.name = ""
        self.kind = kind
        self.doc = doc
        self.required = default is _MISSING
        self.default = None if self.required else default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name


def of(kind: Kind, default: Any = _MISSING, *, doc: str) -> Any:
    """Declare a field: its kind, its default (none: it must be given), what it is for."""
    return FieldInfo(kind, default, doc)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(of,))
class Message:
    """Base of everything that goes over the wire as JSON."""

    body_limit: ClassVar[int] = 64 << 10
    _table: ClassVar[dict[str, FieldInfo]] = {}
    _defaults: ClassVar[dict[str, Any]] = {}
    _required: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        own = {name: info for name, info in vars(cls).items() if isinstance(info, FieldInfo)}
        for name, info in own.items():
            if info.required:
                delattr(cls, name)
            else:
                setattr(cls, name, info.default)
        cls._table = cls._table | own
        table = cls._table.values()
        cls._defaults = {info.name: info.default for info in table if not info.required}
        cls._required = frozenset(info.name for info in table if info.required)

    def __init__(self, **values: Any) -> None:
        fields = self._defaults | values
        # All that is required is there and nothing is too many: then nothing is unknown either.
        if len(fields) != len(self._table) or not self._required <= values.keys():
            self._refuse(values)
        self.__dict__.update(fields)

    def _refuse(self, values: dict[str, Any]) -> Never:
        unknown = ", ".join(values.keys() - self._table.keys())
        missing = ", ".join(self._required - values.keys())
        raise TypeError(
            f"{type(self).__name__}: unknown: {unknown or '-'}; missing: {missing or '-'}"
        )

    def __setattr__(self, name: str, value: object) -> Never:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> Never:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(self) is type(other) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__[name] for name in self._table))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self._table)
        return f"{type(self).__qualname__}({shown})"

    def changed(self, **values: Any) -> Self:
        """A copy with other values in some fields."""
        return type(self)(**{**self.__dict__, **values})

    @classmethod
    def fields(cls) -> list[FieldInfo]:
        """The declared fields, in order."""
        return list(cls._table.values())

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a message; a :class:`ServiceError` says what is wrong with it."""
        body = parse_object(data, cls.body_limit, cls.__name__)
        version = body.pop("v", None)
        if type(version) is not int or version != VERSION:
            shown = "nothing" if version is None else repr(version)[:20]
            raise bad(f'{cls.__name__}: "v" must be {VERSION}, not {shown}.')
        return cls.from_fields(body, cls.__name__)

    @classmethod
    def from_fields(cls, body: Any, where: str) -> Self:
        """Read the fields of an object that has been parsed."""
        if not isinstance(body, dict):
            raise bad(f"{where} must be an object.")
        table = cls._table
        values: dict[str, Any] = {}
        for key, value in body.items():
            info = table.get(key)
            if info is None:
                raise bad(
                    f"{where}: unknown field {key[:80]!r}; known are {', '.join(table)}.",
                    known=list(table),
                )
            if value is not None:
                values[key] = info.kind.read(value, f"{where}.{key}")
        if not cls._required <= values.keys():
            missing = next(name for name in table if name in cls._required - values.keys())
            raise bad(f"{where}: {missing} is missing.")
        # Without `__init__`, which sets each field of a frozen class by a call: every bundle
        # has its message, on the way in and on the way out.
        message = cls.__new__(cls)
        message.__dict__.update(cls._defaults | values)
        message.check()
        return message

    def check(self) -> None:
        """What the fields must have in common; overridden where there is something."""

    def to_fields(self) -> dict[str, Any]:
        """The fields for JSON, defaults left out."""
        written: dict[str, Any] = {}
        for info in self._table.values():
            value = getattr(self, info.name)
            if info.required or value != info.default:
                written[info.name] = info.kind.write(value)
        return written

    def encode(self) -> bytes:
        """The message for the wire."""
        return to_json({"v": VERSION, **self.to_fields()}).encode()


def parse_object(data: bytes, max_bytes: int, where: str) -> dict[str, Any]:
    """One JSON object, by the strict rules."""
    if len(data) > max_bytes:
        raise ServiceError(
            "limit_exceeded",
            f"{where} has {len(data):,} bytes, the limit is {max_bytes:,}.",
            details={"limit": f"{where} bytes", "value": len(data), "maximum": max_bytes},
        )
    try:
        body = _DECODER.decode(bytes(data).decode("utf-8"))
    except UnicodeDecodeError:
        raise bad(f"{where} is not UTF-8.") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise bad(f"{where} is not JSON: {reason}.") from None
    if not isinstance(body, dict):
        raise bad(f"{where} must be a JSON object.")
    return body


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) != len(pairs):
        raise ValueError("a name comes twice")
    return body


def _no_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


to_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
"""A value as everything here is written; made once, since ``dumps`` makes a new one each time."""
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)


def describe(fields: Mapping[str, FieldInfo] | list[FieldInfo]) -> str:
    """The fields in one line: ``stream (stream name), durable? (true | false)``."""
    infos = fields.values() if isinstance(fields, Mapping) else fields
    return ", ".join(
        f"{info.name}{'' if info.required else '?'} ({info.kind.name})" for info in infos
    )
