"""Kinds of rounds: which settings, which clients, which acts how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chaos import acts
from tests.chaos.acts import Act
from tests.chaos.stage import DROPPED

LONG_LOG: Final = {"wal.rotation_target": "2MiB", "segment.target_size": "8KiB"}
"""The log still has what is in segments: they can be rebuilt from it."""
ALL: Final = ("bare-producer", "product-producer", "bare-subscriber", "product-subscriber")


@dataclass(frozen=True)
class Profile:
    """One kind of round."""

    name: str
    what: str
    acts: tuple[tuple[Act, int], ...]
    """Acts and how often, by weight."""
    needs: tuple[str, ...]
    """Trouble of which some must have taken effect: else the profile was not played."""
    own: int = 1
    """The first so many acts are what the profile is about: each round begins with one."""
    steps: tuple[int, int] = (2, 4)
    clients: tuple[str, ...] = ALL
    embedded: float = 0.5
    """How often an embedded store is there, too."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    or_else: Mapping[str, Any] = field(default_factory=dict)
    """Settings of every other round, by chance, on top."""
    of_store: bool = True
    """Whether the embedded store has these settings as well."""
    job: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    excuses: tuple[str, ...] = ()
    """Trouble that is there from the start: policies that may drop."""
    proxied: bool = False
    small_disk: bool = False
    descriptors: int | None = None
    slow_ms: float = 0.0
    """A slow disk, now and then: time for others to come in between."""


PROFILES: Final[dict[str, Profile]] = {
    profile.name: profile
    for profile in (
        Profile(
            "kill",
            "kill -9 of server and embedded store",
            ((acts.kill, 3), (acts.hold_subscriber, 1)),
            ("killed",),
            steps=(3, 5),
            embedded=0.6,
            slow_ms=30.0,
        ),
        Profile(
            "stop",
            "SIGSTOP and SIGCONT of server and clients, longer than leases",
            ((acts.stop_server, 2), (acts.stop_client, 2), (acts.kill, 1)),
            ("stopped", "stopped client"),
            own=2,
            embedded=0.0,
        ),
        Profile(
            "network",
            "connections reset, delayed, half-open",
            (
                (acts.reset_network, 2),
                (acts.delay_network, 1),
                (acts.silence_network, 2),
                (acts.kill, 1),
            ),
            ("reset", "delay", "half-open", "silent"),
            own=3,
            embedded=0.0,
            proxied=True,
        ),
        Profile(
            "full",
            "a full disk, freed by others or by acks",
            (
                (acts.fill_disk, 2),
                (acts.fill_by_puts, 2),
                (acts.fill_beside_keys, 2),
                (acts.kill, 1),
            ),
            (acts.REFUSED,),
            own=3,
            steps=(1, 2),
            embedded=0.0,
            small_disk=True,
            job={"pad": 200, "rows": 1, "keyed": 1.0, "window": 64, "transactions": 0.02},
        ),
        Profile(
            "descriptors",
            "few descriptors, idle connections hovering at the limit",
            ((acts.starve_descriptors, 3), (acts.kill, 1)),
            (acts.STARVED,),
            steps=(1, 3),
            embedded=0.0,
            descriptors=110,
        ),
        Profile(
            "memory",
            "a limit of memory for the running server, little for bundles and stages",
            ((acts.squeeze_memory, 3), (acts.hold_subscriber, 1), (acts.kill, 1)),
            ("memory limit",),
            settings={
                "server.memory": "1MiB",
                "transactions.max_memory": "16KiB",
                "segment.target_size": "512KiB",
                "segment.max_unfinalized": 2,
            },
            of_store=False,
            embedded=0.0,
            job={"transactions": 0.3, "rows": 60},
        ),
        Profile(
            "clock",
            "the wall clock days ahead or behind, for a moment",
            ((acts.jump_clock, 3), (acts.kill, 1)),
            (acts.JUMPED,),
            steps=(1, 2),
            embedded=0.7,
            settings={"retention.max_retain_after_ingestion_hours": 2.0},
            job={"repeats": 0.3, "keyed": 1.0, "transactions": 0.2},
        ),
        Profile(
            "rest",
            "bytes flipped and files cut while nobody has them open",
            ((acts.damage_at_rest, 4), (acts.damage_service_file, 1)),
            ("damage",),
            steps=(1, 2),
            or_else=LONG_LOG,
            embedded=0.7,
            job={"keyed": 1.0, "transactions": 0.05},  # few in doubt: losses are counted exactly
        ),
        Profile(
            "running",
            "sealed segments rot under a running server",
            ((acts.damage_while_running, 1),),
            ("damage",),
            steps=(1, 2),
            or_else=LONG_LOG,
            embedded=0.6,
            slow_ms=30.0,
        ),
        Profile(
            "settings",
            "other settings at each start",
            ((acts.new_settings, 4), (acts.hold_subscriber, 1)),
            ("settings",),
            steps=(3, 5),
            embedded=1.0,
        ),
        Profile(
            "caps",
            "a size cap that drops the oldest, slow subscribers",
            ((acts.hold_subscriber, 3), (acts.kill, 2)),
            (DROPPED,),
            settings={
                "retention.size_cap": "1MiB",
                "retention.size_cap_policy": "drop_oldest",
                "wal.max_size": "256KiB",
                "wal.rotation_target": "64KiB",
                "segment.target_size": "32KiB",
            },
            excuses=("caps",),
            job={"rows": 60},
        ),
        Profile(
            "age",
            "segments dropped by age, slow subscribers",
            ((acts.outlast_age, 3), (acts.kill, 2)),
            (DROPPED,),
            settings={"retention.max_retain_after_ingestion_hours": 0.0004},
            excuses=("age",),
        ),
        Profile(
            "fork",
            "an embedded store in a process that forks",
            ((acts.nothing, 1),),
            ("fork",),
            steps=(1, 1),
            clients=(),
            embedded=1.0,
            options={"forks": 4},
        ),
        Profile(
            "recreated",
            "streams deleted and made again, late acks, old tickets, dead letters, kills",
            ((acts.nothing, 1), (acts.kill, 2)),
            ("recreated",),
            own=2,
            steps=(2, 4),
            clients=("recreating", "bare-producer", "bare-subscriber"),
            embedded=0.0,
        ),
        Profile(
            "newer",
            "files of a newer version, put in while nobody has them open",
            ((acts.newer_file, 1),),
            ("newer file",),
            steps=(1, 2),
            embedded=0.0,
        ),
        Profile(
            "mix",
            "all of it, in any order",
            (
                (acts.kill, 4),
                (acts.stop_server, 1),
                (acts.stop_client, 1),
                (acts.reset_network, 1),
                (acts.silence_network, 1),
                (acts.fill_disk, 1),
                (acts.jump_clock, 1),
                (acts.new_settings, 2),
                (acts.damage_at_rest, 1),
                (acts.damage_while_running, 1),
                (acts.damage_service_file, 1),
                (acts.hold_subscriber, 2),
            ),
            ("killed",),
            own=12,
            steps=(4, 7),
            embedded=0.5,
            proxied=True,
            small_disk=True,
            slow_ms=8.0,
        ),
    )
}

IN_CI: Final[tuple[str, ...]] = (
    "kill",
    "rest",
    "network",
    "recreated",
    "running",
    "fork",
    "settings",
    "stop",
    "clock",
    "newer",
)
"""The profiles that the tests play, in short rounds."""
