"""The one rule by which a proposal is attempted again; see ``remoting.server.proposer``."""

from dataclasses import dataclass, replace
from random import Random

import pytest

from gpupool.pool.model import commands
from gpupool.pool.model.codec import encode
from gpupool.pool.model.commands import NAMES, Tick, unwrap
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.model.results import RefusalKind, Result, refuse
from gpupool.pool.model.state import PoolState, Server, ServerStatus
from gpupool.pool.ports import Committed, NotCommitted, Outcome, Refusal, Unknown
from gpupool.pool.table_clock import TableClock
from gpupool.remoting.server import proposer
from gpupool.remoting.server.proposer import (
    ATTEMPT_S,
    RETRY_MAX_S,
    TTL_SLACK_S,
    Decision,
    Propose,
    Proposer,
)

NO_LEADER = NotCommitted("no leader is known")
DONE = Committed(3, encode(Result(ok=True)))


@dataclass
class Hands:
    """A clock that is moved by hand."""

    now: float = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


class Bench:
    """A ``Proposer`` with attempts answered by the test."""

    def __init__(self, timeout_s: float = 2.0, *, bounded: bool = True) -> None:
        self.clock = Hands()
        self.attempts: list[Propose] = []
        self.decisions: list[Decision] = []
        self.state = PoolState()
        self.proposer = Proposer(
            TableClock(lambda: self.state, self_id=ServerId("s"), clock=self.clock),
            Random(1),
            emit=self.attempts.append,
            formats=lambda: self.state.formats(),
        )
        self.proposer.propose(Tick(), self.decisions.append, timeout_s=timeout_s, bounded=bounded)

    def end(self, outcome: Outcome) -> None:
        self.proposer.outcome(self.attempts[-1].number, outcome)

    def wake(self) -> float:
        """Move the clock to the next attempt; return the pause before it."""
        pause_s = self.proposer.wake_at() - self.clock.now
        self.clock.now = self.proposer.wake_at()
        self.proposer.poll()
        return pause_s

    def ends_ms(self) -> list[int]:
        """Return the table times at which the attempts expire."""
        return [unwrap(attempt.command).expires for attempt in self.attempts]


def test_refusals_of_the_cluster_are_attempted_again_at_growing_pauses() -> None:
    bench = Bench()
    pauses: list[float] = []
    for _ in range(8):
        bench.end(NO_LEADER)
        pauses.append(bench.wake())
    assert pauses[0] < 0.05
    assert max(pauses) <= RETRY_MAX_S
    assert pauses[5] > 2 * pauses[0]
    bench.end(DONE)
    assert [d.result for d in bench.decisions] == [Result(ok=True)]
    assert len(bench.attempts) == 9


def test_one_attempt_is_under_way_at_a_time() -> None:
    bench = Bench()
    bench.clock.now += 0.5
    bench.proposer.poll()
    assert len(bench.attempts) == 1
    assert bench.attempts[0].timeout_s == ATTEMPT_S
    assert bench.proposer.wake_at() == float("inf")


@pytest.mark.parametrize("kind", [Refusal.COMMAND, Refusal.STOPPED])
def test_a_refusal_that_no_attempt_changes_decides_at_once(kind: Refusal) -> None:
    bench = Bench()
    bench.end(NotCommitted("for good", kind))
    assert bench.decisions == [Decision(None, uncertain=False, why="for good")]
    assert len(bench.proposer) == 0


def test_a_final_refusal_does_not_rule_out_an_earlier_attempt() -> None:
    bench = Bench()
    bench.end(Unknown("the leader changed"))
    bench.wake()
    bench.end(NotCommitted("this server is stopping", Refusal.STOPPED))
    assert bench.decisions == [Decision(None, uncertain=True, why="this server is stopping")]


@pytest.mark.parametrize("outcome", [NO_LEADER, Unknown("no answer in time")])
def test_a_decision_comes_before_the_deadline(outcome: Outcome) -> None:
    bench = Bench(timeout_s=1.0)
    while not bench.decisions:
        bench.end(outcome)
        if not bench.decisions:
            bench.wake()
    assert 100.5 < bench.clock.now <= 101.0
    (decision,) = bench.decisions
    assert decision.result is None
    assert decision.uncertain == isinstance(outcome, Unknown)


def test_no_attempt_expires_before_an_earlier_one_or_long_after_the_caller() -> None:
    bench = Bench(timeout_s=1.0)
    while not bench.decisions:
        bench.end(NO_LEADER)
        if not bench.decisions:
            bench.wake()
    ends = bench.ends_ms()
    assert ends == sorted(ends)
    assert ends[-1] <= (101.0 + TTL_SLACK_S) * 1000
    assert all(attempt.timeout_s <= 1.0 for attempt in bench.attempts)


def test_a_command_without_bound_carries_no_expiry() -> None:
    bench = Bench(bounded=False)
    bench.end(NO_LEADER)
    bench.wake()
    assert bench.ends_ms() == [0, 0]


def test_an_answer_to_a_decided_proposal_is_ignored() -> None:
    bench = Bench()
    bench.end(DONE)
    bench.end(NO_LEADER)
    assert len(bench.decisions) == 1


def test_a_stamp_that_the_leader_refuses_is_followed_by_the_tables_own_time() -> None:
    bench = Bench()
    assert unwrap(bench.attempts[-1].command).at == 100_000
    bench.state = replace(bench.state, now=Milliseconds(40_000))
    bench.end(NotCommitted("ahead of the voters' clocks", Refusal.CLOCK))
    bench.wake()
    assert len(bench.attempts) == 2
    assert unwrap(bench.attempts[-1].command).at == 40_000
    assert not bench.decisions


