"""What a program of a round is told, and the flags it looks at while it works.

A flag is an empty file in the round's directory: it needs no connection that could break.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.chaos.content import bundle_of, content_hash, identity_of
from tests.chaos.history import Book

STOP_PUTTING: Final = "stop-putting"
STOP: Final = "stop"
NEW_NAMES: Final = "new-names"
MAX_SLOT_NAMES: Final = 27
"""Of one program: a stream has room for 64 in its life, and two programs put into one."""
SLOW_TURN: Final = 0.04
REJECTS: Final = 0.02
"""Share of the bundles that a subscriber rejects."""


@dataclass(frozen=True, slots=True)
class Job:
    """One program's orders; as JSON on its command line."""

    name: str
    role: str
    directory: str
    seed: str
    url: str = ""
    stream: str = "t"
    subscriber: str = ""
    rows: int = 12
    window: int = 6
    pad: int = 0
    """Bytes that keys are made longer by."""
    keyed: float = 0.8
    repeats: float = 0.05
    new_slots: float = 0.02
    transactions: float = 0.1
    pace: float = 0.0
    """Seconds between two turns of a producer."""
    life: int = 0
    settings: str = "{}"
    options: str = "{}"

    @classmethod
    def from_arguments(cls) -> Job:
        return cls(**json.loads(sys.argv[1]))

    def to_argument(self) -> str:
        return json.dumps(asdict(self))

    @property
    def random(self) -> Random:
        return Random(f"{self.seed}/{self.name}/{self.life}")

    @property
    def book(self) -> Book:
        return Book(Path(self.directory) / f"{self.name}.notes", self.name)

    def option(self, name: str, default: Any = None) -> Any:
        return json.loads(self.options).get(name, default)


class Flags:
    """What the round wants of its programs now."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._never = threading.Event()

    def up(self, name: str) -> bool:
        return (self._directory / f"{name}.flag").exists()

    def raise_(self, name: str) -> None:
        (self._directory / f"{name}.flag").touch()

    def lower(self, name: str) -> None:
        (self._directory / f"{name}.flag").unlink(missing_ok=True)

    @property
    def putting(self) -> bool:
        return not self.up(STOP_PUTTING)

    @property
    def running(self) -> bool:
        return not self.up(STOP)

    def pause(self, seconds: float) -> None:
        """Wait, between two tries or because the job says so."""
        self._never.wait(seconds)

    def hold(self, name: str) -> bool:
        """Wait as long as this program is to stand still; whether it is to be slow."""
        while self.up(f"hold-{name}") and self.running:
            self.pause(0.02)
        slow = self.up(f"slow-{name}")
        if slow:
            self.pause(SLOW_TURN)
        return slow


@dataclass(frozen=True, slots=True)
class Item:
    """A bundle to be put."""

    identity: str
    key: str | None
    slots: tuple[str, ...]
    rows: int

    def bundle(self) -> dict[str, Any]:
        return bundle_of(self.identity, self.slots, self.rows)


class Maker:
    """Makes the bundles of one program, and remembers what may be sent again."""

    def __init__(self, job: Job, book: Book, base: Sequence[str]) -> None:
        self._job = job
        self._book = book
        self._random = job.random
        self._flags = Flags(job.directory)
        self._numbers = itertools.count()
        self._slots = list(base)
        self.unanswered: list[Item] = []
        """Keyed and in doubt: to be sent again, until answered."""
        self.answered: list[Item] = []

    def items(self, lone: bool) -> list[Item]:
        """The next bundles; all in one slot if ``lone``."""
        chance, job = self._random, self._job
        if self.unanswered:
            again, self.unanswered = self.unanswered[: job.window], self.unanswered[job.window :]
            return [one for one in again if not lone or one.slots == again[0].slots] or again
        if self.answered and chance.random() < job.repeats:
            return [chance.choice(self.answered)]
        slots = self._choose(lone)
        count = chance.randint(1, job.window)
        return [self._item(slots) for _ in range(count)]

    def _choose(self, lone: bool) -> tuple[str, ...]:
        chance = self._random
        often = 0.5 if self._flags.up(NEW_NAMES) else self._job.new_slots
        if len(self._slots) < MAX_SLOT_NAMES and chance.random() < often:
            self._slots.append(f"{self._job.name}-{len(self._slots)}")
            return (self._slots[-1],)
        count = 1 if lone else chance.randint(1, min(3, len(self._slots)))
        return tuple(chance.sample(self._slots, count))

    def _item(self, slots: tuple[str, ...]) -> Item:
        identity = f"{self._job.name}.{self._job.life}/{next(self._numbers)}"
        keyed = self._random.random() < self._job.keyed
        key = identity + "." * self._job.pad if keyed else None
        return Item(identity, key, slots, self._random.randint(1, self._job.rows))

    def sending(self, item: Item, **more: Any) -> dict[str, Any]:
        """Write down that it is about to be sent; its batches."""
        bundle = item.bundle()
        self._book.note(
            "put",
            stream=self._job.stream,
            id=item.identity,
            key=item.key,
            hash=content_hash(bundle),
            **more,
        )
        return bundle

    def done(self, item: Item, status: str, ref: Any = None, level: str | None = None) -> None:
        """Write an answer down, or that there was none (``lost``)."""
        self._book.note(
            "answer",
            stream=self._job.stream,
            id=item.identity,
            status=status,
            ref=None if ref is None else list(ref),
            level=level,
        )
        if status in ("ok", "dup"):
            if item.key is not None:
                self.answered.append(item)
        elif status == "rejected":
            self._book.violation("refused_for_good", f"{item.identity} was rejected")
        elif item.key is not None or status == "retry":
            self.unanswered.append(item)


def delivered(book: Book, job: Job, ref: Any, bundle: dict[str, Any]) -> None:
    """Write down what came, as its values say."""
    book.note(
        "delivered",
        stream=job.stream,
        subscriber=job.subscriber,
        ref=list(ref),
        id=identity_of(bundle),
        hash=content_hash(bundle),
    )
