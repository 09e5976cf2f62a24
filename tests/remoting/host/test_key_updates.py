"""A client that changes keys of TLS in the middle of a session: none of ours does.

OpenSSL then wants to read before it writes, or to write before it reads. Where the worker waited
for what is usual, the wait ended at once, again and again, and took a processor.
"""

import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from gpupool.remoting.driver_api import build
from gpupool.remoting.driver_api.executor import line_tls
from gpupool.remoting.driver_api.executor.line_tls import LineTls
from gpupool.remoting.worker.certificate import worker_context

TICKET = bytes(range(32))
HANDSHAKE, KEY_UPDATE = 22, 24
WAIT_S = 5


def _expand(secret: bytes, label: bytes, size: int) -> bytes:
    """Return HKDF-Expand-Label of RFC 8446, without a context."""
    name = b"tls13 " + label
    info = struct.pack(">HB", size, len(name)) + name + b"\0"
    return HKDFExpand(SHA384(), size, info).derive(secret)


@dataclass
class Forger:
    """The client's end, which writes its own records."""

    client: ssl.SSLSocket
    secret: bytes
    records: int  # that were sent with this secret

    def send(self, message: bytes) -> None:
        """Send a record with bytes of the handshake protocol."""
        inner = message + bytes([HANDSHAKE])
        head = struct.pack(">BHH", 23, 0x0303, len(inner) + 16)
        iv = int.from_bytes(_expand(self.secret, b"iv", 12), "big")
        nonce = (iv ^ self.records).to_bytes(12, "big")
        sealed = AESGCM(_expand(self.secret, b"key", 32)).encrypt(nonce, inner, head)
        self.records += 1
        os.write(self.client.fileno(), head + sealed)

    def change_keys(self, *, asked: bool) -> None:
        """Send with other keys from here on, and perhaps ask for the same."""
        self.send(bytes([KEY_UPDATE, 0, 0, 1, asked]))
        self.secret = _expand(self.secret, b"traffic upd", 48)
        self.records = 0


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[Forger, LineTls]]:
    """Give a client that forges records, and the worker's end by the library in C."""
    build.ensure()
    worker, _fingerprint = worker_context(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.keylog_filename = str(tmp_path / "keys")
    ours, theirs = socket.socketpair()
    served: list[LineTls | None] = []
    thread = threading.Thread(
        target=lambda: served.append(line_tls.accept(theirs, worker.identity, TICKET))
    )
    thread.start()
    client = context.wrap_socket(ours)
    client.sendall(TICKET)
    thread.join(10)
    if served[0] is None:
        pytest.skip("there is no OpenSSL 3 for the library")
    cipher = client.cipher()
    assert cipher is not None
    assert cipher[0] == "TLS_AES_256_GCM_SHA384"
    lines = (tmp_path / "keys").read_text(encoding="ascii").splitlines()
    secret = next(line for line in lines if line.startswith("CLIENT_TRAFFIC_SECRET_0"))
    yield Forger(client, bytes.fromhex(secret.split()[2]), 1), served[0]
    client.close()
    served[0].close()


def test_half_a_change_of_keys_ends_a_sender(ends: tuple[Forger, LineTls]) -> None:
    forger, line = ends
    reader = threading.Thread(target=line.recv_into, args=(memoryview(bytearray(9)),), daemon=True)
    reader.start()
    forger.send(bytes([KEY_UPDATE, 0, 0, 1]))
    time.sleep(0.2)  # until the reader has that
    ended = threading.Event()

    def send() -> None:
        with pytest.raises(ConnectionError):
            line.send_buffers([b"an answer"])
        ended.set()

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    in_time = ended.wait(WAIT_S)
    line.hang_up()
    reader.join(WAIT_S)
    sender.join(WAIT_S)
    assert in_time


def test_asking_for_other_keys_ends_a_reader(ends: tuple[Forger, LineTls]) -> None:
    forger, line = ends
    found: list[int] = []
    reader = threading.Thread(
        target=lambda: found.append(line.recv_into(memoryview(bytearray(9)))), daemon=True
    )
    reader.start()
    forger.client.settimeout(0)
    until = time.monotonic() + WAIT_S
    with suppress(BrokenPipeError):  # the client reads none of the answers
        while reader.is_alive() and time.monotonic() < until:
            try:
                forger.change_keys(asked=True)
            except BlockingIOError:  # the reader is late, and more than these must reach it
                forger.records -= 1
                reader.join(0.01)
    reader.join(WAIT_S)
    in_time = list(found)
    line.hang_up()
    reader.join(WAIT_S)
    assert in_time == [0]
