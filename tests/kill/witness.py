"""What the victim said, kept outside of it; and what that means for what is left."""

from __future__ import annotations

from collections import defaultdict

from quiver.ids import BundleRef
from quiver.store.store import Store
from tests.faults.world import Found, look


class Testimony:
    """Everything heard in all rounds so far."""

    def __init__(self) -> None:
        self.offered: set[int] = set()
        self.durable: dict[int, BundleRef] = {}
        self.asked: dict[str, set[int]] = defaultdict(set)
        self.kept: dict[str, set[int]] = defaultdict(set)

    def hear(self, line: str) -> str:
        """Take one line down; which kind it was."""
        kind, *values = line.split()
        if kind == "offered":
            self.offered.add(int(values[0]))
        elif kind == "durable":
            self.durable[int(values[0])] = BundleRef(int(values[1]), int(values[2]))
        elif kind == "asked":
            self.asked[values[0]].add(int(values[1]))
        elif kind == "kept":
            self.kept[values[0]].add(int(values[1]))
        return kind

    def may_be_gone(self, number: int) -> bool:
        """Whether every subscriber had asked to be done with it."""
        return bool(self.asked) and all(number in acked for acked in self.asked.values())

    def check(self, store: Store) -> Found:
        """Hold a reopened store against it; what was found."""
        found = look(store)
        assert not store.report.lost, store.report.lost
        assert not store.report.quarantined, store.report.quarantined
        strange = set(found.bundles) - self.offered
        assert not strange, f"nobody put {sorted(strange)[:5]}"
        for number, ref in self.durable.items():
            if number in found.bundles:
                assert found.bundles[number] == ref, f"bundle {number} changed its ref"
            else:
                assert self.may_be_gone(number), f"durable bundle {number} ({ref}) is lost"
        for name, left in found.outstanding.items():
            again = left & self.kept[name]
            assert not again, f"{name} gets {sorted(again)[:5]} again"
            skipped = set(found.bundles) - left - self.asked[name]
            assert not skipped, f"{name} never gets {sorted(skipped)[:5]}"
        return found
