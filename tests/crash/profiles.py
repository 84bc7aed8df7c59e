"""What kinds of workloads there are: which settings, which steps how often.

The limits are tiny, so that everything that can happen happens within a few bundles:
files of the log are full after two or three of them, segments after as many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from quiver.config import Config

Weights = Mapping[str, int]

USUAL: Final[Weights] = {
    "put": 30,
    "burst": 8,
    "repeat": 4,
    "wait": 12,
    "sync": 3,
    "flush": 5,
    "maintain": 5,
    "tick": 4,
    "subscribe": 5,
    "consume": 12,
    "drain": 4,
    "flush_progress": 4,
    "seek": 1,
    "unregister": 1,
    "close": 1,
    "kill": 2,
    "cut": 2,
    "die": 4,
}


@dataclass(frozen=True)
class Profile:
    """Settings, and how often each step comes (on top of the usual)."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: Weights = field(default_factory=dict)
    steps: tuple[int, int] = (10, 26)
    fixtures: tuple[str, ...] = ()
    """Directories of the Rust crate to begin with."""

    @property
    def drops(self) -> bool:
        """Whether retention may give up what somebody still needs."""
        retention = self.settings.get("retention", {})
        return (
            retention.get("size_cap_policy") == "drop_oldest"
            or "max_retain_after_ingestion_hours" in retention
        )


def _settings(**changes: Any) -> dict[str, Any]:
    """Tiny limits: everything that can happen happens within a few bundles."""
    settings: dict[str, Any] = {
        "reserve": 0,
        "validation": "off",
        "wal": {"rotation_target": 2048, "max_size": 12288, "max_rotated_files": 6},
        "segment": {"target_size": 2048, "max_bundles": 3, "max_unfinalized": 2},
        "limits": {"max_bundle": 2048, "max_unsynced": 4096},
    }
    for section, values in changes.items():
        if isinstance(values, dict):
            settings[section] = {**settings.get(section, {}), **values}
        else:
            settings[section] = values
    return settings


_STAGES: Final = {"stage_ttl": 600.0}
_TRANSACTIONS: Final[Weights] = {
    "tx_stage": 16,
    "tx_finish": 4,
    "tx_commit": 16,
    "tx_whole": 12,
    "tx_again": 6,
    "tx_abort": 4,
    "tx_discard": 2,
    "tx_expire": 1,
}
_CAP: Final = 12288 + 2 * 2048

