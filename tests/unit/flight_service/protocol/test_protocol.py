"""The wire protocol's values: what is written is read, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from flight_service.protocol import actions, exchange, get, put, wrapper
from flight_service.protocol.errors import (
    INTERNAL_CODES,
    UNAVAILABLE_CODES,
    ServiceError,
    error_class,
    from_flight,
    to_flight,
)
from flight_service.protocol.message import Message
from flight_service.protocol.names import MAX_REFS, Ref, check_name, read_refs, write_refs
from quiver import ids
from quiver.errors import InvalidName, QuiverError

BATCH = pa.record_batch({"x": [1, 2, 3]})

FULL: list[Message] = [
    put.PutCommand(stream="t", mode="slot", slot="Logs", durability="accepted"),
    put.Envelope(
        key="k/1", hash=bytes(range(32)), attributes={"a": "ü"}, event_time=(-5, 7), resend=3
    ),
    put.PutReceipts(
        receipts=(
            put.PutReceipt(n=0, status="ok", ref=Ref(1, 2), sequence=9, durability="durable"),
            put.PutReceipt(n=1, status="retry", code="backpressure", retry_after_ms=5),
        )
    ),
    get.ReadCommand(stream="t", mode="slot", slot="Logs", columns=("a",), start=Ref(1, 0)),
    get.ReadCommand(stream="t", subscriber="s", wait_ms=5, lease_ms=1000, max_bytes=5),
    get.Ticket(stream="t", refs=(Ref(1, 0), Ref(1, 1), Ref(4, 7)), subscriber="s", lease="ab"),
    get.FlightMeta(lease="ab", expires_ns=5, refs=(Ref(0, 0),), more=True),
    get.BundleInfo(ref=Ref(1, 0), attributes={"a": "b"}, slots=("Logs",), event_time=(1, 2)),
    exchange.SubscribeCommand(stream="t", subscriber="s", projection={"Logs": ("a", "b")}),
    exchange.ClientMessage(ack=(Ref(1, 0),), credit=5, ping=True, id=4),
    exchange.ServerMessage(type="expired", refs=(Ref(1, 0),)),
    actions.Register(stream="t", subscriber="s", start=Ref(3, 4), poison="drop"),
    actions.Register(stream="t", subscriber="s", start=1_700_000_000_000_000_000),
    actions.Claimed(bundles=(get.BundleInfo(ref=Ref(0, 1)),), lease="x"),
    actions.Outcomes(taken=1, problems=(actions.Problem(ref=Ref(0, 0), outcome="acked"),)),
    actions.CreateStream(stream="t", settings={"wal": {"flush": "every"}}),
]


@pytest.mark.parametrize("message", FULL, ids=lambda m: type(m).__name__)
def test_what_is_written_is_read(message: Message) -> None:
    """Scenario: each kind of message is encoded and decoded. Guarantee: nothing changes."""
    assert type(message).decode(message.encode()) == message


def test_defaults_are_left_out() -> None:
    """Scenario: a message with defaults only. Guarantee: it costs no bytes it need not."""
    assert json.loads(put.PutCommand(stream="t").encode()) == {"v": 1, "stream": "t"}
    assert json.loads(put.NO_ENVELOPE.encode()) == {"v": 1}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b"[]", "must be a JSON object"),
        (b"{}", '"v" must be 1'),
        (b'{"v":2,"stream":"t"}', '"v" must be 1'),
        (b'{"v":1.0,"stream":"t"}', '"v" must be 1'),
        (b'{"v":true,"stream":"t"}', '"v" must be 1'),
        (b'{"v":1}', "stream is missing"),
        (b'{"v":1,"stream":null}', "stream is missing"),
        (b'{"v":1,"stream":"t","strem":"t"}', "known are stream, mode, slot, durability"),
        (b'{"v":1,"stream":"t","stream":"u"}', "twice"),
        (b'{"v":1,"stream":"../t"}', "not a valid stream name"),
        (b'{"v":1,"stream":"nul"}', "reserved"),
        (b'{"v":1,"stream":"t","mode":"x"}', "bundle, slot"),
        (b'{"v":1,"stream":"t","mode":["slot"]}', "bundle, slot"),
        (b'{"v":1,"stream":"t","mode":"slot"}', "names a slot"),
        (b'{"v":1,"stream":"t","slot":"Logs"}', "names a slot"),
        (b'{"v":1,"stream":"t","durability":NaN}', "not a JSON number"),
        (b'{"v":1' + b"0" * 5000 + b"}", "not JSON"),
        (b'{"v":1,"stream":' + b"[" * 30_000 + b"}", "nested too deeply"),
        (b" " * (put.MAX_COMMAND + 1), "the limit is 65,536"),
    ],
)
def test_bad_commands_are_refused_in_words(body: bytes, says: str) -> None:
    """Scenario: malformed descriptors. Guarantee: a typed error that says what is wrong."""
    with pytest.raises(ServiceError) as caught:
        put.PutCommand.decode(body)
    assert says in caught.value.message
    assert caught.value.code in ("bad_request", "invalid_name", "limit_exceeded")


@pytest.mark.parametrize(
    "fields",
    [
        {"key": ""},
        {"key": "x" * 5000},
        {"key": "\ud800"},
        {"key": 5},
        {"hash": "ab"},
        {"hash": "g" * 64},
        {"attributes": []},
        {"attributes": {"a": 1}},
        {"attributes": {"\udc00": "a"}},
        {"event_time": [1]},
        {"event_time": [2, 1]},
        {"event_time": [True, 2]},
        {"event_time": [0, 2**70]},
        {"resend": -1},
        {"resend": 1.5},
        {"resend": "1"},
    ],
)
def test_bad_envelopes_are_refused(fields: dict[str, Any]) -> None:
    """Scenario: envelopes with values of the wrong kind. Guarantee: each is refused."""
    with pytest.raises(ServiceError):
        put.Envelope.decode(json.dumps({"v": 1, **fields}).encode())


def test_ranges_and_subscribers_exclude_each_other() -> None:
    """Scenario: a claim with a range, a plain read with a lease. Guarantee: refused, since
    one of the two would silently not count."""
    for fields in (
        {"subscriber": "s", "start": [1, 2]},
        {"subscriber": "s", "refs": [[1, 2]]},
        {"lease_ms": 1000},
        {"wait_ms": 10},
        {"refs": [[1, 2]], "since_ns": 5},
        {"columns": ["a"]},
        {"mode": "slot", "slot": "Logs", "slots": ["Logs"]},
    ):
        with pytest.raises(ServiceError):
            get.ReadCommand.decode(json.dumps({"v": 1, "stream": "t", **fields}).encode())


def test_descriptors_both_ways() -> None:
    """Scenario: paths and commands. Guarantee: a path is short for a command."""
    path = flight.FlightDescriptor.for_path("t", "Logs")
    assert put.PutCommand.from_descriptor(path) == put.PutCommand(
        stream="t", mode="slot", slot="Logs"
    )
    assert get.ReadCommand.from_descriptor(flight.FlightDescriptor.for_path("t")).stream == "t"
    command = get.ReadCommand(stream="t", subscriber="s")
    assert get.ReadCommand.from_descriptor(command.descriptor()) == command
    for bad in (
        flight.FlightDescriptor.for_path("t"),
        flight.FlightDescriptor.for_path("t", "a", "b"),
        flight.FlightDescriptor.for_path("..", "a"),
        flight.FlightDescriptor.for_path(b"\xff", b"a"),
    ):
        with pytest.raises(ServiceError):
            put.PutCommand.from_descriptor(bad)


def test_refs_are_short_on_the_wire() -> None:
    """Scenario: runs and single refs, in any order. Guarantee: written short, read equal."""
    refs = (Ref(1, 0), Ref(1, 1), Ref(1, 2), Ref(0, 5), Ref(2, 0), Ref(2, 2))
    short = write_refs(refs)
    assert short == [[1, 0, 3], [0, 5], [2, 0], [2, 2]]
    assert read_refs(short, "refs") == refs


@pytest.mark.parametrize(
    "value",
    [5, {}, [5], [[1]], [[1, 2, 3, 4]], [[-1, 0]], [["1", 0]], [[1.0, 0]], [[True, 0]],
     [[1, 0, 0]], [[1, 0, -1]], [[1, 0, MAX_REFS + 1]], [[2**63, 0]], [[0, 2**32]],
     [[0, 0, MAX_REFS], [0, 0]], [[0, 2**32 - 1, 2]]],
)  # fmt: skip
def test_bad_refs_are_refused(value: Any) -> None:
    """Scenario: refs that are none, and more than the limit. Guarantee: refused before any
    memory is spent on them."""
    with pytest.raises(ServiceError):
        read_refs(value, "refs")


@pytest.mark.parametrize(
    "name",
    ["a", "A-b_9", "x" * 64, "", "x" * 65, "a b", "a/b", "..", ".", "ä", "a\n", "con", "NUL",
     "Com1", "lpt9", "com10", "a\x00", "\u2024", "\uff41", None, 5],
)  # fmt: skip
def test_names_follow_the_stores_rules(name: Any) -> None:
    """Scenario: good and bad names. Guarantee: protocol and store agree on each, though the
    protocol must not import the store."""
    try:
        ids.stream_name(name)
        expected = True
    except InvalidName:
        expected = False
    try:
        check_name("stream", name)
        found = True
    except ServiceError:
        found = False
    assert found == expected


def test_bundles_are_wrapped_and_unwrapped() -> None:
    """Scenario: two slots, one with dictionaries. Guarantee: they come out equal."""
    words = pa.record_batch({"w": pa.array(["a", "b", "a"]).dictionary_encode()})
    rows = wrapper.unwrap(wrapper.wrap({"Logs": BATCH, "Words": words}))
    assert [row.slot for row in rows] == ["Logs", "Words"]
    assert wrapper.unwrap_batch(rows[0]).equals(BATCH)
    assert wrapper.unwrap_batch(rows[1]).equals(words)
    assert wrapper.unwrap(wrapper.wrap({})) == []


def test_a_sliced_wrapper_is_read_where_it_starts() -> None:
    """Scenario: a wrapper that is a slice of a larger batch. Guarantee: its own rows."""
    whole = wrapper.wrap({"a": BATCH, "b": BATCH.slice(1), "c": BATCH})
    (row,) = wrapper.unwrap(whole.slice(1, 1))
    assert (row.slot, wrapper.unwrap_batch(row).num_rows) == ("b", 2)


def _wrapper(slots: list[Any], prints: list[Any], kind: Any = None) -> pa.RecordBatch:
    count = len(slots)
    return pa.record_batch(
        {
            "slot": pa.array(slots, kind or pa.uint16()),
            "schema_fp": pa.array(prints, pa.binary()),
            "ipc": pa.array([b"x"] * count, pa.large_binary()),
        }
    )


@pytest.mark.parametrize(
    "batch",
    [
        _wrapper([1, 1], [None, None]),
        _wrapper([64], [None]),
        _wrapper([None], [None]),
        _wrapper([1], [b"short"]),
        _wrapper(["../x"], [None], pa.utf8()),
        _wrapper(list(range(65)), [None] * 65),
    ],
)
def test_bad_wrappers_are_refused(batch: pa.RecordBatch) -> None:
    """Scenario: slots twice, out of range, null, too many. Guarantee: a typed error."""
    with pytest.raises(ServiceError):
        wrapper.unwrap(batch)


def test_the_wrapper_schema_is_checked() -> None:
    """Scenario: other columns than the wrapper's. Guarantee: refused, before any batch."""
    wrapper.check_schema(wrapper.BY_NAME)
    wrapper.check_schema(wrapper.BY_NUMBER)
    with pytest.raises(ServiceError):
        wrapper.check_schema(BATCH.schema)


