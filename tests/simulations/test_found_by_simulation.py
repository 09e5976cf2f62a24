"""Small tests of what whole runs found; the broken builds of ``mutations`` have the rest."""

from dataclasses import dataclass
from random import Random

from gpupool.pool.model.codec import encode
from gpupool.pool.model.commands import Tick
from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.model.results import RefusalKind, Result, refuse
from gpupool.pool.model.state import PoolState
from gpupool.pool.ports import Committed, Unknown
from gpupool.pool.table_clock import TableClock
from gpupool.remoting.server.proposer import Decision, Propose, Proposer
from gpupool.simulations.checkers.lease_causes import longest_rests
from gpupool.simulations.kernel.drifting_clock import DriftingClock
from gpupool.simulations.kernel.machines import Machine
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.trace import Trace


@dataclass
class Hands:
    """A clock that is moved by hand."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


class ProposerBench:
    """Proposals with everything around them in reach."""

    def __init__(self) -> None:
        self.clock = Hands()
        self.emitted: list[Propose] = []
        self.decisions: list[Decision] = []
        self.proposals = Proposer(
            clock=self.clock,
            rng=Random(1),
            table_clock=TableClock(PoolState, self_id=ServerId("s"), clock=self.clock),
            emit=self.emitted.append,
        )
        self.proposals.propose(Tick(), self.decisions.append, timeout_s=1.0)

    def expire_until_the_end(self) -> Decision:
        late = encode(refuse(RefusalKind.EXPIRED, "the command arrived after its deadline"))
        while not self.decisions:
            self.proposals.outcome(1, Committed(9, late))
            self.clock.now += 0.3
            self.proposals.poll()
        return self.decisions[0]


def test_expired_attempt_does_not_rule_out_an_earlier_one_without_an_outcome() -> None:
    bench = ProposerBench()
    bench.proposals.outcome(1, Unknown("the leader changed"))
    bench.clock.now += 0.3
    bench.proposals.poll()
    decision = bench.expire_until_the_end()
    assert decision.result is None
    assert decision.uncertain, "the first attempt may have been granted"


def test_expired_attempts_alone_are_a_definite_no() -> None:
    decision = ProposerBench().expire_until_the_end()
    assert decision.result is None
    assert not decision.uncertain


def test_committed_attempt_decides() -> None:
    bench = ProposerBench()
    bench.proposals.outcome(1, Unknown("the leader changed"))
    bench.clock.now += 0.3
    bench.proposals.poll()
    bench.proposals.outcome(1, Committed(9, encode(Result(ok=True))))
    assert bench.decisions == [Decision(Result(ok=True), uncertain=False, why="")]


def test_a_rest_counts_although_a_shorter_one_came_after_it() -> None:
    """Seed 97 at 6fe8523: the end of a lease was on its way for 1.3 s while its program went on."""
    scheduler = Scheduler(1)
    machine = Machine(
        "s1",
        ServerId("one"),
        scheduler=scheduler,
        trace=Trace(scheduler),
        random=Random(1),
        clock=DriftingClock(scheduler, origin_s=0.0, rate=1.0, wall_error_ms=0),
        gpu_count=1,
        gpu_gib=16,
        idle=0.0,
        kill_s=1.0,
        workers_changed=lambda _machine: None,
    )
    worker = machine.start_worker(LeaseId(7), ())
    worker.rested += [(1.0, 4.0), (4.4, 4.6)]
    assert longest_rests(LeaseId(7), [machine], now=5.0, since=0.0, within_s=6.0) == [3.0]
    assert longest_rests(LeaseId(7), [machine], now=5.0, since=0.0, within_s=0.9) != [3.0]
