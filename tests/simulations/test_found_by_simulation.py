"""Small tests of findings of whole runs; the broken builds of ``mutations`` have the rest."""

from dataclasses import dataclass, replace
from functools import partial
from random import Random

import pytest
from tests.simulations.mutations.broken_promises import no_probation

from gpupool.consensus.protocol.raft_messages import FrameWriter, encode_message
from gpupool.consensus.storage.journal import SUPERBLOCK
from gpupool.consensus.storage.peer_memory import Start
from gpupool.pool.model.codec import encode
from gpupool.pool.model.commands import Tick
from gpupool.pool.model.ids import GpuId, Incarnation, LeaseId, ServerId
from gpupool.pool.model.results import RefusalKind, Result, refuse
from gpupool.pool.model.state import Partition, PoolState, Server, ServerStatus
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.ports import Committed, Unknown
from gpupool.pool.table_clock import TableClock
from gpupool.remoting.server.proposer import Decision, Propose, Proposer
from gpupool.simulations.checkers.ca_checker import CaHolds
from gpupool.simulations.checkers.lease_causes import longest_rests
from gpupool.simulations.checkers.safety_checkers import MemoryTruth
from gpupool.simulations.checkers.service_checkers import OneServes
from gpupool.simulations.cluster.cluster import Cluster
from gpupool.simulations.cluster.cluster_faults import FORGET_PAUSE_S, ClusterFaults
from gpupool.simulations.cluster.server_process import ServerProcess
from gpupool.simulations.kernel.drifting_clock import DriftingClock
from gpupool.simulations.kernel.failure_reporter import FailureReporter
from gpupool.simulations.kernel.machines import Machine
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.swarm_options import Options
from gpupool.simulations.kernel.trace import Trace
from gpupool.simulations.tools.liveness import LivenessPhase
from gpupool.simulations.tools.runner import run
from gpupool.simulations.tools.scenarios import options_of


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
            TableClock(PoolState, self_id=ServerId("s"), clock=self.clock),
            Random(1),
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


def machine_of(scheduler: Scheduler, server: str = "one") -> Machine:
    return Machine(
        "s1",
        ServerId(server),
        scheduler=scheduler,
        trace=Trace(scheduler),
        random=Random(1),
        clock=DriftingClock(scheduler, origin_s=0.0, rate=1.0, wall_error_ms=0),
        gpus_gib=[16],
        idle=0.0,
        kill_s=1.0,
        workers_changed=lambda _machine: None,
    )


def test_a_rest_counts_although_a_shorter_one_came_after_it() -> None:
    """Seed 97 at 6fe8523: the end of a lease was on its way for 1.3 s while its program went on."""
    machine = machine_of(Scheduler(1))
    worker = machine.start_worker(LeaseId(7), ())
    worker.rested += [(1.0, 4.0), (4.4, 4.6)]
    assert longest_rests(LeaseId(7), [machine], now=5.0, since=0.0, within_s=6.0) == [3.0]
    assert longest_rests(LeaseId(7), [machine], now=5.0, since=0.0, within_s=0.9) != [3.0]


@pytest.mark.parametrize("gone", [True, False])
def test_a_rest_counts_although_the_lease_was_moved_after_it(gone: bool) -> None:
    """Seed 10043521: s2 proposed an end, and before it was committed the lease was on s1."""
    scheduler = Scheduler(1)
    former, here = machine_of(scheduler), machine_of(scheduler, "two")
    here.name = "s2"
    left = former.start_worker(LeaseId(7), ())
    left.rested.append((1.0, 4.0))
    if gone:
        former.kill(left)
        scheduler.run_until(2.0)
    here.start_worker(LeaseId(7), ())
    judge = partial(longest_rests, LeaseId(7), [here], 5.0, 0.0, 6.0)
    assert judge() == [0.0]
    assert judge([former]) == [3.0]


@pytest.mark.parametrize("shown", [True, False])
def test_memory_is_free_on_a_gpu_that_the_table_has(shown: bool) -> None:
    """Seed 1151: a copy passed for a restart, and the table had the copy's GPUs."""
    scheduler = Scheduler(1)
    machine = machine_of(scheduler)
    failures = FailureReporter(scheduler, Trace(scheduler))
    gpu = replace(machine.gpus()[0], id=GpuId("EMU-s1-0" if shown else "EMU-s1-copy-0"))
    machine.start_worker(LeaseId(7), [Partition(machine.server, GpuId("EMU-s1-0"), 1 << 30)])
    server = Server(machine.server, "s1", "s1:1", voter=True, gpus={gpu.id: gpu})
    server = replace(server, status=ServerStatus.UP, incarnation=Incarnation(2))
    state = PoolState(servers=PersistentMap({server.id: server}))
    MemoryTruth(failures).applied(9, state, [machine])
    assert (failures.failure is not None) == shown


