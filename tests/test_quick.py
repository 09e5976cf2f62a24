"""A quick run has the tests of the rooms that a change touches, and none that starts a process."""

import contextlib
import subprocess
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from tests import pools, processes
from tests.quick import found_for
from tests.shared import Shared

TEXTS = {
    "tests/pool/test_moves.py": "from gpupool.pool.scheduling.moves import plan\n",
    "tests/pool/test_pieces.py": "from gpupool.pool import pieces\n",
    "tests/cli/test_top.py": "from gpupool.pool.scheduling import filters\n",
    "tests/consensus/test_pulls.py": "from gpupool.pool.scheduling import moves, pieces\n",
    "tests/monitoring/web/test_page.py": "",
    "tests/test_shared.py": "from tests.shared import Shared\nNAME = 'size.py'\n",
    "tests/test_docs.py": "",
}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ("pool/scheduling/filters.py", {"tests/pool/test_moves.py", "tests/cli/test_top.py"}),
        ("pool/pieces.py", {"tests/pool/test_pieces.py"}),
        ("monitoring/web/static/pages/view.js", {"tests/monitoring/web/test_page.py"}),
        ("tests/shared.py", {"tests/test_shared.py"}),
        ("tests/cli/test_top.py", {"tests/cli/test_top.py"}),
        ("packaging/size.py", {"tests/test_shared.py"}),
        ("docs/tour.md", {"tests/test_docs.py"}),
    ],
)
def test_of_a_room(changed: str, found: set[str]) -> None:
    assert found_for(changed, TEXTS) == found


def started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["true"])


@contextlib.contextmanager
def lent() -> Generator[None]:
    started()
    yield


LENT = Shared(lent, lambda _: "")


def of_an_object() -> None:
    LENT.end()


async def in_another_function() -> None:
    async def inner() -> None:
        await trio.run_process(["true"])

    await inner()


def of_a_module() -> None:
    pools.Spawned()


def of_none() -> None:
    assert test_of_a_room
    TEXTS.clear()


def test_what_can_start_a_process_is_found() -> None:
    every = (lent, of_an_object, in_another_function, of_a_module)
    assert list(map(processes.starts, every)) == [True] * len(every)
    assert not processes.starts(of_none)


def test_one_without_the_marker_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STARTED", ["true"])
    item: Any = SimpleNamespace(get_closest_marker=dict[str, object]().get)
    end = processes.pytest_runtest_teardown(item)
    next(end)
    with pytest.raises(pytest.fail.Exception, match="lacks the marker"):
        end.send(None)
