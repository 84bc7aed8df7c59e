"""The whole configuration: the sections together, how they must agree, how they are loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_origin

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from quiver.config.problems import explain, not_allowed
from quiver.config.sections import (
    Deliver,
    Durability,
    IdempotencyConfig,
    LimitsConfig,
    ReadMode,
    RetentionConfig,
    Section,
    SegmentConfig,
    Size,
    SubscribersConfig,
    TransactionsConfig,
    Validation,
    Verify,
    WalConfig,
)
from quiver.config.sources import NESTING, Layers, env_name, nested, read_environment, read_file
from quiver.errors import InvalidName
from quiver.ids import MAX_SLOTS, slot_name
from quiver.units import GIB, MIB, format_size


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
        default="pread", description="Read from segments, or map them into memory."
    )
    verify: Verify = Field(
        default="always",
        description="Verify what is read from a segment each time, or the file once when it is"
        " opened. What is mapped (`read_mode: mmap`) is verified once.",
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
    transactions: TransactionsConfig = Field(
        default_factory=TransactionsConfig, description="Staged writes."
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
            raise explain(error, cls.prefix, cls.known_names(), layers) from None

    @property
    def verified_always(self) -> bool:
        """Whether each read of a segment is verified."""
        return self.read_mode == "pread" and self.verify == "always"

    @classmethod
    def known_names(cls) -> list[str]:
        return [*setting_names(), *cls.model_fields]

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Settings that are each fine but can't be had together."""
        _check_slots(self)
        _check_reading(self)
        _check_log(self)
        _check_capacity(self)
        return self


def _conflict(setting: str, value: object, allowed: str) -> PydanticCustomError:
    """Two settings contradict each other: ``setting`` is the one to change."""
    return not_allowed(allowed, setting=setting, value=value)


def _check_slots(config: Config) -> None:
    slots = config.slots
    if slots is not None:
        for name, slot in slots.items():
            _check_slot_name(f"slots.{name}", name)
            if not 0 <= slot < MAX_SLOTS:
                raise _conflict(f"slots.{name}", slot, f"an id from 0 to {MAX_SLOTS - 1}")
            if list(slots.values()).count(slot) > 1:
                raise _conflict(f"slots.{name}", slot, "an id that no other slot has")
    for name in config.event_time:
        _check_slot_name(f"event_time.{name}", name)
        if slots is not None and name not in slots:
            raise _conflict(
                f"event_time.{name}",
                config.event_time[name],
                "for a slot that is declared in slots",
            )


def _check_reading(config: Config) -> None:
    asked_for = "verify" in config.model_fields_set and config.verify == "always"
    if config.read_mode == "mmap" and asked_for:
        raise _conflict(
            "verify",
            config.verify,
            "once with read_mode mmap (what was verified in a mapping may be read again from the"
            " disk by the kernel, unseen); for every read to be verified, set read_mode to pread",
        )


def _check_slot_name(setting: str, name: str) -> None:
    try:
        slot_name(name)
    except InvalidName as error:
        raise _conflict(setting, name, f"a valid name: {error.advice.lower()}") from None


def _check_log(config: Config) -> None:
    """The log must hold what can't be anywhere else yet, or ingest would stand still."""
    wal, need = config.wal, 2 * config.segment.target_size + config.limits.max_bundle
    smallest = need + wal.rotation_target
    if wal.max_size < smallest:
        raise _conflict(
            "wal.max_size",
            format_size(wal.max_size),
            f"at least {format_size(smallest)}: two segment.target_size, one limits.max_bundle"
            " and one wal.rotation_target",
        )
    # An entry is never split, so the largest bundle may need a file of its own.
    files = -(-2 * config.segment.target_size // wal.rotation_target) + 2
    if wal.max_rotated_files < files:
        raise _conflict(
            "wal.max_rotated_files",
            wal.max_rotated_files,
            f"at least {files}: two segment.target_size in files of"
            f" {format_size(wal.rotation_target)}, one for the largest bundle, the active one",
        )


def _check_capacity(config: Config) -> None:
    if config.limits.max_unsynced < config.limits.max_bundle:
        raise _conflict(
            "limits.max_unsynced",
            format_size(config.limits.max_unsynced),
            f"at least limits.max_bundle ({format_size(config.limits.max_bundle)})",
        )
    if config.segment.max_variants < config.segment.max_streams:
        raise _conflict(
            "segment.max_variants",
            config.segment.max_variants,
            f"at least segment.max_streams ({config.segment.max_streams})",
        )
    cap, smallest = config.retention.size_cap, smallest_cap(config)
    if cap is not None and cap < smallest:
        raise _conflict(
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
            rows += [describe(inner, f"{name}.{key}", key) for key in inner.model_fields]
        else:
            rows.append(describe(Config, name, name))
    return rows


def setting_names() -> list[str]:
    """The dotted names of all settings."""
    return [setting.name for setting in settings()]


def describe(model: type[Section], dotted: str, key: str) -> Setting:
    """One setting of a model, as its row of the table; others' sections use it too."""
    field = model.model_fields[key]
    hint = model.__annotations__[key]
    size = "Size" in hint
    default = field.default
    if size and isinstance(default, int):
        default = format_size(default)
    elif "Duration" in hint and isinstance(default, float):
        default = f"{default * 1000:g}ms" if default < 1 else f"{default:.10g}s"
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
