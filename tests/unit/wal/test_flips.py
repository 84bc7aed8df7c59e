"""Every single byte of a small log, changed: refused or reported, never silently short."""

from __future__ import annotations

import pytest

from quiver.errors import QuiverError
from quiver.wal.files import ACTIVE
from tests.support.wal import Log, image, payloads, read, small


def lapped() -> Log:
    """Three files, two of them recycled, with groups of two."""
    log = Log(config=small(rotation_target=750, max_size=4000, max_rotated_files=3))
    for n in range(40):
        log.stage(bytes([n]) * (n % 7 * 10), segment=n)
        log.stage(bytes([n]) * 20, segment=n)
        log.commit()
        if n < 38:
            log.writer.retire(n - 1)
    return log


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
@pytest.mark.parametrize("sealed", [False, True])
def test_every_byte(flip: int, sealed: bool) -> None:
    """A flip outside of the last group is refused, one in it reported, or it changes nothing.

    With a seal behind it, the last group is proven as well: only the seal may be torn.
    """
    log = lapped()
    if sealed:
        log.writer.seal()
    files = image(log)
    sound = read(files)
    whole = payloads(sound)
    last_group = 2 if not sealed else 0
    unproven = {n for n in whole if n >= sound.next_sequence - last_group - sealed}
    outcomes = {"refused": 0, "torn": 0, "same": 0}
    for path in (file.path for file in sound.files):
        data = files[path]
        for at in range(len(data)):
            bad = files | {path: data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]}
            try:
                contents = read(bad)
            except QuiverError:
                outcomes["refused"] += 1
                continue
            found = payloads(contents)
            assert found == {n: whole[n] for n in found}
            missing = set(whole) - set(found)
            assert missing <= unproven, (path, at)
            if missing:
                assert contents.torn is not None, (path, at)
                assert path == ACTIVE
                outcomes["torn"] += 1
            else:
                outcomes["same"] += 1
    assert outcomes["refused"] > 800
    assert (outcomes["torn"] == 0) is sealed
