"""Broken builds of drains of single GPUs, and of who sends alerts."""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager

from tests.simulations.mutations.patching import patched, patched_handler

from gpupool.pool import alert_gate, automatic_drains
from gpupool.pool.automatic_drains import Sign, Signs, SignWatch
from gpupool.pool.model.commands import DrainGpu
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.model.state import PoolState
from gpupool.pool.ports import RaftHealth
from gpupool.pool.transitions import gpu_drains
from gpupool.pool.view import has_quorum


def gpu_drain_ignored() -> AbstractContextManager[None]:
    """Let the table say that a GPU is drained, and nobody care."""
    original = gpu_drains.drain_gpu

    def drain_gpu(state: PoolState, command: DrainGpu) -> gpu_drains.Step:
        _, result = original(state, command)
        return state, result

    return patched_handler(DrainGpu, drain_gpu)


def undrain_forgotten() -> AbstractContextManager[None]:
    """Let a GPU that is not drained be drained for every sign."""

    def holds_back(*_: object) -> None:
        return None

    return _everywhere("holds_back", holds_back)


def onset_forgotten() -> AbstractContextManager[None]:
    """Let every sign that a server sees first be a new one."""

    def look(self: SignWatch, signs: Signs, now_ms: Milliseconds, era: int) -> tuple[Sign, ...]:
        onsets: dict[object, Milliseconds] = self.__dict__.setdefault("seen", {})
        del era
        return tuple(
            Sign(*k, text, onsets.setdefault((k, text), now_ms)) for k, text in signs.items()
        )

    return patched(SignWatch, "look", look)


def drains_unbounded() -> AbstractContextManager[None]:
    """Let any number of GPUs be drained automatically."""

    def automatic_max(state: PoolState) -> int:
        del state
        return 1_000_000

    return _everywhere("automatic_max", automatic_max)


def _everywhere(name: str, replacement: object) -> AbstractContextManager[None]:
    """Patch a function of the table and what the planner has imported of it."""

    @contextmanager
    def broken() -> Generator[None]:
        with (
            patched(gpu_drains, name, replacement),
            patched(automatic_drains, name, replacement),
        ):
            yield

    return broken()


def all_send() -> AbstractContextManager[None]:
    """Let every server send that is in touch with a majority."""

    def sends_alerts(_state: PoolState, _self: ServerId, health: RaftHealth) -> bool:
        return has_quorum(health)

    return patched(alert_gate, "sends_alerts", sends_alerts)


def minority_sends() -> AbstractContextManager[None]:
    """Let the first server of a table send, in touch or not."""

    def in_touch(_health: RaftHealth) -> bool:
        return True

    return patched(alert_gate, "has_quorum", in_touch)
