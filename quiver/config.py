"""Every setting of a store: one model, frozen, checked once, where it comes in.

::

    Config.load("quiver.yaml")                      # file, then environment
    Config.load(wal={"max_size": "1GiB"})           # arguments win over both
    Config.load(env={}, segment__target_size=4096)  # the same, flat; environment ignored

Precedence: arguments > ``QUIVER_SECTION__NAME`` variables > file > defaults.  Sizes and
durations may be written as people do (``32MiB``, ``25ms``).  Unknown names are refused
with the nearest known one, and every error is a :class:`~quiver.errors.ConfigError` that
names the setting, the value, and what is allowed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from quiver.config_sources import (
    NESTING,
    Layers,
    env_name,
    nested,
    read_environment,
    read_file,
    suggestion,
)
from quiver.errors import ConfigError, InvalidName
from quiver.ids import MAX_BUNDLES_PER_SEGMENT, MAX_SLOTS, slot_name
from quiver.units import (
    DURATION_HELP,
    GIB,
    KIB,
    MIB,
    SIZE_HELP,
    format_size,
    parse_duration,
    parse_size,
)

Durability = Literal["wal", "segment_only"]
Deliver = Literal["durable", "sealed"]
Validation = Literal["full", "basic", "off"]
ReadMode = Literal["mmap", "pread"]
Flush = Literal["every", "group", "interval"]
SizeCapPolicy = Literal["backpressure", "drop_oldest"]
CorruptProgress = Literal["fail", "earliest", "latest"]

# The format's own limit for one log entry: a larger bundle could not be written down.
MAX_BUNDLE_BYTES: Final = 256 * MIB


def _unit(parse: Callable[[str], float], help_text: str) -> Callable[[object], object]:
    """A validator that reads text with ``parse`` and leaves numbers as they are."""

    def read(value: object) -> object:
        if isinstance(value, str):
            try:
                return parse(value)
            except ValueError as error:
                raise PydanticCustomError("unit", "{why}", {"why": str(error)}) from None
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise PydanticCustomError("unit", "use {help}", {"help": help_text})
        return value

    return read


def _read_duration(value: object) -> object:
    read = _unit(parse_duration, DURATION_HELP)(value)
    return float(read) if isinstance(read, int) else read


Size = Annotated[int, BeforeValidator(_unit(parse_size, SIZE_HELP))]
Duration = Annotated[float, BeforeValidator(_read_duration), Field(allow_inf_nan=False)]


def _raise_config_error(
    model: type[Section], error: ValidationError, layers: Layers | None
) -> None:
    problems = [_problem(model, item, layers) for item in error.errors(include_url=False)]
    first = problems[0]
    message = "\n".join(f"{p.text}" for p in problems)
    raise ConfigError(
        message,
        advice=first.advice if len(problems) == 1 else "",
        setting=first.setting,
        value=first.value,
        allowed=first.allowed,
        source=first.source,
        problems=[p.setting for p in problems],
    ) from None


class Section(BaseModel):
    """What all parts of the configuration share: strict, frozen, nothing unknown."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True
    )
    prefix: ClassVar[str] = ""

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            _raise_config_error(type(self), error, None)

    # Tells pydantic that this is its own way to make a model: a section inside a Config is
    # then validated in place, and all problems of all sections arrive together.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


class WalConfig(Section):
    """The write-ahead log: what makes a put durable."""

    prefix: ClassVar[str] = "wal"

    flush: Flush = Field(
        default="group",
        description="When the log is synced: after every entry, once for all who wait, or by time.",
    )
    flush_interval: Duration = Field(
        default=0.025, gt=0, le=60, description="Longest time between syncs with `flush: interval`."
    )
    rotation_target: Size = Field(
        default=64 * MIB,
        ge=512,
        le=4 * GIB,
        description="A log file is closed before it passes this size.",
    )
    max_size: Size = Field(
        default=256 * MIB,
        ge=KIB,
        description="All log files together; at the cap a segment is written, then puts wait.",
    )
    max_rotated_files: int = Field(
        default=10,
        ge=2,
        le=10_000,
        description="Most log files at a time, the active one included.",
    )
    max_group: Size = Field(
        default=16 * MIB, ge=512, le=GIB, description="Most bytes written and synced in one go."
    )
    recycle: bool = Field(
        default=True,
        description="Write over retired log files instead of making new ones: cheaper.",
    )
    max_idle_age: Duration | None = Field(
        default=None,
        gt=0,
        description="Close a log file this old, even when nothing is written. Off.",
    )


