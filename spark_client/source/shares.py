"""A plan as partitions: each the runs of bundles that one task reads."""

from __future__ import annotations

from functools import partial

from pyspark.sql.datasource import InputPartition

from flight_service.client.stream import Stream
from flight_service.protocol.names import Ref
from flight_service.protocol.plan import MAX_PART_BUNDLES, Planned
from spark_client.source.link import Link
from spark_client.source.request import Request


def plan(
    link: Link, request: Request, start: Ref | None, end: Ref | None, subscriber: str | None = None
) -> Planned:
    """A range, cut by size, and finer if fewer parts come out than were asked for."""
    planned = _asked(link, request, start, end, subscriber, request.partition_bytes)
    wanted = request.min_partitions or 0
    if planned.parts and len(planned.parts) < wanted:
        nbytes = sum(part.nbytes for part in planned.parts)
        bundles = sum(part.bundles for part in planned.parts)
        size = max(1, min(request.partition_bytes, -(-nbytes // wanted)))
        most = max(1, bundles // wanted)
        # From the end that was found: what came meanwhile is not in it.
        planned = _asked(link, request, planned.start, planned.end, subscriber, size, most)
    return planned


def _asked(
    link: Link,
    request: Request,
    start: Ref | None,
    end: Ref | None,
    subscriber: str | None,
    max_bytes: int,
    max_bundles: int = MAX_PART_BUNDLES,
) -> Planned:
    """All parts, however many answers they take."""
    span = request.span
    whole: Planned | None = None
    while whole is None or whole.more:
        question = partial(
            Stream.plan,
            start=start if whole is None else whole.parts[-1].end,
            end=end if whole is None else whole.end,
            since=span.since_ns if subscriber is None else None,
            until=span.until_ns if subscriber is None else None,
            max_bytes=max_bytes,
            max_bundles=max_bundles,
            subscriber=subscriber,
        )
        found = link.ask(question)
        if whole is None:
            whole = found
        else:
            whole = whole.changed(parts=(*whole.parts, *found.parts), more=found.more)
    return whole


def partitions(planned: Planned) -> list[InputPartition]:
    """One for each part."""
    return [InputPartition(part.runs) for part in planned.parts]
