"""When a GPU is tested. Pure code."""

from collections.abc import Mapping, Sequence

from gpupool.monitoring.health.device_memory import SelfTest
from gpupool.pool.model.ids import GpuId
from gpupool.pool.model.state import Gpu

WEEK_MS = 7 * 86_400_000
QUIET_S = 6 * 3600.0
"""If no worker was started for so long, a test starts one."""


class SelfTestPlan:
    """Which GPU of one server is to be tested next."""

    def __init__(self) -> None:
        self._drained: set[GpuId] = set()
        self._undrained: set[GpuId] = set()
        self._starts = 0
        self._started_at = 0.0

    def next(
        self,
        gpus: Sequence[Gpu],
        held: frozenset[GpuId],
        tests: Mapping[GpuId, SelfTest],
        *,
        at: int,
        now_s: float,
        starts: int,
    ) -> Gpu | None:
        """Return the GPU that is due: never tested, undrained, or not tested for a week.

        Args:
            gpus: of this server, as the table has them.
            held: those with a lease, which are left alone.
            tests: the latest of each.
            at: the pool's time.
            now_s: monotonic time.
            starts: workers that were started so far, or could not be.
        """
        if starts != self._starts:
            self._starts, self._started_at = starts, now_s
        drained = {gpu.id for gpu in gpus if gpu.drain_reason}
        self._undrained = (self._undrained | (self._drained - drained)) - drained
        self._drained = drained
        idle = [g for g in gpus if g.id not in held and not (g.fault or g.clash)]
        for gpu in idle:
            test = tests.get(gpu.id)
            if test is None or gpu.id in self._undrained or at - test.at >= WEEK_MS:
                return gpu
        return idle[0] if idle and now_s - self._started_at >= QUIET_S else None

    def tested(self, gpu: GpuId) -> None:
        """Take note that a GPU was tested."""
        self._undrained.discard(gpu)
