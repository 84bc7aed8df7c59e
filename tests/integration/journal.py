"""What programs in containers have said: a line of JSON for each thing that happened.

=========================  ========================================================
``{"put": key, "ref"}``    a producer has a receipt that says durable
``{"got": key, "ref"}``    a subscriber was given a bundle
``{"acked": [ref, …]}``    … and the server has on disk that it is done with these
``{"staged": [name, …]}``  attempts of a transaction are on the server's disk
``{"committed": n, …}``    … and published: n bundles, ``repeated`` or not
``{"told": code, …}``      the server said no, or not now
``{"done": …}``            it is finished
=========================  ========================================================
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Journal:
    """The lines of one program so far."""

    entries: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, text: str) -> Journal:
        """From what a container wrote; a line that is half there is not there yet."""
        found = []
        for line in text.splitlines():
            if line.startswith("{"):
                try:
                    found.append(json.loads(line))
                except json.JSONDecodeError:
                    continue
        return cls(found)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All entries of one kind, in order."""
        return [one for one in self.entries if kind in one]

    @property
    def promised(self) -> dict[str, str]:
        """Key and ref of everything answered durable."""
        return {one["put"]: one["ref"] for one in self.of("put")}

    @property
    def received(self) -> Counter[str]:
        """How often each key came."""
        return Counter(one["got"] for one in self.of("got"))

    @property
    def refs(self) -> dict[str, set[str]]:
        """Under which refs each key came: more than one would be a double."""
        found: dict[str, set[str]] = {}
        for one in self.of("got"):
            found.setdefault(one["got"], set()).add(one["ref"])
        return found

    @property
    def acked(self) -> Counter[str]:
        """How often each ref was finished, for good."""
        return Counter(ref for one in self.of("acked") for ref in one["acked"])

    @property
    def done(self) -> dict[str, Any] | None:
        """Its last word."""
        said = self.of("done")
        return said[-1] if said else None
