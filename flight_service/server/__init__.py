"""The service: a thin shell around stores, and everything a network needs around that.

::

    DoPut ─► put ──────────────┐
    GetFlightInfo, DoGet ─► get ├─► streams ─► stream ─► quiver.Store
    DoExchange ─► exchange ────┤                 └─► leases (who has which bundle)
    DoAction ─► actions ───────┘

================  ==================================================================
settings.py       every setting; the store's are the defaults of every stream
service.py        the Flight server: each RPC authenticated, authorised, counted, mapped
put.py            DoPut: take in, and a sender that answers when durable
get.py            GetFlightInfo, DoGet, GetSchema, ListFlights
exchange.py       DoExchange: the live subscription
actions.py        DoAction: a method per action
stages.py         staged writes: attempts being written, finished, committed, aborted
bundles.py        bundles in the wire's forms      ranges.py   which bundles a read means
plan.py           a range cut for many readers     schemas.py  what the slots look like
streams.py        all streams, opened when needed  stream.py   one open stream
leases.py         claims, renewals, redelivery     claims.py   their values
policy.py         how a subscriber is served
dead_letters.py   poison, to its own stream
auth.py           who is calling                   authz.py    what they may: one table
limits.py         calls at a time                  edge.py     errors, mapped
http.py           health, metrics, status          exposition.py   Prometheus' text
overview.py       how the server is doing          events.py   names of log events
lifecycle.py      start, drain, exit               __main__.py a bare start
process.py        memory and threads of the process
================  ==================================================================
"""

from flight_service.server.lifecycle import Server
from flight_service.server.settings import Settings

__all__ = ["Server", "Settings"]
