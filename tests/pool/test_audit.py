"""The audit in the table: each administrative act once, numbered, unaffected by leases."""

from dataclasses import replace

import pytest
from tests.pool.pool_strategies import GIB, GPU_IDS, SERVERS, TOKENS
from tests.pool.test_apply_properties import founded

from gpupool.pool.invariants import violations
from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import decode
from gpupool.pool.model.commands import wrap
from gpupool.pool.model.ids import Incarnation, LeaseId, Milliseconds, RequestId, TokenId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import (
    ACT_COUNT_MAX,
    Act,
    Partition,
    PoolState,
    Request,
    TokenKind,
    with_changes,
)
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.transitions.kept_records import acts_since, record
from gpupool.pool.transitions.tokens import create_token, renew_token


def do(machine: PoolMachine, command: c.Command, at_ms: int = 5000) -> Result:
    plain = machine.apply(machine.state.index + 1, wrap(command, at_ms=at_ms, ttl_ms=0))
    return decode(Result, plain)


def last(machine: PoolMachine) -> tuple[str, str, str, str]:
    act = machine.state.acts[-1]
    return act.kind, act.by, act.subject, act.text


def grant(machine: PoolMachine, number: int) -> LeaseId:
    command = c.Grant(
        request=Request(RequestId(number.to_bytes(16, "big")), 1, 0.5),
        user="ada",
        token=TOKENS["ada"],
        ticket_hash=bytes(32),
        partitions=(Partition(SERVERS[0], GPU_IDS[1], GIB),),
        incarnations={SERVERS[0]: Incarnation(1)},
    )
    lease = do(machine, command).lease
    assert lease is not None
    return lease


def free(machine: PoolMachine, lease: LeaseId) -> None:
    assert do(machine, c.FreeLease(lease, SERVERS[0], Incarnation(1))).ok


def test_founding_is_in_the_audit() -> None:
    acts = founded().state.acts
    kinds = [act.kind for act in acts]
    assert kinds[:3] == ["pool-created", "server-joined", "token-created"]
    assert kinds.count("server-joined") == 3
    assert [act.number for act in acts] == list(range(1, len(acts) + 1))
    joined = [act for act in acts if act.kind == "server-joined"]
    assert (joined[0].by, joined[1].by) == ("the pool", "root")  # who made its token
    assert "with token server-token-0" in joined[1].text


def test_every_act_says_who_what_and_when() -> None:
    machine = founded()
    do(machine, c.DrainServer(SERVERS[0], "new fans", "root"), at_ms=77_000)
    assert last(machine) == ("drained", "root", "a", "new fans")
    act = machine.state.acts[-1]
    assert (act.at, act.index) == (77_000, machine.state.index)
    do(machine, c.DrainServer(SERVERS[0], None, "eve"))
    assert last(machine) == ("undrained", "eve", "a", "")
    token = TokenId("fresh")
    expires = Milliseconds(77_000 + 3_600_000)
    do(machine, c.CreateToken(token, TokenKind.OPERATOR, "bob", bytes(32), expires, "root"))
    assert last(machine) == (
        "token-created",
        "root",
        "fresh",
        "operator token for bob, good for 1 h",
    )
    do(machine, c.RevokeToken(token, "root"))
    assert last(machine) == ("token-revoked", "root", "fresh", "operator token of bob")
    do(machine, c.RemoveServer(SERVERS[2], "root"))
    assert last(machine) == ("server-removed", "root", "c", SERVERS[2])


@pytest.mark.parametrize(
    ("life_ms", "old", "new"),
    [
        (59 * 60_000, "0 h", "59 min"),
        (90_000, "0 h", "1 min"),
        (59_999, "0 h", "59 s"),
        (3_600_000, "1 h", "1 h"),
        (0, "0 h", "0 s"),
    ],
)
def test_a_token_of_less_than_an_hour_is_good_for_minutes(life_ms: int, old: str, new: str) -> None:
    """All servers of a pool must make the same text of a command, so older ones decide."""
    state = founded().state
    upgraded = with_changes(
        state, servers={key: replace(each, formats=7) for key, each in state.servers.items()}
    )
    for table, words in ((state, old), (upgraded, new)):
        expires = Milliseconds(table.now + life_ms)
        create = c.CreateToken(TokenId("short"), TokenKind.USER, "bob", bytes(32), expires, "root")
        made, _ = create_token(table, create)
        assert made.acts[-1].text == f"user token for bob, good for {words}"
        renewed, _ = renew_token(
            with_changes(
                made,
                tokens=made.tokens
                | {create.token: replace(made.tokens[create.token], expires_at=Milliseconds(0))},
            ),
            c.RenewToken(create.token, expires, "root"),
        )
        if life_ms:
            assert renewed.acts[-1].text == f"user token of bob, good for {words}"


