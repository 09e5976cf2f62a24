"""Servers that forgot, live twice, lost a part of their disk, or were left by ``recover``."""

import logging
from collections.abc import Callable
from random import Random

import pytest
from lone_node import Lone
from raft_world import Register, Server, World

from gpupool.consensus.protocol.raft_messages import FrameReader, FrameWriter
from gpupool.consensus.recovery import recover, replay
from gpupool.consensus.storage.journal import (
    JOURNAL,
    SUPERBLOCK,
    Floor,
    Superblock,
    Synced,
    decode_entries,
)
from gpupool.consensus.storage.peer_memory import MEMORY, PeerMemory, Remembered, Start
from gpupool.consensus.storage.snapshot import Snapshot
from gpupool.consensus.storage.store import Storage
from gpupool.pool.errors import StorageError
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk


class ForgetfulWorld(World):
    """A world in which a server may end for good, and directories can be swapped."""

    def __init__(self, seed: int, *, voters: int = 3, learners: int = 0) -> None:
        self.ended: dict[ServerId, StorageError] = {}
        super().__init__(seed, voters=voters, learners=learners)

    def _guard(self, server: Server, action: Callable[[], None]) -> None:
        """End a server when its step raises; re-raise the error of a server that cannot start."""
        try:
            super()._guard(server, action)
        except StorageError as error:
            starting = server.driver is None
            self.crash(server.name)
            if starting:
                raise
            self.ended[server.name] = error

    def put(self, name: ServerId, command: Plain) -> None:
        """Propose at ``name`` until it is acknowledged."""
        known = len(self.acknowledged)
        for _ in range(20):
            self.propose(name, command, ttl_s=1.0)
            self.run(0.5)
            if len(self.acknowledged) > known:
                return
        pytest.fail(f"{command!r} was not committed")

    def healthy(self) -> None:
        self.run_until(lambda: self.leader() is not None)
        self.run(1.0)

    def followers(self) -> list[ServerId]:
        return [name for name in self.names if name != self.leader()]

    def cut(self, name: ServerId, to: int | None = None, *, flip: int | None = None) -> None:
        """Damage the journal of a stopped server."""
        disk = self.servers[name].disk
        disk.put(JOURNAL, disk.read(JOURNAL)[:to])
        if flip is not None:
            disk.flip(JOURNAL, flip)


def started(seed: int = 1, *, voters: int = 3) -> ForgetfulWorld:
    world = ForgetfulWorld(seed, voters=voters)
    world.healthy()
    return world


# --- old copies ------------------------------------------------------------------------------


@pytest.mark.parametrize("while_running", [False, True])
@pytest.mark.parametrize("met", ["leader", "follower"])
def test_a_voter_restored_under_the_same_leader_is_refused(while_running: bool, met: str) -> None:
    """Any server knows of its starts, and only the leader of the entries that it had."""
    world = started()
    leader = world.leader()
    assert leader is not None
    victim, other = world.followers()
    if while_running:
        old = world.servers[victim].disk.image()
    else:
        world.crash(victim)
        old = world.servers[victim].disk.image()
        world.boot(victim)
    world.run(1.0)
    for number in range(3):
        world.put(leader, f"after {number}")
    world.crash(victim)
    world.run(0.2)
    world.servers[victim].disk.restore(old)
    first = leader if met == "leader" else other
    world.block([[victim, first], [leader, other]])
    world.boot(victim)
    world.run(3.0)
    refuser = leader if while_running else first
    assert (victim in world.ended) == (refuser == first)
    world.heal()
    world.run(3.0)
    assert f"server {refuser} says" in str(world.ended[victim].why)
    assert "old copy" in str(world.ended[victim].why)
    assert "gpupool rejoin" in world.ended[victim].hint
    health = world.node(refuser).health(world.local(world.servers[refuser]))
    assert "old copy" in health.unfit[victim]
    with pytest.raises(StorageError, match="may not take part"):
        world.boot(victim)  # Not even after its peers have gone.
    assert world.leader() == leader
    world.put(leader, "the two others go on")