def _codes() -> list[str]:
    found, todo = [], [QuiverError]
    while todo:
        kind = todo.pop()
        found.append(kind.code)
        todo += kind.__subclasses__()
    return found


@pytest.mark.parametrize("code", sorted({*_codes(), "forbidden", "unauthenticated", "expired"}))
def test_errors_survive_both_ways(code: str) -> None:
    """Scenario: each code as a Flight error and back. Guarantee: nothing is lost."""
    error = ServiceError(code, "what happened", details={"retry_after_ms": 5})
    sent = to_flight(error)
    assert type(sent) is error_class(code)
    back = from_flight(sent)
    assert (back.code, back.message, back.retryable) == (code, "what happened", error.retryable)
    assert back.retry_after_ms == 5


def test_the_stores_retryable_errors_travel_as_unavailable() -> None:
    """Scenario: every error of the store. Guarantee: what passes by itself is Unavailable or
    TimedOut, faults of the disk are Internal, so that bare clients can tell."""
    todo: list[type[QuiverError]] = [QuiverError]
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        if kind.retryable:
            assert kind.code in UNAVAILABLE_CODES | {"timeout"}
        elif kind.fault.value == "storage":
            assert kind.code in INTERNAL_CODES


def test_long_errors_fit_into_trailers() -> None:
    """Scenario: an error with a megabyte of text. Guarantee: cut, still readable."""
    sent = to_flight(ServiceError("bad_request", "x" * 10**6, details={"y": "z" * 10**6}))
    assert len(sent.extra_info) < 4096
    assert from_flight(sent).details == {"cut": True}


def test_errors_without_extra_info_have_a_code_too() -> None:
    """Scenario: errors from below the service. Guarantee: a code by class."""
    assert from_flight(flight.FlightUnavailableError("x")).code == "unavailable"
    assert from_flight(flight.FlightTimedOutError("x")).retryable
    assert from_flight(ValueError("x")).code == "internal"
    assert from_flight(flight.FlightServerError("x", b"no json")).code == "internal"


def test_every_action_is_described() -> None:
    """Scenario: the table of actions. Guarantee: each says what it does and takes."""
    for name, action in actions.ACTIONS.items():
        assert action.name == name
        assert action.doc.endswith(".")
        assert "Takes: " in action.description
        assert all(info.doc for info in action.request.fields())
