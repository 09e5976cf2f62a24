"""Voters: at most seven, chosen of the present servers, and the notices to people."""

from dataclasses import replace

import pytest

from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import decode
from gpupool.pool.model.ids import Incarnation, Milliseconds, ServerId, TokenId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import PoolState, ServerStatus, TokenKind
from gpupool.pool.ports import RaftHealth, RefusedBy, Role
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.view import ALARM
from gpupool.pool.view_building import build_view

ONE = Incarnation(1)


class Pool:
    """A pool of servers without GPUs, that joined one after the other."""

    def __init__(self, count: int) -> None:
        self.machine = PoolMachine(PoolState())
        self.apply(c.CreatePool("cluster", "lab", "tls"))
        for number in range(count):
            self.join(f"s{number}", first=number == 0)

    @property
    def state(self) -> PoolState:
        return self.machine.state

    @property
    def voters(self) -> str:
        return " ".join(self.state.voters())

    def apply(self, command: c.Command) -> None:
        plain = c.wrap(command, at_ms=1000, ttl_ms=0)
        result = decode(Result, self.machine.apply(self.state.index + 1, plain))
        assert result.ok, result

    def join(self, name: str, *, first: bool = False) -> None:
        token = None if first else TokenId(f"token-of-{name}")
        if token is not None:
            forever = Milliseconds(2**50)
            self.apply(c.CreateToken(token, TokenKind.SERVER, "ada", bytes(32), forever, "ada"))
        server = ServerId(name)
        self.apply(c.JoinServer(server, name, f"{name}:7470", False, token))
        self.apply(c.ServerUp(server, ONE, f"{name}:7470", "1", "", "", ()))

    def contact(self, name: str, *, reachable: bool) -> None:
        self.apply(c.ServerContact(ServerId(name), ONE, reachable))

    def remove(self, name: str) -> None:
        self.apply(c.RemoveServer(ServerId(name), "ada"))


def test_seven_vote_and_further_servers_follow() -> None:
    pool = Pool(9)
    assert pool.voters == "s0 s1 s2 s3 s4 s5 s6"
    pool.remove("s2")
    assert pool.voters == "s0 s1 s3 s4 s5 s6 s7"
    pool.remove("s8")
    pool.remove("s4")
    assert pool.voters == "s0 s1 s3 s5 s6 s7"
    pool.join("s9")
    assert pool.voters == "s0 s1 s3 s5 s6 s7 s9"


def test_a_follower_votes_in_the_place_of_a_voter_that_is_away() -> None:
    pool = Pool(9)
    pool.contact("s3", reachable=False)
    assert pool.voters == "s0 s1 s2 s4 s5 s6 s7"
    assert "s7 votes in its place" in pool.state.events[-1].text
    pool.contact("s3", reachable=True)
    assert pool.voters == "s0 s1 s2 s4 s5 s6 s7", "it comes back as a follower"
    assert pool.state.servers[ServerId("s3")].status is ServerStatus.UP
    pool.contact("s0", reachable=False)
    assert pool.voters == "s1 s2 s3 s4 s5 s6 s7"
    pool.contact("s8", reachable=False)
    pool.contact("s1", reachable=False)
    assert pool.voters == "s1 s2 s3 s4 s5 s6 s7", "nobody who is there is left"


def test_votes_stay_while_there_are_no_followers() -> None:
    pool = Pool(3)
    pool.contact("s1", reachable=False)
    assert pool.voters == "s0 s1 s2"


def test_the_place_of_a_removed_voter_goes_to_one_that_is_there() -> None:
    pool = Pool(9)
    pool.contact("s7", reachable=False)
    pool.remove("s1")
    assert pool.voters == "s0 s2 s3 s4 s5 s6 s8"


@pytest.mark.parametrize(("count", "warned"), [(1, False), (2, True), (3, False)])
def test_two_servers_are_told_of_a_witness(count: int, warned: bool) -> None:
    pool = Pool(count)
    view = build_view(pool.state, health(pool.state), answered_by=ServerId("s0"), now_ms=1000)
    assert any("gpupool join --witness" in text for text in view.warnings) == warned


def test_a_removed_server_shows_it() -> None:
    pool = Pool(2)
    gone = health(pool.state, role=Role.REMOVED)
    view = build_view(pool.state, gone, answered_by=ServerId("s1"), now_ms=1000)
    assert "this server was removed from the pool" in view.warnings


def test_voters_that_cannot_be_counted_on_are_no_part_of_the_quorum() -> None:
    pool = Pool(3)
    s1, s2 = ServerId("s1"), ServerId("s2")
    ill = replace(
        health(pool.state),
        connected=(s1, s2),
        unfit={s2: "it is an old copy", ServerId("gone"): "it is an old copy"},
        alarm="entry 7 is lost",
    )
    view = build_view(pool.state, ill, answered_by=ServerId("s0"), now_ms=1000)
    assert (view.raft.reached(view.answered_by), len(view.raft.voters)) == (2, 3)
    name = pool.state.servers[s2].name
    told = [text.removeprefix(ALARM) for text in view.warnings if text.startswith(ALARM)]
    assert told == [f"{name} does not count as a voter: it is an old copy", "entry 7 is lost"]


def test_whom_others_refuse_is_shown_and_counts_here_all_the_same() -> None:
    pool = Pool(3)
    s1, s2 = ServerId("s1"), ServerId("s2")
    told = RefusedBy(s1, "it is an old copy")
    ill = replace(
        health(pool.state),
        connected=(s1, s2),
        refused_by={s2: told, s1: RefusedBy(s2, "by gossip"), ServerId("gone"): told},
        unfit={s1: "seen here"},
    )
    view = build_view(pool.state, ill, answered_by=ServerId("s0"), now_ms=1000)
    assert view.raft.connected == (s2,), "what is known here alone decides"
    one, two = (pool.state.servers[each].name for each in (s1, s2))
    assert [text for text in view.warnings if text.startswith(ALARM)] == [
        f"{ALARM}{one} does not count as a voter: seen here",
        f"{ALARM}{two} does not count as a voter: server {one} says: it is an old copy",
    ]


def health(state: PoolState, role: Role = Role.LEADER) -> RaftHealth:
    return RaftHealth(
        role=role,
        leader=ServerId("s0"),
        term=1,
        commit_index=state.index,
        applied_index=state.index,
        voters=state.voters(),
        connected=(),
        majority_age_s=0.0,
        contact_age_s={},
        elections=1,
    )
