"""Bad input: a typed error that names the limit, and nothing is written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import quiver
from quiver.errors import ConfigError, InvalidBundle, InvalidInput, LimitExceeded
from quiver.metrics import INGEST_REFUSED
from tests.support.stores import World, batch, payload


def _broken() -> pa.RecordBatch:
    """Text whose offsets go back: right at both ends, deadly to read in between."""
    offsets = pa.array([0, 3, 1, 3], pa.int32()).buffers()[1]
    array = pa.Array.from_buffers(pa.utf8(), 3, [None, offsets, pa.py_buffer(b"abc")])
    return pa.RecordBatch.from_arrays([array], ["text"])


def _nested(depth: int) -> pa.DataType:
    kind = pa.int8()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


CASES: dict[str, tuple[Any, str]] = {
    "not a mapping": ([batch()], "mapping"),
    "a table": ({"Logs": pa.table({"a": [1]})}, "RecordBatch"),
    "too many slots": ({n: batch() for n in range(65)}, "slots in a bundle"),
    "too large": ({"Logs": payload(3000)}, "bundle bytes"),
    "too many columns": (
        {"Logs": pa.RecordBatch.from_arrays([pa.array([1])] * 9, [f"c{n}" for n in range(9)])},
        "columns",
    ),
    "too deep": ({"Logs": pa.record_batch({"a": pa.nulls(1, _nested(5))})}, "nesting"),
    "a large schema": (
        {"Logs": pa.record_batch({"a": [1]}).replace_schema_metadata({"x": "y" * 999})},
        "schema bytes",
    ),
    "a broken array": ({"Logs": _broken()}, "not valid Arrow"),
}
LIMITS = {
    "max_bundle": 2048,
    "max_columns": 8,
    "max_nesting": 4,
    "max_schema_bytes": 512,
    "max_unsynced": 4096,
}


@pytest.mark.parametrize("case", CASES)
def test_bad_bundles_are_refused_by_name(case: str) -> None:
    """Scenario: a bundle over a limit, or not a bundle. Guarantee: its error names what is
    wrong, it is counted, nothing was written, and the next good one is taken."""
    world = World(limits=LIMITS)
    slots, words = CASES[case]
    world.put_durable(1)
    before, calls = world.raw.image(), len(world.faulty.calls)
    with pytest.raises(InvalidInput, match=words) as caught:
        world.store.put(slots)
    assert world.faulty.calls[calls:] == []
    assert world.raw.image() == before
    assert world.store.metrics.counter(INGEST_REFUSED, code=caught.value.code).value == 1
    assert world.drain() == [1]


@pytest.mark.parametrize("level", ["full", "basic", "off"])
def test_how_much_is_validated_is_a_choice(level: str) -> None:
    """Scenario: an array with bad offsets, under each level. Guarantee: `full`, the
    default, refuses it; the others were asked not to look that closely."""
    world = World(validation=level)
    if level == "full":
        with pytest.raises(InvalidBundle):
            world.store.put({"Logs": _broken()})
    else:
        world.store.put({"Logs": _broken()}).wait()


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", b"\xff\xff\xff\xff\x10\0\0\0" + b"\0" * 16, b"\xff" * 64]
)
def test_bad_ipc_is_refused(world: World, data: bytes) -> None:
    """Scenario: bytes that are no IPC stream with one batch. Guarantee: a typed error."""
    with pytest.raises(InvalidBundle):
        world.store.put_ipc({"Logs": data})
    assert world.store.segments() == []


def test_ipc_is_validated_as_well(world: World) -> None:
    """Scenario: a sound stream around an array with bad offsets. Guarantee: refused."""
    bad = _broken()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, bad.schema) as writer:
        writer.write_batch(bad)
    with pytest.raises(InvalidBundle):
        world.store.put_ipc({"Logs": sink.getvalue()})


@pytest.mark.parametrize(
    "options",
    [
        {"key": ""},
        {"key": 7},
        {"key": "\ud800"},
        {"attributes": {"a": 1}},
        {"attributes": ["a"]},
        {"attributes": {"a": "x" * 5000}},
        {"fingerprints": {"Logs": b"short"}},
        {"fingerprints": {"Other": b"f" * 32}},
        {"content_hash": b"short", "key": "k"},
    ],
)
def test_bad_options_are_refused(world: World, options: dict[str, Any]) -> None:
    """Scenario: a key, attribute, fingerprint or hash of the wrong shape. Guarantee: a
    typed error, nothing written."""
    world.store.sync()
    before = world.raw.image()
    with pytest.raises((InvalidBundle, LimitExceeded)):
        world.store.put({"Logs": batch()}, **options)
    assert world.raw.image() == before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"wal__max_sise": 1}, "wal.max_size"),
        ({"wal": {"max_size": "1MiB"}}, "wal.max_size"),
        ({"durability": "maybe"}, "durability"),
    ],
)
def test_bad_settings_are_refused_by_name(
    tmp_path: Any, settings: dict[str, Any], words: str
) -> None:
    """Scenario: an unknown setting, one too small, one that isn't allowed. Guarantee: the
    error names it (and the nearest known one), and no directory was made."""
    with pytest.raises(ConfigError, match=words):
        quiver.open(tmp_path / "store", **settings)
    assert not (tmp_path / "store").exists()


def test_a_config_and_settings_besides_are_refused(tmp_path: Any) -> None:
    """Scenario: a Config and keyword settings in one call. Guarantee: refused; neither is
    silently ignored."""
    with pytest.raises(ConfigError, match="reserve"):
        quiver.open(tmp_path / "store", quiver.Config.load(env={}), reserve=0)