def test_amnesia_raises_the_alarm_when_one_that_knows_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = started()
    leader = world.leader()
    assert leader is not None
    a, b = world.followers()
    world.crash(b)
    world.crash(a)
    old = world.servers[a].disk.image()
    world.boot(a)
    world.healthy()
    leader = world.leader()
    assert leader is not None
    knows = leader if leader != a else next(n for n in world.names if n not in (a, b))
    world.put(leader, "gone 1")
    world.put(leader, "gone 2")
    world.run(6.0)  # What is known is written down now and then.
    world.crash(a)
    world.crash(knows)
    world.servers[a].disk.restore(old)
    world.boot(a)
    world.boot(b)
    world.run(2.0)
    assert world.leader() is not None, "nobody alive remembers: two of three go on"
    world.checks.entries.clear()
    # The world's own checks would stop here, as they should: acknowledged entries are lost.
    world.acknowledged.clear()
    caplog.clear()
    world.boot(knows)
    world.run(3.0)
    assert "old copy" in str(world.ended[a].why)
    health = world.node(knows).health(world.local(world.servers[knows]))
    assert "was committed and is lost" in health.alarm
    assert "is refused" in caplog.text
    survivor = world.leader()
    assert survivor in (b, knows)
    assert survivor is not None
    world.put(survivor, "the others go on")


def test_true_restarts_are_welcome_at_once() -> None:
    world = started()
    for number in range(12):
        victim = world.names[number % 3]
        world.crash(victim, power=number % 2 == 0)
        world.run(0.05 * number)
        world.boot(victim)
        world.healthy()
        leader = world.leader()
        assert leader is not None
        world.put(leader, number)
    world.run(1.0)
    assert not world.ended
    for name in world.names:
        health = world.node(name).health(world.local(world.servers[name]))
        assert (dict(health.unfit), health.alarm) == ({}, "")


# --- clones ----------------------------------------------------------------------------------


class Pair:
    """A node and the peer that a test plays, with the greeting of each of its processes."""

    def __init__(self, voters: tuple[str, ...] = ("me", "b", "c")) -> None:
        from lone_node import Lone

        self.lone = Lone(voters, peers=("b", "c"))
        self.node = self.lone.node

    def hello(
        self,
        boot: int,
        incarnation: int,
        *,
        last_index: int = 2,
        term: int = 1,
        pause_s: float = 0.0,
        late: bytes = b"",
    ) -> None:
        """Connect again; without a pause, in the place of a connection that lives.

        ``late`` comes first: a frame of the former connection, sent over the new one.
        """
        from gpupool.consensus.protocol.raft_messages import FrameWriter

        peer = ServerId("b")
        self.lone.writers[peer] = FrameWriter(boot << 32 | 1)
        self.node.disconnected(peer, self.lone.now)
        if pause_s:
            self.lone.tick(pause_s)
        self.node.connected(peer, self.lone.now)
        self.lone.tick()
        if late:
            self.lone.take_frame("b", late)
        self.sent = self.lone.take(
            "b",
            "hello",
            boot=boot,
            incarnation=incarnation,
            term=term,
            last_index=last_index,
            repairing=False,
        )

    def refusals(self) -> list[str]:
        return [m["reason"] for peer, m in self.sent if peer == "b" and m["type"] == "refused"]

    def votes(self) -> bool:
        sent = self.lone.take("b", "request_prevote", term=50, last_log_index=90, last_log_term=40)
        return any(m["type"] == "response_prevote" and m["granted"] for _, m in sent)


def test_a_clone_is_refused_and_the_original_stays() -> None:
    pair = Pair()
    pair.hello(4, 44)
    assert pair.votes()
    pair.lone.tick(1.0)
    pair.hello(5, 55)  # It takes the place of a connection that lives.
    assert not pair.refusals()
    assert not pair.votes(), "a start that may be a clone's is not listened to yet"
    pair.lone.tick(1.0)
    pair.hello(4, 44)  # The original is still there.
    assert not pair.refusals()
    assert pair.votes()
    pair.hello(5, 55)
    assert pair.refusals() == ["its state directory is a copy of one that is in use"]
    assert not pair.votes()
    pair.hello(4, 44)
    assert pair.votes()
    pair.lone.tick(1.0)
    pair.lone.restart()
    pair.node = pair.lone.node
    pair.hello(5, 55)
    assert pair.refusals(), "that is remembered"
    pair.hello(5, 66)
    assert not pair.refusals(), "a restart of the original"


