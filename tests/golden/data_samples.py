"""Messages between hosts, workers, programs and their agent, and small files, as bytes."""

import importlib.util
import json
import socket
import struct
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.golden.samples import bare, full
from tests.remoting.array_api import door_kit

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import Act
from gpupool.remoting.array_api.server import array_wire
from gpupool.remoting.array_api.server.array_executor import Executor
from gpupool.remoting.client.session_answer import opened_session
from gpupool.remoting.daemon import record_files
from gpupool.remoting.daemon.server_identity import Member, ServerIdentity
from gpupool.remoting.daemon.state_dir import IDENTITY, open_state_dir
from gpupool.remoting.devices.emulated import EmulatedBackend
from gpupool.remoting.driver_api.executor import serve as driver_serve
from gpupool.remoting.driver_api.schema import table as driver_table
from gpupool.remoting.driver_api.schema.records import NUMBERS
from gpupool.remoting.program import agent, held_leases
from gpupool.remoting.program import agent as lease_followers
from gpupool.remoting.program.program_lease import SessionRequest
from gpupool.remoting.protocol import driver_variables, handshake, worker_messages
from gpupool.remoting.protocol.message_family import Message
from gpupool.remoting.protocol.messages import SessionOpened
from gpupool.remoting.protocol.worker_messages import WORKER, HostMessage, WorkerMessage
from gpupool.remoting.worker import peer_links
from gpupool.remoting.worker.worker_channel import BudgetClient

SESSION, TICKET = bytes(range(16)), bytes(range(32))
CLIENT_NONCE, SERVER_NONCE = b"c" * 16, b"s" * 16
ACTS = (full(Act, "act"), bare(Act))


# --- host and worker -----------------------------------------------------------------------------


def host_samples() -> dict[str, Message]:
    """Return two samples of each message between a host and its workers."""
    found: dict[str, Message] = {}
    for sender, end in (("host", HostMessage), ("worker", WorkerMessage)):
        for number, kind in sorted(end.kinds.items()):
            found[f"{sender} {number} full"] = full(kind, f"{sender}.{number}")
            found[f"{sender} {number} bare"] = bare(kind)
    return found


VALUES = {"value": [None, True, -1, 2.5, "text", b"bytes", [1], {"a": 1}]}
BUDGET: dict[str, tuple[bytes, Callable[[BudgetClient], object]]] = {
    "reserve": (b"\x01", lambda client: client.reserve(2, 1 << 40)),
    "release": (b"", lambda client: client.release(2, 1 << 40)),
    "usage": (b"\x00", lambda client: client.usage(1)),
    "share": (b"\x01", lambda client: client.share(b"token-16-bytes..", b"handle")),
    "find": (b"\x00", lambda client: client.find(b"token-16-bytes..", opens=True)),
    "forget": (b"\x00", lambda client: client.forget(b"token-16-bytes..")),
    "pledge": (b"\x00", lambda client: client.pledge(b"token-16-bytes..", 1, 4096)),
    "take back": (b"\x01", lambda client: client.take_back(b"token-16-bytes..", 4096)),
    "let go": (b"\x01", lambda client: client.let_go(b"token-16-bytes..")),
}
"""Calls on the budget, with the first byte of their answer if they have one."""


def budget() -> dict[str, bytes]:
    """Return the bytes that each call on the budget sends."""
    found: dict[str, bytes] = {}
    for name, (granted, call) in BUDGET.items():
        ours, theirs = socket.socketpair()
        with ours, theirs:
            if granted:
                theirs.sendall(worker_messages.BUDGET_ANSWER.pack(granted[0], 0))
            call(BudgetClient(ours))
            found[f"budget {name}"] = theirs.recv(4096)
    found["budget answer"] = worker_messages.BUDGET_ANSWER.pack(2, 77)
    return found


def hosts() -> dict[str, bytes]:
    return {name: WORKER.encode(message) for name, message in host_samples().items()} | budget()


# --- data connections ----------------------------------------------------------------------------


