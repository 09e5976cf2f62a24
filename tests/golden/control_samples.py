"""Bytes between clients and servers: messages, frames, tokens, credentials."""

import dataclasses
import itertools
import json
import tempfile
from pathlib import Path

from tests.golden.samples import bare, enums_of, full

from gpupool.pool import errors
from gpupool.pool.clock_view import ClockView
from gpupool.pool.model.ids import Plain, ServerId, TokenId
from gpupool.pool.model.state import TokenKind
from gpupool.pool.view import PoolView
from gpupool.remoting.client.credentials import Credentials, save_credentials
from gpupool.remoting.protocol import framing, handshake, messages
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.protocol.connection import End, Phase, may_send
from gpupool.remoting.protocol.token_text import TokenText, format_token, new_token
from gpupool.remoting.transport.client_tls import CONTROL_NAME
from gpupool.remoting.transport.pki import server_name

SIZE_MAX = 1 << 20
KINDS = messages.all_of(messages.Message)
CALL_FULL, CALL_BARE = 0x01020304, 7
ADDRESSES = (Address("10.0.0.4", 7470), Address("fd00::4", 7471), Address("gpu-a", 80))
SECRET, DIGEST = bytes(range(32)), bytes(range(32, 64))
TABLES: dict[str, dict[int, type[messages.Message]]] = {
    base.__name__.lower(): {**messages.all_of(base)}
    for base in (messages.Opening, messages.Call, messages.Answer, messages.Push)
}
PLAIN: Plain = {
    "none": None, "true": True, "false": False, "zero": 0, "large": 2**64 - 1, "less": -(2**63),
    "float": 0.1, "short": 1.5, "infinite": float("inf"), "text": "gr\u00fcn", "bytes": b"\x00\xff",
    "list": [1, [2, []]], "a": {"b": {}, "": 1},
}  # fmt: skip


def samples() -> dict[str, tuple[int, messages.Message]]:
    """Return two samples of each message with their call numbers, by its number on the wire."""
    found: dict[str, tuple[int, messages.Message]] = {}
    for table, kinds in TABLES.items():
        for number, kind in kinds.items():
            pushed = table == "push"
            name = f"{table} {number}"
            found[f"{name} full"] = 0 if pushed else CALL_FULL, full(kind, str(number))
            found[f"{name} bare"] = 0 if pushed else CALL_BARE, bare(kind)
    view = dataclasses.replace(full(PoolView, "135.view"), clock=full(ClockView, "135.clock"))
    found["answer 135 with a clock"] = CALL_FULL, messages.ViewNow(view)
    return found


def frames() -> dict[str, bytes]:
    """Return each sample as its frame."""
    return {
        name: messages.to_frame(call, message, size_max=SIZE_MAX)
        for name, (call, message) in samples().items()
    }


def values() -> dict[str, bytes]:
    """Return the values of each enumeration in a message, by its place."""
    found: dict[str, bytes] = {}
    for number, kind in KINDS.items():
        for place, members in enums_of(kind, str(number)).items():
            found[f"values {place}"] = _text(json.dumps(sorted(m.value for m in members)))
    return found


def rules() -> dict[str, bytes]:
    """Return the framing, the limits, and the permitted messages by state, by numbers."""
    found = {
        "version": _text(f"{messages.PROTOCOL_OLDEST} to {messages.PROTOCOL}"),
        "pushes from": _text(str(messages.PUSH_MIN)),
        "frame": framing.frame_bytes(0xA5, b"body", size_max=4),
        "plain values": framing.dump(PLAIN),
        "limits": _text(
            f"stranger {framing.UNAUTHENTICATED_SIZE_MAX} request {framing.REQUEST_SIZE_MAX} "
            f"answer {framing.ANSWER_SIZE_MAX} depth {framing.DEPTH_MAX} "
            f"call {messages.CALL_NUMBER_MAX}"
        ),
    }
    for end, phase in itertools.product(End, Phase):
        allowed = [n for n, kind in KINDS.items() if may_send(end, phase, kind)]
        if not allowed:
            continue
        numbers = sorted(allowed)
        found[f"{end.value} may send when {phase.value}"] = _text(" ".join(map(str, numbers)))
    return found


def error_kinds() -> dict[str, type[errors.GpupoolError]]:
    """Return every error with a separate code, by its code; the most general one of each."""
    found: dict[str, type[errors.GpupoolError]] = {}
    for each in vars(errors).values():
        if isinstance(each, type) and issubclass(each, errors.GpupoolError):
            known = found.get(each.code)
            if known is None or issubclass(known, each):
                found[each.code] = each
    return found


def failures() -> dict[str, bytes]:
    """Return each error as the frame that carries it, and its exit code."""
    found: dict[str, bytes] = {}
    for code, kind in sorted(error_kinds().items()):
        error = kind("what", why="why", hint="hint")
        frame = messages.to_frame(CALL_BARE, messages.refused(error), size_max=SIZE_MAX)
        found[f"error {code}"] = frame
        found[f"error {code} exit"] = _text(str(error.exit_code))
    return found


TOKENS = {
    kind.value: TokenText("c0ffee", kind, TokenId("0123456789ab"), SECRET, DIGEST, ADDRESSES)
    for kind in TokenKind
}
SHORT_TOKENS = {
    "short": new_token(
        TokenKind.USER, SECRET[:16], DIGEST, (Address("10.0.0.4"), Address("gpu-b"))
    ),
    "packed": new_token(
        TokenKind.SERVER,
        SECRET[:16],
        DIGEST,
        (Address("gpu-1.lab.example.org"), Address("gpu-2.lab.example.org", 7999)),
    ),
}
CREDENTIALS = Credentials(
    "c0ffee", "lab", "ada", TokenId("0123456789ab"), SECRET, "PEM\nof the CA\n", ADDRESSES
)


def texts() -> dict[str, bytes]:
    """Return tokens as people paste them, the credentials file, and the names TLS asks for."""
    tokens = TOKENS | SHORT_TOKENS
    found = {f"token {name}": _text(format_token(token)) for name, token in tokens.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "credentials.json")
        save_credentials(path, CREDENTIALS)
        found["credentials"] = path.read_bytes()
    found["name of a control server"] = _text(CONTROL_NAME)
    found["name of a server to its peers"] = _text(server_name(full_server()))
    found["name of a session"] = _text(handshake.server_name(SECRET[:16]))
    return found


def full_server() -> ServerId:
    return ServerId("0123456789ab")


def everything() -> dict[str, bytes]:
    return frames() | values() | rules() | failures() | texts()


def _text(text: str) -> bytes:
    return text.encode() + b"\n"