def test_what_changes_nothing_is_no_act() -> None:
    machine = founded()
    for command in (
        c.DrainServer(SERVERS[0], "new fans", "root"),
        c.RevokeToken(TOKENS["bob"], "root"),
        c.RemoveServer(SERVERS[2], "root"),
    ):
        do(machine, command)
        count = machine.state.act_count
        do(machine, command)  # proposed twice, because its outcome was not known
        assert machine.state.act_count == count
    refused = c.DrainServer(SERVERS[2], "gone", "root")
    assert not do(machine, refused).ok
    assert machine.state.act_count == count


def test_ending_anothers_lease_is_an_act_and_ending_ones_own_is_not() -> None:
    machine = founded()
    count = machine.state.act_count
    lease = grant(machine, 1)
    do(machine, c.EndLease(lease, "released", "ada"))
    free(machine, lease)
    lease = grant(machine, 2)
    do(machine, c.EndLease(lease, "idle for too long"))
    free(machine, lease)
    assert machine.state.act_count == count
    lease = grant(machine, 3)
    order = c.EndLease(lease, "make room (by root)", "root", operator=True)
    do(machine, order)
    do(machine, order)
    assert machine.state.act_count == count + 1
    assert last(machine) == (
        "lease-ended",
        "root",
        f"{lease:04x}",
        "lease of ada: make room (by root)",
    )


def test_nobody_ends_anothers_lease_not_even_at_a_server_that_does_not_know_it() -> None:
    machine = founded()
    lease = grant(machine, 1)
    result = do(machine, c.EndLease(lease, "released", "bob"))
    assert (result.kind, result.why) == ("denied", f"lease {lease:04x} belongs to ada")
    assert machine.state.leases[lease].held
    assert do(machine, c.EndLease(lease, "released", "ada")).ok


def test_leases_never_push_out_an_act_and_the_oldest_goes_first() -> None:
    machine = founded()
    before = machine.state.acts
    for number in range(300):
        lease = grant(machine, number)
        do(machine, c.EndLease(lease, "released", "ada"))
        free(machine, lease)
    assert machine.state.acts == before
    for number in range(ACT_COUNT_MAX):
        do(machine, c.DrainServer(SERVERS[0], f"reason {number}", "x" * 500))
    state = machine.state
    assert len(state.acts) == ACT_COUNT_MAX
    assert state.act_count == len(before) + ACT_COUNT_MAX
    assert state.acts[0].text == "reason 0"
    assert len(state.acts[0].by) == 64
    assert violations(state) == []


def test_the_texts_of_an_act_are_cut() -> None:
    state = record(PoolState(), "drained", by="b" * 900, subject="s" * 900, text="t" * 900)
    act = state.acts[-1]
    assert (len(act.by), len(act.subject), len(act.text)) == (64, 128, 400)


def test_whoever_listens_is_told_each_act_once_and_in_order() -> None:
    told: list[Act] = []
    machine = PoolMachine(PoolState(), on_acts=told.extend)
    source = founded()
    machine.restore(source.snapshot())
    assert tuple(told) == source.state.acts
    do(machine, c.Tick())
    do(machine, c.DrainServer(SERVERS[0], "new fans", "root"))
    machine.restore(machine.snapshot())
    assert [act.number for act in told] == list(range(1, machine.state.act_count + 1))
    assert acts_since(machine.state, 0) == machine.state.acts
    assert acts_since(machine.state, machine.state.act_count) == ()


def test_the_repetition_of_an_order_does_not_undo_a_later_one() -> None:
    machine = founded()
    first, second = bytes(16), bytes([1]) * 16
    server = SERVERS[0]
    assert do(machine, c.DrainServer(server, "new fans", "root")).ok
    assert do(machine, c.DrainServer(server, None, "root", first)).ok
    assert do(machine, c.DrainServer(server, "new disk", "root", second)).ok
    before = machine.state
    assert do(machine, c.DrainServer(server, None, "root", first)).ok
    assert machine.state.servers == before.servers
    assert machine.state.acts == before.acts
    assert do(machine, c.LabelServer(server, {"rack": "4"}, (), "root", first)).ok
    assert not machine.state.servers[server].labels  # one number is one order, whatever it says

    third, fourth = bytes([2]) * 16, bytes([3]) * 16
    assert do(machine, c.LabelServer(server, {"rack": "4"}, (), "root", third)).ok
    assert do(machine, c.LabelServer(server, {"rack": "5"}, (), "root", fourth)).ok
    assert do(machine, c.LabelServer(server, {"rack": "4"}, (), "root", third)).ok
    assert machine.state.servers[server].labels == {"rack": "5"}


def test_what_a_server_remembers_of_orders_is_bounded() -> None:
    machine = founded()
    for number in range(100):
        order = number.to_bytes(16, "big")
        assert do(machine, c.DrainServer(SERVERS[0], "new fans", "root", order)).ok
    assert machine.state.servers[SERVERS[0]].orders[-1] == (99).to_bytes(16, "big")
    assert len(machine.state.servers[SERVERS[0]].orders) == 16
    refused = do(machine, c.DrainServer(SERVERS[0], None, "root", b"short"))
    assert refused.kind == "invalid"
    assert machine.state.servers[SERVERS[0]].drain_reason == "new fans"
