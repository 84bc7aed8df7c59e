"""A network between clients and server that resets, delays and falls silent."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Final

from tests.wire.proxy import CHUNK, Proxy

ABRUPT: Final = struct.pack("ii", 1, 0)
"""A socket closed with this as SO_LINGER sends RST instead of FIN."""


class Network(Proxy):
    """The proxy of the wire tests, with resets and delay."""

    def __init__(self, target: int) -> None:
        self.delay = 0.0
        self._over = threading.Event()
        super().__init__(target)

    def reset(self) -> int:
        """Break every connection there is, without a goodbye; how many there were."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABRUPT)
                one.shutdown(socket.SHUT_RD)  # wakes the thread that reads it, which closes it
        return len(sockets)

    def calm(self) -> None:
        """Be a good network again; connections from before may be in any state, so they go."""
        self.delay = 0.0
        self.thaw()
        self.reset()

    def _pass(self, source: socket.socket, sink: socket.socket, gate: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if self.delay:
                    self._over.wait(self.delay)
                self._flowing.wait()
                gate.wait()
                sink.sendall(data)
        source.close()
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RD)
        sink.close()