def handshakes() -> dict[str, bytes]:
    """Return each step of a handshake in the clear, and the headers of a link of workers."""
    return {
        "handshake 1": handshake.client_hello(SESSION, CLIENT_NONCE),
        "handshake 2": handshake.server_proof(TICKET, CLIENT_NONCE, SERVER_NONCE),
        "handshake 3": handshake.client_proof(TICKET, CLIENT_NONCE, SERVER_NONCE),
        "handshake 4": handshake.ACCEPTED,
        "link of workers, introduction": peer_links.INTRODUCTION.pack(3),
        "link of workers, transfer": peer_links.HEADER.pack(5, 1 << 33, 7),
    }


def constants(module: ModuleType) -> bytes:
    """Return the numbers and formats of a module that describes a wire, sorted by name."""
    lines: list[str] = []
    values: dict[str, object] = vars(module)
    for name, value in sorted(values.items()):
        if not name.isupper() or name.startswith("_"):
            continue
        if isinstance(value, struct.Struct):
            lines.append(f"{name} {value.format}")
        elif isinstance(value, int | str):
            lines.append(f"{name} {value}")
    return "".join(f"{line}\n" for line in lines).encode()


def array_frames() -> dict[str, bytes]:
    """Return the array door's constants, and a frame of each kind to the client."""
    found = {"array wire": constants(array_wire)}
    kinds = [f"{kind.name} {int(kind)}" for kind in sorted(array_wire.Kind)]
    found["array kinds"] = ("\n".join(kinds) + "\n").encode()
    body = array_wire.encode_body(VALUES)
    for kind in sorted(array_wire.Kind):
        frame = array_wire.encode_frame(kind, body, request=9, bulk=1 << 33)
        found[f"array frame {int(kind)}"] = frame
    return found


TEMPLATE = [
    array_wire.FIRST_TEMPLATE,
    0,
    2,
    ["h", "i", "f", "c", "e", ["t", "h", 1], ["l", None, True], ["s", "i", None, 2]],
    [["axis", ["m", ["k", ["q", "text"]]]], ["dtype", ["d", "<f4"]], ["value", ["n", "<i2"]]],
]
"""A call with every kind of argument: id, operation, results, arguments, keywords."""


class _Nobody:
    """Stands for the client of an executor that executes nothing."""

    def push(self, kind: array_wire.Kind, body: Any) -> None:
        raise AssertionError

    def collect(self) -> bytes | None:
        raise AssertionError

    def names(self, handle: int) -> bool:
        raise AssertionError

    def free_later(self, handles: bytes) -> None:
        raise AssertionError


def array_operations() -> list[str]:
    """Return the operations that a worker offers, at their numbers."""
    specs = door_kit.emulated(1, 1 << 20)
    backend = EmulatedBackend(specs, door_kit.MemoryBudget([1 << 20]))
    try:
        return Executor(backend, _Nobody(), lambda _line: None).names
    finally:
        backend.close()