def test_an_original_is_heard_though_a_late_frame_comes_before_its_hello() -> None:
    """Seed 720587: the frame waited for a slow disk until its connection was replaced.

    The copy had spoken last, so the frame was of an older start. It used up the one look at a
    hello of any start, and nothing of the original was read any more.
    """
    pair = Pair()
    pair.hello(4, 44)
    pair.lone.tick(1.0)
    pair.hello(5, 55)
    pair.hello(4, 44)
    late = pair.lone.frame("b", "response_vote", term=1)
    pair.hello(5, 55)
    assert pair.refusals() == ["its state directory is a copy of one that is in use"]
    pair.hello(4, 44, pause_s=0.1, late=late)
    assert not pair.refusals()
    assert pair.votes()
    assert not pair.node.health(pair.lone.now).unfit


def test_a_restart_that_takes_the_place_of_a_dead_connection_is_heard_soon() -> None:
    pair = Pair()
    pair.hello(4, 44)
    pair.lone.tick(1.0)
    pair.hello(5, 55)
    assert not pair.votes()
    pair.lone.tick(3.0)
    assert pair.votes()


def test_a_clone_that_dials_again_is_still_not_heard() -> None:
    """The original has dialled as well, and its hello waits for its slow disk (seed 7021)."""
    pair = Pair()
    pair.hello(4, 44)
    pair.lone.tick(1.0)
    pair.hello(5, 55)
    for _ in range(8):
        pair.lone.tick(0.4)
        pair.node.disconnected(ServerId("b"), pair.lone.now)
        pair.node.connected(ServerId("b"), pair.lone.now)  # The original, which says nothing yet.
        pair.hello(5, 55)
        assert not pair.votes()
    pair.lone.tick(0.4)
    pair.hello(4, 44)
    assert pair.votes()
    pair.hello(5, 55)
    assert pair.refusals() == ["its state directory is a copy of one that is in use"]


def test_a_copy_of_a_start_that_is_on_probation_is_found() -> None:
    """Seed 10165991: neither was remembered yet, and each took the other's connection, for ever."""
    pair = Pair()
    pair.hello(4, 44)
    pair.lone.tick(1.0)
    pair.hello(5, 55)  # It was without power, and its former connection had not ended.
    pair.lone.tick(1.5)
    pair.hello(6, 66)  # The copy.
    assert not pair.refusals()
    pair.lone.tick(0.1)
    pair.hello(5, 55)
    pair.hello(6, 66)
    assert pair.refusals() == ["its state directory is a copy of one that is in use"]
    pair.hello(5, 55, pause_s=0.1)
    assert not pair.refusals()
    pair.lone.tick(3.0)
    assert pair.votes()


def test_a_connection_that_was_not_listened_to_is_made_anew() -> None:
    """Messages are missing in it, and answers would be taken for answers to earlier ones."""
    pair, b, c = Pair(), ServerId("b"), ServerId("c")
    pair.hello(4, 44)
    pair.lone.tick(1.0)
    pair.hello(5, 55)
    assert not pair.votes()
    pair.lone.tick(2.0)
    assert pair.node.peers() == (b, c)
    pair.lone.tick(1.0)
    assert pair.node.peers() == (c,)
    pair.node.disconnected(b, pair.lone.now)
    assert pair.node.peers() == (b, c)
    pair.hello(5, 55, pause_s=0.1)
    assert pair.votes()
    assert pair.node.peers() == (b, c)


def test_a_leader_is_in_touch_with_a_voter_whose_former_connection_had_not_ended() -> None:
    """Its answers were counted as answers to messages of two seconds before, for ever."""
    world = started()
    leader, other = world.leader(), world.followers()[0]
    assert leader is not None
    process = world.servers[other].process
    assert process is not None
    process.kill()  # Without power: nobody hears of it.
    world.servers[other].process = world.servers[other].driver = None
    world.servers[other].disk.lose_power()
    world.boot(other)
    world.run(4.0)
    term = world.node(leader).core.term
    world.crash(world.followers()[1])
    world.run(4.0)
    assert world.leader() == leader
    assert world.node(leader).core.term == term


