"""A TCP proxy before a server that simulates a bad network: cut, silent, slow."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any
from urllib.parse import urlsplit

_CHUNK = 65_536


def elsewhere(url: str, port: int) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{port}")).geturl()


class Proxy:
    """Listens on a port of 127.0.0.1 and forwards to another; a context manager."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._server.getsockname()[1])
        self._lock = threading.Lock()
        self._pairs: set[_Pair] = set()
        self._deaf, self._refuses = threading.Event(), threading.Event()
        self._latency, self._chunk = 0.0, _CHUNK
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # ends the accept
        self._server.close()
        self._thread.join()
        self.cut()

    def swallow(self) -> None:
        """Drop the server's answers, until `cut`."""
        self._deaf.set()

    def hold(self) -> None:
        """Forward nothing on the present connections, and close none of them: until `resume`, or until they are cut."""
        for pair in self._present():
            pair.open.clear()

    def resume(self) -> None:
        for pair in self._present():
            pair.open.set()

    def cut(self) -> None:
        """End all connections; new ones work again."""
        for pair in self._present():
            pair.close()
        self._deaf.clear()

    def refuse(self) -> None:
        """End all connections, and each new one as soon as it is there, as a balancer with no server does."""
        self._refuses.set()
        self.cut()

    def admit(self) -> None:
        self._refuses.clear()

    def slow(self, latency: float, bytes_per_second: float | None = None) -> None:
        """Delay everything by ``latency`` seconds each way, and limit the rate; 0 is no limit."""
        self._chunk = _CHUNK if not bytes_per_second else max(1, int(bytes_per_second * latency))
        self._latency = latency

    def _present(self) -> list[_Pair]:
        with self._lock:
            return list(self._pairs)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if self._refuses.is_set():
                client.close()
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            pair = _Pair(client, server)
            with self._lock:
                self._pairs.add(pair)
            for source, target in ((client, server), (server, client)):
                threading.Thread(
                    target=self._pump, args=(pair, source, target), name="proxied connection", daemon=True
                ).start()

    def _pump(self, pair: _Pair, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(self._chunk):
                if self._latency:
                    time.sleep(self._latency)
                pair.open.wait()
                if not (source is pair.server and self._deaf.is_set()):
                    target.sendall(data)
        pair.close()
        with self._lock:
            self._pairs.discard(pair)


class _Pair:
    """The two sockets of a connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.open = threading.Event()
        self.open.set()
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self.open.set()
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
