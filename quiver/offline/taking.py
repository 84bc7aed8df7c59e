"""Looking at a directory and taking its inventory, whoever wrote it."""

from __future__ import annotations

from quiver.disk.disk import Disk
from quiver.offline.inventory import Inventory, OwnTaking
from quiver.offline.look import Look, Watch, look, until_still
from quiver.offline.rust import RustTaking


def take_inventory(found: Look) -> Inventory:
    """Work out what a directory holds."""
    return (RustTaking if found.log.foreign else OwnTaking)(found).work()


def look_and_take(
    disk: Disk, *, watch: Watch | None = None, check: bool = True
) -> tuple[Look, Inventory]:
    """Look, and work out what is there; again, if files go away meanwhile."""

    def once() -> tuple[Look, Inventory]:
        found = look(disk, watch=watch, check=check)
        return found, take_inventory(found)

    return until_still(once)