PROFILES: Final = (
    Profile("plain", _settings()),
    Profile(
        "laps",
        _settings(wal={"rotation_target": 1024}, segment={"target_size": 1024, "max_bundles": 2}),
        {"burst": 30, "flush": 12, "consume": 4, "maintain": 12, "subscribe": 1, "close": 3},
        (14, 30),
    ),
    Profile(
        "consumers",
        _settings(segment={"max_bundles": 2}),
        {
            "subscribe": 14,
            "consume": 40,
            "flush_progress": 12,
            "seek": 6,
            "unregister": 5,
            "maintain": 14,
            "kill": 4,
            "cut": 4,
        },
        (16, 34),
    ),
    Profile(
        "drop_oldest",
        _settings(
            segment={"max_bundles": 2},
            retention={"size_cap": _CAP + 6000, "size_cap_policy": "drop_oldest"},
        ),
        {"burst": 25, "maintain": 16, "flush": 10, "consume": 5},
        (16, 30),
    ),
    Profile(
        "age",
        _settings(retention={"max_retain_after_ingestion_hours": 1.0}),
        {"hours": 8, "maintain": 16, "flush": 10},
    ),
    Profile(
        "segment_only",
        _settings(durability="segment_only"),
        {"flush": 8, "maintain": 8, "kill": 4, "cut": 4},
    ),
    Profile(
        "disk_full",
        _settings(reserve=512),
        {"squeeze": 16, "gulp": 30, "repeat": 16, "maintain": 8, "flush_progress": 8},
        (16, 30),
    ),
    Profile("sealed", _settings(deliver="sealed"), {"consume": 20, "maintain": 10}),
    Profile("every", _settings(wal={"flush": "every"}), {"burst": 16}),
    Profile(
        "bad_fsync",
        _settings(),
        {"bad_fsync": 8, "kill": 8, "cut": 3, "drain": 8, "maintain": 8},
    ),
    Profile(
        "restarts",
        _settings(wal={"recycle": False}),
        {"close": 8, "kill": 6, "cut": 6, "die": 24, "burst": 14},
        (14, 30),
    ),
    Profile(
        "kept",
        _settings(
            segment={"max_bundles": 2},
            read_mode="pread",
            wal={"max_idle_age": 30.0},
            retention={"keep_after_finish": 5.0, "steady_state_headroom": 4000},
            idempotency={"window_count": 4},
        ),
        {"consume": 24, "drain": 14, "maintain": 24, "tick": 20, "seek": 4, "subscribe": 8},
        (18, 34),
    ),
    Profile(
        "foreign",
        _settings(),
        {"die": 8, "drain": 6, "close": 3},
        (4, 12),
        fixtures=("tiny-crashed", "tiny-clean"),
    ),
    Profile(
        "switch",
        _settings(segment={"max_bundles": 2}),
        {"switch": 14, "die": 8, "close": 3},
        (12, 24),
    ),
    Profile(
        "triggers",
        _settings(
            segment={"target_size": 700, "max_bundles": 6, "max_rows": 3, "max_streams": 3},
            slots={"Logs": 3, "Spans": 0, "Metrics": 7, "Events": 9},
            event_time={"Logs": "n"},
        ),
        {"burst": 14, "tick": 10, "maintain": 10},
    ),
    Profile(
        "capped",
        _settings(segment={"max_bundles": 2}, retention={"size_cap": _CAP + 9000}),
        {"burst": 25, "drain": 14, "maintain": 12, "flush": 6},
    ),
    Profile(
        "keeping_up",
        _settings(wal={"rotation_target": 1024}, segment={"target_size": 2048, "max_bundles": 6}),
        {"burst": 2, "drain": 40, "flush": 24, "subscribe": 8, "maintain": 10, "seek": 4},
        (16, 34),
    ),
    Profile("jumpy", _settings(segment={"max_bundles": 2}), {"jump": 12, "drain": 8}),
    Profile(
        "transactions",
        _settings(segment={"target_size": 1024, "max_bundles": 2}, transactions=_STAGES),
        {**_TRANSACTIONS, "put": 14, "die": 12},
        (12, 28),
    ),
    Profile(
        "tx_laps",
        _settings(
            wal={"rotation_target": 1024},
            segment={"target_size": 1024, "max_bundles": 3},
            transactions=_STAGES,
        ),
        {**_TRANSACTIONS, "burst": 16, "flush": 8, "drain": 10, "maintain": 14, "tx_again": 10},
        (14, 30),
    ),
    Profile(
        "tx_full",
        _settings(
            reserve=512,
            segment={"target_size": 1024, "max_bundles": 2},
            transactions={**_STAGES, "max_memory": 1024},
        ),
        {**_TRANSACTIONS, "squeeze": 10, "tx_full": 12, "bad_fsync": 3, "kill": 6, "maintain": 8},
        (14, 28),
    ),
    Profile(
        "long_segments",  # each in several files of the log
        _settings(
            wal={"rotation_target": 1024, "max_size": 16384, "max_rotated_files": 16},
            segment={"target_size": 4096, "max_bundles": 12},
        ),
        {"burst": 30, "flush": 4, "maintain": 16, "consume": 6, "kill": 4, "cut": 4},
        (14, 30),
    ),
    Profile(
        "refusals",  # several in one segment, and of some bundles more than once
        _settings(segment={"target_size": 4096, "max_bundles": 4}),
        {
            "refuse": 60,
            "regret": 20,
            "flush_progress": 30,
            "maintain": 20,
            "flush": 12,
            "drain": 12,
        },
        (24, 40),
    ),
)


@lru_cache(maxsize=64)
def config_of(profile: int) -> Config:
    """The settings of a profile; made once, since thousands of opens use them."""
    return Config.load(env={}, **PROFILES[profile].settings)


def number_of(name: str) -> int:
    """The number of a profile."""
    return next(at for at, one in enumerate(PROFILES) if one.name == name)
