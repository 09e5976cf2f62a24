"""Processes that follow their lease: the agent's messages to them, and its handling of theirs."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
import trio.testing
from tests.cli.test_agent import SESSION, connect, line, receive, serving

from gpupool.remoting.client.session_answer import to_plain
from gpupool.remoting.program.agent import Agent

FOLLOW = {"op": "follow", "session": "ab" * 16}
OLD = bytes.fromhex("ab" * 16)


@asynccontextmanager
async def following(folder: Path) -> AsyncGenerator[tuple[Agent, trio.SocketStream]]:
    async with serving(folder) as agent, await connect(agent) as stream:
        assert await ask(stream, FOLLOW) == {"ok": True}
        yield agent, stream


async def ask(stream: trio.SocketStream, body: object) -> dict[str, Any]:
    await stream.send_all(line(body))
    return await receive(stream)


async def bring(agent: Agent, session: bytes, answers: list[str], may: str = "") -> None:
    async def asks() -> str:
        await trio.lowlevel.checkpoint()
        return may

    answers.append(await agent.followers.bring(session, SESSION, asks))


async def test_a_process_is_told_asks_and_has_gone(tmp_path: Path) -> None:
    answers: list[str] = []
    async with following(tmp_path) as (agent, stream), trio.open_nursery() as nursery:
        for session in (OLD, SESSION.session):  # and again, by its new name
            nursery.start_soon(bring, agent, session, answers)
            order = await receive(stream)
            assert order == {"op": "move", "offer": json.loads(json.dumps(to_plain(SESSION)))}
            assert await ask(stream, {"op": "go-on"}) == {"ok": True, "stays": ""}
            assert await ask(stream, {"op": "moved", "stays": ""}) == {"ok": True}
        await trio.testing.wait_all_tasks_blocked()
        assert answers == ["", ""]


async def test_the_pools_refusal_reaches_it_and_its_own_reaches_the_pool(tmp_path: Path) -> None:
    answers: list[str] = []
    async with following(tmp_path) as (agent, stream), trio.open_nursery() as nursery:
        nursery.start_soon(bring, agent, OLD, answers, "the lease has ended")
        await receive(stream)
        said = await ask(stream, {"op": "go-on"})
        assert said == {"ok": True, "stays": "the lease has ended"}
        await ask(stream, {"op": "moved", "stays": "it has a sparse matrix"})
        await trio.testing.wait_all_tasks_blocked()
        assert answers == ["it has a sparse matrix"]


async def test_a_process_that_ends_or_is_none_stays(tmp_path: Path) -> None:
    answers: list[str] = []
    async with following(tmp_path) as (agent, stream), trio.open_nursery() as nursery:
        await bring(agent, bytes(16), answers)
        assert answers.pop().startswith("its program uses an older cupy of gpupool")
        nursery.start_soon(bring, agent, OLD, answers)
        await receive(stream)
        await stream.aclose()
        with trio.fail_after(5):
            while not answers:  # noqa: ASYNC110 - the end of a connection has no event here
                await trio.sleep(0.001)
        assert answers == ["its process has ended"]
        await bring(agent, OLD, answers)
        assert answers[1].startswith("its program uses an older cupy")


async def test_what_nobody_asked_for_does_nothing(tmp_path: Path) -> None:
    async with following(tmp_path) as (_agent, stream):
        nobody = {"ok": True, "stays": "nobody told it to go"}
        assert await ask(stream, {"op": "go-on"}) == nobody
        assert await ask(stream, {"op": "moved", "stays": ""}) == nobody
        for wrong in ({"op": "follow"}, {"op": "moved", "stays": 3}):
            assert (await ask(stream, wrong))["ok"] is False
