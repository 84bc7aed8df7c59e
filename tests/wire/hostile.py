"""Bad input of every kind we could think of, as data: (name, bytes or batches).

Lists are generated where a pattern covers many cases, and picked by hand where somebody
once got it wrong.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from flight_service.protocol.actions import ACTIONS

ODD_NAMES: list[Any] = [
    "", " ", ".", "..", "../x", "..\\x", "/", "/etc/passwd", "a/b", "a\\b", "a b", "a\tb", "a\nb",
    "a\x00", "\x00", "a.b", "a:b", "a*", "a?", "~", "-" * 65, "x" * 65, "x" * 10_000, "con", "CON",
    "nul", "Aux", "com1", "LPT9", "ä", "\u202egnp", "\u200b", "\ufeffa", "\uff41", "a\u0301",
    "😀", "%2e%2e", "%00", "$(id)", "`id`", "'; drop", '"', "<b>", "{}", None, 0, 1, -1, 1.5, True,
    [], ["a"], {}, {"a": 1},
]  # fmt: skip

MALFORMED: dict[str, bytes] = {
    "empty object": b"{}",
    "not json": b"nonsense",
    "half json": b'{"v":1',
    "array": b"[]",
    "number": b"1",
    "string": b'"x"',
    "null": b"null",
    "version 0": b'{"v":0}',
    "version 2": b'{"v":2}',
    "version text": b'{"v":"1"}',
    "version float": b'{"v":1.0}',
    "version true": b'{"v":true}',
    "twice": b'{"v":1,"v":1}',
    "nan": b'{"v":NaN}',
    "infinity": b'{"v":Infinity}',
    "bom": b'\xef\xbb\xbf{"v":1}',
    "utf-16": '{"v":1}'.encode("utf-16"),
    "latin-1": '{"v":1,"ä":1}'.encode("latin-1"),
    "bad utf-8": b'{"v":1,"x":"\xff"}',
    "lone surrogate": b'{"v":1,"stream":"\\ud800"}',
    "deep": b'{"v":' + b"[" * 20_000,
    "long number": b'{"v":1' + b"0" * 6_000 + b"}",
    "huge": b'{"v":1,"x":"' + b"y" * 5_000_000 + b'"}',
    "unknown field": b'{"v":1,"nope":1}',
    "trailing": b'{"v":1}{"v":1}',
    "comment": b'{"v":1} // no',
    "nul byte": b'{"v":1}\x00',
    "random": bytes(random.Random(1).randbytes(500)),
    "pickle": b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00\x8c\x01x\x94.",
    "protobuf": b"\x0a\x04test\x12\x03abc",
}


def commands(fields: list[dict[str, Any]]) -> Iterator[bytes]:
    for one in fields:
        yield json.dumps({"v": 1, **one}).encode()


PUT_COMMANDS: list[bytes] = [
    *commands(
        [
            {"stream": "t", "mode": "slot"},
            {"stream": "t", "mode": "bundle", "slot": "Logs"},
            {"stream": "t", "mode": "SLOT", "slot": "Logs"},
            {"stream": "t", "mode": 5},
            {"stream": "t", "mode": ["slot"], "slot": "Logs"},
            {"stream": "t", "mode": "slot", "slot": "a/b"},
            {"stream": "t", "mode": "slot", "slot": 5},
            {"stream": "t", "mode": "slot", "slot": ""},
            {"stream": "t", "durability": "sealed"},
            {"stream": "t", "durability": 1},
            {"stream": "t", "durability": None, "x": None},
            {"stream": "t", "validate": "off"},
            {"stream": "t", "stage": 5},
            {"stream": "t", "stage": []},
            {"stream": "t", "stage": {}},
            {"stream": "t", "stage": {"app": "a", "version": 0}},
            {"stream": "t", "stage": {"app": "", "version": 0, "attempt": "x"}},
            {"stream": "t", "stage": {"app": 5, "version": 0, "attempt": "x"}},
            {"stream": "t", "stage": {"app": "a" * 257, "version": 0, "attempt": "x"}},
            {"stream": "t", "stage": {"app": "a\nb", "version": 0, "attempt": "x"}},
            {"stream": "t", "stage": {"app": "a", "version": -1, "attempt": "x"}},
            {"stream": "t", "stage": {"app": "a", "version": 2**63, "attempt": "x"}},
            {"stream": "t", "stage": {"app": "a", "version": True, "attempt": "x"}},
            {"stream": "t", "stage": {"app": "a", "version": 0, "attempt": ""}},
            {"stream": "t", "stage": {"app": "a", "version": 0, "attempt": "x" * 129}},
            {"stream": "t", "stage": {"app": "a", "version": 0, "attempt": "x", "v": 1}},
            {
                "stream": "t",
                "stage": {"app": "a", "version": 0, "attempt": "x"},
                "durability": "accepted",
            },
            {"stream": ["t"]},
            {"stream": {"name": "t"}},
        ]
    )
]

_BAD_READS: list[dict[str, Any]] = [
    *(
        {"max_bundles": 0},
        {"max_bundles": -1},
        {"max_bundles": 10**9},
        {"max_bundles": "5"},
        {"max_bundles": True},
        {"max_bytes": 0},
        {"max_bytes": 2**63},
        {"wait_ms": 5},
        {"wait_ms": -1, "subscriber": "s"},
        {"wait_ms": 10**9, "subscriber": "s"},
        {"lease_ms": 5, "subscriber": "s"},
        {"lease_ms": 10**12, "subscriber": "s"},
        {"subscriber": ""},
        {"subscriber": "../s"},
        {"subscriber": 5},
        {"subscriber": "s", "refs": [[0, 0]]},
        {"subscriber": "s", "start": [0, 0]},
        {"subscriber": "s", "since_ns": 1},
        {"refs": 5},
        {"refs": [5]},
        {"refs": [[0]]},
        {"refs": [[0, 0, 0]]},
        {"refs": [[0, 0, 10**9]]},
        {"refs": [[0, 0, 1, 1]]},
        {"refs": [[-1, 0]]},
        {"refs": [[0, -1]]},
        {"refs": [["0", 0]]},
        {"refs": [[0.0, 0]]},
        {"refs": [[2**64, 0]]},
        {"refs": [[0, 2**32]]},
        {"refs": [[0, 0, 65_536], [1, 0]]},
        {"refs": [[5_000, 0]]},
        {"refs": [[0, 5_000]]},
        {"start": [0]},
        {"start": "earliest"},
        {"end": {}},
        {"since_ns": -1},
        {"since_ns": 1.5},
        {"until_ns": "now"},
        {"until_ns": 2**63},
        {"mode": "slot"},
        {"mode": "slot", "slot": "Logs", "slots": ["Logs"]},
        {"mode": "slot", "slot": "Logs", "projection": {}},
        {"slots": "Logs"},
        {"slots": ["a/b"]},
        {"slots": ["x"] * 100},
        {"columns": ["a"]},
        {"mode": "slot", "slot": "Logs", "columns": "a"},
        {"mode": "slot", "slot": "Logs", "columns": [1]},
        {"mode": "slot", "slot": "Logs", "columns": ["x"] * 5_000},
        {"projection": []},
        {"projection": {"a/b": []}},
        {"projection": {"Logs": "x"}},
        {"projection": {"Logs": [None]}},
        {"consumer": "x" * 100, "subscriber": "s"},
        {"order": "random", "subscriber": "s"},
    )
]

READ_COMMANDS: list[bytes] = list(commands([{"stream": "t", **bad} for bad in _BAD_READS]))

TICKETS: list[bytes] = [
    b"",
    *commands(
        [
            {"stream": "t"},
            {"refs": [[0, 0]]},
            {"stream": "t", "refs": 5},
            {"stream": "t", "refs": [[0, 0]], "mode": "x"},
            {"stream": "t", "refs": [[0, 0]], "mode": "slot"},
            {"stream": "t", "refs": [[0, 0]], "slot": "Logs"},
            {"stream": "t", "refs": [[0, 0]], "mode": "slot", "slot": "Nope"},
            {"stream": "t", "refs": [[0, 0]], "subscriber": "s"},
            {"stream": "t", "refs": [[0, 0]], "lease": "x"},
            {"stream": "t", "refs": [[0, 0]], "subscriber": "s", "lease": "forged"},
            {"stream": "t", "refs": [[0, 0]], "subscriber": "nobody", "lease": "forged"},
            {"stream": "t", "refs": [[0, 0]], "subscriber": "s", "lease": ""},
            {"stream": "t", "refs": [[0, 0]], "subscriber": "s", "lease": "x" * 100},
            {"stream": "t", "refs": [[0, 0]], "subscriber": "../s", "lease": "x"},
            {"stream": "t", "refs": [[0, 99_999]]},
            {"stream": "t", "refs": [[99_999, 0]]},
            {"stream": "t", "refs": [[0, 0, 65_537]]},
            {"stream": "t", "refs": [[0, 4_294_967_295, 2]]},
            {"stream": "unknown", "refs": [[0, 0]]},
            {"stream": "t", "refs": [[0, 0]], "slots": [5]},
            {"stream": "t", "refs": [[0, 0]], "columns": ["x"]},
            {"stream": "t", "refs": [[0, 0]], "projection": {"Logs": 5}},
            {"stream": "t", "refs": [[0, 0]], "secret": "x"},
        ]
    ),
]

SUBSCRIBE_COMMANDS: list[bytes] = [
    *commands(
        [
            {"stream": "t"},
            {"subscriber": "s"},
            {"stream": "unknown", "subscriber": "s"},
            *(
                {"stream": "t", "subscriber": "s", **bad}
                for bad in (
                    {"credit": -1},
                    {"credit": 10**9},
                    {"credit": "1"},
                    {"credit_bytes": -1},
                    {"credit_bytes": 2**63},
                    {"lease_ms": 1},
                    {"order": "sideways"},
                    {"mode": "slot"},
                    {"slots": 5},
                    {"projection": 5},
                    {"start": "earliest"},
                )
            ),
        ]
    )
]

ENVELOPES: list[bytes] = [
    *(body for name, body in MALFORMED.items() if name not in ("huge",)),
    *commands(
        [
            {"key": ""},
            {"key": "x" * 257},
            {"key": "x" * 5_000},
            {"key": 5},
            {"key": ["x"]},
            {"hash": "x"},
            {"hash": "z" * 64},
            {"hash": 5},
            {"attributes": 5},
            {"attributes": []},
            {"attributes": {"a": 1}},
            {"attributes": {"a": {"b": "c"}}},
            {"attributes": {"a": "x" * 5_000}},
            {"attributes": {str(n): "x" for n in range(4_000)}},
            {"event_time": 5},
            {"event_time": [1]},
            {"event_time": [2, 1]},
            {"event_time": [0, 2**63]},
            {"resend": -1},
            {"resend": "0"},
        ]
    ),
    b'{"v":1,"key":"\\ud800"}',
    b'{"v":1,"attributes":{"\\udfff":"x"}}',
]

ACTION_BODIES: list[tuple[str, str, bytes]] = [
    (action, kind, body)
    for action in ACTIONS
    for kind, body in MALFORMED.items()
    if kind in ("not json", "array", "version 2", "unknown field", "huge", "bad utf-8", "deep")
]

ACTION_VALUES: list[tuple[str, dict[str, Any]]] = [
    ("register", {"stream": "t", "subscriber": "s", "start": "tomorrow"}),
    ("register", {"stream": "t", "subscriber": "s", "start": [0]}),
    ("register", {"stream": "t", "subscriber": "s", "start": -5}),
    ("register", {"stream": "t", "subscriber": "s", "start": {"ref": [0, 0]}}),
    ("register", {"stream": "t", "subscriber": "s", "max_in_flight": 0}),
    ("register", {"stream": "t", "subscriber": "s", "max_deliveries": -1}),
    ("register", {"stream": "t", "subscriber": "s", "poison": "eat"}),
    ("register", {"stream": "t", "subscriber": "s", "dead_letter_stream": "../x"}),
    ("register", {"stream": "t", "subscriber": "s", "backoff_ms": -1}),
    ("register", {"stream": "t", "subscriber": "s", "slots": ["x/y"]}),
    ("register", {"stream": "unknown", "subscriber": "s"}),
    ("unregister", {"stream": "t", "subscriber": "nobody"}),
    ("drop_orphan", {"stream": "t", "subscriber": "nobody"}),
    ("claim", {"stream": "t", "subscriber": "s", "max_bundles": 0}),
    ("claim", {"stream": "t", "subscriber": "s", "wait_ms": 10**9}),
    ("claim", {"stream": "t", "subscriber": "s", "order": "none"}),
    ("ack", {"stream": "t", "subscriber": "nobody", "refs": []}),
    ("ack", {"stream": "t", "subscriber": "s", "refs": [[0, 0, 10**6]]}),
    ("ack", {"stream": "t", "subscriber": "s", "refs": {"0": 0}}),
    ("ack", {"stream": "t", "subscriber": "s", "refs": [], "durable": "yes"}),
    ("reject", {"stream": "t", "subscriber": "s", "refs": [], "reason": 5}),
    ("reject", {"stream": "t", "subscriber": "s", "refs": [], "reason": "x" * 5_000}),
    ("defer", {"stream": "t", "subscriber": "s", "refs": [], "delay_ms": -1}),
    ("defer", {"stream": "t", "subscriber": "s", "refs": [], "delay_ms": 10**12}),
    ("renew", {"stream": "t", "subscriber": "s", "lease": "forged"}),
    ("renew", {"stream": "t", "subscriber": "s", "lease": "x", "lease_ms": 0}),
    ("seek", {"stream": "t", "subscriber": "nobody", "to": "latest"}),
    ("seek", {"stream": "t", "subscriber": "s"}),
    ("seek", {"stream": "t", "subscriber": "s", "to": None}),
    ("wait_durable", {"stream": "t", "sequence": -1}),
    ("wait_durable", {"stream": "t", "sequence": 10**15}),
    ("wait_durable", {"stream": "t", "sequence": 0, "timeout_ms": 10**9}),
    ("begin", {"stream": "t", "app": "a"}),
    ("begin", {"stream": "t", "app": "", "version": 0}),
    ("begin", {"stream": "t", "app": "a", "version": -1}),
    ("begin", {"stream": "t", "app": "a", "version": "0"}),
    ("finish_stage", {"stream": "t", "app": "a", "version": 0, "attempt": "x"}),
    ("finish_stage", {"stream": "t", "app": "a", "version": 0, "attempt": "x", "bundles": 0}),
    ("finish_stage", {"stream": "t", "app": "a", "version": 0, "attempt": "../x", "bundles": 1}),
    ("finish_stage", {"stream": "t", "app": "a", "version": 0, "attempt": "x", "bundles": -1}),
    ("commit", {"stream": "t", "app": "a", "version": 0}),
    ("commit", {"stream": "t", "app": "a", "version": 0, "attempts": "x"}),
    ("commit", {"stream": "t", "app": "a", "version": 0, "attempts": [""]}),
    ("commit", {"stream": "t", "app": "a", "version": 0, "attempts": [5]}),
    ("commit", {"stream": "t", "app": "a", "version": 0, "attempts": ["never-was"]}),
    ("commit", {"stream": "t", "app": "a", "version": 0, "attempts": ["x"] * 65_537}),
    ("commit", {"stream": "unknown", "app": "a", "version": 0, "attempts": []}),
    ("abort", {"stream": "unknown", "app": "a", "version": 0}),
    ("abort", {"stream": "t", "app": "a", "version": 0, "attempts": [None]}),
    ("drain", {"stream": "t", "timeout_ms": -1}),
    ("lag", {"stream": "t", "subscriber": "nobody"}),
    ("create_stream", {"stream": "t"}),
    ("create_stream", {"stream": "T"}),
    ("create_stream", {"stream": "new", "settings": []}),
    ("create_stream", {"stream": "new", "settings": {"nope": 1}}),
    ("create_stream", {"stream": "new", "settings": {"wal": {"max_size": "-1"}}}),
    ("create_stream", {"stream": "new", "settings": {"wal": 5}}),
    ("create_stream", {"stream": "new", "settings": {"server": {"root": "/"}}}),
    ("create_stream", {"stream": "new", "settings": {"segment": {"target_size": "9EiB"}}}),
    ("delete_stream", {"stream": "t", "confirm": ""}),
    ("delete_stream", {"stream": "t", "confirm": "T"}),
    ("delete_stream", {"stream": "t"}),
    ("delete_stream", {"stream": "..", "confirm": ".."}),
    ("delete_stream", {"stream": "unknown", "confirm": "unknown"}),
    ("", {}),
    ("__init__", {}),
    ("_claim", {"stream": "t", "subscriber": "s"}),
    ("run", {}),
    ("decode", {}),
    ("begin", {}),
    ("x" * 5_000, {}),
]


# Bundles whose IPC streams are not what they say


def ipc(batch: pa.RecordBatch, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as out:
        out.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


SOUND = pa.record_batch({"x": pa.array(range(100), pa.int64()), "s": pa.array(["abc"] * 100)})
WORDS = pa.record_batch({"w": pa.array(["a", "b", "a"]).dictionary_encode()})


def _i32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def _patched(array: Any, old: bytes, new: bytes) -> pa.RecordBatch:
    """A batch with some bytes of its arrays replaced; reading it back looks at nothing."""
    data = ipc(pa.RecordBatch.from_arrays([array], names=["x"]))
    assert data.count(old) == 1, "the pattern must be found once"
    with pa.ipc.open_stream(data.replace(old, new)) as reader:
        return reader.read_next_batch()


def broken_arrays() -> dict[str, pa.RecordBatch]:
    """Batches whose arrays point where they must not."""
    words = pa.array(["abcde", "fghijkl"])
    coded = pa.array(["a", "b", "b", "a", "b"]).dictionary_encode()
    codes = _i32(0, 1, 1, 0, 1)
    lists = pa.array([[1, 2, 3], [4, 5, 6, 7]], pa.list_(pa.int64()))
    return {
        "offset past the end": _patched(words, _i32(0, 5, 12), _i32(0, 5, 60_000)),
        "offset far past the end": _patched(words, _i32(0, 5, 12), _i32(0, 5, 2**31 - 1)),
        "offsets go back": _patched(words, _i32(0, 5, 12), _i32(0, 12, 5)),
        "negative offset": _patched(words, _i32(0, 5, 12), _i32(-8, 5, 12)),
        "not utf-8": _patched(words, b"abcdefghijkl", b"\xff" * 12),
        "half a character": _patched(words, b"abcdefghijkl", b"abcd\xe2fghijkl"),
        "dictionary index too large": _patched(coded, codes, _i32(0, 1, 77, 0, 1)),
        "dictionary index negative": _patched(coded, codes, _i32(0, 1, -3, 0, 1)),
        "list offset past the end": _patched(lists, _i32(0, 3, 7), _i32(0, 3, 9_000)),
        "list offset negative": _patched(lists, _i32(0, 3, 7), _i32(-1, 3, 7)),
        "list offsets go back": _patched(lists, _i32(0, 3, 7), _i32(0, 7, 3)),
    }


def streams() -> dict[str, bytes]:
    """IPC streams that are cut, spliced, flipped or bombs."""
    good, chooser = ipc(SOUND), random.Random(7)
    found = {
        "empty": b"",
        "one byte": b"x",
        "zeros": b"\0" * 64,
        "random": chooser.randbytes(2_000),
        "only the end": b"\xff\xff\xff\xff\0\0\0\0",
        "no batch": ipc(SOUND.slice(0, 0))[:300],
        "two batches": _two(),
        "trailing bytes": good + b"x" * 8,
        "twice": good + good,
        "a file": _file(),
        "parquet magic": b"PAR1" + b"\0" * 200 + b"PAR1",
        "schema alone": pa.schema([("x", pa.int64())]).serialize().to_pybytes(),
        "no dictionary": _without_dictionary(),
        "zstd bomb": _bomb("zstd"),
        "lz4 bomb": _bomb("lz4"),
        "huge length": struct.pack("<iI", -1, 0x7FFFFFF0) + good[8:],
        "negative length": struct.pack("<ii", -1, -16) + good[8:],
        "deep type": ipc(_deep(40)),
        "many columns": ipc(pa.record_batch({f"c{n}": [n] for n in range(2_500)})),
        "huge metadata": ipc(SOUND.replace_schema_metadata({"m": "x" * 200_000})),
    }
    for cut in (1, 8, 20, 100, len(good) // 2, len(good) - 9):
        found[f"cut at {cut}"] = good[:cut]
    for n in range(30):
        position = chooser.randrange(8, 400)
        flipped = bytearray(good)
        flipped[position] ^= 1 << chooser.randrange(8)
        found[f"flip {n} at {position}"] = bytes(flipped)
    return found


def _two() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SOUND.schema) as out:
        out.write_batch(SOUND)
        out.write_batch(SOUND)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _file() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SOUND.schema) as out:
        out.write_batch(SOUND)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _without_dictionary() -> bytes:
    data = ipc(WORDS)
    messages = list(pa.ipc.MessageReader.open_stream(data))
    sink = pa.BufferOutputStream()
    for message in messages:
        if message.type != "dictionary":
            message.serialize_to(sink)
    found: bytes = sink.getvalue().to_pybytes()
    return found + b"\xff\xff\xff\xff\0\0\0\0"


def _bomb(codec: str) -> bytes:
    return ipc(pa.record_batch({"x": pa.array([0] * 20_000_000, pa.int64())}), compression=codec)


def _deep(levels: int) -> pa.RecordBatch:
    kind: Any = pa.int64()
    for _ in range(levels):
        kind = pa.struct([("f", kind)])
    return pa.RecordBatch.from_arrays([pa.nulls(1, kind)], names=["x"])
