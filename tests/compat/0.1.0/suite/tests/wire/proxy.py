"""A piece of network between client and server, to be cut or to fall silent."""

from __future__ import annotations

import contextlib
import socket
import threading

CHUNK = 64 << 10


class Proxy:
    """Passes bytes both ways until told otherwise."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._flowing = threading.Event()
        self._flowing.set()
        self._answering = threading.Event()
        self._answering.set()
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break every connection there is; new ones are welcome."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            _close(one)

    def freeze(self) -> None:
        """Pass nothing on, and say nothing."""
        self._flowing.clear()

    def mute(self) -> None:
        """Pass on what the client says, and none of the answers."""
        self._answering.clear()

    def thaw(self) -> None:
        """Go on where it stopped."""
        self._flowing.set()
        self._answering.set()

    def close(self) -> None:
        self._listener.close()
        self.thaw()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()  # the server is away: it may come back
                continue
            with self._lock:
                self.connections += 1
                self._sockets += [near, far]
            both = threading.Event()
            both.set()
            for one, other, gate in ((near, far, both), (far, near, self._answering)):
                threading.Thread(target=self._pass, args=[one, other, gate], daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, gate: threading.Event) -> None:
        try:
            while data := source.recv(CHUNK):
                self._flowing.wait()
                gate.wait()
                sink.sendall(data)
        except OSError:
            pass
        _close(source)
        _close(sink)


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
