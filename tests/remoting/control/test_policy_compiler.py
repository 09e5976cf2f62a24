"""A separate process reads a user's document; the server's process parses none of it.

The time of ``mock_clock`` stands still: a child on a busy machine meets its limit of processor
time, and never before that the server's limit of real time.
"""

import os
import site
import subprocess
import sys
import venv
import zlib
from pathlib import Path

import pytest
import trio
import trio.testing
from tests.pool.policy_kit import MONDAY_MS
from tests.remoting.control.control_cluster import Cluster

import gpupool
from gpupool.pool.errors import NotNowError, UsageError
from gpupool.pool.transitions.policy_versions import Draft, pack_text
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol import policy_text
from gpupool.remoting.server.policy_compiler import TIMEOUT_S, PolicyCompiler

TEXT = """
[[window]]
from = "01:00"
to = "02:00"
zone = "Europe/Berlin"
[window.pool]
max_gpus = 1
"""


def explode(*_: object) -> None:
    raise AssertionError("a user's document is parsed in the server's process")


async def test_a_document_is_compiled_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = policy_text.compile_text(pack_text(TEXT), MONDAY_MS)
    monkeypatch.setattr(policy_text, "parse_policy", explode)
    monkeypatch.setattr(policy_text, "unpack_text", explode)
    assert await PolicyCompiler().compile(pack_text(TEXT), MONDAY_MS) == expected


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        pytest.param(
            *(
                pack_text("a" + ".a" * 100_000 + " = 1\n"),
                "it takes too much time or memory to read",
            ),
            marks=pytest.mark.long,  # five seconds; below, a child has one
        ),
        (pack_text("[pool]\nmax_gpu = 1\n"), "did you mean max_gpus"),
        (zlib.compress(b" " * (1 << 20)), "too large"),
        (b"noise", "damaged"),
        (b"", "damaged"),
    ],
)
async def test_a_document_that_is_none(
    mock_clock: trio.testing.MockClock, packed: bytes, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        await PolicyCompiler().compile(packed, MONDAY_MS)


@pytest.mark.parametrize("greed", ["bytearray(1 << 30)", "while True: pass"])
async def test_a_child_that_takes_too_much(mock_clock: trio.testing.MockClock, greed: str) -> None:
    """A parser that is led astray ends with its child, and the server goes on."""
    script = (
        "from gpupool.remoting.server.policy_compiler import limit_resources\n"
        f"limit_resources(cpu_s=1)\n{greed}\n"
    )
    with pytest.raises(UsageError, match="too much time or memory"):
        await PolicyCompiler((sys.executable, "-c", script)).compile(pack_text(TEXT), MONDAY_MS)


async def test_a_child_that_takes_too_long(
    mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Such as one without a processor: nothing is known of the document."""
    waits = PolicyCompiler((sys.executable, "-c", "import signal; signal.pause()"))

    async def let_time_pass() -> None:
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(TIMEOUT_S)

    nursery.start_soon(let_time_pass)
    with pytest.raises(NotNowError, match="its reader took too long"):
        await waits.compile(pack_text(TEXT), MONDAY_MS)


async def test_a_child_that_breaks_is_no_mistake_of_the_user() -> None:
    broken = PolicyCompiler((sys.executable, "-c", "raise ValueError('this')"))
    with pytest.raises(NotNowError, match=r"ended with status 1: ValueError: this"):
        await broken.compile(pack_text(TEXT), MONDAY_MS)


def test_a_server_whose_gpupool_is_not_installed_compiles_too(tmp_path: Path) -> None:
    """As with ``pip install --user``, or with ``PYTHONPATH``."""
    venv.create(tmp_path / "venv")
    path = [*site.getsitepackages(), str(Path(gpupool.__file__).parents[1])]
    script = (
        "import trio\n"
        "from gpupool.remoting.server.policy_compiler import PolicyCompiler\n"
        f"print(trio.run(PolicyCompiler().compile, {pack_text(TEXT)!r}, {MONDAY_MS}))\n"
    )
    done = subprocess.run(
        [str(tmp_path / "venv" / "bin" / "python"), "-c", script],
        env={"PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("Draft("), done.stderr


async def test_a_document_of_each_user_at_a_time(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    cluster = Cluster(nursery)
    await cluster.start([1], users=("ada", "eve"))
    compiling = trio.Event()

    async def slowly(packed: bytes, now_ms: int) -> Draft:
        await compiling.wait()
        return policy_text.compile_text(packed, now_ms)

    cluster.compile_policy = slowly
    draft = m.CheckPolicy("", None, pack_text(TEXT))
    verdicts: list[m.Message] = []

    async def check(pool: Pool) -> None:
        connection = next(iter(pool.connections.by_server.values()))
        verdicts.append(await connection.call(draft, timeout_s=5))

    async with cluster.client("ada") as ada, cluster.client("eve") as eve:
        async with trio.open_nursery() as checks:
            checks.start_soon(check, ada)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(NotNowError, match="another document of yours"):
                await check(ada)
            checks.start_soon(check, eve)
            await trio.testing.wait_all_tasks_blocked()
            compiling.set()
        await check(ada)
    assert len(verdicts) == 3
    assert all(isinstance(verdict, m.PolicyVerdict) for verdict in verdicts)
