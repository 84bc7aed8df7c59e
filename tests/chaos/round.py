"""One round: start, trouble, calm, verdict.  Everything in it follows from its seed."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow.flight as flight

from tests.chaos.acts import RoundOver, bring_up, bring_up_embedded
from tests.chaos.clients.job import Job
from tests.chaos.content import batch_of, content_hash, identity_of
from tests.chaos.judge import Violation, judge, shows_nothing
from tests.chaos.profiles import Profile
from tests.chaos.settings import OF_THE_SERVER, first_settings
from tests.chaos.sight import sights
from tests.chaos.stage import DRAIN_SECONDS, EMBEDDED, STREAM, Stage, Tally
from tests.chaos.wire import FAILURES, bundles, command, connect, put

FIRST_PUTS: Final = 20
FIRST_OF_EACH: Final = 5
AFTER_CALM: Final = 10
MOST_READ: Final = 2048
MOST_RESENT: Final = 8
START_SECONDS: Final = 30.0
LONGEST: Final = 180.0
"""Seconds after which a round is a hang."""
AGAIN: Final = "again"
"""The stream that is deleted and made again."""
SUBSCRIBERS: Final = {"bare-subscriber": "bare", "product-subscriber": "product"}
STREAM_SETTINGS: Final = {"idempotency": {"window_age": "36h"}}
"""The stream's own, kept in its ``service.json``."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a round."""

    profile: str
    seed: int
    number: int
    seconds: float
    tally: Tally
    violations: tuple[Violation, ...]
    short: bool = False

    @property
    def replay(self) -> str:
        """The line that runs it again."""
        if self.short:
            which = f"--seed {self.seed} --profile {self.profile} --round {self.number}"
            return f"python -m tests.chaos {which} --short"
        return f"make chaos SEED={self.seed} PROFILE={self.profile} ROUND={self.number}"


def play(profile: Profile, seed: int, number: int, where: Path, *, short: bool = False) -> Outcome:
    """Play one round in a directory of its own; it is removed if nothing was found.

    A ``short`` one has one step of trouble, the one that the profile is about.
    """
    chance = Random(f"{seed}/{profile.name}/{number}")
    began = time.monotonic()
    embedded = chance.random() < profile.embedded
    name = f"{seed}/{profile.name}/{number}"
    streams = _streams(profile, embedded)
    with Stage(where, name, small_disk=profile.small_disk, embedded=embedded) as stage:
        watchdog = threading.Timer(LONGEST, stage.give_up)
        watchdog.daemon = True
        watchdog.start()
        try:
            _Play(profile, stage, chance, short).run(streams)
        except RoundOver:
            stage.book.note("cut_short")
        finally:
            watchdog.cancel()
        notes = stage.reader.all()
        violations = (*judge(notes), *shows_nothing(notes, streams))
    if not violations:
        stage.remove()
    seconds = time.monotonic() - began
    return Outcome(profile.name, seed, number, seconds, stage.count(), violations, short)


def _streams(profile: Profile, embedded: bool) -> list[str]:
    """The streams that a round must have put into."""
    found = [STREAM] if "bare-producer" in profile.clients else []
    found += [AGAIN] if "recreating" in profile.clients else []
    return found + ([EMBEDDED] if embedded else [])


