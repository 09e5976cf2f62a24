"""Both kinds of session streams: whole messages, both directions at once, and the end."""

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpupool.pool.errors import AuthenticationError
from gpupool.remoting.driver_api import build
from gpupool.remoting.driver_api.executor import line_tls
from gpupool.remoting.driver_api.executor.line_tls import LineTls
from gpupool.remoting.transport.session_stream import Buffer, PlainStream, SessionStream, TlsStream
from gpupool.remoting.worker.certificate import worker_context

Pair = tuple[SessionStream, SessionStream]
TICKET = bytes(range(32))


def plain_pair() -> Pair:
    ours, theirs = socket.socketpair()
    return PlainStream(ours), PlainStream(theirs)


def tls_pair(directory: Path) -> Pair:
    context, _fingerprint = worker_context(directory)
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname, client_context.verify_mode = False, ssl.CERT_NONE
    ours, theirs = socket.socketpair()
    served: list[ssl.SSLSocket] = []
    thread = threading.Thread(
        target=lambda: served.append(context.wrap_socket(theirs, server_side=True))
    )
    thread.start()
    client = client_context.wrap_socket(ours)
    thread.join(10)
    return TlsStream(client), TlsStream(served[0])


def line_pair(directory: Path, *, said: bytes = TICKET) -> Pair:
    """Return a client's stream, and the worker's by the library in C."""
    build.ensure()
    context, _fingerprint = worker_context(directory)
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname, client_context.verify_mode = False, ssl.CERT_NONE
    ours, theirs = socket.socketpair()
    served: list[LineTls | AuthenticationError | None] = []

    def serve() -> None:
        try:
            served.append(line_tls.accept(theirs, context.identity, TICKET))
        except AuthenticationError as error:
            served.append(error)
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    client = client_context.wrap_socket(ours)
    client.sendall(said)
    thread.join(10)
    if isinstance(served[0], AuthenticationError):
        client.close()
        raise served[0]
    if served[0] is None:
        pytest.skip("there is no OpenSSL 3 for the library")
    return TlsStream(client), served[0]


@pytest.fixture(params=["plain", "tls", "line", "line, turned"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    kind = request.param.partition(",")[0]
    if kind == "plain":
        streams = plain_pair()
    else:
        streams = tls_pair(tmp_path) if kind == "tls" else line_pair(tmp_path)
    yield (streams[1], streams[0]) if request.param.endswith("turned") else streams
    for stream in streams:
        stream.close()


def receive(stream: SessionStream, size: int) -> bytes:
    data = bytearray(size)
    view, count = memoryview(data), 0
    while count < size:
        received = stream.recv_into(view[count:])
        assert received, "closed too early"
        count += received
    return bytes(data)


def send_in_thread(stream: SessionStream, buffers: list[Buffer]) -> threading.Thread:
    thread = threading.Thread(target=stream.send_buffers, args=(buffers,), daemon=True)
    thread.start()
    return thread


def test_every_mix_of_sizes_arrives_in_order(pair: Pair) -> None:
    ours, theirs = pair
    sizes = [0, 1, 15, 70_000, 5, 0, 65_536, 3, 2_500_000, 1, *([7] * 1500), 65_535, 2]
    buffers: list[Buffer] = [os.urandom(size) for size in sizes]
    expected = b"".join(buffers)
    sender = send_in_thread(ours, buffers)
    assert receive(theirs, len(expected)) == expected
    sender.join(10)
    assert ours.bytes_out == theirs.bytes_in == len(expected)


def test_arrays_are_sent_as_their_bytes(pair: Pair) -> None:
    ours, theirs = pair
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    ours.send_buffers([array.data, bytearray(b"end"), memoryview(b"")])
    assert receive(theirs, 51) == array.tobytes() + b"end"


def test_both_directions_at_once(pair: Pair) -> None:
    ours, theirs = pair
    size = 6_000_000
    there, back = os.urandom(size), os.urandom(size)
    threads = [send_in_thread(ours, [there]), send_in_thread(theirs, [back])]
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(receive(theirs, size)), daemon=True)
    reader.start()
    assert receive(ours, size) == back
    for thread in (reader, *threads):
        thread.join(20)
    assert received == [there]


def test_waiting_reader_keeps_no_writer_out(pair: Pair) -> None:
    ours, theirs = pair
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(receive(ours, 3)), daemon=True)
    reader.start()
    ours.send_buffers([b"question"])
    assert receive(theirs, 8) == b"question"
    theirs.send_buffers([b"yes"])
    reader.join(10)
    assert received == [b"yes"]


def test_messages_of_many_threads_stay_whole(pair: Pair) -> None:
    ours, theirs = pair
    messages = [bytes([number]) * 30_000 for number in range(8)]
    threads = [send_in_thread(ours, [m[:10], m[10:20_000], m[20_000:]]) for m in messages]
    found = receive(theirs, 8 * 30_000)
    for thread in threads:
        thread.join(10)
    assert sorted(found[i : i + 30_000] for i in range(0, len(found), 30_000)) == messages


def test_end_is_zero_bytes_and_stays(pair: Pair) -> None:
    ours, theirs = pair
    ours.send_buffers([b"last"])
    ours.close()
    ours.close()
    assert receive(theirs, 4) == b"last"
    assert theirs.recv_into(memoryview(bytearray(10))) == 0
    assert theirs.recv_into(memoryview(bytearray(10))) == 0


def test_sending_to_nobody_is_a_connection_error(pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(ConnectionError):
        ours.send_buffers([bytes(10_000_000)])


def test_key_does_not_stay_on_disk(tmp_path: Path) -> None:
    worker_context(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_client_chooses_the_cipher(tmp_path: Path) -> None:
    """The CUDA door's library asks for AES with 128 bits, of which there is more in a second."""
    context, _fingerprint = worker_context(tmp_path)
    assert not context.options & ssl.OP_CIPHER_SERVER_PREFERENCE
    assert "TLS_AES_128_GCM_SHA256" in {each["name"] for each in context.get_ciphers()}


def test_a_wrong_ticket_is_refused_by_the_library_too(tmp_path: Path) -> None:
    with pytest.raises(AuthenticationError, match="wrong ticket"):
        line_pair(tmp_path, said=bytes(32))
