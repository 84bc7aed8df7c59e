"""Files that a newer version wrote: refused by name, and not a byte of the directory changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quiver.cli import app
from quiver.clock import ManualClock
from quiver.disk.disk import Disk
from quiver.errors import UnsupportedVersion
from quiver.format.crc import crc32, crc32c
from quiver.format.floor import FLOOR_PATH
from quiver.format.segment.file import FOOTER_SIZE, TRAILER_SIZE
from quiver.format.segment.guard import SEAL_SIZE
from quiver.format.segment.stage import StageKey, stage_path
from quiver.offline.dump import dump
from quiver.offline.mend import mend
from quiver.offline.repair import RepairPlan
from quiver.offline.summary import summarize
from quiver.offline.verify import verify
from tests.support.memory_disk import MemoryDisk
from tests.support.rust import Image, batches_of
from tests.support.stores import World, batch, flipped, number_of

SEGMENT = "segments/0000000000000001.qseg"
STAGED = stage_path(StageKey("app", 1, "a1").id, 0)
RUN = "keys/00000000000000000001-00000000000000000001"
LEFTOVER = "segments/0000000000000099.qseg.tmp"


def store() -> World:
    """Three segments that the log has let go, a staged attempt, a subscriber that has acked
    the first bundle, and a key in a run."""
    world = World()
    reader = world.store.subscribe("reader", follow=False)
    world.put(0, key="k").wait()
    world.sealed(1)
    for number in range(1, 3):
        world.sealed(2 * number, 2 * number + 1)
    bundle = next(iter(reader))
    bundle.ack()
    with world.store.stage("app", 1, "a1") as stage:
        stage.put({"Logs": batch(50)})
        stage.finish()
    world.store.close()
    return world


def resealed(data: bytes, crc: Callable[[bytes], int] = crc32) -> bytes:
    return data[:-4] + crc(data[:-4]).to_bytes(4, "little")


def footer(data: bytes) -> bytes:
    at = len(data) - TRAILER_SIZE - FOOTER_SIZE
    return resealed(data[:at] + b"\x02\0" + data[at + 2 :])


def head(at: int, value: int, crc: Callable[[bytes], int] = crc32) -> Callable[[bytes], bytes]:
    return lambda data: resealed(data[:at] + value.to_bytes(2, "little") + data[at + 2 :], crc)


NEWER: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "segment": (SEGMENT, footer),
    "staged file": (STAGED, footer),
    "floor version": (FLOOR_PATH, head(8, 2)),
    "floor flag": (FLOOR_PATH, head(12, 0x8003)),
    "checkpoint": ("quiver.state", head(8, 9)),
    "checkpoint flag": ("quiver.state", head(12, 0x8000)),
    "key run": (RUN, head(8, 2)),
    "rotten segment": (SEGMENT, lambda data: flipped(footer(data), 300)),
    "progress": ("quiver.sub.reader", head(8, 2, crc32c)),
}


def newer(kind: str) -> tuple[str, Image]:
    path, edit = NEWER[kind]
    image = dict(store().raw.image())
    image[path] = edit(image[path])
    image[LEFTOVER] = b"half"
    return path, {name: data for name, data in image.items() if name != "LOCK"}


def unchanged(raw: MemoryDisk, image: Image) -> bool:
    return {name: data for name, data in raw.image().items() if name != "LOCK"} == image


@pytest.mark.parametrize("kind", NEWER)
@pytest.mark.parametrize("policy", ["fail", "earliest"])
def test_an_open_refuses(kind: str, policy: str) -> None:
    """Scenario: one file has a version or flag of a newer Quiver. Guarantee: the open names it,
    under any policy, and nothing is set aside, recorded as lost, marked or removed; with the
    file as this version knows it, everything is there."""
    path, image = newer(kind)
    raw = MemoryDisk.from_image(image, ["", "wal", "segments", "stages"])
    with pytest.raises(UnsupportedVersion) as caught:
        World(raw).open(subscribers={"corrupt_progress": policy})
    assert caught.value.details["file"] == path
    assert not caught.value.retryable
    assert caught.value.advice
    assert unchanged(raw, image)
    image[path] = store().raw.image()[path]
    back = World(MemoryDisk.from_image(image, ["", "wal", "segments", "stages"]))
    assert back.drain("reader") == [1, 2, 3, 4, 5]
    assert back.store.status().losses == ()


@pytest.mark.parametrize("kind", NEWER)
def test_the_tools_say_so_and_touch_nothing(kind: str) -> None:
    """Scenario: the same, looked at with the offline tools. Guarantee: verify and inspect name
    the file and call nothing damaged or lost; dump saves the rest; repair refuses."""
    path, image = newer(kind)
    raw = MemoryDisk.from_image(image)
    disk = Disk(raw)
    verdict = verify(disk)
    assert not verdict.sound
    assert (verdict.problems, verdict.lost_bundles) == ((), 0)
    (what,) = verdict.newer
    assert path in what
    assert "newer Quiver" in what
    assert summarize(disk, ManualClock()).newer == (what,)
    out = Disk(MemoryDisk())
    result = dump(disk, out)
    assert (result.lost, result.damage, result.newer) == ((), (), (what,))
    saved = [number_of(batches_of(one, out)[0]) for one in result.saved]
    assert saved == ([0, 1, 4, 5] if path == SEGMENT else [0, 1, 2, 3, 4, 5])
    assert json.loads(out.read("lost.json"))["newer"] == [what]
    with pytest.raises(UnsupportedVersion):
        RepairPlan(disk)
    with pytest.raises(UnsupportedVersion):
        mend(disk, ManualClock(), where="mem")
    assert unchanged(raw, image)


@pytest.mark.parametrize("kind", ["segment", "key run"])
def test_exit_codes(kind: str, tmp_path: Path) -> None:
    """Scenario: the same from the command line. Guarantee: exit code 3 from all of them, and
    what only a newer version can read is named."""
    path, image = newer(kind)
    for name, data in image.items():
        (tmp_path / "s" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "s" / name).write_bytes(data)
    for command in (
        ["verify", "s"],
        ["inspect", "s"],
        ["dump", "s", "--out", "out"],
        ["repair", "s"],
        ["repair", "s", "--yes"],
    ):
        arguments = [str(tmp_path / one) if one in ("s", "out") else one for one in command]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 3, (command, done.output)
        assert path in done.output
    there = [p for p in (tmp_path / "s").rglob("*") if p.is_file() and p.name != "LOCK"]
    assert {p.relative_to(tmp_path / "s").as_posix() for p in there} == image.keys()


@pytest.mark.parametrize("where", ["version", "length", "footer"])
@pytest.mark.parametrize("guarded", [True, False])
def test_a_rotten_version_is_damage(where: str, guarded: bool) -> None:
    """Scenario: a flipped byte makes a segment's version 3, or its footer longer than it is, and
    its checksum disagrees; or all of its footer is overwritten. Guarantee: that is damage, and
    no newer version."""
    image = dict(store().raw.image())
    data = image[SEGMENT]
    end = len(data) - TRAILER_SIZE
    at = end - FOOTER_SIZE
    if not guarded:
        data = resealed(data[: at - SEAL_SIZE] + bytes(SEAL_SIZE) + data[at:])
    image[SEGMENT] = {
        "version": data[:at] + b"\x03" + data[at + 1 :],
        "length": data[:end] + b"\x24" + data[end + 1 :],
        "footer": data[:at] + b"\x02\0" + bytes(FOOTER_SIZE - 2) + data[end:],
    }[where]
    verdict = verify(Disk(MemoryDisk.from_image(image)))
    assert verdict.newer == ()
    assert [problem.file for problem in verdict.problems] == [SEGMENT]
