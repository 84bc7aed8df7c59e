"""What a principal may do: one table over every RPC and every action, denied by default.

=============  ==================================================================
verb           for
=============  ==================================================================
``put``        putting bundles, staged or not; committing and aborting what was staged
``read``       reading without a subscriber, schemas, listing
``subscribe``  claiming and finishing as a subscriber; making one
``manage``     a stream's subscribers and upkeep: seek, flush, drain, unregister …
``admin``      creating and deleting streams
``observe``    status and lag
=============  ==================================================================

A grant is a set of verbs on streams named by patterns (``telemetry*``).  ``health`` and
``list_actions`` need to be somebody, and no grant.  What shows several streams shows
those the caller has any verb on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Self

from flight_service.protocol.actions import ACTIONS
from flight_service.protocol.errors import ServiceError

PUT: Final = "put"
READ: Final = "read"
SUBSCRIBE: Final = "subscribe"
MANAGE: Final = "manage"
ADMIN: Final = "admin"
OBSERVE: Final = "observe"
NOBODY_SPECIAL: Final = ""
"""Any principal may; there is no verb to grant."""
ALL_VERBS: Final = frozenset({PUT, READ, SUBSCRIBE, MANAGE, ADMIN, OBSERVE})

_PATTERN: Final = re.compile(r"[A-Za-z0-9_*?-]{1,64}", re.ASCII)

TABLE: Final[Mapping[str, str]] = {
    "do_put": PUT,
    "do_get": READ,
    "do_get:subscriber": SUBSCRIBE,
    "get_flight_info": READ,
    "get_flight_info:subscriber": SUBSCRIBE,
    "get_schema": READ,
    "do_exchange": SUBSCRIBE,
    "list_flights": NOBODY_SPECIAL,
    "list_actions": NOBODY_SPECIAL,
    "action:register": SUBSCRIBE,
    "action:unregister": MANAGE,
    "action:activate": MANAGE,
    "action:drop_orphan": MANAGE,
    "action:claim": SUBSCRIBE,
    "action:next": SUBSCRIBE,
    "action:ack": SUBSCRIBE,
    "action:reject": SUBSCRIBE,
    "action:defer": SUBSCRIBE,
    "action:renew": SUBSCRIBE,
    "action:seek": MANAGE,
    "action:plan": READ,
    "action:schemas": READ,
    "action:flush": MANAGE,
    "action:wait_durable": PUT,
    "action:begin": PUT,
    "action:finish_stage": PUT,
    "action:commit": PUT,
    "action:abort": PUT,
    "action:maintain": MANAGE,
    "action:drain": MANAGE,
    "action:status": OBSERVE,
    "action:lag": OBSERVE,
    "action:list_streams": NOBODY_SPECIAL,
    "action:create_stream": ADMIN,
    "action:delete_stream": ADMIN,
    "action:health": NOBODY_SPECIAL,
}
"""Every door of the server, and the verb that opens it."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Verbs on streams."""

    verbs: frozenset[str]
    streams: tuple[str, ...]

    @classmethod
    def read(cls, said: Any) -> Self:
        """From the auth file; ``ValueError`` says what is wrong."""
        if not isinstance(said, dict) or set(said) != {"verbs", "streams"}:
            raise ValueError("a grant has verbs and streams")
        verbs, streams = said["verbs"], said["streams"]
        if not isinstance(verbs, list) or not set(map(str, verbs)) <= ALL_VERBS:
            raise ValueError(f"verbs are {', '.join(sorted(ALL_VERBS))}")
        if not isinstance(streams, list) or not all(
            isinstance(one, str) and _PATTERN.fullmatch(one) for one in streams
        ):
            raise ValueError("streams are names, with * and ? as wildcards")
        return cls(frozenset(verbs), tuple(streams))

    def covers(self, verb: str, stream: str) -> bool:
        return verb in self.verbs and any(fnmatchcase(stream, one) for one in self.streams)


def allowed(grants: Iterable[Grant], verb: str, stream: str) -> bool:
    """Whether one of the grants covers a verb on a stream."""
    return any(grant.covers(verb, stream) for grant in grants)


def visible(grants: Iterable[Grant], stream: str) -> bool:
    """Whether a stream may be shown at all."""
    return any(allowed(grants, verb, stream) for verb in ALL_VERBS)


def check(name: str, grants: Iterable[Grant], door: str, stream: str | None) -> None:
    """Let a principal through a door, or refuse; a door that isn't in the table is shut."""
    verb = TABLE.get(door)
    if verb == NOBODY_SPECIAL:
        return
    if verb is not None and stream is not None and allowed(grants, verb, stream):
        return
    raise ServiceError(
        "forbidden",
        f"{name} may not {verb or door} {'here' if stream is None else repr(stream)}.",
        details={"verb": verb or door, "stream": stream},
    )


assert {f"action:{name}" for name in ACTIONS} == {
    door for door in TABLE if door.startswith("action:")
}, "every action has its row"
