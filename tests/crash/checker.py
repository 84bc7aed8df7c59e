"""Opening one state and checking it against what was promised."""

from __future__ import annotations

from quiver.clock import ManualClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.errors import Damage
from quiver.store.store import Store
from tests.crash.disk import CrashDisk
from tests.crash.invariants import (
    INVARIANTS,
    PROBES,
    Case,
    Violation,
    durable_present,
    no_phantom,
    opens,
    present_once,
    same_again,
)
from tests.crash.look import Looker, View
from tests.crash.oracle import Oracle
from tests.crash.states import State


class Checker:
    """Opens states of one workload and checks them."""

    def __init__(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self._looker = Looker()
        self._reopened: set[object] = set()

    def check(self, state: State, oracle: Oracle) -> None:
        """Raise :class:`Violation` if anything promised isn't so in this state."""
        assert oracle.config is not None
        store, disk = self._open(state, oracle.config)
        after = disk.image()
        view = self._looker.look(store, after)
        case = Case(oracle, store, disk, state.files, after, view, self._now_ns, {})
        for invariant in INVARIANTS:
            invariant(case)
        self._again(State(after, disk.directories()), view, oracle.config)
        for probe in PROBES:
            try:
                probe(case)
            except Violation:
                raise
            except Exception as error:
                raise Violation(probe.__name__, f"{type(error).__name__}: {error}") from error

    def _open(self, state: State, config: Config) -> tuple[Store, CrashDisk]:
        disk = CrashDisk.from_image(state.files, state.directories, record=False)
        assert isinstance(disk, CrashDisk)
        clock = ManualClock(self._now_ns)
        try:
            store = Store(Disk(disk), config, where="crash", clock=clock)
        except Exception as error:
            raise opens(error) from error
        return store, disk

    def _again(self, state: State, first: View, config: Config) -> None:
        """Open once more; what lies in quarantine changes nothing and is left out."""
        kept = frozenset(
            (path, data)
            for path, data in state.files.items()
            if path != "LOCK" and not path.startswith("quarantine/")
        )
        if (kept, id(config)) in self._reopened:
            return
        self._reopened.add((kept, id(config)))
        store, disk = self._open(state, config)
        same_again(first, self._looker.look(store, disk.image()))

    def damage(self, state: State, oracle: Oracle) -> None:
        """A state with a damaged log must be refused, unless nothing is missing from it."""
        assert oracle.config is not None
        disk = CrashDisk.from_image(state.files, state.directories, record=False)
        assert isinstance(disk, CrashDisk)
        try:
            store = Store(Disk(disk), oracle.config, where="crash", clock=ManualClock(self._now_ns))
        except Damage:
            return
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise Violation("damage_noticed", f"refused, but not as damage: {what}") from error
        after = disk.image()
        view = self._looker.look(store, after)
        case = Case(oracle, store, disk, state.files, after, view, self._now_ns, {})
        for invariant in (no_phantom, present_once, durable_present):
            try:
                invariant(case)
            except Violation as violation:
                raise Violation("damage_noticed", str(violation)) from violation
