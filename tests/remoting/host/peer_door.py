"""A door for tests: uses the links between workers as its client says."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from echo_door import FRAME, read_exactly

from gpupool.remoting.worker.peer_links import Peer, PeerFailedError, PeerLostError


def serve(
    stream: Any, devices: Sequence[Any], budget: Any, log: Callable[[str], None], peers: Any
) -> None:
    """Answer one command after the other until the client closes."""
    del devices, budget, log
    try:
        while True:
            command, size = FRAME.unpack(read_exactly(stream, FRAME.size))
            body = json.loads(read_exactly(stream, size))
            try:
                answer = run(command, body, peers)
            except (PeerLostError, PeerFailedError) as error:
                answer = f"{type(error).__name__}: {error}".encode()
            stream.send_buffers([FRAME.pack(command, len(answer)), answer])
    except EOFError:
        pass


def run(command: bytes, body: list[Any], peers: Any) -> bytes:
    match command:
        case b"i":
            key, index, others = body
            peers.introduce(bytes.fromhex(key), index, [_peer(other) for other in others])
        case b"c":
            return peers.connect(*body).encode()
        case b"s":
            index, number, text = body
            data = text.encode()
            peers.send(index, number, len(data), [memoryview(data)])
        case b"f":
            peers.send_failure(*body)
        case b"r":
            index, number, size = body
            peers.begin(index, number, size)
            target = bytearray(size)
            peers.read(index, memoryview(target))
            return bytes(target)
        case _:
            raise ValueError(command)
    return b""


def _peer(fields: dict[str, str] | None) -> Peer | None:
    if fields is None:
        return None
    return Peer(
        server=fields["server"],
        name=fields["name"],
        session=bytes.fromhex(fields["session"]),
        certificate_sha256=bytes.fromhex(fields["certificate"]),
        encryption=fields["encryption"],
        key=bytes.fromhex(fields["key"]),
    )
