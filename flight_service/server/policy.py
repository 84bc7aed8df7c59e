"""How one subscriber is served, and how that is kept.

A policy is a plain value: given at ``register``, kept in the stream's ``service.json``,
shown in ``status``.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from flight_service.protocol.actions import Register
from flight_service.server.settings import DeliverySection
from quiver.errors import StateCorrupt

MAX_DOUBLINGS: Final = 40
_NUMBERS: Final = (
    "lease_ms",
    "max_in_flight",
    "max_in_flight_bytes",
    "max_deliveries",
    "backoff_ms",
    "backoff_max_ms",
)


@dataclass(frozen=True, slots=True)
class Policy:
    """All that decides about a subscriber's deliveries; times in milliseconds."""

    lease_ms: int
    max_in_flight: int
    max_in_flight_bytes: int
    max_deliveries: int
    poison: str
    backoff_ms: int
    backoff_max_ms: int
    dead_letter_stream: str | None = None
    slots: tuple[str, ...] | None = None

    @classmethod
    def default(cls, settings: DeliverySection) -> Self:
        """What the server's settings say."""
        return cls(
            lease_ms=int(settings.lease * 1000),
            max_in_flight=settings.max_in_flight,
            max_in_flight_bytes=settings.max_in_flight_bytes,
            max_deliveries=settings.max_deliveries,
            poison=settings.poison,
            backoff_ms=int(settings.backoff * 1000),
            backoff_max_ms=int(settings.backoff_max * 1000),
        )

    def changed_by(self, request: Register) -> Policy:
        """With what a register asks for; what it leaves out stays."""
        given = {
            name: value
            for name in self.__dataclass_fields__
            if (value := getattr(request, name)) is not None
        }
        return replace(self, **given)

    @classmethod
    def can_read(cls, saved: Any) -> bool:
        """Whether these are values that :meth:`write` may have written."""
        if not isinstance(saved, dict):
            return False
        numbers = [saved[name] for name in _NUMBERS if name in saved]
        slots = saved.get("slots")
        return (
            all(type(number) is int for number in numbers)
            and isinstance(saved.get("poison", ""), str)
            and isinstance(saved.get("dead_letter_stream"), str | None)
            and (slots is None or _are_names(slots))
        )

    @classmethod
    def read(cls, saved: Any, default: Policy) -> Policy:
        """From ``service.json``; what an older version didn't know has its default."""
        if not cls.can_read(saved):
            raise StateCorrupt("a subscriber's policy is not one.", file="service.json")
        known = {name: saved[name] for name in cls.__dataclass_fields__ if name in saved}
        if known.get("slots") is not None:
            known["slots"] = tuple(known["slots"])
        return replace(default, **known)

    def write(self) -> dict[str, Any]:
        """For ``service.json`` and ``status``."""
        return asdict(self)

    def backoff(self, failures: int) -> float:
        """Seconds until the next try: doubles each time, half of it by chance.

        Chance keeps those who failed together from coming back together.
        """
        doubled = self.backoff_ms * float(2 ** min(max(failures - 1, 0), MAX_DOUBLINGS))
        longest = min(doubled, float(self.backoff_max_ms)) / 1000
        return longest * (0.5 + random.random() / 2)

    def dead_letters(self, stream: str) -> str:
        """Where poison of a stream goes: names end at 64 characters."""
        return self.dead_letter_stream or f"{stream[:59]}-dead"


def _are_names(found: object) -> bool:
    return isinstance(found, list | tuple) and all(isinstance(name, str) for name in found)