def test_a_copy_is_excused_if_its_original_could_not_be_heard_again() -> None:
    scheduler = Scheduler(1)
    failures = FailureReporter(scheduler, Trace(scheduler))
    one_serves = OneServes(failures)
    one_serves.excused.add("s1-copy")
    one_serves.clone_acts("s1-copy", "leads")
    one_serves.ended("s1", "s1-copy")
    assert failures.failure is None
    one_serves.clone_acts("s2-copy", "leads")
    assert failures.failure is not None


def test_a_machine_that_was_refused_twice_joins_again_once() -> None:
    """Seed 1039: an operator wiped voters that had only just been admitted, until none was left."""
    cluster = Cluster(Options(seed=1, servers=5, clients=1))
    cluster.create()
    while not cluster.complete:
        cluster.scheduler.run_until(cluster.scheduler.now + 0.1)
    former = cluster.environment.machines["s1"].server
    for name in ("s1", "s2"):
        cluster.end_process(cluster.servers[name])
    cluster.rejoin("s2")
    while cluster.environment.machines["s1"].server == former:
        cluster.rejoin("s1")  # as after each start of it that is refused
        cluster.scheduler.run_until(cluster.scheduler.now + 0.015)
    cluster.scheduler.run_until(cluster.scheduler.now + 5.0)
    assert cluster.converged
    again = [line.subject for line in cluster.trace.lines if "joins again" in line.text]
    assert again == ["s2", "s1"]


