"""The small files that a server keeps beside a store, and beside all of its streams.

The server reads and writes them; whether they are sound is asked here too, since ``verify``
and ``repair`` work on a server's root without a server.
"""

from __future__ import annotations

from typing import Final

from quiver.disk.disk import Disk
from quiver.errors import Damage, UnsupportedVersion
from quiver.format.checked_json import check_title, decode_checked, decode_line, encode_checked
from quiver.fsck.verify import Beside, Problem

SERVICE_FILE: Final = "service.json"
SERVICE_VERSION_1: Final = ("settings", "subscribers", "schemas")
"""What it had before it had a checksum."""
FAILURES_FILE: Final = "failures.log"
FAILURES_TITLE: Final = "quiver failures"
FAILURES_VERSION: Final = 1
DELETED_FILE: Final = "deleted.json"
STORE: Final = "store"
ASIDE: Final = ".damaged"
"""Behind the name of a file that a repair has replaced."""

_SETTINGS_LOST: Final = (
    "the stream's settings and its subscribers' policies are not known, so it is not served"
)
_COUNTS_LOST: Final = "some failed deliveries are not counted any more; no data depends on it"
_NUMBERS_LOST: Final = "where a stream that is made again begins is not known; it begins far behind"


def is_of_version_1(disk: Disk, store: str) -> bool:
    """Whether a store was last written by 0.1.0: neither checkpoint nor log is newer."""
    for path, at in ((f"{store}/quiver.state", 8), (f"{store}/wal/quiver.wal", 10)):
        try:
            version = int.from_bytes(disk.read(path)[at : at + 2], "little")
        except FileNotFoundError:
            continue
        if version != 1:
            return False
    return True


def check_stream(disk: Disk) -> Beside:
    """The files of one stream of a server: ``disk`` is its directory."""
    problems: list[Problem] = []
    newer: list[str] = []
    try:
        decode_checked(disk.read(SERVICE_FILE), SERVICE_FILE, version_1=SERVICE_VERSION_1)
    except FileNotFoundError:
        if not is_of_version_1(disk, STORE):
            problems.append(Problem(SERVICE_FILE, "it is missing", _SETTINGS_LOST))
    except UnsupportedVersion as error:
        newer.append(error.message)
    except Damage as damage:
        problems.append(Problem(SERVICE_FILE, damage.message, _SETTINGS_LOST))
    try:
        _check_lines(disk.read(FAILURES_FILE))
    except FileNotFoundError:
        pass
    except UnsupportedVersion as error:
        newer.append(error.message)
    except Damage as damage:
        problems.append(Problem(FAILURES_FILE, damage.message, _COUNTS_LOST))
    return Beside(tuple(problems), tuple(newer))


def _check_lines(data: bytes) -> None:
    lines = data.split(b"\n")[:-1]
    if not lines:
        return
    check_title(lines[0], FAILURES_TITLE, FAILURES_VERSION, FAILURES_FILE)
    bad = [number for number, line in enumerate(lines[1:], 2) if decode_line(line) is None]
    if bad:
        raise Damage(f"lines {', '.join(map(str, bad[:5]))} fail their checksums")


def check_root(disk: Disk) -> Beside:
    """The files of a server that belong to no stream."""
    try:
        decode_checked(disk.read(DELETED_FILE), DELETED_FILE)
    except FileNotFoundError:
        return Beside()
    except UnsupportedVersion as error:
        return Beside(newer=(error.message,))
    except Damage as damage:
        return Beside((Problem(DELETED_FILE, damage.message, _NUMBERS_LOST),))
    return Beside()


def mend_stream(disk: Disk, found: Beside) -> tuple[str, ...]:
    """Replace what is damaged or missing by what a new stream has; what was set aside.

    A damaged file is kept under another name: a person may still read the settings in it.
    """
    kept: list[str] = []
    for name in dict.fromkeys(problem.file for problem in found.problems):
        if disk.stat_size(name) is not None:
            disk.rename(name, f"{name}{ASIDE}")
            kept.append(f"{name}{ASIDE}")
        if name == SERVICE_FILE:
            fresh = {"settings": {}, "subscribers": {}, "schemas": {}, "first_segment": 0}
            disk.replace(name, encode_checked(fresh))
    disk.fsync_dir("")
    return tuple(kept)