class SegmentConfig(Section):
    """Segments: when the open one is closed and written to its file."""

    prefix: ClassVar[str] = "segment"

    target_size: Size = Field(
        default=32 * MIB,
        ge=1,
        le=4 * GIB,
        description="Close the open segment at this many payload bytes.",
    )
    max_open_duration: Duration = Field(
        default=5.0, gt=0, description="Close the open segment this long after its first bundle."
    )
    max_rows: int | None = Field(
        default=None, ge=1, description="Close the open segment at this many rows. Off."
    )
    max_bundles: int = Field(
        default=MAX_BUNDLES_PER_SEGMENT,
        ge=1,
        le=MAX_BUNDLES_PER_SEGMENT,
        description="Close the open segment at this many bundles.",
    )
    max_streams: int = Field(
        default=512,
        ge=1,
        le=100_000,
        description="Close the open segment at this many different (slot, schema) pairs.",
    )
    max_variants: int = Field(
        default=4096,
        ge=1,
        le=100_000,
        description="The same, counting batches with other dictionaries apart.",
    )
    max_unfinalized: int = Field(
        default=2,
        ge=1,
        le=16,
        description="Segments in memory, the open one included, before puts wait.",
    )


class RetentionConfig(Section):
    """How long data stays: see `quiver.retention` for what comes first."""

    prefix: ClassVar[str] = "retention"

    size_cap: Size | None = Field(
        default=None, ge=1, description="Most bytes this store may take on disk, log included. Off."
    )
    size_cap_policy: SizeCapPolicy = Field(
        default="backpressure",
        description="At the cap: make puts wait, or drop the oldest segments, on record.",
    )
    max_retain_after_ingestion_hours: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Drop segments this old even if somebody still needs them. Off.",
    )
    keep_after_finish: Duration | None = Field(
        default=None, gt=0, description="Keep finished segments this long, for going back. Off."
    )
    keep_after_finish_bytes: Size | None = Field(
        default=None,
        ge=1,
        description="Keep at most this many bytes of finished segments, newest first.",
    )
    steady_state_headroom: Size = Field(
        default=0, ge=0, description="Finished bytes left on disk in healthy operation."
    )

    @property
    def max_age(self) -> float | None:
        """Time retention in seconds."""
        hours = self.max_retain_after_ingestion_hours
        return None if hours is None else hours * 3600


class LimitsConfig(Section):
    """What one put may be, and how much may be on its way."""

    prefix: ClassVar[str] = "limits"

    max_bundle: Size = Field(
        default=64 * MIB,
        ge=KIB,
        le=MAX_BUNDLE_BYTES,
        description="Largest bundle, all slots together.",
    )
    max_columns: int = Field(
        default=2000, ge=1, le=100_000, description="Most columns in one slot, nested ones counted."
    )
    max_nesting: int = Field(default=16, ge=1, le=64, description="Deepest nesting of types.")
    max_schema_bytes: Size = Field(
        default=64 * KIB,
        ge=256,
        le=16 * MIB,
        description="Largest encoded schema, metadata included.",
    )
    max_key_bytes: Size = Field(
        default=256, ge=1, le=4 * KIB, description="Longest idempotency key."
    )
    max_attributes_bytes: Size = Field(
        default=4 * KIB, ge=0, le=MIB, description="Largest attributes of a bundle, encoded."
    )
    max_unsynced: Size = Field(
        default=64 * MIB,
        ge=KIB,
        le=4 * GIB,
        description="Accepted but not yet durable, all puts together.",
    )


class IdempotencyConfig(Section):
    """How long a key is remembered after its bundle."""

    prefix: ClassVar[str] = "idempotency"

    window_count: int = Field(
        default=65_536, ge=0, le=10_000_000, description="Most keys remembered; 0 turns keys off."
    )
    window_age: Duration = Field(
        default=86_400.0, gt=0, description="Longest time a key is remembered."
    )


class SubscribersConfig(Section):
    """Delivery progress on disk."""

    prefix: ClassVar[str] = "subscribers"

    corrupt_progress: CorruptProgress = Field(
        default="fail",
        description="A damaged or missing progress file: refuse, or start over at either end.",
    )
    progress_interval: Duration = Field(
        default=0.1, gt=0, le=3600, description="Acks reach the disk at least this often."
    )


