"""The small files that a server keeps beside a store, and beside all of its streams.

The server reads and writes them; whether they are sound is asked here too, since ``verify``
and ``repair`` work on a server's root without a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from quiver.clock import Clock
from quiver.disk.disk import Disk
from quiver.errors import Damage, StateCorrupt, UnsupportedVersion
from quiver.format.checked_json import decode_checked, decode_lines, encode_checked
from quiver.offline.verify import Beside, Finding

SERVICE_FILE: Final = "service.json"
SERVICE_VERSION_1: Final = ("settings", "subscribers", "schemas")
"""What it had before it had a checksum."""
FAILURES_FILE: Final = "failures.log"
FAILURES_TITLE: Final = "quiver failures"
FAILURES_VERSION: Final = 1
DELETED_FILE: Final = "deleted.json"
DELETED_MARK: Final = "deleted.kept"
"""Made once :data:`DELETED_FILE` is there: where it stands alone, that file was lost."""
STORE: Final = "store"
ASIDE: Final = ".damaged"
"""Behind the name of a file that a repair has replaced."""

_STATE: Final = "quiver.state"
_SETTINGS_LOST: Final = (
    "the stream's settings and its subscribers' policies are not known, so it is not served"
)
_COUNTS_LOST: Final = "some failed deliveries are not counted any more; no data depends on it"
_NUMBERS_LOST: Final = "where a stream that is made again begins is not known; it begins far behind"


def has_store(disk: Disk, store: str) -> bool:
    """Whether a directory holds anything of a store's data."""
    folders = ("wal", "segments")
    return _STATE in disk.listdir(store) or any(disk.listdir(f"{store}/{one}") for one in folders)


def is_of_version_1(disk: Disk, store: str) -> bool:
    """Whether there is a store, last written by 0.1.0: neither checkpoint nor log is newer."""
    if not has_store(disk, store):
        return False
    for path, at in ((f"{store}/{_STATE}", 8), (f"{store}/wal/quiver.wal", 10)):
        try:
            version = int.from_bytes(disk.read(path)[at : at + 2], "little")
        except FileNotFoundError:
            continue
        if version != 1:
            return False
    return True


def check_stream(disk: Disk) -> Beside:
    """The files of one stream of a server: ``disk`` is its directory."""
    service, failures = _check_service(disk), _check_failures(disk)
    return Beside(service.problems + failures.problems, service.newer + failures.newer)


def _check_service(disk: Disk) -> Beside:
    try:
        data = disk.read(SERVICE_FILE)
        body = decode_checked(data, SERVICE_FILE, version_1=SERVICE_VERSION_1)
    except FileNotFoundError:
        if is_of_version_1(disk, STORE):
            return Beside()
        return Beside((Finding(SERVICE_FILE, "it is missing", _SETTINGS_LOST),))
    except UnsupportedVersion as error:
        return Beside(newer=(error.message,))
    except Damage as damage:
        return Beside((Finding(SERVICE_FILE, damage.message, _SETTINGS_LOST),))
    unknown = _unknown_settings(body.get("settings"))
    if not unknown:
        return Beside()
    what = f"this Quiver has no setting {', '.join(unknown)}, or not with that value"
    if "first_segment" in body:  # its checksum holds: only a newer version can have written it
        return Beside(newer=(f"{SERVICE_FILE}: {what}; the stream is not served",))
    return Beside((Finding(SERVICE_FILE, what, _SETTINGS_LOST),))


def _unknown_settings(settings: Any) -> list[str]:
    """Settings of a stream that no server of this version takes.

    Whether they agree with one another can't be told here: the server has defaults of its own.
    """
    # Here, since most commands look at no settings, and the models take long to import.
    from pydantic import ValidationError

    from quiver.config import Config

    try:
        Config.model_validate(settings)
    except ValidationError as error:
        places = [".".join(map(str, one["loc"])) for one in error.errors(include_url=False)]
        return [place or "settings" for place in places if place or type(settings) is not dict]
    return []


def _check_failures(disk: Disk) -> Beside:
    try:
        data = disk.read(FAILURES_FILE)
        lines = decode_lines(data, FAILURES_TITLE, FAILURES_VERSION, FAILURES_FILE)
        bad = [number for number, values in lines if values is None]
    except FileNotFoundError:
        return Beside()
    except UnsupportedVersion as error:
        return Beside(newer=(error.message,))
    if not bad:
        return Beside()
    what = f"lines {', '.join(map(str, bad[:5]))} are not what was written"
    return Beside((Finding(FAILURES_FILE, what, _COUNTS_LOST),))


def check_root(disk: Disk) -> Beside:
    """The files of a server that belong to no stream."""
    try:
        decode_deleted(disk.read(DELETED_FILE))
    except FileNotFoundError:
        if disk.stat_size(DELETED_MARK) is None:
            return Beside()
        return Beside((Finding(DELETED_FILE, "it is missing", _NUMBERS_LOST),))
    except UnsupportedVersion as error:
        return Beside(newer=(error.message,))
    except Damage as damage:
        return Beside((Finding(DELETED_FILE, damage.message, _NUMBERS_LOST),))
    return Beside()


def decode_deleted(data: bytes) -> tuple[dict[str, int], int]:
    """First unused segment numbers: by name, and of all names that are not listed."""
    body = decode_checked(data, DELETED_FILE)
    streams, others = body.get("streams"), body.get("others")
    if (
        not isinstance(streams, dict)
        or not all(type(number) is int for number in streams.values())
        or type(others) is not int
    ):
        raise StateCorrupt(f"{DELETED_FILE} holds values of the wrong kind.", file=DELETED_FILE)
    return streams, others


def write_deleted(disk: Disk, streams: Mapping[str, int], others: int) -> None:
    """Keep these numbers, durably, and that they were kept."""
    disk.replace(DELETED_FILE, encode_checked({"streams": dict(streams), "others": others}))
    mark_deleted(disk)


def mark_deleted(disk: Disk) -> None:
    """Note that there is a list, so that its loss is noticed."""
    if disk.stat_size(DELETED_MARK) is None:
        disk.replace(DELETED_MARK, f"{DELETED_FILE} was written\n".encode())


def mend_stream(disk: Disk, found: Beside) -> tuple[str, ...]:
    """Replace what is damaged or missing by what a new stream has; what was set aside."""
    kept: list[str] = []
    for name in dict.fromkeys(problem.file for problem in found.problems):
        kept += set_aside(disk, name)
        if name == SERVICE_FILE:
            fresh = {"settings": {}, "subscribers": {}, "schemas": {}, "first_segment": 0}
            disk.replace(name, encode_checked(fresh))
        else:
            disk.unlink(name, missing_ok=True)
    disk.fsync_dir("")
    return tuple(kept)


def far_behind(clock: Clock) -> int:
    """A number above any that was ever used: time in microseconds.

    No stream makes a million segments a second.
    """
    return clock.now_ns() // 1_000


def mend_root(disk: Disk, found: Beside, others: int) -> tuple[str, ...]:
    """The same for the files that belong to no stream: every name begins with ``others``."""
    if not found.problems:
        return ()
    kept = set_aside(disk, DELETED_FILE)
    write_deleted(disk, {}, others)
    return tuple(kept)


def set_aside(disk: Disk, name: str) -> list[str]:
    """Keep a copy of a damaged file: a person may still read what is in it.

    A copy, since a crash between a rename and the new file would leave none.
    """
    try:
        disk.replace(f"{name}{ASIDE}", disk.read(name))
    except FileNotFoundError:
        return []
    return [f"{name}{ASIDE}"]
