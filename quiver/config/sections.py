"""The sections of the configuration: each setting with its default, bounds and meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from quiver.config.problems import explain, not_allowed
from quiver.ids import MAX_BUNDLES_PER_SEGMENT
from quiver.units import DURATION_HELP, GIB, KIB, MIB, SIZE_HELP, parse_duration, parse_size

Durability = Literal["wal", "segment_only"]
Deliver = Literal["durable", "sealed"]
Validation = Literal["full", "basic", "off"]
ReadMode = Literal["pread", "mmap"]
Verify = Literal["always", "once"]
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
            except ValueError:
                raise not_allowed(help_text) from None
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise not_allowed(help_text)
        return value

    return read


def _read_duration(value: object) -> object:
    read = _unit(parse_duration, DURATION_HELP)(value)
    return float(read) if isinstance(read, int) else read


Size = Annotated[int, BeforeValidator(_unit(parse_size, SIZE_HELP))]
Duration = Annotated[float, BeforeValidator(_read_duration), Field(allow_inf_nan=False)]


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
            raise explain(error, self.prefix, self.known_names(), None) from None

    # Tells pydantic that this is its own way to make a model: a section inside a Config is
    # then validated in place, and all problems of all sections arrive together.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def known_names(cls) -> list[str]:
        """What may be set here, by dotted name."""
        return [f"{cls.prefix}.{name}" for name in cls.model_fields]


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
        default=16 * MIB,
        ge=512,
        le=GIB,
        description="Most bytes written and synced in one go, within one log file.",
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
        default=3,
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


class TransactionsConfig(Section):
    """Staged writes: what is kept of them, and for how long."""

    prefix: ClassVar[str] = "transactions"

    max_apps: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Writers whose last committed version is remembered; the oldest go first.",
    )
    remember: Duration = Field(
        default=30 * 86_400.0,
        gt=0,
        description="Longest time a committed version is remembered after its commit.",
    )
    stage_ttl: Duration = Field(
        default=86_400.0,
        gt=0,
        description="A stage that is neither committed nor aborted goes after this long.",
    )
    max_memory: Size = Field(
        default=128 * MIB,
        ge=KIB,
        description="Staged bytes held in memory, all stages together; then some are written.",
    )
    max_stages: int = Field(
        default=100_000, ge=1, le=10_000_000, description="Most stages at a time."
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
