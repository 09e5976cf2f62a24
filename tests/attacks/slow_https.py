"""10,000 HTTPS connections from 100 addresses, each sending a byte of its request now and then."""

import heapq
import selectors
import socket
import ssl
import time
from dataclasses import dataclass

CONNECTION_COUNT = 10_000
SOURCE_COUNT = 100
BYTE_EVERY_S = 2.0
OPEN_PER_S = 500
REQUEST = b"GET /metrics HTTP/1.1\r\nhost: x\r\nx-slow: " + b"a" * 4000


@dataclass(eq=False)
class _Slow:
    tls: ssl.SSLSocket
    shaken: bool = False
    at: int = 0


class SlowClients:
    """The connections; one that ends is opened again."""

    def __init__(
        self, ports: list[int], count: int = CONNECTION_COUNT, name: str = "gpu-1"
    ) -> None:
        """Ask for ``name``: by default one that is not the pool's own, as browsers do."""
        self.ports, self.count, self.name = ports, count, name
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname, self.context.verify_mode = False, ssl.CERT_NONE
        self.selector = selectors.DefaultSelector()
        self.next_bytes: list[tuple[float, int, _Slow]] = []
        self.opened = self.held = 0

    def open(self) -> None:
        """Connect, as a browser does."""
        plain = socket.socket()
        plain.setblocking(False)
        plain.bind((f"127.0.2.{1 + self.opened % SOURCE_COUNT}", 0))
        plain.connect_ex(("127.0.0.1", self.ports[self.opened % len(self.ports)]))
        try:
            tls = self.context.wrap_socket(
                plain, server_hostname=self.name, do_handshake_on_connect=False
            )
        except OSError:  # refused before it began
            plain.close()
            return
        self.selector.register(tls, selectors.EVENT_WRITE, _Slow(tls))
        self.opened += 1
        self.held += 1

    def drop(self, slow: _Slow) -> None:
        """Forget one that has ended."""
        self.selector.unregister(slow.tls)
        slow.tls.close()
        self.held -= 1

    def go_on(self, slow: _Slow) -> None:
        """Go on with a handshake, or see that the connection has ended."""
        if slow.shaken:
            if not slow.tls.recv(4096):
                raise ConnectionError
            return
        slow.tls.do_handshake()
        slow.shaken = True
        self.selector.modify(slow.tls, selectors.EVENT_READ, slow)
        heapq.heappush(self.next_bytes, (time.monotonic(), id(slow), slow))

    def send_bytes(self) -> None:
        """Send a byte over each connection that is due."""
        now = time.monotonic()
        while self.next_bytes and self.next_bytes[0][0] <= now:
            _, number, slow = heapq.heappop(self.next_bytes)
            if slow.tls.fileno() < 0:
                continue
            try:
                slow.tls.send(REQUEST[slow.at : slow.at + 1])
            except OSError:
                self.drop(slow)
                continue
            slow.at = min(slow.at + 1, len(REQUEST) - 1)
            heapq.heappush(self.next_bytes, (now + BYTE_EVERY_S, number, slow))

    def run(self, seconds: float) -> int:
        """Attack for a while; return how many connections were opened."""
        began = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            allowed = int((now - began + 1) * OPEN_PER_S)
            while self.held < self.count and self.opened < allowed:
                self.open()
            for key, _events in self.selector.select(0.05):
                slow: _Slow = key.data
                try:
                    self.go_on(slow)
                except ssl.SSLWantReadError:
                    self.selector.modify(slow.tls, selectors.EVENT_READ, slow)
                except ssl.SSLWantWriteError:
                    self.selector.modify(slow.tls, selectors.EVENT_WRITE, slow)
                except OSError:
                    self.drop(slow)
            self.send_bytes()
        return self.opened


def slow_https(ports: list[int], seconds: float) -> int:
    """Be the attackers of one process."""
    return SlowClients(ports).run(seconds)
