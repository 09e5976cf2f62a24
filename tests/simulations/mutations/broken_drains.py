"""Broken builds of drains of single GPUs, of the sender of alerts, and of the sent alerts."""

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager

from tests.simulations.mutations.patching import patched, patched_handler

from gpupool.pool import alert_gate, automatic_drains
from gpupool.pool.alert_log import AlertLog, Condition, Message, Times
from gpupool.pool.automatic_drains import Sign, Signs, SignWatch
from gpupool.pool.model.commands import Command, DrainGpu
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.model.state import PoolState
from gpupool.pool.ports import RaftHealth
from gpupool.pool.transitions import gpu_drains
from gpupool.pool.view import has_quorum
from gpupool.remoting.server.reconciler import Reconciler


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


def drains_before_the_sign() -> AbstractContextManager[None]:
    """Let a drain be stamped with an earlier time than the onset of its sign."""
    original = Reconciler._once  # pyright: ignore[reportPrivateUsage]

    def once(self: Reconciler, command: Command, *, due_ms: int = 0) -> None:
        original(self, command, due_ms=0 if isinstance(command, DrainGpu) else due_ms)

    return patched(Reconciler, "_once", once)


def drains_unbounded() -> AbstractContextManager[None]:
    """Let any number of GPUs be drained automatically."""

    def automatic_max(state: PoolState) -> int:
        del state
        return 1_000_000

    return _everywhere("automatic_max", automatic_max)


def _everywhere(name: str, replacement: object) -> AbstractContextManager[None]:
    """Patch a function of the table and the planner's import of it."""

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


def told_by_the_former_sender() -> AbstractContextManager[None]:
    """Let a new sender believe that the former one has sent all that holds."""
    original = AlertLog._untold  # pyright: ignore[reportPrivateUsage]

    def untold(self: AlertLog, now_s: float) -> list[object]:
        if self._since_s == now_s:  # pyright: ignore[reportPrivateUsage]
            for each in self._followed.values():  # pyright: ignore[reportPrivateUsage]
                each.told_s = now_s
        return list(original(self, now_s))

    return patched(AlertLog, "_untold", untold)


def tells_at_once() -> AbstractContextManager[None]:
    """Let senders neither be silent at first nor put alerts together."""
    original = AlertLog.look

    def look(
        self: AlertLog,
        conditions: Iterable[Condition],
        now_s: float,
        now_ms: int,
        *,
        sends: bool,
        majority: bool = True,
    ) -> Message | None:
        self.times = Times(group_s=0.0, silent_first_s=0.0)
        return original(self, conditions, now_s, now_ms, sends=sends, majority=majority)

    return patched(AlertLog, "look", look)


def told_is_forgotten() -> AbstractContextManager[None]:
    """Let a sender forget its sent alerts."""
    original = AlertLog._tell  # pyright: ignore[reportPrivateUsage]

    def tell(self: AlertLog, untold: list[object], now_s: float) -> Message | None:
        message = original(self, untold, now_s)  # type: ignore[arg-type]
        for each in self._followed.values():  # pyright: ignore[reportPrivateUsage]
            each.told_s = None
        return message

    return patched(AlertLog, "_tell", tell)
