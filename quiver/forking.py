"""A store belongs to the process that opened it.

A forked child inherits a copy of the memory, of every descriptor and of every lock, held or
not, but none of the threads.  A child that went on with an inherited store would give out
the same refs as its parent and write over the parent's log, or wait for ever for a lock
whose holder does not exist in it.

So what belongs to one process is *guarded*.  In a forked child the at-fork handler below
gives every guarded object another class, whose attributes all raise :class:`Forked`.  This
costs the process that opened the store nothing, and the child takes none of the inherited
locks.  Descriptors are closed in the child by :mod:`quiver.disk.descriptors`.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Final, NoReturn

from quiver.errors import Forked

ADVICE: Final = (
    "Open a store in this process instead, in a directory of its own; or let processes share"
    " one through a server and flight_service.client; or start them with multiprocessing's"
    " 'spawn' method and open in the child."
)

_READABLE: Final = frozenset({"__class__", "__doc__", "__module__"})
"""What isinstance(), help() and tracebacks look at."""

_guarded: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def guard(thing: object) -> None:
    """Have a forked child refuse this object; called by its ``__init__``."""
    _guarded.add(thing)


def _refuse(thing: object, *_: object) -> NoReturn:
    kind: Any = type(thing)
    raise Forked(
        f"this {kind.__name__} belongs to process {kind._owner}; process {os.getpid()} is a"
        " fork of it and must not use it.",
        advice=ADVICE,
        owner=kind._owner,
        pid=os.getpid(),
    )


def _get(thing: object, name: str) -> Any:
    if name not in _READABLE:
        _refuse(thing)
    return object.__getattribute__(thing, name)


def _show(thing: object) -> str:
    kind: Any = type(thing)
    return f"<{kind.__name__} of process {kind._owner}>"


_MEMBERS: Final[dict[str, object]] = {
    "__slots__": (),
    "__getattribute__": _get,
    "__setattr__": _refuse,
    "__enter__": _refuse,
    "__iter__": _refuse,
    "__repr__": _show,
}
"""What a guarded class is changed by. A dict: Python lets an object change to a class that
has its own class as the only base, and nothing more in it."""


def _disown() -> None:
    """In the child: make every guarded object refuse. Takes no lock."""
    owner = os.getppid()
    refusing: dict[type, type] = {}
    for thing in list(_guarded):
        kind = type(thing)
        if kind not in refusing:
            members = {**_MEMBERS, "_owner": owner, "__module__": kind.__module__}
            refusing[kind] = type(kind.__name__, (kind,), members)
        thing.__class__ = refusing[kind]
    _guarded.clear()


os.register_at_fork(after_in_child=_disown)
