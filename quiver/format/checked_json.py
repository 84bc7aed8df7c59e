"""Small JSON files that carry their own checksum, as a whole or line by line.

Written as one object::

    {"v": 2, "crc32": "8d3e1f02", "body": {...}}

``crc32`` is the CRC-32 (IEEE) of the body as compact JSON with sorted keys, so white space
and the order of keys don't count and every value does.  Version 1 was the body itself with
``"v": 1`` among its fields and no checksum; it is read, and written again as version 2.

A file that grows has a title with its version, then a line for each JSON list: the CRC-32 of
the rest of the line, a space, the list.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from quiver.errors import StateCorrupt, UnsupportedVersion
from quiver.format.crc import crc32

VERSION: Final = 2
_FIELDS: Final = {"v", "crc32", "body"}


def encode_checked(body: Mapping[str, Any]) -> bytes:
    """The file's bytes."""
    text = _canonical(body)
    return f'{{"v":{VERSION},"crc32":"{crc32(text.encode()):08x}","body":{text}}}\n'.encode()


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
        raise _newer(file, version, VERSION)
    if version == 1:
        if not version_1 or document.keys() - {"v", *version_1}:
            raise _damaged(file, "it says version 1 and has fields that version 1 never had")
        return {name: value for name, value in document.items() if name != "v"}
    body = document.get("body")
    if document.keys() != _FIELDS or not isinstance(body, dict):
        raise _damaged(file, "its fields are not those that were written")
    if document["crc32"] != f"{crc32(_canonical(body).encode()):08x}":
        raise _damaged(file, "its checksum disagrees")
    return body


def encode_title(title: str, version: int) -> bytes:
    """The first line of a file that grows."""
    return f"{title} {version}\n".encode()


def check_title(line: bytes, title: str, version: int, file: str) -> None:
    """Refuse what is another file, or one of a newer version."""
    found = line.removeprefix(f"{title} ".encode())
    if found == line or not found.isdigit():
        raise _damaged(file, "it does not begin as such a file does")
    if int(found) > version:
        raise _newer(file, int(found), version)


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
