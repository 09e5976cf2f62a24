"""The seed inputs of fuzzing: real messages of gpupool run, a worker and a driver."""

import json
import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpupool.remoting.driver_api.schema import table

ANSWER = struct.Struct("<IiQIiQ")
GOLDEN = Path(__file__).resolve().parents[1] / "testdata" / "golden" / "cuda"
DEVICE = {
    "server": "a",
    "name": "NVIDIA H200",
    "uuid": "GPU-00000000-1111-2222-3333-444444444444",
    "memory": 1 << 34,
    "used": 5,
    "utilization": 0.5,
    "temperature_c": 40.5,
    "power_w": 300.0,
    "capability": "9.0",
    "bus_id": "00000000:0a:00.0",
}
SESSION = {
    "server": "one",
    "server_id": "ab",
    "address": ["127.0.0.1", 7470],
    "relay": "/r",
    "session": "00" * 16,
    "server_name": "x.gpupool",
    "certificate_sha256": "11" * 32,
    "ticket": "22" * 32,
    "encryption": "tls",
    "devices": [DEVICE, DEVICE | {"uuid": "MIG-1"}],
}


def of(target: str) -> list[bytes]:
    """Return the seeds of one target."""
    return list(
        {
            "json": _texts,
            "nvml": _nvml,
            "agent": _agent,
            "answers": _answers,
            "hello": _hellos,
            "calls": _calls,
            "order": _orders,
            "lanes": _lanes,
            "line": _ends,
            "launcher": _frames,
        }[target]()
    )


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _lanes() -> Iterator[bytes]:
    want, first, second, nothing = b"\x09", b"\x0a", b"\x0e", b"\x08"
    whole = nothing + b"\x02\x00" + nothing + b"\x01"  # a chunk with all of its bytes
    yield want + b"\x80" + first + whole + want
    yield want + b"\x01" + first + whole + second + nothing + b"\x02\x10" + nothing + b"\x01" + want
    yield (
        first
        + nothing
        + b"\x03\x10"
        + nothing
        + b"\x01"
        + nothing
        + b"\x01"
        + want
        + b"\x01"
        + want
    )


def _ends() -> Iterator[bytes]:
    """Yield results of a fake OpenSSL for a client, a worker's line, and its lanes."""
    gives, wants, polled, over = bytes(3), b"\0\xa0\0", b"\0", b"\0\xa0\xc2\0"
    accepted = bytes(5)
    yield b"\0" + bytes(9)
    yield b"\0\0\xff\0\0" + bytes(4) + gives + wants + b"\0" + bytes(3)
    yield b"\0" + bytes(2) + b"\0\xc1" + bytes(9)  # another certificate
    line = b"\2" + accepted
    yield line + b"\1\xff" + gives + b"\5\xff" + gives * 4 + b"\1\x10" + over
    yield line + b"\1\xff" + (wants + polled) * 3 + b"\0\0\x81" + b"\1\x01" + over
    awake = b"\3\x10\x10\1"
    for waited in (1, 2):  # in vain, and then once more
        yield line + awake + wants + b"\xff" + polled + (wants + polled) * (waited - 1) + gives
    yield line + awake + (wants + b"\1") * 3 + gives
    again = b"\0\0\xa0\0" + polled + b"\0\0"
    yield line + b"\0\xff" + gives + b"\4\xff" + gives * 2 + again * 2 + gives
    yield line + b"\0\xff" + b"\0\x81\0" * 3 + again + gives + over
    below = b"\xc0\0\0", b"\xc1\0\0", b"\xc0\xe0\0", b"\xc1\xe1\0", b"\xc1\xff\0"
    for touched in below:  # what OpenSSL does with the socket meanwhile
        yield b"\2" + touched + b"\0" + bytes(3) + b"\1\xff" + touched + bytes(2)
    yield b"\2\0\0\0\0\xe0\1"  # a wrong ticket, and half of one
    yield b"\2\0\0\0\0\xf8"
    encrypted, plain = b"\1" + accepted + bytes(4), bytes(4)
    begun, idle = bytes(3), polled + b"\0"
    by_tls = begun + b"\0\0\2\0" + b"\0" + b"\0\0\1" + wants + idle
    by_tcp = begun + b"\0\2\0" + b"\0" + b"\0\1" + b"\xc0" + idle
    for added, stripe in ((encrypted, by_tls), (plain, by_tcp)):
        yield b"\1\x0b" + added * 2 + bytes(300)
        yield b"\1\x0b" + added * 2 + b"\3" + (b"\0" + b"\0\x81\0" * 9 + again) * 3
        yield b"\1\x0a" + added * 2 + stripe * 3
        yield b"\1\x0a" + added * 2 + b"\0\0\1" + stripe[3:] + stripe
    yield b"\1\x39" + encrypted * 9  # more than there may be


