"""A server's answers on a policy that is not there, and on a request that makes no sense."""

import json
import logging
from dataclasses import replace

import pytest
import trio
import trio.testing
from tests.pool import policy_kit
from tests.remoting.control.control_cluster import Cluster, request

from gpupool.pool.errors import DeniedError, NeverFitsError, UsageError
from gpupool.pool.model.ids import RequestId
from gpupool.pool.model.state import Request
from gpupool.pool.transitions.policy_versions import pack_text
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.local.logs import JsonFormatter
from gpupool.remoting.server import policy_service, service_context
from gpupool.remoting.server.service_context import check_request


def test_a_version_that_is_not_kept() -> None:
    with pytest.raises(UsageError) as none:
        policy_service.policy_is(policy_kit.Pool().state, 5)
    assert none.value.why == "the pool has no policy yet"
    with pytest.raises(UsageError) as other:
        policy_service.policy_is(policy_kit.Pool("[pool]\nmax_leases = 1\n").state, 5)
    assert other.value.why == "kept are 1"


@pytest.mark.parametrize(
    ("policy", "base", "why"),
    [
        ("", 7, "it was made from version 7, and the pool has no policy yet"),
        ("[pool]", 7, "it was made from version 7, and root has applied version 1"),
        ("[pool]", 0, "root has applied version 1"),
    ],
)
def test_a_policy_made_from_another_version(policy: str, base: int, why: str) -> None:
    table = policy_kit.Pool(policy).state
    error = policy_service._conflict(table, base)  # pyright: ignore[reportPrivateUsage]
    assert error.why == why


@pytest.fixture
def lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> list[logging.LogRecord]:
    """Return the lines about refused requests, as they come."""
    kept: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", kept.append)
    monkeypatch.setattr(service_context.LOG, "handlers", [handler])
    # It has the logger forget what other tests found switched off.
    caplog.set_level(logging.INFO, logger=service_context.LOG.name)
    return kept


async def test_refused_requests_of_a_user_have_few_lines(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, lines: list[logging.LogRecord]
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([2], users=("ada", "bob"))

    async def refused(pool: Pool, times: int) -> int:
        before = len(lines)
        for _ in range(times):
            with pytest.raises(NeverFitsError):
                await pool.allocate(request(pool, 3), wait_s=10)
        return len(lines) - before

    async with cluster.client("ada") as ada, cluster.client("bob") as bob:
        most = service_context.REFUSAL_LINES_MAX
        assert await refused(ada, most + 10) == most
        assert "more of ada are left out" in lines[-1].getMessage()
        assert await refused(bob, 2) == 2
        await trio.sleep(service_context.REFUSAL_LINES_S)
        assert await refused(ada, 1) == 1


async def test_a_refusal_has_a_line_in_the_log(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, lines: list[logging.LogRecord]
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([2])
    async with cluster.client("root") as root, cluster.client() as pool:
        await root.put_policy(pack_text("[defaults]\nmax_gpus = 0.5\n"), 0)
        for count, error in ((1, DeniedError), (3, NeverFitsError)):
            with pytest.raises(error):
                await pool.allocate(request(pool, count), wait_s=10)
    denied, never = [json.loads(JsonFormatter().format(each)) for each in lines]
    assert (denied["event"], denied["user"]) == ("refused", pool.credentials.user)
    assert denied["message"].startswith(f"refused {denied['user']} (")
    assert "max_gpus" in denied["reason"]
    assert never["reason"] == "the largest server, gpu-1, has 2 GPUs"


@pytest.mark.parametrize(
    ("servers", "what"),
    [
        (tuple(f"gpu-{n}" for n in range(65)), "a request names at most 64 servers"),
        (("x" * 65,), "a server's name has at most 64 characters"),
    ],
)
def test_a_request_that_names_too_much_is_told_what(servers: tuple[str, ...], what: str) -> None:
    fine = Request(RequestId(bytes(16)), 1, 0.5, 0)
    check_request(replace(fine, servers=("x" * 64,) * 64))
    with pytest.raises(UsageError, match=what):
        check_request(replace(fine, servers=servers))


def test_a_share_of_time_has_a_smallest() -> None:
    fine = Request(RequestId(bytes(16)), 1, 0.5, 0)
    for share in (0.0, 0.01, 1.0):
        check_request(replace(fine, share=share))
    for share in (1e-9, 0.0099, 1.01, -1.0, float("nan")):
        with pytest.raises(UsageError, match=r"a share of a GPU's time is 0\.01 to 1"):
            check_request(replace(fine, share=share))
