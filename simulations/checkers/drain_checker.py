"""The checker of automatic drains: a person's undrain holds, and few GPUs are drained at a time."""

from gpupool.pool.model.commands import DrainGpu, Envelope
from gpupool.pool.model.ids import GpuId, ServerId
from gpupool.pool.model.state import PoolState
from gpupool.simulations.kernel.failure_reporter import FailureReporter

Place = tuple[ServerId, GpuId]


class UndrainHolds:
    """A sign drains a GPU once: when a person has undrained it, only another episode does again.

    The reason of a drain in the simulator ends with the episode of its sign.
    """

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._episodes: dict[Place, str] = {}
        self._undrained: dict[Place, str] = {}
        """The episode that a person has answered, by GPU."""

    def applied(self, envelope: Envelope, before: PoolState, after: PoolState) -> None:
        """Judge a command that was applied for the first time."""
        command = envelope.command
        if not isinstance(command, DrainGpu) or before.servers is after.servers:
            return
        server = after.servers.get(command.server)
        if server is None or command.gpu not in server.gpus:
            return
        place = command.server, command.gpu
        reason = server.gpus[command.gpu].drain_reason
        if not command.sign:
            if command.reason is None and place in self._episodes:
                self._undrained[place] = self._episodes[place]
            return
        if reason != command.reason:
            return
        if self._undrained.get(place) == reason:
            self._failures.fail("undrain-holds", f"{place} was drained again: {reason}")
        self._episodes[place] = reason
        self._count(after)

    def _count(self, state: PoolState) -> None:
        gpus = [gpu for server in state.servers.values() for gpu in server.gpus.values()]
        drained = [gpu.id for gpu in gpus if gpu.drain_reason.startswith("auto: ")]
        if len(drained) > 1 and len(drained) * 10 > len(gpus):
            text = f"{len(drained)} of {len(gpus)} GPUs are drained automatically"
            self._failures.fail("drains-bounded", text)