def _texts() -> Iterator[bytes]:
    answer = {"ok": True, "what": 'a\u0001\n"\\', "sessions": [SESSION]}
    yield b"\x40" + _line(answer)
    yield b'\x10{"a\\\\": "\\u00e9", "ok" : [1,{"uuid":2}], "": {"uuid": "x"}}'
    yield b'\x00{"uuid":"'


def _nvml() -> Iterator[bytes]:
    answer = {"ok": True, "driver": "580.1", "cuda": "13.0", "processes": [1, 2]}
    yield _line(answer | {"devices": [DEVICE, DEVICE | {"server": "b", "utilization": None}]})
    yield _line(answer | {"devices": [DEVICE | {"emulated": True}]})


def _agent() -> Iterator[bytes]:
    lost = _line({"op": "lost", "what": "server one is gone"})
    pushed = _line({"op": "notice", "text": "hello"}) + lost
    for flags, visible in ((0, b""), (1, b""), (2, b"0,1"), (3, b"GPU-00,GPU-1"), (2, b"MIG-1")):
        head = bytes((flags, len(visible))) + visible
        yield head + _line({"ok": True, "sessions": [SESSION]}) + pushed
        two = [SESSION, SESSION | {"encryption": "off", "unix": "/u"}]
        yield head + _line({"ok": True, "sessions": two}) + bytes(49) + pushed
    yield b"\0\0" + _line({"ok": False, "what": "no", "why": "because"})


def _answer(
    kind: int, request: int, body: bytes = b"", bulk: bytes = b"", status: int = 0
) -> bytes:
    return ANSWER.pack(kind, status, request, len(body), 0, len(bulk)) + body + bulk


def _answers() -> Iterator[bytes]:
    # Three requests: one that grows, one of 8 bytes, one with 34 bytes behind it; two pieces of
    # mapped memory of 51 bytes; three downloads of 16.
    head = bytes((80, 1, 0, 8, 2, 8, 2, 10, 10, 16, 16, 16))
    replies = _answer(1, 1, b"abc") + _answer(1, 2, bytes(8)) + _answer(1, 3, bytes(8), bytes(34))
    downloads = b"".join(_answer(2, number, b"", bytes(16)) for number in (1, 2, 3))
    mirrors = _answer(4, 1, bytes(8), b"x" * 51) + _answer(4, 2, bytes(8) + b"\xff\x0f", b"y" * 16)
    parts = _answer(7, 3, b"", bytes(20)) + _answer(1, 3, bytes(8), bytes(14))
    words = _answer(3, 0, b"a notice") + _answer(5, 1, b"printed\n") + _answer(6, 5, bytes(8))
    for frames in (replies, downloads, mirrors, parts, words, replies + mirrors + downloads):
        yield head + frames
        yield b"\0" + head[1:] + frames
    yield head + words + downloads + mirrors + parts + _answer(1, 1, b"", b"", 719)


