"""Repair of damaged directories of the Rust crate."""

from __future__ import annotations

import pytest

from quiver import ManualClock
from quiver.errors import StoreLocked
from quiver.offline.mend import mend
from quiver.offline.repair import RepairPlan
from quiver.offline.verify import verify
from tests.support.crashed import disk_of, image_of
from tests.support.rust import Image, dumped, fixture, opened


def check(image: Image, where: object) -> None:
    """After a repair the store opens, is sound, and serves what a dump had saved."""
    before, _ = dumped(image)
    disk = disk_of(image)
    plan = RepairPlan(disk)
    assert image_of(disk) == image, where
    mend(disk, ManualClock(), where="mem")
    repaired = image_of(disk)
    if not plan.is_needed:
        assert before.sound, where
        return
    assert plan.actions, where
    verdict = verify(disk_of(repaired))
    assert verdict.sound, (where, verdict.problems)
    after, _ = dumped(repaired)
    assert [saved.ref for saved in after.saved] == [saved.ref for saved in before.saved], where
    assert [saved.slots for saved in after.saved] == [saved.slots for saved in before.saved], where
    with opened(repaired) as store:
        found = [bundle.ref for bundle in store.subscribe("newcomer", follow=False)]
        assert found == [saved.ref for saved in before.saved], where
        assert store.report.maybe_doubled is None
    kept = {data for path, data in repaired.items() if path.startswith("quarantine/")}
    for path, data in image.items():
        if repaired.get(path) != data and not path.startswith("quiver.sub."):
            assert data in kept, (where, path)


@pytest.mark.parametrize("name", ["tiny-clean", "tiny-crashed", "crashed", "multislot"])
def test_flipped_bytes(name: str) -> None:
    """A flip in any file, at a few places."""
    image = fixture(name)
    for path, data in image.items():
        for at in range(5, len(data), max(1, len(data) // 4)):
            changed = bytearray(data)
            changed[at] ^= 0x18
            check({**image, path: bytes(changed)}, (path, at))


@pytest.mark.parametrize("name", ["tiny-clean", "tiny-crashed", "crashed", "basic"])
def test_sound_directories_are_left_alone(name: str) -> None:
    """There is nothing to repair, and nothing is touched."""
    disk = disk_of(fixture(name))
    plan = RepairPlan(disk)
    assert (plan.is_needed, plan.actions) == (False, [])
    mend(disk, ManualClock(), where="mem")
    image = image_of(disk)
    image.pop("LOCK")
    assert image == fixture(name)


def test_a_running_writer_is_in_the_way() -> None:
    """Two must not write to one store."""
    store = opened(fixture("tiny-clean"))
    with pytest.raises(StoreLocked):
        mend(store._disk, ManualClock(), where="mem")
    store.close()
