"""The agent: one line in, one line out; news of the lease; and arbitrary input."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, reject
from hypothesis import strategies as st

from gpupool.pool.errors import LeaseLostError
from gpupool.pool.model.ids import GpuId, ServerId
from gpupool.remoting.client.session_answer import (
    OpenedSession,
    SessionAnswer,
    SkippedServer,
    from_plain,
    to_plain,
)
from gpupool.remoting.local.files import private_dir
from gpupool.remoting.program.agent import (
    LINE_LENGTH_MAX,
    Agent,
    parse_request,
)
from gpupool.remoting.program.program_lease import SessionRequest
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.protocol.driver_variables import ALLOWED
from gpupool.remoting.protocol.sessions import SessionDevice

REQUEST = {"op": "session", "door": "arrays", "pid": 7, "ppid": 1, "program": "train.py"}
SESSION = OpenedSession(
    server="a",
    server_id=ServerId("0" * 12),
    address=Address("10.0.0.4", 7470),
    unix=None,
    session=bytes(16),
    certificate_sha256=bytes(32),
    ticket=bytes(32),
    encryption="tls",
    devices=(SessionDevice(0, GpuId("EMU-0"), "Emulated GPU", 1 << 30, emulated=True),),
)


def line(body: object) -> bytes:
    return json.dumps(body).encode() + b"\n"


@asynccontextmanager
async def serving(folder: Path, error: LeaseLostError | None = None) -> AsyncGenerator[Agent]:
    async def open_session(request: SessionRequest) -> list[SessionAnswer]:
        await trio.lowlevel.checkpoint()
        if error is not None:
            raise error
        assert (request.door, request.program) == ("arrays", "train.py")
        return [SESSION]

    agent = Agent(folder, lease="7f3a", open_session=open_session)
    async with trio.open_nursery() as nursery:
        await nursery.start(agent.serve)
        yield agent
        nursery.cancel_scope.cancel()


async def connect(agent: Agent) -> trio.SocketStream:
    return await trio.open_unix_socket(str(agent.path))


async def receive(stream: trio.SocketStream) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        piece = await stream.receive_some()
        assert piece, "the agent hung up"
        data += piece
    body: dict[str, Any] = json.loads(data)
    return body


async def test_a_session(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent, await connect(agent) as stream:
        await stream.send_all(line(REQUEST))
        answer = await receive(stream)
    assert answer == {"ok": True, "lease": "7f3a", "notices": [], "sessions": [to_plain(SESSION)]}
    assert agent.opened == 1


async def test_bytes_may_come_in_any_pieces(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent, await connect(agent) as stream:
        for byte in line(REQUEST):
            await stream.send_all(bytes([byte]))
        assert (await receive(stream))["ok"]


async def test_errors_keep_their_code_and_hint(tmp_path: Path) -> None:
    error = LeaseLostError("lease 7f3a is void", why="server a left", hint="run it again")
    async with serving(tmp_path, error) as agent:
        answer = json.loads(await agent.answer(line(REQUEST)))
    assert answer == {
        "ok": False,
        "code": "lease-lost",
        "what": "lease 7f3a is void",
        "why": "server a left",
        "hint": "run it again",
    }


async def test_every_process_hears_that_the_lease_is_lost(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent:
        streams = [await connect(agent) for _ in range(3)]
        for stream in streams:
            await stream.send_all(line(REQUEST))
            assert (await receive(stream))["ok"]
        await agent.lost("server a left; lease 7f3a is void")
        for stream in streams:
            lost = await receive(stream)
            assert lost == {"op": "lost", "what": "server a left; lease 7f3a is void"}
            await stream.send_all(line(REQUEST))
            assert (await receive(stream))["code"] == "lease-lost"
            await stream.aclose()


async def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as agent, await connect(agent) as stream:
        await stream.send_all(b"x" * (LINE_LENGTH_MAX + 1))
        answer = await receive(stream)
        assert not answer["ok"]
        assert await stream.receive_some() == b""


async def test_a_process_that_lost_a_worker_hears_whether_the_lease_is_lost(tmp_path: Path) -> None:
    known = ""

    async def never(request: SessionRequest) -> list[SessionAnswer]:
        raise AssertionError

    async def check() -> str:
        await trio.lowlevel.checkpoint()
        return known

    async def ask() -> dict[str, Any]:
        body: dict[str, Any] = json.loads(await agent.answer(line({"op": "check"})))
        return body

    agent = Agent(tmp_path, lease="7f3a", open_session=never, check=check)
    assert await ask() == {"ok": True, "lost": ""}
    known = "server a left; lease 7f3a is void"
    assert await ask() == {"ok": True, "lost": known}
    known = ""
    await agent.lost("told before")
    assert await ask() == {"ok": True, "lost": "told before"}


@given(st.one_of(st.binary(max_size=200), st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
).map(line)))  # fmt: skip
async def test_nonsense_is_answered(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse_request(data)
        reject()  # that one made sense

    async def never(request: SessionRequest) -> list[SessionAnswer]:
        raise AssertionError

    agent = Agent(Path("/nowhere"), lease="1", open_session=never)
    answer = json.loads(await agent.answer(data))
    assert not answer["ok"]
    assert answer["why"]


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"op": "other"},
        {"op": "session"},
        {"op": "session", "door": 3},
        {"op": "session", "door": "arrays", "pid": "7"},
        {"op": "session", "door": "arrays", "pid": True},
        {"op": "session", "door": "cuda", "pid": 1, "visible": 3},
        {"op": "session", "door": "cuda", "pid": 1, "settings": [["CUDA_AUTO_BOOST", "1"]]},
    ],
)
def test_wrong_requests(body: object) -> None:
    with pytest.raises(ValueError, match="request"):
        parse_request(line(body))


def test_only_known_settings_with_short_plain_values_are_passed_on() -> None:
    good = dict.fromkeys(ALLOWED, "EAGER_1.5+-x") | {"CUDA_AUTO_BOOST": "x" * 32}
    bad = {"CUDA_CACHE_PATH": "x", "LD_PRELOAD": "x.so", "CUDA_VISIBLE_DEVICES": "1", "": "1"}
    request = parse_request(line(REQUEST | {"settings": good | bad}))
    assert isinstance(request, SessionRequest)
    assert request.settings == good
    refused: list[object] = ["", "x" * 33, "1\n", "a b", "/tmp", "\u0661", 1, None, ["1"], True]
    for value in refused:
        settings = {"CUDA_AUTO_BOOST": value, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
        request = parse_request(line(REQUEST | {"settings": settings}))
        assert isinstance(request, SessionRequest)
        assert request.settings == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def test_deeply_nested_json_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON"):
        parse_request(b"[" * 60_000)


def test_the_folder_is_private_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as runtime:  # short enough for sockets
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        with private_dir() as folder:
            assert folder.parent == Path(runtime) / "gpupool"
            assert folder.stat().st_mode & 0o777 == 0o700
            (folder / "x").write_text("")
        assert not folder.exists()


def test_the_folder_of_a_killed_run_is_removed_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each run that got SIGKILL left its folder for good."""
    with tempfile.TemporaryDirectory() as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        script = (
            "import os, signal; from gpupool.remoting.local.files import private_dir\n"
            "with private_dir() as folder: os.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", script], check=False)
        [left] = (Path(runtime) / "gpupool").iterdir()
        with private_dir() as young:
            assert left.exists(), "its owner may not have locked it yet"
            os.utime(left, (0, 0))
            os.utime(young, (0, 0))
            with private_dir():
                assert not left.exists()
                assert young.exists(), "its run lives"


def test_a_long_runtime_folder_is_avoided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with private_dir() as folder:
        assert len(os.fsencode(folder)) < 90


@pytest.mark.parametrize("answer", [SESSION, SkippedServer("a", (GpuId("GPU-1"),))])
def test_the_answer_of_a_server_is_read_as_it_was_written(answer: SessionAnswer) -> None:
    plain = json.loads(json.dumps(to_plain(answer)))
    assert from_plain(plain | {"newer": 1}) == answer
    for name in plain:
        if name not in ("server_name", "session"):  # without "session" there is none
            with pytest.raises(ValueError, match="not the answer of a server"):
                from_plain({key: value for key, value in plain.items() if key != name})
        if name != "server_name":
            with pytest.raises(ValueError, match="not the answer of a server"):
                from_plain(plain | {name: [["?"]]})
    nonsense: object
    for nonsense in (None, 7, "text", ["text"]):
        with pytest.raises(ValueError, match="not the answer of a server"):
            from_plain(nonsense)