class _Play:
    def __init__(self, profile: Profile, stage: Stage, chance: Random, short: bool) -> None:
        self._profile = profile
        self._stage = stage
        self._chance = chance
        self._short = short

    def run(self, streams: Sequence[str]) -> None:
        stage, chance, profile = self._stage, self._chance, self._profile
        self._open()
        if not stage.await_(lambda: self._begun(streams), START_SECONDS):
            stage.violation("stuck", "too few puts were answered before any trouble")
            raise RoundOver
        steps = chance.randint(*profile.steps)
        for step in range(1 if self._short else steps):
            acts, weights = zip(*profile.acts[: None if step else profile.own], strict=True)
            chance.choices(acts, weights)[0](stage, chance)
            stage.await_puts(chance.randint(5, 60))
        self._calm()
        self._finish()
        self._look()

    def _begun(self, streams: Sequence[str]) -> bool:
        """Whether every stream has taken some puts."""
        stage = self._stage
        enough = stage.durable_puts() >= FIRST_PUTS
        return enough and all(stage.durable_puts(one) >= FIRST_OF_EACH for one in streams)

    # Before

    def _open(self) -> None:
        stage, chance, profile = self._stage, self._chance, self._profile
        own = first_settings(chance)
        more = {**profile.settings, **(profile.or_else if chance.random() < 0.5 else {})}
        stage.settings = {**own, **OF_THE_SERVER, **more}
        stage.embedded_settings = {**own, **(more if profile.of_store else {})}
        stage.server.descriptors = profile.descriptors
        stage.slow_ms = profile.slow_ms * chance.choice((0.0, 1.0))
        for what in profile.excuses:
            stage.trouble(what, None)
        bring_up(stage)
        self._ask("create_stream", stream=STREAM, settings=STREAM_SETTINGS, if_not_exists=True)
        for name, subscriber in SUBSCRIBERS.items():
            if name in profile.clients:
                policy = {"max_in_flight": 512, "backoff_ms": 20, "backoff_max_ms": 200}
                self._ask("register", stream=STREAM, subscriber=subscriber, **policy)
                stage.book.note("registered", stream=STREAM, subscriber=subscriber)
        self._start_clients()

    def _ask(self, action: str, **fields: Any) -> None:
        """An action that must succeed: the machine may be busy, so it is asked for again."""
        stage = self._stage
        if not stage.await_(lambda: stage.ask(action, **fields) is not None, START_SECONDS):
            stage.violation("stuck", f"{action} is not answered before any trouble")
            raise RoundOver

    def _start_clients(self) -> None:
        stage, profile = self._stage, self._profile
        url = stage.network.url if profile.proxied else stage.server.url
        for name in profile.clients:
            program, _, role = name.partition("-")
            job = Job(
                name,
                role,
                str(stage.where),
                stage.seed,
                url=url,
                subscriber=SUBSCRIBERS.get(name, ""),
                **profile.job,
            )
            if program == "recreating":
                job = replace(job, stream=AGAIN)
            stage.start_client(program, job)
        options = json.dumps(dict(profile.options))
        job = replace(stage.embedded_job, options=options, pace=0.002, **profile.job)
        stage.embedded_job = job
        bring_up_embedded(stage)

    # After

    def _calm(self) -> None:
        """No more trouble: the server is well by itself, or says why not."""
        stage = self._stage
        stage.calm()
        if not stage.server.running:
            stage.violation("refused_to_start", "the server has ended by itself")
            bring_up(stage)
        if stage.uses_embedded and (stage.embedded is None or not stage.embedded.running):
            bring_up_embedded(stage)
        state = stage.settled() or {"state": "silent"}
        if state["state"] == "poisoned":
            stage.violation("poisoned_without_fault", f"{state['problems']}"[:400])
            raise RoundOver
        if state["state"] not in ("open", "degraded"):
            stage.violation("refused_to_start", f"{state['state']}: {state.get('problem')}")
        if not stage.await_puts(AFTER_CALM, 20.0):
            problems = state.get("problems", state["state"])
            stage.violation("stuck", f"no put is taken in the calm: {problems}"[:400])
            raise RoundOver

    def _finish(self) -> None:
        """Puts end, everything is delivered, everybody ends."""
        stage = self._stage
        stage.stop_putting()
        for process in stage.clients:
            if process.name.endswith("producer") or process.name == "recreating":
                stage.end_client(process)
        stage.await_(stage.drained, DRAIN_SECONDS)
        if stage.embedded is not None:
            stage.end_client(stage.embedded)
        stage.stop()
        for process in stage.clients:
            if process.name.endswith("subscriber"):
                stage.end_client(process)

    def _look(self) -> None:
        """What the server says of the stream, and what can be read of it."""
        stage = self._stage
        state = stage.settled()
        if state is None:
            stage.violation("hang", "the server does not answer in the calm")
            raise RoundOver
        book = stage.book
        word, problems = state["state"], state.get("problems", [])
        book.note("status", stream=STREAM, state=word, problems=problems)
        book.note("ledger", stream=STREAM, rows=state.get("losses", []))
        with connect(stage.server.url) as client:
            self._read(client)
            if stage.damaged:
                self._resend(client)
        if not stage.server.terminate():
            stage.violation("hang", "the server did not end after SIGTERM")

    def _read(self, client: flight.FlightClient) -> None:
        start: dict[str, Any] = {}
        for _ in range(MOST_READ):
            try:
                info = client.get_flight_info(command(stream=STREAM, max_bundles=64, **start))
            except FAILURES:
                return
            for endpoint in info.endpoints:
                self._read_endpoint(client, endpoint.ticket)
            about = json.loads(info.app_metadata)
            if not about.get("more"):
                return
            segment, index, *count = about["refs"][-1]  # a ref, or a run of them
            start = {"start": [segment, index + (count[0] if count else 1)]}

    def _read_endpoint(self, client: flight.FlightClient, ticket: flight.Ticket) -> None:
        with contextlib.suppress(*FAILURES):  # what is damaged is told by ledger and status
            for ref, bundle in bundles(client, ticket):
                self._stage.book.note(
                    "read",
                    stream=STREAM,
                    ref=ref,
                    id=identity_of(bundle),
                    hash=content_hash(bundle),
                )

    def _resend(self, client: flight.FlightClient) -> None:
        """What is on record as lost to damage, and can't be read: its producer sends it again."""
        notes = self._stage.reader.all()
        sight = sights(notes).get(STREAM)
        if sight is None:
            return
        readable = {one.identity for one in sight.seen if one.subscriber is None}
        lost = {one for name in sight.registered for one in sight.missing(name)} - readable
        sent = {note["id"]: note for note in notes if note.kind == "put" and note.get("key")}
        on_record = [
            one
            for one in sorted(lost & set(sent))
            if any(sight.lost_to_damage(ref) for ref in sight.refs.get(one, ()))
            and one.startswith("bare-producer")
        ]
        for one in on_record[:MOST_RESENT]:
            self._send_again(client, sent[one]["key"], one, sent[one]["hash"])

    def _send_again(self, client: flight.FlightClient, key: str, name: str, digest: str) -> None:
        for slot in ("Logs", "Spans"):
            for rows in range(1, 61):
                batch = batch_of(name, slot, rows)
                if content_hash({slot: batch}) != digest:
                    continue
                with contextlib.suppress(*FAILURES):
                    for receipt in put(client, STREAM, slot, [(batch, {"key": key})]):
                        self._stage.book.note(
                            "resent",
                            stream=STREAM,
                            id=name,
                            status=receipt["status"],
                            ref=receipt.get("ref"),
                        )
                return


__all__ = ["EMBEDDED", "Outcome", "play"]