def test_a_new_era_makes_stamps_and_deadlines_anew() -> None:
    bench = Bench()
    assert unwrap(bench.attempts[-1].command).era == 0
    bench.state = replace(bench.state, era=1, now=Milliseconds(40_000))
    bench.end(Committed(3, encode(refuse(RefusalKind.EXPIRED, "the pool's time was set"))))
    bench.wake()
    again = unwrap(bench.attempts[-1].command)
    assert (again.era, again.at) == (1, 40_000)
    assert again.expires < 50_000
    assert not bench.decisions


@pytest.mark.parametrize("era", [0, 1])
@pytest.mark.parametrize(
    "outcome",
    [NO_LEADER, Unknown("the leader changed"), NotCommitted("clocks", Refusal.CLOCK)],
)
def test_no_attempt_is_stamped_before_its_command_was_due(outcome: Outcome, era: int) -> None:
    """Seed 110001: a deposed leader ended a lease, and its time was earlier at the next attempt."""
    bench = Bench()
    bench.proposer.propose(Tick(), bench.decisions.append, timeout_s=2.0, due_ms=100_000)
    assert unwrap(bench.attempts[-1].command).at == 100_000
    bench.end(outcome)
    bench.state = replace(bench.state, now=Milliseconds(99_700), era=era)
    bench.clock.now = bench.proposer.wake_at()
    assert bench.proposer.at_ms() < 100_000
    assert not bench.decisions
    bench.proposer.poll()
    assert len(bench.attempts) == 2, "of two commands: no second one of this"
    [decision] = bench.decisions
    assert (decision.result, decision.uncertain) == (None, isinstance(outcome, Unknown))
    assert "not due" in decision.why


def test_a_command_that_is_still_due_is_attempted_again() -> None:
    bench = Bench()
    bench.proposer.propose(Tick(), bench.decisions.append, timeout_s=2.0, due_ms=100_000)
    bench.end(NO_LEADER)
    bench.wake()
    assert len(bench.attempts) == 3
    bench.end(DONE)
    assert [each.result for each in bench.decisions] == [Result(ok=True)]


def test_a_command_that_is_not_due_yet_is_never_attempted() -> None:
    bench = Bench()
    bench.proposer.propose(Tick(), bench.decisions.append, timeout_s=2.0, due_ms=100_001)
    assert not bench.decisions, "never from within propose"
    bench.proposer.poll()
    assert len(bench.attempts) == 1
    assert [each.result for each in bench.decisions] == [None]


def test_a_user_has_few_commands_under_way_and_the_others_stand_in_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One user's calls filled the log, and nobody else's claim was committed in time."""
    monkeypatch.setattr(proposer, "USER_COUNT_MAX", 2)
    bench = Bench()
    bench.end(DONE)
    bench.decisions.clear()
    for timeout_s in (2.0, 2.0, 2.0, 0.5, 2.0):
        bench.proposer.propose(Tick(), bench.decisions.append, timeout_s=timeout_s, user="eve")
    bench.proposer.propose(Tick(), bench.decisions.append, timeout_s=2.0, user="ada")
    bench.proposer.propose(Tick(), bench.decisions.append, timeout_s=2.0)
    assert [each.number for each in bench.attempts[1:]] == [2, 3, 7, 8]
    bench.clock.now += 0.5
    bench.proposer.poll()
    [late] = bench.decisions
    assert (late.result, late.uncertain) == (None, False)
    assert late.why == "2 other commands of eve go first"
    for number, following in ((3, 4), (2, 6)):
        bench.proposer.outcome(number, DONE)
        assert bench.proposer.wake_at() <= bench.clock.now
        bench.proposer.poll()
        assert bench.attempts[-1].number == following, "the fifth was decided meanwhile"
    for number in (4, 6, 7, 8):
        bench.proposer.outcome(number, DONE)
    assert len(bench.decisions) == 7
    assert len(bench.proposer) == 0
    assert not bench.proposer._under_way  # pyright: ignore[reportPrivateUsage]
    assert not bench.proposer._lines  # pyright: ignore[reportPrivateUsage]


def test_a_command_that_the_leaders_clocks_forbid_is_refused_for_good() -> None:
    bench = Bench(timeout_s=10.0)
    refusal = NotCommitted("it would set the pool's time to another one", Refusal.CLOCK)
    while not bench.decisions:
        bench.end(refusal)
        if not bench.decisions:
            bench.wake()
    [decision] = bench.decisions
    assert decision.result == Result(ok=False, kind="clock", why=refusal.reason)
    assert not decision.uncertain
    assert bench.clock.now < 101.0


def test_a_command_waits_for_the_oldest_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not know a command would have to stop when it is committed."""
    monkeypatch.setattr(commands, "SINCE", {NAMES[Tick]: 7})
    bench = Bench()
    assert not bench.attempts
    assert not bench.decisions, "never from within propose"
    bench.wake()
    [decision] = bench.decisions
    assert decision.result is not None
    assert decision.result.why == "it needs version 7 on all servers, and the oldest has 5"
    assert not decision.uncertain

    old, new = (
        Server(ServerId(name), name, "h:1", voter=True, status=ServerStatus.UP) for name in "ab"
    )
    for versions, version in (((7, 6), 6), ((7, 7), 7)):
        servers = (replace(s, formats=v) for s, v in zip((old, new), versions, strict=True))
        bench.state = replace(
            bench.state, servers=type(bench.state.servers)({s.id: s for s in servers})
        )
        assert bench.state.formats() == version
        bench.proposer.propose(Tick(), bench.decisions.append, timeout_s=2.0)
        bench.proposer.poll()
        assert len(bench.attempts) == (version == 7)