class Config(Section):
    """All settings of one store."""

    durability: Durability = Field(
        default="wal",
        description="Durable once in the log, or (`segment_only`) once in a segment file.",
    )
    deliver: Deliver = Field(
        default="durable",
        description="Deliver bundles once durable, or only from written segments.",
    )
    validation: Validation = Field(
        default="full",
        description="Check arrays fully, only their structure, or (trusted input) not.",
    )
    slots: dict[str, int] | None = Field(
        default=None,
        description="Declared slot table, name to id 0..63; off: names get ids as they come.",
    )
    event_time: dict[str, str] = Field(
        default={}, description="Slot name to the column that holds its event time."
    )
    reserve: Size = Field(
        default=4 * MIB,
        ge=0,
        le=GIB,
        description="Bytes set aside so that acks and progress still work on a full disk.",
    )
    read_mode: ReadMode = Field(
        default="mmap", description="Map segments into memory, or read them."
    )
    max_mapped_segments: int = Field(
        default=256, ge=1, le=65_536, description="Segments kept open for reading at a time."
    )
    wal: WalConfig = Field(default_factory=WalConfig, description="The log.")
    segment: SegmentConfig = Field(default_factory=SegmentConfig, description="Segments.")
    retention: RetentionConfig = Field(
        default_factory=RetentionConfig, description="How long data stays."
    )
    limits: LimitsConfig = Field(default_factory=LimitsConfig, description="Limits.")
    idempotency: IdempotencyConfig = Field(default_factory=IdempotencyConfig, description="Keys.")
    subscribers: SubscribersConfig = Field(
        default_factory=SubscribersConfig, description="Progress."
    )

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        **overrides: Any,
    ) -> Self:
        """Settings from a file, the environment (``os.environ`` unless given) and arguments.

        An argument is a section as a mapping (``wal={"flush": "every"}``), or one setting
        with its section in front (``wal__flush="every"``).
        """
        layers = Layers()
        if path is not None:
            layers.add(read_file(path), str(path))
        variables = read_environment(os.environ if env is None else env, setting_names())
        for dotted, value in variables.items():
            layers.add(nested({dotted: value}), env_name(dotted))
        layers.add(nested(overrides, NESTING), "argument")
        try:
            return cls.model_validate(layers.values)
        except ValidationError as error:
            _raise_config_error(cls, error, layers)
            raise

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Settings that are each fine but can't be had together."""
        _check_slots(self)
        _check_log(self)
        _check_capacity(self)
        return self


class _Conflict(PydanticCustomError):
    """Two settings contradict each other: names the one to change."""

    def __new__(cls, setting: str, value: object, allowed: str) -> Self:
        return super().__new__(
            cls, "conflict", "{allowed}", {"setting": setting, "value": value, "allowed": allowed}
        )


def _check_slots(config: Config) -> None:
    slots = config.slots
    if slots is not None:
        for name, slot in slots.items():
            _check_slot_name(f"slots.{name}", name)
            if not 0 <= slot < MAX_SLOTS:
                raise _Conflict(f"slots.{name}", slot, f"slot ids are 0 to {MAX_SLOTS - 1}")
            if list(slots.values()).count(slot) > 1:
                raise _Conflict(f"slots.{name}", slot, "each slot needs an id of its own")
    for name in config.event_time:
        _check_slot_name(f"event_time.{name}", name)
        if slots is not None and name not in slots:
            raise _Conflict(
                f"event_time.{name}", config.event_time[name], "names a slot that is not in slots"
            )


def _check_slot_name(setting: str, name: str) -> None:
    try:
        slot_name(name)
    except InvalidName as error:
        raise _Conflict(setting, name, error.advice) from None