def test_no_voter_leaves_while_one_that_stays_is_silent() -> None:
    """Seed 10162442: it had lost the end of its journal when it was heard again."""
    world = started()
    leader = world.leader()
    assert leader is not None
    stays, leaves = world.followers()
    world.pause(stays, 3.0)
    world.run(1.0)
    world.node(leader).reconcile_voters((leader, stays))
    world.run(1.0)
    assert leaves in world.node(leader).core.voters
    world.run(2.0)
    assert leaves not in world.node(leader).core.voters


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("pause_s", [0.5, 4.0])
def test_an_original_is_not_held_to_a_copy_that_ended_before_it_was_believed(
    pause_s: float, restarts: bool
) -> None:
    """Seed 110036: the power of the original failed, and its next start was called the older one.

    It ended for good, by the word of a server that had never listened to the copy.
    """
    pair = Pair()
    pair.hello(4, 44)
    pair.lone.tick(1.0)
    pair.hello(5, 55)  # The copy.
    pair.lone.tick(0.5)
    assert not pair.votes()
    if restarts:
        pair.lone.restart()
        pair.node = pair.lone.node
    pair.hello(5, 66, pause_s=pause_s)  # The next start of the original.
    assert not pair.refusals()
    pair.lone.tick(2.0)
    assert pair.votes()
    pair.hello(5, 55)
    assert "another process made its start 5" in pair.refusals()[0], "the copy comes too late"


def test_a_copy_that_nobody_believed_is_known_when_its_original_is_heard_later() -> None:
    pair = Pair()
    pair.hello(4, 44)
    pair.lone.tick(1.0)
    pair.hello(5, 55)
    pair.lone.tick(0.5)
    pair.hello(4, 44, pause_s=60.0)
    assert pair.votes()
    pair.hello(5, 55, pause_s=1.0)
    assert pair.refusals() == ["its state directory is a copy of one that is in use"]


def test_a_start_that_outlives_its_probation_is_remembered() -> None:
    pair = Pair()
    pair.hello(4, 44)
    pair.lone.tick(1.0)
    pair.hello(5, 55)
    for _ in range(4):
        pair.lone.tick(1.0)
    pair.lone.restart()
    pair.node = pair.lone.node
    pair.hello(5, 66)
    assert "another process made its start 5" in pair.refusals()[0]


@pytest.mark.parametrize(
    ("boot", "incarnation", "term", "last_index", "said"),
    [
        (3, 33, 9, 99, "it has started 4 times, and knows of 3"),
        (4, 45, 9, 99, "another process made its start 4"),
        (5, 55, 6, 99, "it was in term 7, and knows of 6"),
        (5, 55, 7, 39, "it had entry 40, and its log ends at 39"),
        (5, 55, 7, 40, None),
        (5, 55, 8, 3, None),
        (4, 44, 7, 40, None),
    ],
)
def test_what_is_remembered_and_what_is_said(
    boot: int, incarnation: int, term: int, last_index: int, said: str | None
) -> None:
    pair = Pair()
    pair.hello(4, 44)
    pair.node.storage.memory.promised(ServerId("b"), 7, 40)
    pair.lone.tick(6.0)
    pair.lone.restart()  # It is written down.
    pair.node = pair.lone.node
    pair.hello(boot, incarnation, term=term, last_index=last_index)
    assert [said in reason for reason in pair.refusals() if said] == [True] * bool(said)
    assert bool(pair.refusals()) == bool(said)


