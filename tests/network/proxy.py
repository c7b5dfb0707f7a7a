"""A proxy between clients and a server, which fails in many ways before it works."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable

PAGE = b"<html><body>Bad Gateway</body></html>"
ALERT = bytes([21, 3, 3, 0, 2, 2, 80])  # TLS: fatal, internal error
Fault = Callable[[socket.socket, socket.socket], None]
"""What happens to a client that has dialled (and to the connection behind it, to the server)."""


def closes(client: socket.socket, server: socket.socket) -> None:
    pass


def resets(client: socket.socket, server: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def says(words: bytes) -> Fault:
    def fault(client: socket.socket, server: socket.socket) -> None:
        client.recv(100)
        client.sendall(words)
        time.sleep(0.02)

    return fault


def silent(client: socket.socket, server: socket.socket) -> None:
    time.sleep(0.3)


def half_closes(client: socket.socket, server: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)
    client.recv(4096)


def passes(up: int, down: int) -> Fault:
    """So many bytes each way, and no more."""

    def fault(client: socket.socket, server: socket.socket) -> None:
        ends = [
            threading.Thread(target=copied, args=(*way,), daemon=True)
            for way in ((client, server, up), (server, client, down))
        ]
        for end in ends:
            end.start()
        for end in ends:
            end.join(2)

    return fault


def copied(one: socket.socket, other: socket.socket, most: float) -> None:
    """Bytes from one to the other."""
    try:
        while most > 0 and (found := one.recv(min(int(min(most, 65536)), 65536))):
            other.sendall(found)
            most -= len(found)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass


FAULTS: dict[str, Fault] = {
    "accepts and closes": closes,
    "resets": resets,
    "bad gateway": says(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: %d\r\n\r\n" % len(PAGE) + PAGE),
    "unavailable": says(b"HTTP/1.0 503 Service Unavailable\r\n\r\n"),
    "redirects": says(b"HTTP/1.1 302 Found\r\nLocation: https://example.org/\r\n\r\n"),
    "noise": says(bytes(range(256)) * 4),
    "an alert": says(ALERT),
    "silent": silent,
    "half closes": half_closes,
    "ends in the hand-shake": passes(300, 700),
    "ends after the greeting": passes(3000, 3500),
    "ends on the way": passes(4500, 5000),
}


class Proxy:
    """Listens; the first connections meet a fault each, all others get through."""

    def __init__(self, server: int, faults: list[Fault]) -> None:
        self.server, self.faults, self.met = server, faults, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            fault = self.faults[self.met] if self.met < len(self.faults) else passes(2**40, 2**40)
            self.met += 1
            threading.Thread(target=self._serve, args=(client, fault), daemon=True).start()

    def _serve(self, client: socket.socket, fault: Fault) -> None:
        try:
            with client, socket.create_connection(("127.0.0.1", self.server)) as server:
                if self.met > len(self.faults):
                    ends = [
                        threading.Thread(target=copied, args=(*way, float("inf")), daemon=True)
                        for way in ((client, server), (server, client))
                    ]
                    for end in ends:
                        end.start()
                    for end in ends:
                        end.join()
                else:
                    fault(client, server)
        except OSError:
            pass
