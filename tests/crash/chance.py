"""What a store draws at random, decided: the same run twice writes the same bytes."""

from __future__ import annotations

import random
import secrets
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def decided(name: str) -> Iterator[None]:
    """Salts of log files and uuids of stores come from a source of this name's own."""
    rng = random.Random(f"chance of {name}")

    def randbits(bits: int) -> int:
        return rng.getrandbits(bits) if _is_ours() else secrets.SystemRandom().getrandbits(bits)

    def uuid4() -> uuid.UUID:
        bits = rng.getrandbits(128) if _is_ours() else secrets.SystemRandom().getrandbits(128)
        return uuid.UUID(int=bits, version=4)

    with (
        mock.patch.object(secrets, "randbits", randbits),
        mock.patch.object(uuid, "uuid4", uuid4),
    ):
        yield


def _is_ours() -> bool:
    """Whether the store draws: modules of others that are loaded meanwhile draw, too."""
    return "quiver" in sys._getframe(2).f_code.co_filename.split("/")