def test_a_memory_that_was_lost_accuses_nobody(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk(Random(1))
    memory = PeerMemory(disk)
    memory.set(ServerId("b"), Remembered(Start(4, 44), term=7, index=40))
    memory.dirty = False
    memory.fence([ServerId("c")], "why")
    assert memory.dirty, "to be written, whoever saves it"
    memory.save()
    assert PeerMemory(disk).servers == memory.servers
    assert PeerMemory(disk).fenced == {"c": False}
    whole = disk.read(MEMORY)
    for position in range(len(whole)):
        disk.put(MEMORY, whole)
        disk.flip(MEMORY, position, 2)
        assert not PeerMemory(disk).servers
    assert "is lost" in caplog.text


@pytest.mark.parametrize("seed", range(8))
def test_a_saved_memory_outlives_a_power_loss(seed: int) -> None:
    """The file was renamed and the directory not synced: the older file could come back."""
    disk = SimulatedDisk(Random(seed))
    memory = PeerMemory(disk)
    for index in (1, 2):
        memory.promised(ServerId("b"), 7, index)
        memory.fence([ServerId("c")], "why")
        memory.save()
    disk.lose_power()
    assert PeerMemory(disk).of(ServerId("b")).index == 2
    assert PeerMemory(disk).fenced == {"c": False}


# --- lost tails --------------------------------------------------------------------------------


def with_entries() -> tuple[ForgetfulWorld, ServerId, list[int]]:
    """Return a world, a stopped follower of it, and the ends of the batches of its journal."""
    world = started()
    leader = world.leader()
    assert leader is not None
    for number in range(6):
        world.put(leader, f"entry {number}")
    victim = world.followers()[0]
    world.crash(victim)
    return world, victim, batch_ends(world.servers[victim].disk.read(JOURNAL))


def batch_ends(data: bytes) -> list[int]:
    ends, offset = list[int](), 16
    while offset < len(data):
        offset += 24 + int.from_bytes(data[offset + 4 : offset + 8], "little")
        ends.append(offset)
    return ends


@pytest.mark.parametrize("part", [0.14, 0.3, 0.34, 0.53, 0.74, 0.77, 0.99, 1.0])
def test_a_cut_in_the_synced_part_is_noticed_and_repaired(
    part: float, caplog: pytest.LogCaptureFixture
) -> None:
    world, victim, ends = with_entries()
    size = ends[-2] if part == 1.0 else max(int(ends[-1] * part), ends[1] - 1)
    world.cut(victim, to=size)
    caplog.set_level(logging.WARNING)
    world.boot(victim)
    node = world.node(victim)
    assert "may have been acknowledged" in caplog.text
    assert "never acknowledged" not in caplog.text
    assert victim in node.health(0.0).unfit
    assert node.core.abstains
    world.run(2.0)
    assert "votes again" in caplog.text
    assert not world.node(victim).core.abstains
    world.settle()
    assert not world.ended
    assert not world.node(victim).storage.superblock.floor
    for name in world.names:
        assert not world.node(name).health(0.0).unfit


def test_a_flip_in_the_newest_batch_is_repaired(caplog: pytest.LogCaptureFixture) -> None:
    world, victim, ends = with_entries()
    # The newest batch may be a seal; cut that, so that the newest one holds entries.
    while ends[-1] - ends[-2] == 24:
        ends.pop()
    world.cut(victim, to=ends[-1], flip=(ends[-2] + ends[-1]) // 2)
    assert len(world.servers[victim].disk.read(JOURNAL)) == ends[-1]
    caplog.set_level(logging.WARNING)
    world.boot(victim)
    assert "may have been acknowledged" in caplog.text
    world.run(2.0)
    assert "votes again" in caplog.text
    world.settle()


def test_a_server_under_repair_elects_nobody_that_lacks_what_it_acknowledged() -> None:
    world = started()
    leader = world.leader()
    assert leader is not None
    behind, victim = world.followers()
    world.crash(behind)
    world.put(leader, "acknowledged by two")
    world.crash(victim)
    world.crash(leader)
    journal = world.servers[victim].disk.read(JOURNAL)
    world.cut(victim, to=batch_ends(journal)[1])
    world.boot(victim)
    world.boot(behind)
    world.run(5.0)
    assert world.leader() is None, "the one that has the entry must come first"
    world.boot(leader)
    world.run(3.0)
    world.settle()
    assert not world.ended


def test_a_voter_in_repair_that_hears_no_leader_asks_whether_it_still_is_one() -> None:
    """Seed 10043769: it had lost its vote meanwhile. It never campaigned, so nobody told it."""
    lone = Lone(("me", "b", "c"))
    lone.node.core.abstains = True
    asked = [peer for _ in range(50) for peer, m in lone.tick(0.1) if m["type"] == "pull"]
    assert asked[:2] in (["b", "c"], ["c", "b"])
    assert 2 <= len(asked) <= 4
    for _ in range(50):
        lone.append(2, 1, [])
        assert not [message for _, message in lone.tick(0.1) if message["type"] == "pull"]


def test_a_voter_that_lost_its_vote_while_its_disk_lost_entries_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, victim, ends = with_entries()
    world.cut(victim, to=ends[1])
    others = [name for name in world.names if name != victim]
    for name in others:
        world.node(name).reconcile_voters([ServerId(each) for each in others])
    world.run(1.0)
    caplog.set_level(logging.WARNING)
    world.boot(victim)
    assert world.node(victim).core.abstains
    world.run(4.0)
    assert not world.node(victim).core.votes
    for name in world.names:
        world.node(name).reconcile_voters([ServerId(each) for each in world.names])
    world.run(4.0)
    assert world.node(victim).core.votes
    assert not world.node(victim).core.abstains
    world.settle()


def test_the_repair_goes_on_after_another_crash() -> None:
    world, victim, ends = with_entries()
    others = [name for name in world.names if name != victim]
    for name in others:
        world.crash(name)
    term = world.servers[victim].disk
    known = Superblock(term).known
    assert known is not None
    world.cut(victim, to=ends[2])
    for _ in range(3):
        world.boot(victim)
        world.run(1.0)
        assert world.node(victim).core.abstains
        assert world.node(victim).core.term >= known.term, "votes are not lost"
        world.crash(victim, power=True)
    world.settle()


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_no_start_is_counted_twice_though_its_batch_is_lost(kept: int) -> None:
    """Its peers would take the next one for an old copy of the directory."""
    disk = SimulatedDisk(Random(1))
    journal = Storage(disk, create=True).journal
    for boot in (1, 2, 3):
        assert journal.begin() == boot
        journal.append(b"\x00x", boot + 1, 1)
        journal.sync()
    data = disk.read(JOURNAL)
    disk.put(JOURNAL, data[: batch_ends(data)[kept]])
    storage = Storage(disk, create=False)
    assert storage.superblock.floor == Floor(0, 4)
    assert storage.journal.begin() == 4


@pytest.mark.parametrize("term", [3, 4])
def test_a_vote_whose_batch_is_lost_is_not_given_to_another(term: int) -> None:
    disk = SimulatedDisk(Random(1))
    journal = Storage(disk, create=True).journal
    journal.set_vote(3, None)
    journal.sync()
    whole = len(disk.read(JOURNAL))
    journal.set_vote(term, "b")
    journal.sync()
    disk.put(JOURNAL, disk.read(JOURNAL)[:whole])
    again = Storage(disk, create=False).journal
    assert (again.term, again.vote) == (term, "b")


def test_what_no_superblock_knows_is_torn_as_before(caplog: pytest.LogCaptureFixture) -> None:
    world, victim, ends = with_entries()
    disk = world.servers[victim].disk
    disk.put(SUPERBLOCK, bytes(8192))
    world.cut(victim, to=ends[-3] + 30)
    world.boot(victim)
    assert "never acknowledged" in caplog.text
    world.run(2.0)
    # The leader remembers, where the disk does not.
    assert "its log ends at" in str(world.ended[victim].why)


def test_one_sync_for_each_batch_is_all_that_a_superblock_costs() -> None:
    disk = SimulatedDisk(Random(1))
    storage = Storage(disk, create=True)
    syncs = disk.counts["sync"]
    for index in range(2, 30):
        storage.journal.append(b"\x00x", index, 1)
        storage.journal.sync()
    assert disk.counts["sync"] == syncs + 28
    known = Superblock(disk).known
    assert known is not None
    assert known.last_index == 29


def test_a_superblock_that_a_power_loss_undid_raises_no_alarm() -> None:
    for seed in range(200):
        rng = Random(seed)
        disk = SimulatedDisk(Random(seed))
        journal = Storage(disk, create=True).journal
        for index in range(2, 12):
            journal.append(b"\x00" + bytes(rng.randrange(3000)), index, 1)
            if rng.random() < 0.8:
                journal.sync()
            if rng.random() < 0.1:
                disk.lose_power()
                storage = Storage(disk, create=False)
                assert storage.superblock.floor is None
                break


# --- recover -----------------------------------------------------------------------------------


def test_recover_fences_those_that_it_left_behind() -> None:
    world = started()
    leader = world.leader()
    assert leader is not None
    world.put(leader, "before")
    survivor, *others = world.names
    for name in world.names:
        world.crash(name)
    storage = Storage(world.servers[survivor].disk, create=False)
    replay(storage, Register())
    recover(storage, survivor, [], others=others)
    storage.close()
    world.boot(survivor)
    assert set(world.node(survivor).peers()) >= set(others), "it dials them to tell them"
    world.healthy()
    assert world.leader() == survivor
    world.checks.leaders.clear()
    for name in others:
        world.boot(name)
    world.run(3.0)
    assert set(world.ended) == set(others)
    for name in others:
        assert "the pool was recovered without this server" in str(world.ended[name].why)
        with pytest.raises(StorageError, match="may not take part"):
            world.boot(name)
    world.put(survivor, "it goes on alone")
    told = world.node(survivor).storage.memory.fenced
    assert told == dict.fromkeys(others, True), "told once is enough"


def test_a_server_left_behind_is_told_before_its_connection_is_given_up() -> None:
    """It was not: the one notice was queued, and the connection closed before it left."""
    pair, peer = Pair(voters=("me", "c")), ServerId("b")
    pair.node.storage.memory.fence([peer], "the pool was recovered without it")
    pair.hello(1, 11)
    assert pair.refusals()
    assert peer in pair.node.peers(), "the connection stays, and the notice leaves by it"
    assert pair.node.storage.memory.fenced == {peer: False}, "it may still be lost on its way"
    for _ in range(4):
        pair.lone.tick(1.0)
    assert pair.node.storage.memory.fenced == {peer: True}
    assert pair.node.peers() == ("c",)


def test_what_is_missing_is_read_as_it_was_written() -> None:
    disk = SimulatedDisk(Random(1))
    Superblock(disk).lose(Floor(3, 9))
    assert Superblock(disk).floor == Floor(3, 9)


def test_a_voter_far_behind_does_not_count() -> None:
    from lone_node import Lone

    lone = Lone()
    lone.win("b")
    core = lone.node.core
    for number in range(1200):
        lone.propose(number)
    lone.tick()
    lone.acknowledge("c", 2)
    lone.acknowledge("b", core._journal.last_index)  # pyright: ignore[reportPrivateUsage]
    lone.tick()
    assert core.settled
    assert set(lone.node.health(lone.now).unfit) == {"c"}
    lone.acknowledge("c", core.commit_index - 10)
    assert not lone.node.health(lone.now).unfit


def test_many_starts_are_written_a_few_times() -> None:
    pair = Pair()
    syncs = pair.lone.disk.counts["sync"]
    for boot in range(2, 40):
        pair.hello(boot, boot + 100)
        pair.lone.tick(0.01)
    assert pair.lone.disk.counts["sync"] - syncs <= 3
    pair.lone.tick(3.0)
    assert PeerMemory(pair.lone.disk).of(ServerId("b")).start == Start(39, 139)


def test_a_power_loss_between_a_snapshot_and_its_journal_leaves_no_older_term() -> None:
    """A healthy server said a term that was lower than its peers remembered, and was refused."""
    from lone_node import Lone

    names = tuple(ServerId(name) for name in ("me", "b", "c"))
    lone = Lone(names, term=3)
    lone.node.storage.snapshots.save(Snapshot(94, 4, names, []))
    lone.restart()
    assert lone.node.core.term == lone.journal.term == 4


# --- R6: a voter that rejects what it acknowledged, whatever its hello says ---------------------


def test_a_leader_steps_back_behind_what_a_voter_acknowledged_and_has_lost() -> None:
    """An older build sends no hello: only its answers reveal forgotten acknowledgements."""
    lone = Lone(("me", "b", "c"))
    term = lone.win("b", "c")
    for number in range(5):
        lone.propose(number)
    lone.tick()
    last = lone.journal.last_index
    lone.acknowledge("b", last)
    lone.acknowledge("c", last)
    lone.node.disconnected(ServerId("b"), lone.now)
    lone.node.connected(ServerId("b"), lone.now)
    lone.writers[ServerId("b")], lone.readers[ServerId("b")] = FrameWriter(99), FrameReader()
    held = 2  # where its log ends now
    for _ in range(20):
        sent = lone.tick(0.06)
        while sent:
            peer, message = sent.pop(0)
            if message["type"] != "append_entries":
                continue
            previous = message["prevLogIdx"]
            fits = peer == "c" or previous <= held
            if fits and message["entries"] and peer == "b":
                held = decode_entries(message["entries"])[-1][1]
            has = last if peer == "c" else held
            sent += lone.take(
                peer,
                "next_node_idx",
                term=term,
                next_node_idx=has + 1,
                success=fits,
                rejected=-1 if fits else previous,
            )
            if peer == "b":
                assert lone.node.core.match_index(ServerId("b")) <= held, "it does not count"
    assert held == last, "it got its entries back"
    assert lone.node.core.match_index(ServerId("b")) == last
    assert "b" in lone.node.health(lone.now).alarm
    assert lone.node.core.commit_index == last


def test_the_superblock_is_made_once() -> None:
    disk = SimulatedDisk(Random(1))
    superblock = Superblock(disk)
    superblock.keep()
    synced = Synced(journal=1, batches=2, boot=3, term=4, vote="b", last_index=5)
    superblock.note(synced)
    superblock.keep()
    superblock.sync()
    assert Superblock(disk).known == synced