def test_a_machine_joins_again_though_its_new_name_is_the_one_of_its_former_self(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 10168658: both ids began with the same four digits, of which the name is made."""
    cluster = Cluster(Options(seed=1, servers=3, clients=1))
    cluster.create()
    while not cluster.complete:
        cluster.scheduler.run_until(cluster.scheduler.now + 0.1)
    former = cluster.environment.machines["s2"].server
    cluster.end_process(cluster.servers["s2"])
    alike = bytes.fromhex(former[:4]) + bytes(4)
    monkeypatch.setattr(cluster.random, "randbytes", {6: alike}.__getitem__)
    cluster.rejoin("s2")
    cluster.scheduler.run_until(cluster.scheduler.now + 5.0)
    assert cluster.converged
    names = [each.name for each in cluster.environment.checkers.logs.state.servers.values()]
    assert f"s2-{alike.hex()}" in names


def test_a_server_grants_nothing_while_a_slow_clock_makes_its_leader_seem_late() -> None:
    options = Options(seed=1, servers=3, clients=6, gpus=1, hold_s=8.0, think_s=0.3, heal_s=9.0)
    cluster = Cluster(options)
    cluster.create()
    while not cluster.complete:
        cluster.scheduler.run_until(cluster.scheduler.now + 0.1)
    cluster.start_clients()
    faults, leader = ClusterFaults(cluster), cluster.leader_name()
    assert leader is not None
    # No real clock does that. The other servers make up for it at 0.125 s a second.
    faults.clock_rate(leader, 0.5, 12.0)
    cluster.scheduler.run_until(cluster.scheduler.now + 12.0)
    LivenessPhase(cluster, faults).run()
    assert cluster.failures.failure is None


def pool_of_three() -> tuple[Cluster, ClusterFaults]:
    cluster = Cluster(Options(seed=1, servers=3, clients=2))
    cluster.create()
    while not cluster.complete:
        cluster.scheduler.run_until(cluster.scheduler.now + 0.1)
    # What the servers still have to say is on the disk before one is copied.
    cluster.scheduler.run_until(cluster.scheduler.now + 1.0)
    return cluster, ClusterFaults(cluster)


def with_copy_of_s1() -> tuple[Cluster, ClusterFaults]:
    cluster, faults = pool_of_three()
    faults.clone("s1")
    assert cluster.clones.active
    return cluster, faults


def test_each_copy_of_a_server_draws_a_number_of_its_own() -> None:
    """A second one drew the first one's, so the others knew it and refused it at once."""
    cluster, faults = with_copy_of_s1()
    starts: list[Start] = []
    for _ in range(2):
        if not cluster.clones.active:
            faults.clone("s1")
        (copy,) = cluster.environment.clones.values()
        assert isinstance(copy.process, ServerProcess) and copy.process.replicated_log is not None
        promises = copy.process.replicated_log.node._persisted_votes  # pyright: ignore[reportPrivateUsage]
        starts.append(promises._start)  # pyright: ignore[reportPrivateUsage]
        cluster.scheduler.run_until(cluster.scheduler.now + FORGET_PAUSE_S + 1.0)
    first, second = starts
    assert first.boot == second.boot, "the original has not started anew"
    assert first.incarnation != second.incarnation


@pytest.mark.parametrize("excused", [True, False])
def test_an_excused_copy_ends_before_it_and_its_original_have_a_majority_each(
    excused: bool,
) -> None:
    """Seed 710357: s2 started anew while it could reach the copy of s1 alone, and voted for it."""
    cluster, faults = with_copy_of_s1()
    cluster.start_clients()
    if excused:
        faults.disturbed()
    apart = [("s1", "s2"), ("s1-copy", "s3")]
    faults.cut([*apart, *((target, source) for source, target in apart)], 6.0)
    faults.kill("s2", 0.1)
    cluster.scheduler.run_until(cluster.scheduler.now + 8.0)
    assert (cluster.failures.failure is None) == excused
    assert ("split" in [line.kind for line in cluster.trace.lines]) == excused


def test_a_copy_ends_in_time_whose_original_was_removed() -> None:
    """Seed 10152319: the others had the removal in their logs, and the misled one had not."""
    assert run(options_of("swarm", 10_152_319)).failure is None


@pytest.mark.parametrize("disturbed", ["s2", "s3"])
def test_a_copy_goes_on_that_a_server_believes_without_a_reason(disturbed: str) -> None:
    """Seed 600103 at 6838f085 found a fault in this way: s3 stood still, and s2 took the copy."""
    cluster, faults = with_copy_of_s1()
    faults.disturbed()
    faults.cut([("s1-copy", "s3"), ("s3", "s1-copy")], 4.0)
    cluster.quiescence.disturb(disturbed)
    with no_probation():
        cluster.scheduler.run_until(cluster.scheduler.now + 4.0)
    ended = "split" in [line.kind for line in cluster.trace.lines]
    assert ended == (disturbed == "s2")


@pytest.mark.parametrize("for_s", [0.9, 5.0])
def test_a_copy_is_excused_if_its_original_stands_still_for_long(for_s: float) -> None:
    """Seed 10031601: s1 was stopped, and 0.1 s later its copy was started."""
    cluster, faults = pool_of_three()
    faults.pause("s1", for_s)
    cluster.scheduler.run_until(cluster.scheduler.now + 0.1)
    faults.clone("s1")
    assert cluster.clones.active
    cluster.scheduler.run_until(cluster.scheduler.now + 1.1)
    assert bool(cluster.environment.checkers.one_serves.excused) == (for_s > 1.0)
    cluster.scheduler.run_until(cluster.scheduler.now + 8.0)
    assert cluster.failures.failure is None
    assert not cluster.clones.active


def test_no_server_leaves_while_the_disk_of_another_one_rots() -> None:
    """Seed 10041486: s3 was removed 60 ms after s2's disk had rotted, and s1 was left alone."""
    cluster, faults = pool_of_three()
    faults.forget("s2", "rot", Random(1))
    cluster.replace("s3")
    assert not cluster.replacing
    cluster.scheduler.run_until(cluster.scheduler.now + 13.0)
    cluster.replace("s3")
    assert cluster.replacing


@pytest.mark.parametrize("what", ["lost-tail", "rot"])
def test_the_superblock_outlives_a_power_loss_right_after_a_disk_forgot(what: str) -> None:
    """Seed 10101811: without its last note nobody knew of the loss: the rest was down as well."""
    cluster, faults = pool_of_three()
    disk = cluster.environment.machines["s2"].disk
    before = disk.image()[SUPERBLOCK]
    draws = Random(3)
    faults.forget("s2", what, draws)
    cluster.power_off("s2", 1.0)
    noted = disk.image()[SUPERBLOCK]
    differing = sum(a != b for a, b in zip(before, noted, strict=True))
    assert differing <= (what == "rot")


def test_a_server_that_was_left_behind_with_a_broken_disk_joins_again() -> None:
    """Seed 10102400: it stopped at once, and was forgotten when the one that recovered left."""
    assert run(options_of("swarm", 10_102_400)).failure is None


def test_a_server_that_was_left_behind_joins_again_if_it_trusts_the_one_that_tells_no_more() -> (
    None
):
    """Seed 10170201: another server, which tells it nothing, had not dropped the old CA yet."""
    assert run(options_of("swarm", 10_170_201)).failure is None


@pytest.mark.parametrize("voter", ["s1", "s1-copy"])
def test_a_copy_is_held_to_its_original_and_not_to_a_copy_before_it(voter: str) -> None:
    """Seed 720809: the first copy of s1 voted in term 3, and was ended; s1 itself did not vote."""
    cluster, _ = with_copy_of_s1()
    cluster.clones.stop()
    vote = FrameWriter(1).frame(encode_message({"type": "response_vote", "term": 9}))
    cluster.environment.checkers.promises.sent(voter, vote)
    cluster.clones.start(cluster.servers["s1"])
    assert (cluster.failures.failure is None) == (voter == "s1-copy")


class CaBench:
    """A pool with servers that join, leave, and get the next CA's key, before its checker."""

    def __init__(self) -> None:
        self._scheduler = Scheduler(1)
        self._failures = FailureReporter(self._scheduler, Trace(self._scheduler))
        self._holds = CaHolds(self._failures)
        self._machines: dict[str, Machine] = {}
        self.applied("abcde", at=0.0)

    def give(self, servers: str) -> None:
        for each in servers:
            self._machines[each].authorities.keys.add(b"2 new")

    def look(self, *, at: float) -> None:
        self._holds.look(self._machines.values(), at)

    def wipe(self, servers: str) -> None:
        """Let machines join anew, each as another server, before the table knows of it."""
        for each in servers:
            self._machines[each].server = ServerId(f"new {each}")
            self._machines[each].authorities.keys.clear()

    def applied(self, servers: str, *, at: float, rotated: bool = False) -> None:
        for each in servers:
            self._machines.setdefault(each, machine_of(self._scheduler, each))
        members = {ServerId(e): Server(ServerId(e), e, f"{e}:1", voter=True) for e in servers}
        authorities = (b"1", b"2 new") if rotated else ()
        state = PoolState(servers=PersistentMap(members), authorities=authorities)
        self._holds.applied(state, self._machines.values(), at)

    def holds(self, servers: str) -> bool:
        self.applied(servers, at=9.1, rotated=True)
        return self._failures.failure is None


def test_most_voters_have_the_key_when_a_new_ca_signs() -> None:
    bench = CaBench()
    bench.give("ab")
    assert not bench.holds("abcde")
    assert not CaBench().holds("abcde")


def test_a_voter_that_came_after_the_key_was_given_is_yet_to_ask_for_it() -> None:
    """Seed 710737: three of five voters had it, and a sixth came 3 ms later."""
    bench = CaBench()
    bench.give("abc")
    bench.applied("abcdef", at=9.0)
    assert bench.holds("abcdef")


def test_who_gives_a_key_may_not_know_of_a_voter_that_came_just_before() -> None:
    bench = CaBench()
    bench.applied("abcdef", at=8.5)
    bench.give("abc")
    bench.applied("abcdef", at=9.0)
    assert bench.holds("abcdef")


def test_a_voter_that_has_been_there_for_long_is_to_be_given_the_key() -> None:
    bench = CaBench()
    bench.applied("abcdef", at=5.0)
    bench.give("abc")
    bench.applied("abcdef", at=9.0)
    assert not bench.holds("abcdef")


def test_a_voter_that_has_the_key_counts_although_it_has_only_just_come() -> None:
    bench = CaBench()
    bench.applied("abcdefghi", at=8.5)
    bench.give("abfghi")
    bench.applied("abcdefghi", at=9.0)
    assert bench.holds("abcdefghi")


def test_a_voter_that_had_the_key_may_leave_before_the_ca_signs() -> None:
    bench = CaBench()
    bench.give("abc")
    bench.applied("abcde", at=9.0)
    assert bench.holds("bcde")


@pytest.mark.long
def test_a_voter_that_had_the_key_may_be_wiped_before_the_ca_signs() -> None:
    """Seed 10211491: the order was in the log of the one that recovered the pool, not committed."""
    bench = CaBench()
    bench.give("abc")
    bench.look(at=9.0)
    bench.wipe("bc")
    assert bench.holds("abcde")


def test_a_bit_that_flipped_is_a_fault_until_it_is_found() -> None:
    """Seed 10000057: a server started again 2.6 s after healing, and was to be done after 5 s."""
    assert run(options_of("swarm", 10_000_057)).failure is None


def test_no_bit_flips_where_the_flipped_table_alone_is_a_majority() -> None:
    """One voter was left after a recovery, and a server that joined differed from it."""
    assert run(options_of("swarm", 10_033_006)).failure is None


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(10_192_857, id="two servers whose bits flipped are no majority"),
        pytest.param(10_194_559, id="a full disk is not taken for one that forgot"),
        pytest.param(10_180_715, id="a join outlasts a recovery by a server whose clock was wrong"),
        pytest.param(10_213_174, id="a worker that was killed twice is gone for both"),
        pytest.param(10_233_183, id="no bit flips while another server is on its way out"),
        pytest.param(10_292_125, id="what was suspended beside a lease of an earlier plan"),
        pytest.param(10_281_725, id="a key is given to those who are voters then"),
    ],
)
def test_worlds_that_were_wrong(seed: int) -> None:
    """No bug of the pool each: the simulator was at fault."""
    assert run(options_of("swarm", seed)).failure is None
