"""Small JSON files that carry their own checksum, as a whole or line by line.

Written as one object::

    {"v": 2, "crc32": "8d3e1f02", "body": {...}}

``crc32`` is the CRC-32 (IEEE) of the version, a space, and the body as compact JSON with sorted
keys, so white space and the order of keys don't count; every value does, and the version too.
A newer version is believed unless the checksum holds for version 2: then a digit was changed.
Version 1 was the body itself with ``"v": 1`` among its fields and no checksum; it is read, and
written again as version 2.

A file that grows has a title, then a line for each JSON list::

    quiver failures 1 6f0c2a11          name, version, CRC-32 of what is before it
    9be1c5f0 ["exporter",3,17,2,"x"]    CRC-32 of the rest of the line, the list

Every version keeps the form of the title, so a newer version is told from a changed digit.
Lines are appended and synced.  A last line without its end was cut short by a crash, unless all
of the line is there with another byte for its end: a crash leaves no such thing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from quiver.errors import StateCorrupt, UnsupportedVersion
from quiver.format.crc import crc32

VERSION: Final = 2
_FIELDS: Final = {"v", "crc32", "body"}


def encode_checked(body: Mapping[str, Any]) -> bytes:
    """The file's bytes."""
    text = _canonical(body)
    return f'{{"v":{VERSION},"crc32":"{_crc_of_body(text)}","body":{text}}}\n'.encode()


def decode_checked(data: bytes, file: str, *, version_1: Collection[str] = ()) -> dict[str, Any]:
    """The body; ``version_1`` names the fields that a file without a checksum may have.

    Anything that such a file never had is damage: one flipped digit must not turn a checked
    file into an unchecked one.
    """
    try:
        document = json.loads(data)
        version = document["v"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damaged(file, f"it is not the JSON that was written ({error})") from None
    if type(version) is not int or version < 1:
        raise _damaged(file, f"its version is {version!r}")
    if version > VERSION:
        if _holds(document):
            raise _damaged(file, f"it says version {version} and was written as {VERSION}")
        raise _newer(file, version, VERSION)
    if version == 1:
        if not version_1 or document.keys() - {"v", *version_1}:
            raise _damaged(file, "it says version 1 and has fields that version 1 never had")
        return {name: value for name, value in document.items() if name != "v"}
    body = document.get("body")
    if document.keys() != _FIELDS or not isinstance(body, dict):
        raise _damaged(file, "its fields are not those that were written")
    if not _holds(document):
        raise _damaged(file, "its checksum disagrees")
    return body


def _holds(document: Mapping[str, Any]) -> bool:
    """Whether the checksum is that of our version, whatever version the file claims."""
    body = document.get("body")
    return isinstance(body, dict) and document.get("crc32") == _crc_of_body(_canonical(body))


def _crc_of_body(text: str) -> str:
    return f"{crc32(f'{VERSION} {text}'.encode()):08x}"


def encode_title(title: str, version: int) -> bytes:
    """The first line of a file that grows."""
    text = f"{title} {version}".encode()
    return b"%s %08x\n" % (text, crc32(text))


def decode_lines(
    data: bytes, title: str, version: int, file: str
) -> Iterator[tuple[int, list[Any] | None]]:
    """The lines of a file that grows, by number; ``None``: not what was written.

    Refuses a newer version.  A damaged title is line 1, the others are read all the same.
    """
    *lines, rest = data.split(b"\n")
    if not _is_title(lines[0] if lines else rest, title, version, file):
        yield 1, None
    for number, line in enumerate(lines[1:], 2):
        yield number, decode_line(line)
    if lines and decode_line(rest[:-1]) is not None:  # only its end is not what was written
        yield len(lines) + 1, None


def _is_title(line: bytes, title: str, version: int, file: str) -> bool:
    text, _, check = line.rpartition(b" ")
    name, _, number = text.rpartition(b" ")
    if check != b"%08x" % crc32(text) or name != title.encode() or not number.isdigit():
        return False
    if int(number) > version:
        raise _newer(file, int(number), version)
    return True


def encode_line(values: Sequence[object]) -> bytes:
    """One line of a file that grows."""
    text = json.dumps(values, ensure_ascii=True, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32(text), text)


def decode_line(line: bytes) -> list[Any] | None:
    """The list of a line, without its end; ``None`` if it is not one that was written."""
    check, _, text = line.partition(b" ")
    if check != b"%08x" % crc32(text):
        return None
    try:
        values = json.loads(text)
    except ValueError:
        return None
    return values if isinstance(values, list) and values else None


def _canonical(body: Mapping[str, Any]) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


def _newer(file: str, found: int, known: int) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"{file} has format version {found}, this Quiver reads up to {known}. Nothing was changed.",
        advice="Open it with the Quiver that wrote it, or a newer one.",
        file=file,
    )


def _damaged(file: str, what: str) -> StateCorrupt:
    return StateCorrupt(
        f"{file} is damaged: {what}. Nothing was changed.",
        advice="Put it back from a backup, or go on without it: quiver repair ROOT --yes.",
        file=file,
    )