def _hello(devices: int, known: int = 1) -> bytes:
    device = (
        b"NVIDIA H200".ljust(256, b"\0") + bytes(range(16)) + struct.pack("<iiiI", 0, 10, 0, 18)
    )
    device += struct.pack("<QQQii", 1 << 34, 4096, 1 << 21, 0, -5)
    device += bytes(16) + struct.pack("<192i", *range(192)) + b"\1" * 192
    errors = [(1, b"CUDA_ERROR_INVALID_VALUE", b"invalid argument"), (999, b"X", b"")]
    text = struct.pack("<IIII", table.PROTOCOL, 13000, devices, len(errors)) + device * devices
    for code, name, said in errors:
        text += struct.pack("<iHH", code, len(name), len(said)) + name + said
    return text + struct.pack("<Q", known) + bytes(40 * known)


def _hellos() -> Iterator[bytes]:
    for devices in (0, 1, 2, 4):
        yield b"\0\0" + struct.pack("<H", 0) + _hello(devices)
    one = _hello(1, 0)
    yield b"\1\0" + struct.pack("<H", len(one)) + one + b"\0\0\0" + _hello(2)
    yield b"\2\0" + struct.pack("<H", len(one)) + one + b"\xff\0\0\0" + one


def _calls() -> Iterator[bytes]:
    for which in range(16):
        yield bytes((which,)) + b"\0" + bytes(range(64)) + bytes(400)
        yield bytes((which,)) + (b"\2\x40\0" + struct.pack("<Q", 1) + bytes(56)) * 8
    yield from _host_graphs()
    # Bodies of records have the layouts that some answers have too.
    for path in sorted(GOLDEN.glob("*.txt")):
        for at, entry in enumerate(path.read_text(encoding="ascii").split("\n\n")):
            words = [word for line in entry.splitlines()[1:-1] for word in line.split()]
            body = b"".join(bytes(8) if "." in word else bytes.fromhex(word) for word in words)
            if at % 4 == 0 and 0 < len(body) < 600:
                yield bytes((at % 16,)) + b"\2" + struct.pack("<H", len(body)) + body


def _host_graphs() -> Iterator[bytes]:
    """Yield answers about a capture with a copy to the host and a host function behind it."""

    def read(nodes: list[bytes], edges: list[tuple[int, int]]) -> bytes:
        words = struct.pack("<4Q", 0, len(nodes), len(edges), 0)
        found = words + b"".join(nodes) + b"".join(struct.pack("<3Q", *edge, 0) for edge in edges)
        return b"\2" + struct.pack("<H", len(found)) + found

    def node(number: int, kind: int, words: bytes = b"", child: int = 0) -> bytes:
        children = (child,) if child else ()
        head = struct.pack(f"<{3 + len(children)}Q", number, len(children), 0, *children)
        return head + (struct.pack("<4i", kind, 0, 0, 0) + words).ljust(256, b"\0")

    # Of CUDA_MEMCPY3D, behind flags and a context: from the device into slot 1.
    source = struct.pack("<4Qi4x6Q", 0, 0, 0, 0, 2, 0, 0x7F0000000000, 0, 0, 64, 1)
    target = struct.pack("<4Qi4x6Q", 0, 0, 0, 0, 1, 1, 0, 0, 0, 64, 1)
    copy = node(500, 1, bytes(16) + source + target + struct.pack("<3Q", 64, 1, 1))
    host, ended, made = node(501, 3), b"\0", b"\0" + bytes(16)
    for edges in ([(500, 501)], [(501, 500)], [(500, 501), (501, 500)], []):
        yield b"\x0e" + ended + read([copy, host], edges) + made + b"\0" + bytes(24)
    # The function within another graph; and graphs within each other without an end.
    inner = read([copy, node(502, 4, child=503)], [(500, 502)]) + read([host], [])
    yield b"\x0e" + ended + inner + made
    yield (
        b"\x0e"
        + ended
        + b"".join(read([node(2 * at, 4, child=2 * at + 1)], []) for at in range(300, 3300))
    )


def _record(kind: int, form: int, words: Sequence[int]) -> bytes:
    """Return a record of the launcher's target: a word is a byte, or eight behind 255."""
    packed = [
        struct.pack("<B", one) if one < 255 else struct.pack("<BQ", 255, one) for one in words
    ]
    return bytes((kind, form, len(words))) + b"".join(packed)


