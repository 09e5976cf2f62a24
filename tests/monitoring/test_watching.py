"""Failures of monitoring go no further."""

import ast
import logging
from pathlib import Path

import pytest
import trio
import trio.testing

from gpupool.monitoring.exporter_link import ExporterLink
from gpupool.monitoring.frames import EXPORTER, RecordsWritten
from gpupool.monitoring.sample import Sample
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.model.state import PoolState
from gpupool.pool.telemetry import Finding, Health, Telemetry
from gpupool.pool.view import RaftView
from gpupool.remoting.daemon import compose
from gpupool.remoting.transport.watching import keep_watching, told


async def test_it_begins_again_whatever_it_raises(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    lines: list[tuple[float, str]] = []
    began = trio.current_time()
    ends: list[Exception | str | None] = [
        OverflowError("too large"),
        ExceptionGroup("several", [KeyError("x")]),
        "status 1",
        *[ValueError("again")] * 4,
        None,
    ]

    async def run() -> object:
        end = ends.pop(0)
        if len(ends) == 1:
            await trio.sleep(60)  # so steady that the pause is the shortest again
        if isinstance(end, Exception):
            raise end
        return end

    def say(line: str) -> None:
        lines.append((trio.current_time() - began, line))

    await keep_watching(say, "the watcher", run)
    said = [line.removeprefix("the watcher has ended (") for _, line in lines]
    assert said[0] == "OverflowError: too large); again in 1 s"
    assert said[1] == "KeyError: 'x'); again in 2 s"
    assert said[2] == "status 1); again in 4 s"
    pauses = [line.rpartition(" in ")[2] for line in said]
    assert pauses == ["1 s", "2 s", "4 s", "8 s", "16 s", "30 s", "1 s"]


async def test_it_is_cancelled_as_anything_else() -> None:
    with trio.move_on_after(0) as scope:
        await keep_watching(print, "the watcher", trio.sleep_forever)
    assert scope.cancelled_caught


def test_a_listener_that_fails_is_said_and_stops_nobody() -> None:
    lines: list[str] = []
    tell = told("the listener", int, lines.append)
    tell("1")
    tell("no number")
    tell("no number")  # which is said once
    (line,) = lines
    assert line.startswith("the listener failed: ValueError: ")


WATCH = {"audit", "leases", "exporter", "web", "health", "_measure"}
"""Parts of a server that only watch."""


def test_a_server_starts_what_watches_by_the_one_way_that_holds_its_end() -> None:
    """Also its calls within ``apply``; a part that is started otherwise may end a server."""
    tree = ast.parse(Path(compose.__file__).read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    watched: list[str] = []
    for call in calls:
        by, given = ast.unparse(call.func), [ast.unparse(each) for each in call.args]
        if by.endswith(("begin", "start_soon", "nursery.start")):
            if given[0] == "keep_watching":
                watched.append(given[3].partition(".run")[0])
            else:
                assert not given[0].startswith(tuple(f"self.{part}" for part in WATCH))
    assert watched[:3] == ["self.audit", "self.leases", "self.exporter"]
    assert watched[3:] == ["partial(self._measure, links, host)", "samples", "web", "checks"]
    partials = [ast.unparse(call) for call in calls if ast.unparse(call.func) == "partial"]
    for part in ("exporter.send_samples", "web.run", "health.run"):
        assert any(each.startswith(f"partial(self.{part}, ") for each in partials)
    (machine,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "PoolMachine"
    ]
    listeners = {
        each.arg: ast.unparse(each.value)
        for each in machine.keywords
        if each.arg and each.arg.startswith("on_")
    }
    assert len(listeners) == 3
    assert all(value.startswith("told(") for value in listeners.values())


def sample(findings: int) -> Sample:
    text = "x" * 2000
    found = Finding("check", "", Health.OK, Milliseconds(0), text)
    telemetry = Telemetry(ServerId("a"), Milliseconds(1), findings=(found,) * findings)
    raft = RaftView("leader", "a", 1, 1, 1, (), (), True, 0.0, 0)
    return Sample(Milliseconds(1), "a", "pool", "idle", "", "", "", telemetry, (), (), raft, None)


async def test_a_sample_that_is_too_large_is_dropped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The frame was too large for the exporter, and its server ended."""
    link = ExporterLink(tmp_path, PoolState, logging.getLogger("observer"))
    near, far = (trio.SocketStream(each) for each in trio.socket.socketpair())
    too_large = sample(EXPORTER.size_max // 2000 + 1)
    async with near, far, trio.open_nursery() as nursery:
        nursery.start_soon(link.pump_samples, near, trio.Lock())
        for each in (too_large, too_large, sample(1)):
            link.add_sample(each)
        await trio.testing.wait_all_tasks_blocked()
        link.add_sample(sample(2))
        reader, found = EXPORTER.reader(), list[Sample]()
        with trio.fail_after(10):
            while len(found) < 2:
                reader.feed(await far.receive_some())
                found += [EXPORTER.decode(Sample, frame) for frame in reader.frames()]
        nursery.cancel_scope.cancel()
    assert [len(each.telemetry.findings) for each in found] == [1, 2]
    assert [each.dropped for each in found] == [0, 2]
    (line,) = [each.getMessage() for each in caplog.records]
    assert "the exporter is not told of something: frame too large" in line


async def test_no_other_word_to_the_exporter_ends_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = ExporterLink(tmp_path, PoolState, logging.getLogger("observer"))
    monkeypatch.setattr(EXPORTER, "encode", _refuse)
    assert link._frame(RecordsWritten()) == b""  # pyright: ignore[reportPrivateUsage]
    assert link.dropped == 1


def _refuse(_message: object) -> bytes:
    from gpupool.pool.errors import LocalProtocolError

    raise LocalProtocolError("this cannot be sent")
