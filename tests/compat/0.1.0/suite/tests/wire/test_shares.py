"""A plan as Spark's partitions: every bundle in one of them, however many there are."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flight_service.client.stream import Stream
from flight_service.server import Server
from spark_client.options import READ
from spark_client.source import shares
from spark_client.source.request import link_of, request_of, values_of


def test_every_bundle_is_in_one_partition(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: ranges cut by size, by number of tasks, and into more parts than one answer
    may hold. Guarantee: the partitions name every bundle once and in order, at least as many
    partitions as were asked for, and no more bundles if some come while it is planned."""
    given = {"url": f"quiver://127.0.0.1:{server.port}/s", "slot": "Logs"}
    values = values_of(given, READ)
    link = link_of(values)
    stream = link.stream
    refs = [stream.put({"Logs": pa.record_batch({"n": [n]})}).ref for n in range(20)]

    def planned(**options: str) -> list[list[tuple[int, int]]]:
        request = request_of(values_of({**given, **options}, READ))
        found = shares.partitions(shares.plan(link, request, None, None))
        return [
            [(segment, first + n) for segment, first, count in one.value for n in range(count)]
            for one in found
        ]

    def flat(parts: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
        return [ref for part in parts for ref in part]

    assert planned() == [refs]
    assert len(planned(minPartitions="6")) >= 6
    assert flat(planned(minPartitions="6")) == refs
    assert [len(part) for part in planned(maxPartitionBytes="1b")] == [1] * 20
    plan = Stream.plan
    monkeypatch.setattr(Stream, "plan", lambda self, **asked: plan(self, max_parts=3, **asked))
    assert flat(planned(maxPartitionBytes="1b")) == refs
    assert len(planned(minPartitions="7")) >= 7
    link.close()
