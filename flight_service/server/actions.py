"""DoAction: one small function for each action, found by its name.

The table of names, requests and answers is the protocol's
(:data:`flight_service.protocol.actions.ACTIONS`); every name there has a method here, and
nothing else can be called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final, Protocol

from flight_service.protocol import actions as wire
from flight_service.protocol.errors import ServiceError
from flight_service.protocol.message import Message
from flight_service.protocol.names import Ref
from flight_service.protocol.plan import Plan, Planned, Schemas, SchemasRequest
from flight_service.protocol.stage import (
    Abort,
    Aborted,
    Begin,
    Begun,
    CommitDone,
    CommitStages,
    FinishStage,
    StageFinished,
)
from flight_service.server.authz import OBSERVE, Grant, allowed, visible
from flight_service.server.bundles import check_uuid
from flight_service.server.leases import ConsumerGroup
from flight_service.server.plan import plan
from flight_service.server.ranges import library_start, position_of
from flight_service.server.streams import Streams
from quiver import BundleRef
from quiver.clock import Clock
from quiver.errors import WaitTimeout

EMPTY_BODY: Final = b'{"v":1}'
MAX_PROBLEMS: Final = 65_536


class Overview(Protocol):
    """The server as a whole, for ``status`` and ``health``."""

    def status(self, streams: list[str]) -> wire.StatusReport: ...

    def health(self) -> wire.Health: ...


class Actions:
    """What the server does on request."""

    def __init__(self, streams: Streams, overview: Overview, clock: Clock) -> None:
        self._streams = streams
        self._overview = overview
        self._clock = clock

    def decode(self, name: str, body: bytes) -> Message:
        """The request of an action; unknown actions are refused with the known ones."""
        action = wire.ACTIONS.get(name)
        if action is None:
            raise ServiceError(
                "unknown_action",
                f"there is no action {name[:80]!r}; known are {', '.join(wire.ACTIONS)}.",
            )
        return action.request.decode(body or EMPTY_BODY)

    def run(
        self, name: str, request: Message, grants: tuple[Grant, ...], gone: Callable[[], bool]
    ) -> Message:
        """Do it; who may has been checked."""
        if name in ("claim", "next"):
            assert isinstance(request, wire.Claim)
            return self._claim(request, gone)
        action: Callable[..., Message] = getattr(self, f"_{name}")
        if name in ("status", "list_streams"):
            return action(request, grants)
        return action(request)

    # Subscribers

    def _register(self, request: wire.Register) -> wire.Registered:
        with self._streams.use(request.stream) as stream:
            group, created, position = stream.register(request, library_start(request.start))
            status = str(stream.store.subscribers[request.subscriber])
            return wire.Registered(
                status=status,
                created=created,
                policy=group.policy.write(),
                position=Ref(*position),
            )

    def _unregister(self, request: wire.SubscriberRequest) -> wire.Dropped:
        with self._streams.use(request.stream) as stream:
            dropped = stream.forget(request.subscriber, stream.store.unregister)
            return wire.Dropped(dropped=dropped)

    def _drop_orphan(self, request: wire.SubscriberRequest) -> wire.Dropped:
        with self._streams.use(request.stream) as stream:
            dropped = stream.forget(request.subscriber, stream.store.drop_orphan)
            return wire.Dropped(dropped=dropped)

    def _activate(self, request: wire.StreamRequest) -> wire.Orphans:
        with self._streams.use(request.stream) as stream:
            return wire.Orphans(orphans=tuple(stream.store.activate()))

    # Delivery

    def _claim(self, request: wire.Claim, gone: Callable[[], bool]) -> wire.Claimed:
        with self._streams.use(request.stream) as stream:
            group = stream.group(request.subscriber, create=True)
            lease = group.lease(request.consumer, request.lease_ms)
            try:
                found = group.claim(
                    lease,
                    max_bundles=request.max_bundles,
                    max_bytes=request.max_bytes,
                    wait=request.wait_ms / 1000,
                    order=request.order,
                    gone=gone,
                )
                if not found:
                    return wire.Claimed(bundles=())
                return wire.Claimed(
                    lease=lease.id,
                    expires_ns=self._expiry(lease.seconds),
                    bundles=tuple(one.info() for one in found),
                )
            except BaseException:
                group.release(lease, failed=False)
                raise

    def _ack(self, request: wire.Ack) -> wire.Outcomes:
        with self._streams.use(request.stream) as stream:
            check_uuid(stream.store, request.uuid)
            group = stream.group(request.subscriber)
            taken, problems = group.ack(request.refs or (), request.lease)
            if request.before is not None:
                taken += group.ack_before(BundleRef(*request.before))
            return self._outcomes(group, taken, problems, stream.store, durable=request.durable)

    def _reject(self, request: wire.Reject) -> wire.Outcomes:
        with self._streams.use(request.stream) as stream:
            check_uuid(stream.store, request.uuid)
            group = stream.group(request.subscriber)
            taken, problems = group.reject(request.refs, request.reason, request.lease)
            return self._outcomes(group, taken, problems, stream.store, durable=request.durable)

    def _defer(self, request: wire.Defer) -> wire.Outcomes:
        delay = None if request.delay_ms is None else request.delay_ms / 1000
        with self._streams.use(request.stream) as stream:
            group = stream.group(request.subscriber)
            taken, problems = group.defer(request.refs, delay, request.reason, request.lease)
            return self._outcomes(group, taken, problems, stream.store, durable=False)

    def _outcomes(
        self,
        group: ConsumerGroup,
        taken: int,
        problems: list[tuple[Ref, str]],
        store: Any,
        *,
        durable: bool,
    ) -> wire.Outcomes:
        if durable:
            store.flush_progress((group.name,))
        told = tuple(wire.Problem(ref=ref, outcome=outcome) for ref, outcome in problems)
        return wire.Outcomes(taken=taken, durable=durable, problems=told[:MAX_PROBLEMS])

    def _renew(self, request: wire.Renew) -> wire.Renewed:
        with self._streams.use(request.stream) as stream:
            group = stream.group(request.subscriber)
            held, seconds = group.renew(request.lease, request.refs, request.lease_ms)
            if seconds is None:
                raise ServiceError(
                    "expired", "the lease has ended.", details={"lease": request.lease}
                )
            return wire.Renewed(held=held, expires_ns=self._expiry(seconds))

    def _seek(self, request: wire.Seek) -> wire.Position:
        with self._streams.use(request.stream) as stream:
            position = position_of(stream.store, request.to)
            stream.group(request.subscriber).seek(position)
            stream.store.flush_progress((request.subscriber,))
            return wire.Position(ref=Ref(*position))

    def _expiry(self, seconds: float) -> int:
        return self._clock.now_ns() + int(seconds * 1e9)

    # Staged writes

    def _begin(self, request: Begin) -> Begun:
        with self._streams.use(request.stream, create=True) as stream:
            return stream.stages.begin(request)

    def _finish_stage(self, request: FinishStage) -> StageFinished:
        with self._streams.use(request.stream) as stream:
            return stream.stages.finish(request)

    def _commit(self, request: CommitStages) -> CommitDone:
        with self._streams.use(request.stream) as stream:
            return stream.stages.commit(request)

    def _abort(self, request: Abort) -> Aborted:
        with self._streams.use(request.stream) as stream:
            return stream.stages.abort(request)

    # Before reading

    def _plan(self, request: Plan) -> Planned:
        with self._streams.use(request.stream) as stream:
            return plan(stream.store, request)

    def _schemas(self, request: SchemasRequest) -> Schemas:
        with self._streams.use(request.stream) as stream:
            return stream.schemas.answer(request.slot)

    # Upkeep

    def _flush(self, request: wire.StreamRequest) -> wire.Flushed:
        with self._streams.use(request.stream) as stream:
            return wire.Flushed(segments=stream.store.flush())

    def _wait_durable(self, request: wire.WaitDurable) -> wire.Done:
        with self._streams.use(request.stream) as stream:
            if request.sequence >= stream.store.status().next_sequence:
                raise ServiceError(
                    "unknown_bundle", f"sequence {request.sequence:,} was never given out."
                )
            try:
                stream.store.wait_durable(request.sequence, request.timeout_ms / 1000)
            except WaitTimeout as error:
                raise ServiceError("timeout", str(error)) from None
            return wire.Done()

    def _maintain(self, request: wire.StreamRequest) -> wire.Maintained:
        with self._streams.use(request.stream) as stream:
            return wire.Maintained(work=asdict(stream.store.maintain()))

    def _drain(self, request: wire.Drain) -> wire.Drained:
        with self._streams.use(request.stream) as stream:
            return wire.Drained(drained=stream.store.drain(request.timeout_ms / 1000))

    # Questions

    def _status(
        self, request: wire.OptionalStreamRequest, grants: tuple[Grant, ...]
    ) -> wire.StatusReport:
        if request.stream is None:
            names = self._streams.names()
            return self._overview.status([one for one in names if allowed(grants, OBSERVE, one)])
        with self._streams.use(request.stream):
            return self._overview.status([request.stream])

    def _lag(self, request: wire.LagRequest) -> wire.LagReport:
        with self._streams.use(request.stream) as stream:
            store = stream.store
            names = (
                sorted(store.subscribers) if request.subscriber is None else [request.subscriber]
            )
            return wire.LagReport(subscribers={name: asdict(store.lag(name)) for name in names})

    def _list_streams(self, request: wire.NoRequest, grants: tuple[Grant, ...]) -> wire.StreamList:
        return wire.StreamList(
            streams=tuple(
                {"name": name, "state": self._streams.state(name)} for name in self._visible(grants)
            )
        )

    def _visible(self, grants: tuple[Grant, ...]) -> list[str]:
        return [name for name in self._streams.names() if visible(grants, name)]

    def _health(self, request: wire.NoRequest) -> wire.Health:
        return self._overview.health()

    # Streams

    def _create_stream(self, request: wire.CreateStream) -> wire.Created:
        created = self._streams.create(
            request.stream, request.settings, if_not_exists=request.if_not_exists
        )
        return wire.Created(created=created)

    def _delete_stream(self, request: wire.DeleteStream) -> wire.Done:
        if request.confirm != request.stream:
            raise ServiceError(
                "bad_request", "confirm must be the stream's name: nothing was deleted."
            )
        self._streams.delete(request.stream, force=request.force)
        return wire.Done()
