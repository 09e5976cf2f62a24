"""The tests that a server makes: of its idle GPUs now and then, and of its links when asked."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import trio

from gpupool.monitoring.health.device_memory import DeviceMemory, SelfTest
from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import GpuId, Milliseconds, ServerId
from gpupool.pool.model.state import Gpu, PoolState, Server
from gpupool.pool.telemetry import Finding, Health, Telemetry
from gpupool.remoting.protocol.worker_messages import GpuChecked
from gpupool.remoting.transport.peer_link import PeerLink

EMULATED_AFTER_S = 600.0
"""Pools of emulated GPUs to try something are mostly gone by then, and have better things to do."""

FIRST_AFTER_S, LOOK_EVERY_S, WATCH_EVERY_S = 60.0, 10.0, 0.5
TEST_S, QUICK_TEST_S = 5.0, 1.0
ASKED_S = 22.0
"""The tests that a client waits for take no longer."""
PUSH_SIZE, ARRIVES_S = 64 * 1024, 5.0


class Host(Protocol):
    """Interface for self-tests of a GPU."""

    async def self_test(self, gpu: Gpu, seconds: float) -> GpuChecked:
        """Test a GPU; raises GpupoolError when nothing can be said of it."""
        ...


class Links(Protocol):
    """The links to other servers."""

    def link(self, peer: ServerId) -> PeerLink | None:
        """Return the link with a peer that is up."""
        ...


class ServerTests:
    """See the module."""

    def __init__(
        self,
        me: ServerId,
        host: Host,
        links: Links,
        devices: DeviceMemory,
        *,
        state: Callable[[], PoolState],
        telemetry: Callable[[], Telemetry],
        now_ms: Callable[[], Milliseconds],
    ) -> None:
        """Make it; ``run`` tests GPUs now and then.

        Args:
            me: this server.
            host: tests GPUs.
            links: to other servers.
            devices: remembers results.
            state: the table.
            telemetry: of this server, which counts starts of workers.
            now_ms: the pool's time.
        """
        self._me = me
        self._host = host
        self._links = links
        self._devices = devices
        self._state = state
        self._telemetry = telemetry
        self._now_ms = now_ms
        self._plan = SelfTestPlan()
        self._one = trio.Lock()

    async def run(self) -> None:
        """Test each GPU that is due, one at a time, until cancelled."""
        began = trio.current_time()
        await trio.sleep(FIRST_AFTER_S)
        while True:
            late = trio.current_time() - began >= EMULATED_AFTER_S
            gpu = self._plan.next(
                [each for each in self._gpus() if late or not each.emulated],
                self._held(),
                self._devices.tests(),
                at=self._now_ms(),
                now_s=trio.current_time(),
                starts=self._starts(),
            )
            if gpu is not None:
                await self._test(gpu, TEST_S)
            await trio.sleep(LOOK_EVERY_S)

    async def now(self) -> tuple[Finding, ...]:
        """Test the links and the idle GPUs, and return a finding for each, good or bad."""
        found: list[Finding] = []
        async with trio.open_nursery() as nursery:
            for server in self._state().servers.values():
                if server.id != self._me and (link := self._links.link(server.id)) is not None:
                    nursery.start_soon(self._push, server, link, found)
            with trio.move_on_after(ASKED_S):
                for gpu in self._gpus():
                    said = await self._told(gpu)
                    found.append(said)
        return tuple(sorted(found, key=lambda each: (-each.status, each.check, each.subject)))

    # --- GPUs ----------------------------------------------------------------------------------

    def _gpus(self) -> list[Gpu]:
        server = self._state().servers.get(self._me)
        return sorted(server.gpus.values(), key=lambda gpu: gpu.index) if server else []

    def _held(self) -> frozenset[GpuId]:
        return frozenset(
            part.gpu
            for lease in self._state().leases.at(self._me).values()
            if lease.is_charged(self._me)
            for part in lease.partitions
            if part.server == self._me
        )

    def _starts(self) -> int:
        said = self._telemetry()
        times = said.histograms.get("worker_start_seconds")
        return said.counters.get("worker_start_failures", 0) + (sum(times.counts) if times else 0)

    async def _told(self, gpu: Gpu) -> Finding:
        name = f"GPU {gpu.index}"
        if gpu.fault or gpu.clash:
            return self._finding(
                "self-test", gpu.id, Health.FAIL, f"{name}: {gpu.fault or gpu.clash}"
            )
        said = await self._test(gpu, QUICK_TEST_S)
        if isinstance(said, str):
            return self._finding("self-test", gpu.id, Health.OK, f"{name} was not tested: {said}")
        if said.problem:
            hint = "gpupool drain SERVER --gpu N --reason ..."
            text = f"{name}: {said.problem}"
            return self._finding("self-test", gpu.id, Health.FAIL, text, hint)
        text = f"{name} computes as it should, {said.passes_a_second:.0f} passes a second"
        return self._finding("self-test", gpu.id, Health.OK, text)

    async def _test(self, gpu: Gpu, seconds: float) -> GpuChecked | str:
        """Test a GPU unless a lease needs it; return the result, or why there is none."""
        async with self._one:
            if gpu.id in self._held():
                return "it has leases"
            said: GpuChecked | str = "a lease has begun"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._give_way, gpu.id, nursery.cancel_scope)
                try:
                    said = await self._host.self_test(gpu, seconds)
                except GpupoolError as error:
                    said = str(error)
                nursery.cancel_scope.cancel()
            if isinstance(said, GpuChecked):
                self._devices.note_test(gpu.id, self._now_ms(), said.passes_a_second, said.problem)
                self._plan.tested(gpu.id)
            return said

    async def _give_way(self, gpu: GpuId, scope: trio.CancelScope) -> None:
        while True:
            await trio.sleep(WATCH_EVERY_S)
            if gpu in self._held():
                scope.cancel()

    # --- links ---------------------------------------------------------------------------------

    async def _push(self, server: Server, link: PeerLink, found: list[Finding]) -> None:
        began = trio.current_time()
        link.push(PUSH_SIZE)  # one that is under way serves as well
        with trio.move_on_after(ARRIVES_S):
            await link.arrived.wait()
        if link.arrived.is_set():
            text = f"64 KiB to {server.name} and back in {trio.current_time() - began:.3f} s"
            found.append(self._finding("mtu", server.name, Health.OK, text))
        else:
            text = f"64 KiB have not arrived at {server.name} in {ARRIVES_S:.0f} s"
            hint = "does something between drop large packets? compare the MTU on the way"
            found.append(self._finding("mtu", server.name, Health.FAIL, text, hint))

    def _finding(
        self, check: str, subject: str, status: Health, text: str, hint: str = ""
    ) -> Finding:
        return Finding(check, subject, status, self._now_ms(), text, hint)


WEEK_MS = 7 * 86_400_000
QUIET_S = 6 * 3600.0
"""If no worker was started for so long, a test starts one."""


class SelfTestPlan:
    """The order of self-tests of one server's GPUs."""

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
