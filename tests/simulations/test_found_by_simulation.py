"""Small tests of what whole runs found; the broken builds of ``mutations`` have the rest."""

from dataclasses import dataclass
from random import Random

from gpupool.pool.model.codec import encode
from gpupool.pool.model.commands import Tick
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.results import RefusalKind, Result, refuse
from gpupool.pool.model.state import PoolState
from gpupool.pool.ports import Committed, Unknown
from gpupool.pool.table_clock import TableClock
from gpupool.remoting.server.proposer import Decision, Propose, Proposer


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