def _frames() -> Iterator[bytes]:
    """Yield workers that know objects of each kind, and frames of each record in several forms."""
    known = b"".join(bytes((0, kind, number)) for kind in range(6) for number in (1, 2, 3, 4))
    launch, node = [1, 1, 1, 1, 0, 8], [1, 1, 8, *(0, 0, 1), *[0] * 7, 1, *[0] * 21, 5]
    many = [[1, 1], [1, 1, 0], [1, 2, 3], [1, 1, 1, 1], [0, 64, 1, 7], [1, 1 << 40, 1]]
    own: dict[int, list[list[int]]] = {
        0: [[*launch, 9], launch, [4, 1, 1, 1, 0, 32, 1, 2, 3, 4]],
        1: [[*launch, 1, *[0] * 9, 9], [*launch, 2, *[0] * 18, 9], [*launch, 33], [*launch, 1]],
        2: [[1, 8, 1, 7], [1, 17, 1, 7, 7, 7], [1, 1 << 63, 1, 7]],
        3: [[0, 4096, 1, 7], [0, 4097, 1, 7]],
        6: [node, [*node[:2], 9, *node[3:]], node[:-1]],
        12: [[20, 0], [21, 1], [22, 4], [1, 0]],
        13: [[20], [1]],
    }
    run = b"\6"
    for kind in range(19):
        for words in own.get(kind, many):
            one, asked = _record(kind, 0, words), _record(kind, 1, words)
            for form in (0, 2, 16, 18):
                yield bytes((form,)) + known + run + b"\2" + one * 2 + asked + bytes(4) + b"\2\3"
            together = _record(kind, 2, words) + _record(kind, 8, words)
            yield b"\x10" + known + run + b"\1" + together + bytes(40) + b"\4\x0c\x14\x1c"
    # Events that are made, used and ended; host functions, lost and called; more downloads than
    # there is room for; and a driver without some calls.
    made = _record(12, 0, [20, 0]) + _record(4, 0, [20, 1, 0]) + _record(17, 1, [1, 20, 1])
    event = run + b"\3" + made + _record(13, 0, [20]) + bytes(9)
    host = run + b"\2" + _record(8, 0, [1, 9, 0]) * 3 + bytes(5)
    full = run + b"\7" + _record(3, 0, [0, 64, 1, 7]) * 8 + bytes(18)
    called = b"\x1c\0\0"
    yield b"\0" + known + event * 2
    yield b"\0" + known + host + b"\x0c" + called * 2 + b"\4" + called + b"\4"
    yield b"\0" + known + host + called * 2 + b"\x0c\4" + called
    streams = b"".join(bytes((0, 0, number)) for number in range(1, 70))
    yield b"\0" + streams + run + b"\0" + _record(15, 1, [1, 0]) + bytes(200)
    yield b"\0" + known + run + b"\0\1\x20\7\xa0" + bytes((*launch, 34)) + bytes(9)
    numbers = [*range(20, 140), *range(20, 140, 3)]
    some = [
        _record(12 + (at >= 120), 0, [number, 0][: 1 + (at < 120)])
        for at, number in enumerate(numbers)
    ]
    frames = [b"".join(some[at : at + 8]) for at in range(0, len(some), 8)]
    yield b"\0" + b"".join(run + b"\7" + frame + bytes(10) for frame in frames)
    yield b"\x10" + known + full * 9 + b"\2\xf0\xaf\0\2\3\2"
    for absent in range(21):
        yield b"\x11" + struct.pack("<I", 1 << absent) + known + full + event + host


def _orders() -> Iterator[bytes]:
    """Yield graphs with few nodes and with many, with few edges and with many."""
    draw = random.Random(1)
    for _ in range(500):
        yield draw.randbytes(draw.randrange(1, 30)) + draw.randbytes(draw.randrange(80))
