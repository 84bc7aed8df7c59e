"""The golden files of the frozen releases, unpacked for a test, and how to compare with them."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.compat.reading import unpack
from tests.support.batches import same
from tests.support.compat import COMPAT

VERSIONS: Final = sorted(one.name for one in COMPAT.iterdir() if one.name[0].isdigit())
"""Every release that is kept."""


def names(kind: str, suffix: str = ".json") -> list[str]:
    """``version/name`` of every golden file of a kind."""
    return [
        f"{version}/{one.name.removesuffix(suffix)}"
        for version in VERSIONS
        for one in sorted((COMPAT / version / kind).glob(f"*{suffix}"))
    ]


def manifest(kind: str, name: str) -> dict[str, Any]:
    """What a golden file's JSON says."""
    version, _, short = name.partition("/")
    document: dict[str, Any] = json.loads((COMPAT / version / kind / f"{short}.json").read_text())
    return document


def unpacked(kind: str, name: str, target: Path) -> Path:
    """A copy of a golden directory; its path."""
    version, _, short = name.partition("/")
    with tarfile.open(COMPAT / version / kind / f"{short}.tar.xz") as tar:
        (top,) = {member.name.split("/")[0] for member in tar.getmembers()}
        tar.extractall(target, filter="fully_trusted")  # the files' modes are part of it
    return target / top


def same_bundles(found: Iterable[Mapping[str, Any]], wanted: Iterable[Mapping[str, Any]]) -> None:
    """The same bundles in the same order, with equal metadata and equal batches."""
    found, wanted = list(found), list(wanted)
    assert [one["ref"] for one in found] == [one["ref"] for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        same_bundle(one, other)


def same_bundle(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Equal metadata; in every slot the same id, fingerprint and an equal batch."""
    assert _without_data(found) == _without_data(wanted)
    for name, slot in wanted.get("slots", {}).items():
        same(unpack(found["slots"][name]["data"]), unpack(slot["data"]))


def _without_data(bundle: Mapping[str, Any]) -> dict[str, Any]:
    slots = {
        name: {key: value for key, value in slot.items() if key != "data"}
        for name, slot in bundle.get("slots", {}).items()
    }
    return {**bundle, "slots": slots}
