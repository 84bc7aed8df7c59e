"""gRPC does not survive a fork, so neither does a client.

Its threads don't exist in a forked child: a call on an inherited connection hangs, and so
does one on a new connection, once the parent has used gRPC.  So in such a child every use of
an inherited client, writer or subscription is refused, and so is connecting.  A process that
is forked before its parent has connected anywhere is free to connect; PySpark's workers are.

As in the library's own module of this name, an at-fork handler gives the inherited objects a
class whose attributes all raise; the process that connected pays nothing for it.  The two
share no code: a client needs pyarrow and nothing else.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Final, NoReturn

from flight_service.client.errors import Forked

_READABLE: Final = frozenset({"__class__", "__doc__", "__module__"})

_guarded: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


class _Past:
    connected = False
    """Whether this process has used gRPC."""
    connected_by = 0
    """The process that had, and that this one was forked from; 0: none."""


def guard(thing: object) -> None:
    """Have a forked child refuse this object; called by its ``__init__``."""
    _guarded.add(thing)


def check_can_connect() -> None:
    """Called before each connection is made: raise ``Forked`` where it could only hang."""
    if _Past.connected_by:
        raise Forked("process", _Past.connected_by)
    _Past.connected = True


def _refuse(thing: object, *_: object) -> NoReturn:
    kind: Any = type(thing)
    raise Forked(kind.__name__, kind._owner)


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
    "__next__": _refuse,
    "__repr__": _show,
}


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
    if _Past.connected and not _Past.connected_by:
        _Past.connected_by = owner


os.register_at_fork(after_in_child=_disown)