def _check_log(config: Config) -> None:
    """The log must hold what can't be anywhere else yet, or ingest would stand still."""
    wal, need = config.wal, 2 * config.segment.target_size + config.limits.max_bundle
    if wal.max_group > wal.rotation_target:
        raise _Conflict(
            "wal.max_group",
            format_size(wal.max_group),
            f"at most wal.rotation_target ({format_size(wal.rotation_target)})",
        )
    smallest = need + wal.rotation_target
    if wal.max_size < smallest:
        raise _Conflict(
            "wal.max_size",
            format_size(wal.max_size),
            f"at least {format_size(smallest)}: two segment.target_size, one limits.max_bundle"
            " and one wal.rotation_target",
        )
    files = -(-need // wal.rotation_target) + 1
    if wal.max_rotated_files < files:
        raise _Conflict(
            "wal.max_rotated_files",
            wal.max_rotated_files,
            f"at least {files}: two segment.target_size and one limits.max_bundle in files of"
            f" {format_size(wal.rotation_target)}, and the active one",
        )


def _check_capacity(config: Config) -> None:
    if config.limits.max_unsynced < config.limits.max_bundle:
        raise _Conflict(
            "limits.max_unsynced",
            format_size(config.limits.max_unsynced),
            f"at least limits.max_bundle ({format_size(config.limits.max_bundle)})",
        )
    if config.segment.max_variants < config.segment.max_streams:
        raise _Conflict(
            "segment.max_variants",
            config.segment.max_variants,
            f"at least segment.max_streams ({config.segment.max_streams})",
        )
    cap, smallest = config.retention.size_cap, smallest_cap(config)
    if cap is not None and cap < smallest:
        raise _Conflict(
            "retention.size_cap",
            format_size(cap),
            f"at least {format_size(smallest)}: wal.max_size (unless segment_only),"
            " two segment.target_size and the reserve",
        )


def smallest_cap(config: Config) -> int:
    """The smallest disk budget a store with these settings can work in.

    Its log may be full, one segment is being written while another is deleted, and the
    reserve is always there.
    """
    log = config.wal.max_size if config.durability == "wal" else 0
    return log + 2 * config.segment.target_size + config.reserve


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the settings table in the docs."""

    name: str
    type: str
    default: str
    description: str
    env: str


def settings() -> list[Setting]:
    """Every setting, in the order of the model: for the docs, ``--help`` and tests."""
    rows: list[Setting] = []
    for name, field in Config.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            rows += [_setting(inner, f"{name}.{key}", key) for key in inner.model_fields]
        else:
            rows.append(_setting(Config, name, name))
    return rows


def setting_names() -> list[str]:
    """The dotted names of all settings."""
    return [setting.name for setting in settings()]


def _setting(model: type[Section], dotted: str, key: str) -> Setting:
    field = model.model_fields[key]
    hint = model.__annotations__[key]
    size = "Size" in hint
    default = field.default
    if size and isinstance(default, int):
        default = format_size(default)
    elif "Duration" in hint and isinstance(default, float):
        default = f"{default * 1000:g}ms" if default < 1 else f"{default:g}s"
    return Setting(
        name=dotted,
        type=_type_name(hint, field.annotation),
        default="off" if default is None else str(default),
        description=field.description or "",
        env=env_name(dotted),
    )


def _type_name(hint: str, annotation: Any) -> str:
    options = get_args(annotation) if get_origin(annotation) is Literal else ()
    if options:
        return " | ".join(options)
    if "Size" in hint or "Duration" in hint:
        return "size" if "Size" in hint else "duration"
    return hint.removesuffix(" | None")


@dataclass(frozen=True, slots=True)
class _Problem:
    setting: str
    value: object
    allowed: str
    source: str | None
    text: str
    advice: str


def _problem(model: type[Section], item: ErrorDetails, layers: Layers | None) -> _Problem:
    """One complaint of pydantic's, in our words."""
    context = item.get("ctx", {})
    value: object = context.get("value", item["input"])
    dotted = ".".join(str(part) for part in item["loc"])
    setting = str(context.get("setting") or ".".join(filter(None, (model.prefix, dotted))))
    source = layers.origin(setting) if layers else None
    where = f"{setting} (from {source})" if source else setting
    if item["type"] == "extra_forbidden":
        owner = setting.rpartition(".")[0]
        hint = suggestion(setting, [f"{owner}.{n}" if owner else n for n in _names_of(owner)])
        return _Problem(setting, value, hint, source, f"{where} is not a setting. {hint}", "")
    allowed = item["msg"].removeprefix("Input should be ").replace("'", "")
    text = f"{where} is {_shown(value)}: {allowed}."
    return _Problem(setting, value, allowed, source, text, "")


def _names_of(owner: str) -> list[str]:
    field = Config.model_fields.get(owner)
    inner = field.annotation if field else Config
    known = inner if isinstance(inner, type) and issubclass(inner, Section) else Config
    return list(known.model_fields)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
