"""The messages of a waiting request without a terminal, under virtual time."""

import json
import sys

import pytest
import trio
import trio.testing

from gpupool.pool.errors import GpupoolError
from gpupool.remoting.client.session_answer import SessionAnswer
from gpupool.remoting.local.files import private_dir
from gpupool.remoting.program.agent import Agent
from gpupool.remoting.program.program_run import WaitingLine, line_of_command

Clock = trio.testing.MockClock


async def shown_for(line: WaitingLine, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await line.show()


async def test_a_pipe_gets_a_line_at_the_start_and_one_each_minute(
    autojump_clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    line = WaitingLine(shown=True)
    line.update("waiting for 1 GPU, 0 ahead")
    await shown_for(line, 0.9)
    assert capsys.readouterr().err == ""  # a grant usually comes sooner
    await shown_for(line, 125)
    assert capsys.readouterr().err.splitlines() == [
        "gpupool: waiting for 1 GPU, 0 ahead",
        "gpupool: waiting for 1 GPU, 0 ahead, 61 s",
        "gpupool: waiting for 1 GPU, 0 ahead, 2m00s",
    ]


async def test_what_is_known_late_has_a_line_of_its_own(
    autojump_clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of alloc, with a holder to start first: else the first minute lacks the reason."""
    line = WaitingLine(shown=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shown_for, line, 65)
        await trio.sleep(1.4)
        line.update("waiting for 1 GPU")
        await trio.sleep(0.2)
        line.free_in(600)
        line.update("waiting for 1 GPU, 0 ahead")
    free = "enough GPUs are free in 10m at the latest, by the leases' limits and the policy"
    assert capsys.readouterr().err.splitlines() == [
        "gpupool: asking the pool",
        "gpupool: waiting for 1 GPU",
        f"gpupool: waiting for 1 GPU, 0 ahead; {free}",
        f"gpupool: waiting for 1 GPU, 0 ahead, 62 s; {free.replace('10m', '9m00s')}",
    ]


async def test_with_v_a_pipe_gets_a_line_each_minute_too(
    autojump_clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    line = line_of_command(quiet=False, verbose=1)
    line.update("waiting for 1 GPU")  # which has a line of its own already
    await shown_for(line, 130)
    assert capsys.readouterr().err.splitlines() == [
        "gpupool: waiting for 1 GPU, 60 s",
        "gpupool: waiting for 1 GPU, 2m00s",
    ]


async def test_the_line_says_when_gpus_are_free(
    autojump_clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    line = WaitingLine(shown=True)
    line.update("waiting for 1 GPU")
    line.free_in(90 * 60 + 1)
    await shown_for(line, 130)
    assert capsys.readouterr().err.splitlines() == [
        "gpupool: waiting for 1 GPU; enough GPUs are free in 1h30m at the latest, "
        "by the leases' limits and the policy",
        "gpupool: waiting for 1 GPU, 61 s; enough GPUs are free in 1h29m at the latest, "
        "by the leases' limits and the policy",
        "gpupool: waiting for 1 GPU, 2m00s; enough GPUs are free in 1h28m at the latest, "
        "by the leases' limits and the policy",
    ]
    for by_s in (float("inf"), 0.0, 0.5):
        line.free_in(by_s)
        await shown_for(line, 2)
        assert capsys.readouterr().err == "gpupool: waiting for 1 GPU\n"


async def test_a_quiet_command_says_nothing(
    autojump_clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    await shown_for(WaitingLine(shown=False), 200)
    assert capsys.readouterr().err == ""


async def test_a_terminal_has_one_line_that_goes_in_the_end(
    autojump_clock: Clock,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    await shown_for(WaitingLine(shown=True), 3)
    said = capsys.readouterr().err
    assert "\n" not in said
    assert "gpupool: asking the pool" in said
    assert said.endswith("\r\x1b[K")


async def test_a_narrow_terminal_cuts_the_reason_and_keeps_the_times(
    autojump_clock: Clock,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    line = WaitingLine(shown=True)
    line.update("waiting for 2 GPUs, 0 ahead (3 servers: 0 of 2 GPUs have room (0 idle))")
    line.free_in(90 * 60)
    await shown_for(line, 4.9)
    last = capsys.readouterr().err.split("\r")[-2].removesuffix("\x1b[K")
    times = ", 4 s; GPUs free in 1h29m at the latest"
    assert last == f"gpupool: waiting for 2 GPUs, 0 ahea...{times}"
    assert len(last) <= 77, "there is room for ^C"


async def test_the_process_that_waits_for_a_session_is_told() -> None:
    """A notebook's cell shows its kernel's output, and not that of ``gpupool run``."""
    asked, free = trio.Event(), trio.Event()

    async def refuse(_request: object) -> list[SessionAnswer]:
        asked.set()
        await free.wait()
        raise GpupoolError("no GPU is free")

    with private_dir() as folder:
        async with trio.open_nursery() as nursery:
            agent = Agent(folder, lease="", open_session=refuse)
            await nursery.start(agent.serve)
            asking, idle = [await trio.open_unix_socket(str(agent.path)) for _ in range(2)]
            await asking.send_all(b'{"op": "session", "door": "arrays", "program": "x"}\n')
            await asked.wait()
            await agent.tell_waiting("waiting for 1 GPU")
            free.set()
            lines = b""
            while lines.count(b"\n") < 2:
                lines += await asking.receive_some()
            notice, answer = map(json.loads, lines.splitlines())
            assert notice == {"op": "notice", "text": "waiting for 1 GPU"}
            assert answer["what"] == "no GPU is free"
            await idle.send_all(b'{"op": "check"}\n')
            assert json.loads(await idle.receive_some()) == {"ok": True, "lost": ""}
            await asking.aclose()
            await idle.aclose()
            nursery.cancel_scope.cancel()


async def test_a_notebooks_line_goes_to_its_cell(
    autojump_clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    async def tell(text: str) -> None:
        await trio.lowlevel.checkpoint()
        told.append(text)

    await shown_for(WaitingLine(shown=True, tell=tell), 20)
    assert told == ["asking the pool"]
    assert capsys.readouterr().err == ""
