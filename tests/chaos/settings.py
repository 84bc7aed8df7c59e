"""Settings of server and embedded store in a round: small, and other ones in every life."""

from __future__ import annotations

from collections.abc import MutableMapping
from random import Random
from typing import Any, Final

SMALL: Final[dict[str, Any]] = {
    "reserve": "64KiB",
    "segment.target_size": "48KiB",
    "segment.max_open_duration": "200ms",
    "wal.rotation_target": "128KiB",
    "wal.max_size": "4MiB",
    "wal.max_rotated_files": 64,
    "limits.max_bundle": "32KiB",
    "limits.max_unsynced": "512KiB",
    "subscribers.progress_interval": "20ms",
}
"""Segments, rotation and deletion happen many times in a round."""
OF_THE_SERVER: Final[dict[str, Any]] = {"server.drain_timeout": "6s", "delivery.lease": "2s"}

CHOICES: Final[dict[str, tuple[Any, ...]]] = {
    "deliver": ("durable", "sealed"),
    "durability": ("wal", "wal", "segment_only"),
    "read_mode": ("mmap", "pread"),
    "retention.keep_after_finish": (None, None, "2s", "60s"),
    "wal.flush": ("group", "every", "interval"),
    "wal.rotation_target": ("32KiB", "128KiB", "1MiB"),
    "wal.recycle": (True, False),
    "segment.target_size": ("8KiB", "48KiB", "512KiB"),
    "segment.max_open_duration": ("50ms", "200ms", "2s"),
    "max_mapped_segments": (1, 4, 256),
    "idempotency.window_count": (65_536, 100_000),
}
"""What an operator may change between two starts."""


def first_settings(chance: Random) -> dict[str, Any]:
    """A first life's: sizes by chance, the rest as it comes."""
    settings = dict(SMALL)
    sizes = ("wal.rotation_target", "segment.target_size", "max_mapped_segments", "wal.recycle")
    for name in sizes:
        settings[name] = chance.choice(CHOICES[name])
    return settings


def change_settings(settings: MutableMapping[str, Any], chance: Random) -> None:
    """Another life's."""
    for name in chance.sample(sorted(CHOICES), chance.randint(2, 6)):
        value = chance.choice(CHOICES[name])
        if value is None:
            settings.pop(name, None)
        else:
            settings[name] = value