def dropin_codec() -> Any:
    """Return the drop-in's own codec, which needs nothing else of it."""
    path = door_kit.DROPIN / "cupy" / "_door" / "cbor.py"
    spec = importlib.util.spec_from_file_location("golden_dropin_codec", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def array_calls() -> dict[str, bytes]:
    """Return the numbers of operations, and values encoded by the drop-in."""
    numbered = [f"{number} {name}\n" for number, name in enumerate(array_operations())]
    codec = dropin_codec()
    template = codec.encode(TEMPLATE)
    return {
        "array operations": "".join(numbered).encode(),
        "array values": codec.encode(VALUES),
        "array template": array_wire.SIZED_RECORD.pack(array_wire.TEMPLATE, len(template))
        + template,
    }


def driver_records() -> dict[str, bytes]:
    """Return the numbers of the CUDA door's records and of its answers."""
    numbers = (NUMBERS | {"PROTOCOL": driver_table.PROTOCOL}).items()
    return {
        "cuda records": "".join(f"{name} {number}\n" for name, number in sorted(numbers)).encode(),
        "cuda answers": constants(driver_serve),
    }


# --- the agent, and files ------------------------------------------------------------------------

AGENT_REQUESTS: dict[str, tuple[bytes, object]] = {
    "session": (
        b'{"op":"session","door":"arrays","pid":7,"ppid":6,"program":"train.py"}',
        SessionRequest("arrays", "train.py", 7),
    ),
    "session of the CUDA door": (
        b'{"op":"session","door":"cuda","pid":7,"program":"a","visible":"0,1",'
        b'"settings":{"CUDA_MODULE_LOADING":"LAZY","PATH":"/bin"}}',
        SessionRequest("cuda", "a", 7, "0,1", {"CUDA_MODULE_LOADING": "LAZY"}),
    ),
    "broken": (b'{"op":"broken","what":"it hangs","pid":7}', agent.SessionBroken("it hangs", 7)),
    "nvml": (b'{"op":"nvml"}', agent.DevicesWanted()),
    "check": (b'{"op":"check"}', agent.CheckLease()),
    "watch": (b'{"op":"watch"}', agent.Watch()),
    "release": (b'{"op":"release"}', agent.ReleaseLease()),
    "follow": (b'{"op":"follow","session":"ab12"}', lease_followers.FollowLease("ab12")),
    "go on": (b'{"op":"go-on"}', lease_followers.AskToGoOn()),
    "moved": (b'{"op":"moved","stays":"it is busy"}', lease_followers.MoveDone("it is busy")),
}
HOLDER = replace(full(held_leases.HeldRecord, "held"), format=held_leases.FORMAT)
IDENTITY_SAMPLE = ServerIdentity(
    server=ServerId("0123456789ab"),
    cluster_id="c0ffee",
    pool="lab",
    name="gpu-a",
    witness=False,
    founder=True,
    members=(Member(ServerId("b" * 12), "10.0.0.2:7470"), Member(ServerId("a" * 12), "gpu-a:1")),
    complete=True,
    listen="0.0.0.0:7470",
)


def agents() -> dict[str, bytes]:
    """Return the lines between a program's process and ``gpupool run``."""
    found = {f"agent asked: {name}": line + b"\n" for name, (line, _) in AGENT_REQUESTS.items()}
    opened = full(SessionOpened, "opened")
    answer = opened_session(ServerId("0123456789ab"), "gpu-a", _at(opened, "10.0.0.4:7470"))
    failure = GpupoolError("what", why="why", hint="hint")
    found["agent: session"] = agent.success_line("7f3a", [answer], ["a notice"])
    found["agent: failure"] = agent.failure_line(failure)
    found["agent: move"] = lease_followers.move_line(answer)
    found["agent: lost"] = agent.lost_line("the lease is gone")
    found["agent: notice"] = agent.notice_line("it ends soon")
    found["settings passed on"] = (" ".join(driver_variables.ALLOWED) + "\n").encode()
    return found


def _at(opened: SessionOpened, address: str) -> SessionOpened:
    return replace(opened, address=address)


def files() -> dict[str, bytes]:
    """Return a line of a server's audit file, and its identity file."""
    found = {"audit": "".join(record_files.lines_of(list(ACTS))).encode()}
    with tempfile.TemporaryDirectory() as folder:
        state = open_state_dir(Path(folder))
        state.begin(IDENTITY_SAMPLE)
        names = sorted(path.name for path in Path(folder).iterdir())
        state.finish(IDENTITY_SAMPLE)
        state.next_incarnation()
        for path in sorted(Path(folder).iterdir()):
            found[f"file {path.name}"] = path.read_bytes()
        state.close()
        kept = held_leases.RecordFile(Path(folder), HOLDER)
        kept.close()
        found["file of a holder"] = kept.path.read_bytes()
        found["file of a holder, name"] = kept.path.name.encode() + b"\n"
    found["files of a new server"] = (json.dumps(names) + "\n").encode()
    assert f"file {IDENTITY}" in found
    return found


def everything() -> dict[str, bytes]:
    return (
        hosts()
        | handshakes()
        | array_frames()
        | array_calls()
        | driver_records()
        | agents()
        | files()
    )
