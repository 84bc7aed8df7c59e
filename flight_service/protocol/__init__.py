"""The wire protocol, version 1: what a client and a Quiver server say to each other.

Everything that isn't Arrow data is a small JSON object with ``"v": 1``.  Each kind of
object is a :class:`~flight_service.protocol.message.Message`: a frozen dataclass that
writes itself (``encode``) and reads itself strictly (``decode``): unknown fields are
refused with the list of known ones, every length and number has a named bound, names
follow the store's rules.  Servers decode what clients encode and the other way round, by
the same class, so the two can't drift apart.

::

    producer    DoPut        PutCommand → batches, each with an Envelope → PutReceipts
                             … into a stage: finish_stage, then commit or abort
    reader      GetFlightInfo  ReadCommand → endpoints with Tickets → DoGet → BundleInfo
    subscriber  DoExchange   SubscribeCommand → bundles with BundleInfo ⇄ ClientMessage
    anybody     DoAction     one request Message and one answer Message per action

============  ==================================================================
names.py      names of streams, subscribers and slots; refs and their short form
message.py    the machinery: fields, bounds, strict JSON
errors.py     error codes, and the Flight error class of each, both ways
wrapper.py    a bundle as one record batch (bundle mode)
put.py        putting: descriptor, envelope, receipts
stage.py      staged writes: begin, finish, commit, abort
get.py        reading: descriptor, ticket, endpoint and bundle metadata
plan.py       before reading: schemas, and a range cut into parts
exchange.py   the live subscription: descriptor and messages both ways
actions.py    every action: name, request, answer, description
reference.py  the tables of ``docs/protocol.md``, made from all of these
============  ==================================================================

The docstrings here are normative; ``docs/protocol.md`` tells the same with examples.
"""

from flight_service.protocol.errors import ServiceError, from_flight, to_flight
from flight_service.protocol.message import Message
from flight_service.protocol.names import Ref

__all__ = ["Message", "Ref", "ServiceError", "from_flight", "to_flight"]
