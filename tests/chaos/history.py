"""What the processes of a round write down, each into a file of its own.

A note is one JSON line in one write, so a process that dies leaves whole lines only.  ``at``
is the machine's monotonic clock, the same for all processes: it gives the notes one order.

============  ================================================================================
kind          fields
============  ================================================================================
put           ``stream id hash key``: about to be sent; ``app version`` in a transaction
answer        ``stream id status ref level``: what the server (or the store) said
registered    ``stream subscriber``: from here on every durable bundle is owed to it
left          ``stream subscriber``: from here on nothing is
deleted       ``stream``: about to be deleted; what it owed it owes no more
drained       ``stream subscriber``: nothing is pending any more: everything owed has come
dead          ``stream ref id hash origin``: a dead letter, and the ref it had in its stream
buried        ``stream ids``: drained; these were never acked, so each is a dead letter
delivered     ``stream subscriber ref id hash``: as recomputed from the values that came
acked         ``stream subscriber refs``: answered as durable
rejecting     ``stream subscriber refs``: about to be rejected
rejected      ``stream subscriber refs``: answered as durable
moved         ``stream subscriber``: a seek; what was acked may come again
committed     ``stream app version``: the commit was answered
read          ``stream ref id hash``: found by reading without a subscriber, in the calm
resent        ``stream id status ref``: a bundle on record as lost, put again in the calm
status        ``stream state problems``: in the calm
ledger        ``stream rows``: the loss ledger, in the calm
trouble       ``what stream …``: done by the stage; see :mod:`tests.chaos.acts`
cut_short     the round ended early: what did not come may have been still to come
violation     ``invariant sentence bundles``: seen on the spot, not deduced
============  ================================================================================
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Note:
    """One line."""

    at: int
    who: str
    kind: str
    fields: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.fields.get(name, default)


class Book:
    """The file a process writes its notes to."""

    def __init__(self, path: str | Path, who: str) -> None:
        self.who = who
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def note(self, kind: str, **fields: Any) -> None:
        """Write one line."""
        line = json.dumps({"at": time.monotonic_ns(), "who": self.who, "kind": kind, **fields})
        os.write(self._file, line.encode() + b"\n")

    def violation(self, invariant: str, sentence: str, bundles: Iterable[str] = ()) -> None:
        """Something was seen that must not be."""
        self.note("violation", invariant=invariant, sentence=sentence, bundles=list(bundles))


def parse(line: str | bytes) -> Note:
    """One line back."""
    fields = json.loads(line)
    return Note(fields.pop("at"), fields.pop("who"), fields.pop("kind"), fields)


class Reader:
    """Reads a directory's notes as they grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[Path, int] = {}
        self.notes: list[Note] = []

    def read(self) -> list[Note]:
        """What has come since the last time."""
        fresh: list[Note] = []
        for path in sorted(self._directory.glob("*.notes")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            whole = data.rfind(b"\n") + 1
            self._offsets[path] = self._offsets.get(path, 0) + whole
            fresh += [parse(line) for line in data[:whole].splitlines()]
        self.notes += fresh
        return fresh

    def all(self) -> list[Note]:
        """Every note so far, in the order of time."""
        self.read()
        return sorted(self.notes, key=lambda note: note.at)
