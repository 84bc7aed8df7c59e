"""Positions, times and ranges as options say them, and as checkpoints keep them."""

from __future__ import annotations

import pytest

from flight_service.client.errors import BadRequest
from flight_service.protocol.names import Ref
from spark_client.options import READ, READ_STREAM
from spark_client.source.offsets import Offset, Span, read_time, read_where
from spark_client.source.progress import may_miss
from spark_client.source.request import Request, check_batch, request_of, values_of

URL = {"url": "quiver://h/s"}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("earliest", "earliest"),
        (" LATEST ", "latest"),
        ("12.3", Ref(12, 3)),
        ("[12, 3]", Ref(12, 3)),
        ('{"segment": 12, "bundle": 3, "subscriber": "x"}', Ref(12, 3)),
    ],
)
def test_positions(text: str, where: object) -> None:
    """Every way to write one gives the same; an offset out of a checkpoint will do."""
    assert read_where("startingOffsets", text) == where


@pytest.mark.parametrize("text", ["soon", "12", "12.", "-1.0", "[1]", "[1, -2]", "{}", "1.5.2", ""])
def test_what_is_no_position(text: str) -> None:
    """Scenario: something else. Guarantee: refused, by the option's name, with an example."""
    with pytest.raises(BadRequest, match=r"startingOffsets takes earliest.*such as 12\.0"):
        read_where("startingOffsets", text)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("1700000000123", 1_700_000_000_123_000_000),
        ("2023-11-14T22:13:20.123456Z", 1_700_000_000_123_456_000),
        ("2023-11-15T00:13:20+02:00", 1_700_000_000_000_000_000),
    ],
)
def test_times(text: str, ns: int) -> None:
    """Milliseconds as Kafka's source takes them, or a time with its zone; exact."""
    assert read_time("startingTimestamp", text) == ns


@pytest.mark.parametrize("text", ["yesterday", "-5", "2023-11-14T22:13:20", "1.5", ""])
def test_what_is_no_time(text: str) -> None:
    """Scenario: something else, or a time without a zone. Guarantee: refused."""
    with pytest.raises(BadRequest, match="startingTimestamp takes milliseconds"):
        read_time("startingTimestamp", text)


def test_an_offset_comes_back_as_it_was() -> None:
    """Scenario: written to a checkpoint and read. Guarantee: the same; and anything else is
    refused with advice."""
    offset = Offset(Ref(7, 2), "spark-1")
    assert Offset.read(offset.write()) == offset
    further = offset.reached(Ref(8, 0))
    assert Offset.read(further.write()) == further == Offset(Ref(8, 0), "spark-1", Ref(7, 2))
    assert further.reached(Ref(9, 0)).begin == Ref(7, 2)
    for said in ({}, {"segment": 1}, {"segment": 1, "bundle": -1, "subscriber": "s"}, {"a": 1}):
        with pytest.raises(BadRequest, match="new checkpointLocation"):
            Offset.read(said)


@pytest.mark.parametrize(
    ("wanted", "oldest", "missing"),
    [
        (Ref(3, 0), Ref(3, 0), False),
        (Ref(3, 0), Ref(4, 0), True),
        (Ref(3, 2), Ref(4, 0), False),  # it may have been the end of segment 3
        (Ref(3, 2), Ref(5, 0), True),
        (Ref(5, 0), Ref(3, 0), False),
    ],
)
def test_what_may_be_missing(wanted: Ref, oldest: Ref, missing: bool) -> None:
    """Scenario: a position and the oldest that is left. Guarantee: an alarm where whole
    segments are gone, and none where nothing need be."""
    assert may_miss(wanted, oldest) is missing


def test_ranges_by_option() -> None:
    """Scenario: each way to say a range. Guarantee: read as meant; saying it twice, or saying
    nothing at all with it, is refused; endings are for batches."""

    def span(use: str = READ, **options: str) -> Span:
        return request_of(values_of({**URL, **options}, use)).span

    assert span() == Span("earliest", "latest")
    assert span(startingoffsets="1.0", endingoffsets="2.0").last == Ref(2, 0)
    assert span(startingtimestamp="5", endingtimestamp="6").until_ns == 6_000_000
    assert span(READ_STREAM, startingoffsets="latest").start == "latest"
    with pytest.raises(BadRequest, match="say the same thing twice"):
        span(startingoffsets="1.0", startingtimestamp="5")
    with pytest.raises(BadRequest, match="endingOffsets means nothing for readStream"):
        span(READ_STREAM, endingoffsets="1.0")
    for one in (span(startingoffsets="latest"), span(endingoffsets="earliest")):
        with pytest.raises(BadRequest, match="leaves nothing to read"):
            check_batch(one)


def test_slots_and_modes_by_option() -> None:
    """Scenario: slots and what goes with them. Guarantee: one for a frame of rows, any number
    for bundles; what bundle mode can't do is refused."""

    def request(**options: str) -> Request:
        return request_of(values_of({**URL, **options}, READ))

    assert request(slot="A, B", mode="bundle").slots == ("A", "B")
    for options, message in (
        ({"slot": "A,B"}, "one slot"),
        ({"slot": "no spaces"}, "not a valid slot name"),
        ({"mode": "bundle", "columns": "a"}, "columns is for mode=slot"),
        ({"mode": "bundle", "includemetadata": "true"}, "includeMetadata is for mode=slot"),
        ({"colums": "a"}, "Did you mean columns"),
        ({"startingOffset": "1.0"}, "Did you mean startingOffsets"),
        ({"maxBundlesPerTrigger": "1"}, "means nothing for read"),
    ):
        with pytest.raises(BadRequest, match=message):
            request(**options)
