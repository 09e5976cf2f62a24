"""Barriers of emulated grids: threads change by assembly, and by the C library elsewhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import door_kit
import numpy as np
import pytest

from gpupool.remoting.devices.host_kernels import host_compiler
from gpupool.remoting.devices.host_kernels.host_raw import HostModule
from gpupool.remoting.devices.host_kernels.kernel_errors import CUDARuntimeError

pytestmark = pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="kernels need a compiler")

SOURCE = (Path(__file__).parent / "kernels" / "barriers.cu").read_text()


def _ends(t: Any) -> Any:
    # Of `many` threads those from `round` on still wait, and the odd ones among them count.
    many = len(t)
    return np.where(t > 0, many // 2 - t // 2, 0)


def _halves(t: Any) -> Any:
    first = t - t % 32
    return 16 * first + np.where(t % 2, 256, 240)


RIGHT: dict[str, Callable[[Any], Any]] = {
    "places": lambda t: t,
    "sums": lambda t: len(t) * (len(t) - 1) // 2 + t,
    "some_end": _ends,
    "votes": lambda t: np.full_like(t, 5),
    "stacks": lambda t: np.full_like(t, 5050),
    "half_warps": _halves,
    "lanes_end": lambda t: np.where(t % 32 < 20, 10, 0),
}


@pytest.fixture(scope="module", params=[(), ("-DGPUPOOL_PORTABLE",)], ids=["assembly", "library"])
def module(request: pytest.FixtureRequest) -> HostModule:
    host_compiler.permit()
    return HostModule(SOURCE, request.param, False, False, ())


def run(module: HostModule, name: str, grid: Any, block: Any) -> Any:
    out = np.zeros((int(np.prod(grid)), int(np.prod(block))), np.int32)
    module.get_function(name)(grid, block, (out,))
    return out


@pytest.mark.parametrize("threads", [32, 64, 1024])
@pytest.mark.parametrize("name", [name for name in RIGHT if name != "places"])
def test_each_block_of_a_grid_is_right(module: HostModule, name: str, threads: int) -> None:
    out = run(module, name, (3, 2), (threads,))
    expected = RIGHT[name](np.arange(threads))
    np.testing.assert_array_equal(out, np.broadcast_to(expected, out.shape))


@pytest.mark.parametrize("block", [(1,), (1, 1, 3), (5, 3, 7), (31,), (33, 2), (10, 100)])
def test_a_thread_has_its_place_after_a_barrier(module: HostModule, block: tuple[int, ...]) -> None:
    out = run(module, "places", (4, 3, 2), block).reshape(-1)
    high = np.repeat(np.arange((*block, 1, 1)[2]), np.prod(block[:2]))
    np.testing.assert_array_equal(out, np.arange(out.size) + np.tile(high, 24))


def test_a_launch_after_one_that_failed_is_right(module: HostModule) -> None:
    for name, status, says in (("stuck", 719, "for ever"), ("unknown", 710, "threadIdx.x != 7")):
        for threads in (32, 256):
            with pytest.raises(CUDARuntimeError, match=says) as failed:
                run(module, name, (2,), (threads,))
            assert failed.value.status == status
            for right in ("sums", "half_warps"):
                (out,) = run(module, right, (1,), (threads,))
                np.testing.assert_array_equal(out, RIGHT[right](np.arange(threads)))
