"""``gpupool doctor --servers`` in virtual time: all servers are asked at once."""

from typing import cast

import trio
import trio.testing

from gpupool.pool.errors import UnreachableError
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.telemetry import Finding, Health
from gpupool.remoting.client.check_answers import ask_checks
from gpupool.remoting.client.server_connections import Connections
from gpupool.remoting.protocol import messages as m

SERVERS = [ServerId(f"server-{number}") for number in range(100)]
TESTS_S = 12.0
"""As eight idle GPUs take: a copy, a product of matrices and a pattern on each."""


class FakeServer:
    """A server that tests its GPUs; ``hangs``: one that never reports its findings."""

    def __init__(self, *, hangs: bool) -> None:
        self._hangs = hangs

    async def call(self, _message: m.Call, *, timeout_s: float) -> m.Message:
        await trio.sleep(timeout_s if self._hangs else TESTS_S)
        if self._hangs:
            raise UnreachableError("lost server", why=f"no answer within {timeout_s:g} s")
        return m.ChecksDone((Finding("self-test", "GPU 0", Health.FAIL, Milliseconds(1), "wrong"),))


class FakeConnections:
    """Every tenth server is away, and every eleventh hangs."""

    members = dict.fromkeys(SERVERS)

    def widen(self, count: int) -> None:
        assert count >= len(SERVERS)

    async def reach(self, server: ServerId, timeout_s: float) -> FakeServer:
        number = SERVERS.index(server)
        if number % 10 == 0:
            await trio.sleep(timeout_s)
            raise UnreachableError(f"cannot reach server {server}")
        return FakeServer(hangs=number % 11 == 0)


async def test_a_hundred_servers_answer_within_30_s(
    autojump_clock: trio.testing.MockClock,
) -> None:
    began = trio.current_time()
    answer = await ask_checks(cast("Connections", FakeConnections()))
    assert trio.current_time() - began <= 30
    assert len(answer.findings) + len(answer.silent) == len(SERVERS)
    assert len(answer.silent) == sum(n % 10 == 0 or n % 11 == 0 for n in range(100))
