"""Self-tests of GPUs: their times, their results, and their yielding to leases; virtual time."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import trio
from tests.monitoring.health.healthy_pool import GPUS, START_MS, A, B, healthy_table
from trio.testing import MockClock, memory_stream_pair

from gpupool.monitoring.health.device_memory import DeviceMemory, SelfTest
from gpupool.monitoring.health.server_tests import (
    EMULATED_AFTER_S,
    FIRST_AFTER_S,
    QUIET_S,
    TEST_S,
    WEEK_MS,
    SelfTestPlan,
    ServerTests,
)
from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds, RequestId, ServerId, TokenId
from gpupool.pool.model.state import Gpu, Lease, Partition, PartStatus, with_changes
from gpupool.pool.telemetry import Health, Telemetry
from gpupool.remoting.protocol.worker_messages import CheckGpu, GpuChecked
from gpupool.remoting.transport.link_clock import LinkClock
from gpupool.remoting.transport.peer_link import PeerLink
from gpupool.remoting.worker import self_test

GPU = Gpu(GPUS[0], 0, "NVIDIA X", 1 << 30)
OTHER = Gpu(GPUS[1], 1, "NVIDIA X", 1 << 30)
FRESH = {gpu.id: SelfTest(START_MS, 1.0, 1.0) for gpu in (GPU, OTHER)}
NOBODY = frozenset[GpuId]()


@dataclass
class Now:
    plan: SelfTestPlan = field(default_factory=SelfTestPlan)

    def next(
        self,
        *gpus: Gpu,
        tests: dict[GpuId, SelfTest] = FRESH,
        held: frozenset[GpuId] = NOBODY,
        at: int = START_MS,
        now_s: float = 100.0,
        starts: int = 1,
    ) -> GpuId | None:
        found = self.plan.next(gpus, held, tests, at=at, now_s=now_s, starts=starts)
        return found.id if found is not None else None


def test_a_gpu_is_tested_at_first_after_an_undrain_and_each_week() -> None:
    now = Now()
    assert now.next(GPU, OTHER) is None
    assert now.next(GPU, OTHER, tests={GPU.id: FRESH[GPU.id]}) == OTHER.id
    assert now.next(GPU, at=START_MS + WEEK_MS) == GPU.id
    assert now.next(GPU, at=START_MS + WEEK_MS, held=frozenset({GPU.id})) is None
    assert now.next(replace(GPU, fault="lost"), tests={}) is None
    assert now.next(GPU, replace(OTHER, drain_reason="fan")) is None
    assert now.next(GPU, OTHER) == OTHER.id
    assert now.next(GPU, OTHER) == OTHER.id  # until it was tested
    now.plan.tested(OTHER.id)
    assert now.next(GPU, OTHER) is None


def test_a_worker_is_tried_when_none_was_started_for_six_hours() -> None:
    now = Now()
    assert now.next(GPU, now_s=0.0) is None
    assert now.next(GPU, now_s=QUIET_S - 1) is None
    assert now.next(GPU, now_s=QUIET_S + 1) == GPU.id
    assert now.next(GPU, now_s=QUIET_S + 2, starts=2) is None


def test_an_emulated_gpu_computes_as_it_should() -> None:
    said = self_test.run(CheckGpu("GPU-0", True, 0.0))
    assert said.problem == ""
    assert said.passes_a_second > 0
    assert self_test.run(CheckGpu("GPU-0", True, 0.0, True)).problem == self_test.WRONG_PRODUCT


def test_memory_that_forgets_and_a_device_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_pass(*_given: object) -> tuple[object, object]:
        product, back = honest(*_given)
        return product, np.where(np.arange(back.size) == 7, back ^ 1, back)

    honest: Callable[..., tuple[object, np.ndarray]] = getattr(self_test, "_one_pass")  # noqa: B009
    monkeypatch.setattr(self_test, "_one_pass", one_pass)
    assert self_test.run(CheckGpu("GPU-0", True, 0.0)).problem == self_test.WRONG_PATTERN

    def failing(*_given: object) -> None:
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(self_test, "_one_pass", failing)
    said = self_test.run(CheckGpu("GPU-0", True, 0.0)).problem
    assert said == "its self-test failed: RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS"


class Bench:
    """Server ``a`` with eight GPUs; their tests take time and give preset results."""

    def __init__(self) -> None:
        self.state = healthy_table()
        self.said: dict[GpuId, GpuChecked | GpupoolError] = {}
        self.tested: list[GpuId] = []
        self.cancelled = 0
        self.devices = DeviceMemory()
        self.link_of: dict[ServerId, PeerLink] = {}
        self.tests = ServerTests(
            A,
            self,
            self,
            self.devices,
            state=lambda: self.state,
            telemetry=lambda: Telemetry(A, Milliseconds(0)),
            now_ms=lambda: Milliseconds(START_MS + int(1000 * trio.current_time())),
        )

    async def self_test(self, gpu: Gpu, seconds: float) -> GpuChecked:
        try:
            await trio.sleep(seconds)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        self.tested.append(gpu.id)
        said = self.said.get(gpu.id, GpuChecked(10.0, ""))
        if isinstance(said, GpupoolError):
            raise said
        return said

    def link(self, peer: ServerId) -> PeerLink | None:
        return self.link_of.get(peer)

    def hold(self, gpu: GpuId) -> None:
        lease = Lease(
            id=LeaseId(7),
            request=RequestId(bytes(16)),
            user="ada",
            token=TokenId("t"),
            partitions=(Partition(A, gpu, 1),),
            parts={A: PartStatus.HELD},
            ticket_hash=bytes(32),
            granted_at=Milliseconds(START_MS),
        )
        leases = type(self.state.leases)().set(lease.id, lease)
        self.state = with_changes(self.state, leases=leases)


async def test_all_gpus_are_tested_after_a_minute_and_held_ones_later(
    autojump_clock: MockClock,
) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.tests.run)
        await trio.sleep(FIRST_AFTER_S + 1)
        assert bench.tested == []
        bench.hold(GPUS[0])  # in the middle of its test
        await trio.sleep(TEST_S)
        assert (bench.tested, bench.cancelled) == ([], 1)
        await trio.sleep(200)
        assert bench.tested == list(GPUS[1:])
        bench.state = with_changes(bench.state, leases=type(bench.state.leases)())
        await trio.sleep(30)
        assert bench.tested == [*GPUS[1:], GPUS[0]]
        nursery.cancel_scope.cancel()
    assert bench.devices.tests()[GPUS[0]].passes_a_second == 10.0


async def test_emulated_gpus_are_tested_later(autojump_clock: MockClock) -> None:
    bench = Bench()
    mine = bench.state.servers[A]
    gpus = {each.id: replace(each, emulated=True) for each in list(mine.gpus.values())[:1]}
    servers = bench.state.servers.set(A, with_changes(mine, gpus=gpus))
    bench.state = with_changes(bench.state, servers=servers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.tests.run)
        await trio.sleep(EMULATED_AFTER_S - 1)
        assert bench.tested == []
        await trio.sleep(30)
        assert bench.tested == [GPUS[0]]
        nursery.cancel_scope.cancel()


async def test_what_is_told_at_once(autojump_clock: MockClock) -> None:
    bench = Bench()
    bench.hold(GPUS[2])
    bench.said = {GPUS[1]: GpuChecked(9.0, "it is wrong"), GPUS[3]: GpupoolError("no worker")}
    stream, _other = memory_stream_pair()
    bench.link_of[B] = PeerLink(B, stream, LinkClock(FakeClock()), greeted=True)
    said = await bench.tests.now()
    assert trio.current_time() < 10
    assert [(each.check, each.subject) for each in said if each.status is Health.FAIL] == [
        ("mtu", "b"),
        ("self-test", GPUS[1]),
    ]
    texts = {each.subject: each.text for each in said if each.status is Health.OK}
    assert texts[GPUS[2]] == "GPU 2 was not tested: it has leases"
    assert texts[GPUS[3]] == "GPU 3 was not tested: no worker"
    assert texts[GPUS[0]] == "GPU 0 computes as it should, 10 passes a second"
    assert bench.devices.tests().keys() == set(GPUS) - {GPUS[2], GPUS[3]}


async def test_a_link_on_which_the_push_arrives(autojump_clock: MockClock) -> None:
    bench = Bench()
    stream, _other = memory_stream_pair()
    link = bench.link_of[B] = PeerLink(B, stream, LinkClock(FakeClock()), greeted=True)

    async def answer() -> None:
        await trio.sleep(0.25)
        assert link.answered()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        said = await bench.tests.now()
    assert [each.text for each in said if each.check == "mtu"] == [
        "64 KiB to b and back in 0.250 s"
    ]


class FakeClock:
    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 0
