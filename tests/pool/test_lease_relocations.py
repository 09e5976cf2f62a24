"""Leases that go to another server: the memory charged when, and the end of each part."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pool.policy_kit import GIB, MONDAY_MS, ONE, Pool, founding, upgraded

from gpupool.pool.invariants import violations
from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId, Incarnation, LeaseId, Milliseconds, ServerId
from gpupool.pool.model.relocation import BEGIN_MS, RELOCATION_MS, Relocation, RelocationState
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Lease, PartStatus, PoolState
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.reconcile import plan_host, plan_leader
from gpupool.pool.refused_orders import places_text, refusal_of
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.view_building import build_view

C, D, E = (ServerId(letter * 12) for letter in "cde")
R = RelocationState
POLICY = "[defaults]\nmax_gpus = 1.0\n"
HELD, ENDING = PartStatus.HELD, PartStatus.ENDING


def gpu(index: int, server: ServerId = C) -> GpuId:
    return GpuId(f"{server}-{index}")


class Going(Pool):
    """Three servers with two GPUs each, all of one model."""

    def __init__(self, policy: str = "") -> None:
        self.machine = PoolMachine(PoolState())
        self.now_ms: int = MONDAY_MS
        self.number = 0
        for command in founding((C, D, E), 2, 80 * GIB):
            assert self.do(command).ok, command
        for server in (C, D, E):
            assert self.do(self.up(server, 1)).ok
        if policy:
            self.put(policy)

    def up(self, server: ServerId, incarnation: int) -> c.ServerUp:
        gpus = tuple(self.state.servers[server].gpus.values())
        start = Incarnation(incarnation)
        text = ("x:1", "1", "580.2", "13.0")
        return c.ServerUp(server, start, *text, gpus, {}, accounts=True, formats=9)

    def go(
        self, lease: LeaseId, target: ServerId = D, by: str = "ada", order: bytes = b""
    ) -> Result:
        return self.do(c.RelocateLease(lease, target, by, order=order))

    def lease(self, lease: LeaseId) -> Lease:
        return self.state.leases[lease]

    def goes(self, lease: LeaseId) -> Relocation:
        found = self.lease(lease).relocation
        assert found is not None
        return found

    def confirm(self, lease: LeaseId, incarnation: int = 1) -> Result:
        found = self.goes(lease)
        start = Incarnation(incarnation)
        return self.do(c.ConfirmRelocated(lease, found.source, start, found.number))

    def freed(self, lease: LeaseId, server: ServerId) -> c.Command:
        """Return the word that nothing of a lease lives on a server, true or not."""
        known = self.state.leases.get(lease)
        found = known.relocation if known is not None else None
        start = self.state.servers[server].incarnation
        return c.FreeLease(lease, server, start, found.number if found is not None else 0)

    def frees(self, lease: LeaseId, server: ServerId) -> c.Command:
        """Return the server's proposal when nothing of the lease lives there."""
        (word,) = plan_host(self.state, server, ONE, {}, {}, {}).propose
        assert isinstance(word, c.FreeLease)
        return word

    def refuse(self, lease: LeaseId, server: ServerId | None = D) -> Result:
        number = self.goes(lease).number
        return self.do(c.RefuseRelocation(lease, number, "it will not", server, ONE))

    def granted(self, index: int, server: ServerId = C) -> int:
        return self.state.servers[server].gpus[gpu(index, server)].memory_granted // GIB

    def place(self, lease: LeaseId) -> tuple[list[GpuId], dict[ServerId, PartStatus]]:
        found = self.lease(lease)
        return [part.gpu for part in found.partitions], dict(found.parts)


def test_memory_is_taken_there_first_and_given_back_here_when_the_server_says_so() -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    usage = pool.state.usage["ada"]
    pool.now_ms += 1000
    done = pool.go(lease)
    assert (done.ok, done.why) == (True, "it is being moved from c to d")
    assert (pool.granted(0), pool.granted(0, D)) == (40, 40)
    assert pool.goes(lease).state is R.LEAVING
    assert not pool.do(pool.freed(lease, C)).ok, "it is held here"
    pool.now_ms += 1000
    assert pool.confirm(lease).ok
    assert pool.place(lease) == ([gpu(0), gpu(0, D)], {C: ENDING, D: HELD})
    assert (pool.granted(0), pool.granted(0, D)) == (40, 40)
    assert not pool.do(pool.freed(lease, D)).ok
    pool.now_ms += 1000
    assert pool.do(pool.freed(lease, C)).ok
    assert pool.place(lease) == ([gpu(0, D)], {D: HELD})
    assert (pool.granted(0), pool.granted(0, D)) == (0, 40)
    assert pool.lease(lease).relocation is None
    assert pool.state.usage["ada"] == usage
    assert list(pool.state.leases.at(C)) == []
    assert not pool.state.leases.relocating()
    pool.now_ms += 1000
    pool.end(lease)
    assert pool.granted(0, D) == 0
    begun = MONDAY_MS
    spans = [(r.server, r.granted_at - begun, r.freed_at - begun) for r in pool.state.records]
    assert spans == [(C, 0, 3000), (D, 2000, 4000)], "each server has its time"
    assert [act.kind for act in pool.state.acts].count("lease-moved") == 1


def test_limits_count_it_once_all_the_time() -> None:
    pool = Going(POLICY)
    lease = pool.hold((gpu(0), 80))
    before = pool.state.usage["ada"]
    assert pool.go(lease).ok
    assert pool.state.usage["ada"] == before
    assert pool.confirm(lease).ok
    assert pool.state.usage["ada"] == before
    assert pool.do(pool.freed(lease, C)).ok
    assert pool.state.usage["ada"] == before
    assert pool.go(lease, E).ok, "and again"
    assert pool.refuse(lease, D).ok
    assert pool.do(pool.freed(lease, E)).ok
    assert pool.state.usage["ada"] == before
    pool.end(lease)
    assert "ada" not in pool.state.usage


@pytest.mark.parametrize("server", [C, D])
def test_a_refusal_of_either_server_has_it_stay(server: ServerId) -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40), (gpu(1), 40))
    assert pool.go(lease).ok
    assert pool.refuse(lease, server).ok
    assert pool.goes(lease).state is R.STAYS
    assert not pool.confirm(lease).ok, "a program that asks now stays"
    assert not pool.refuse(lease, server).ok
    assert pool.granted(0, D) == 40
    assert pool.do(pool.freed(lease, D)).ok
    assert pool.place(lease) == ([gpu(0), gpu(1)], {C: HELD})
    assert (pool.granted(0, D), pool.granted(1, D)) == (0, 0)
    assert pool.state.records == ()
    assert [event.kind for event in pool.state.events[-1:]] == ["not-moved"]


def test_words_of_other_numbers_servers_and_starts_do_nothing() -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    assert pool.go(lease).ok
    number = pool.goes(lease).number
    for server, start, wrong in ((C, 1, number + 1), (C, 2, number), (D, 1, number)):
        assert not pool.do(c.ConfirmRelocated(lease, server, Incarnation(start), wrong)).ok
    for word in (
        c.RefuseRelocation(lease, number - 1, "", D, ONE),
        c.RefuseRelocation(lease, number, "", D, Incarnation(2)),
        c.RefuseRelocation(lease, number, "", E, ONE),
        c.RefuseRelocation(lease, number, ""),
    ):
        assert not pool.do(word).ok
    assert pool.goes(lease).state is R.LEAVING


def test_the_leader_gives_up_what_nobody_confirms() -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    assert pool.go(lease).ok
    late = pool.now_ms + RELOCATION_MS
    assert plan_leader(pool.state, {}, late - 1, C) == ()
    (word,) = plan_leader(pool.state, {}, late, C)
    assert isinstance(word, c.RefuseRelocation)
    pool.now_ms = late
    assert pool.do(word).ok
    assert pool.goes(lease).reason == "it has not gone within 15 min"


@pytest.mark.parametrize("ends", [False, True])
def test_a_late_word_of_an_earlier_relocation_frees_nothing(ends: bool) -> None:
    """It is proposed until its outcome is known, so it may come when workers live there again."""
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    assert pool.go(lease).ok
    assert pool.refuse(lease).ok
    late = pool.frees(lease, D)
    assert pool.do(late).ok
    if ends:
        assert pool.go(lease).ok
        assert pool.confirm(lease).ok
        assert pool.do(pool.frees(lease, C)).ok
        assert pool.do(c.EndLease(lease, "over")).ok
    else:
        assert pool.go(lease).ok
        assert pool.refuse(lease).ok
    assert pool.place(lease)[1][D] is ENDING
    assert not pool.do(late).ok
    assert pool.granted(0, D) == 40
    assert pool.do(pool.frees(lease, D)).ok
    assert pool.granted(0, D) == 0


def test_an_order_is_carried_out_once() -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    assert pool.go(lease, order=bytes(16)).ok
    again = pool.go(lease, order=bytes(16))
    assert (again.ok, again.lease) == (True, lease)
    assert pool.go(lease).why.startswith("it is being moved to another server already")


# --- what ends meanwhile --------------------------------------------------------------------------


def test_the_end_of_the_lease_ends_both_parts() -> None:
    for confirmed in (False, True):
        pool = Going()
        lease = pool.hold((gpu(0), 40))
        assert pool.go(lease).ok
        if confirmed:
            assert pool.confirm(lease).ok
        assert pool.do(c.EndLease(lease, "over")).ok
        assert set(pool.lease(lease).parts.values()) == {ENDING}
        assert pool.do(pool.freed(lease, D)).ok
        assert pool.do(pool.freed(lease, C)).ok
        assert lease not in pool.state.leases
        assert (pool.granted(0), pool.granted(0, D)) == (0, 0)
        assert [r.server for r in pool.state.records] == ([D, C] if confirmed else [C])


@pytest.mark.parametrize("leaves", [False, True])
def test_a_new_start_or_the_removal_of_the_new_server_has_it_stay(leaves: bool) -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    assert pool.go(lease).ok
    command = c.RemoveServer(D, "root") if leaves else pool.up(D, 2)
    assert pool.do(command).ok
    assert pool.place(lease) == ([gpu(0)], {C: HELD})
    assert pool.lease(lease).held


def test_a_new_start_of_the_old_server_ends_it_unless_it_has_gone() -> None:
    for confirmed in (False, True):
        pool = Going()
        lease = pool.hold((gpu(0), 40))
        assert pool.go(lease).ok
        if confirmed:
            assert pool.confirm(lease).ok
        assert pool.do(pool.up(C, 2)).ok
        assert pool.granted(0) == 0
        if confirmed:
            assert pool.place(lease) == ([gpu(0, D)], {D: HELD})
        else:
            assert pool.lease(lease).end_reason == "server c restarted"


def test_a_new_start_of_the_new_server_ends_it_once_it_has_gone() -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    assert pool.go(lease).ok
    assert pool.confirm(lease).ok
    assert pool.do(pool.up(D, 2)).ok
    assert not pool.lease(lease).held
    assert (pool.granted(0), pool.granted(0, D)) == (40, 0)
    assert pool.do(pool.freed(lease, C)).ok
    assert lease not in pool.state.leases


def test_when_the_time_is_set_back_a_lease_keeps_its_deadline_and_its_records() -> None:
    pool = Going()
    pool.now_ms += 10_000
    lease = pool.hold((gpu(0), 40))
    pool.now_ms += 10_000
    assert pool.go(lease).ok
    back = Milliseconds(MONDAY_MS + 5000)
    assert pool.do(c.SetClock(back, 0, "root")).ok
    found = pool.goes(lease)
    assert (found.since, found.source_since) == (back, back - 10_000)
    index, era = pool.state.index, pool.state.era
    for more, command in enumerate(
        [
            c.ConfirmRelocated(lease, C, ONE, found.number),
            c.FreeLease(lease, C, ONE, found.number),
            c.EndLease(lease, "over"),
            c.FreeLease(lease, D, ONE),
        ],
        start=1,
    ):
        plain = c.wrap(command, at_ms=back + 1000 * more, ttl_ms=0, era=era)
        pool.machine.apply(index + more, plain)
        assert violations(pool.state) == []
    spans = [(r.server, r.granted_at - back, r.freed_at - back) for r in pool.state.records]
    assert spans == [(C, -10_000, 2000), (D, 1000, 4000)]


# --- what is refused ------------------------------------------------------------------------------


def test_what_cannot_go_is_said_by_the_table() -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    wide = pool.hold((gpu(1), 40), (gpu(1, D), 40))

    def why(of: LeaseId, target: ServerId = D, by: str = "ada") -> str:
        before = pool.state.leases
        done = pool.go(of, target, by)
        assert not done.ok
        assert pool.state.leases is before
        return done.why

    assert why(wide, E) == "a lease on several servers stays on them"
    assert why(lease, C) == "it is on c already"
    assert why(lease, ServerId("none")) == "the pool has no server none"
    assert why(lease, by="bob").endswith("belongs to ada")
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    assert why(lease) == "it is suspending; resume it first"
    suspension = pool.lease(lease).suspension
    assert suspension is not None
    assert pool.do(c.ResumeLease(lease, "ada")).ok
    assert pool.do(c.ConfirmResumed(lease, C, ONE, suspension.number)).ok
    assert pool.do(c.DrainServer(D, "to be repaired", "root")).ok
    assert why(lease) == "server d grants nothing now: to be repaired"
    assert pool.do(c.ServerContact(C, ONE, reachable=False)).ok
    assert why(lease, E) == "server c is not reachable, and has what it is to send"


def test_room_is_asked_for_and_the_fullest_gpu_taken() -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 60))
    pool.hold((gpu(0, D), 10))
    pool.hold((gpu(1, D), 15))
    for place in (gpu(0, E), gpu(1, E)):
        pool.hold((place, 30))
    assert pool.go(lease, E).why == f"no GPU of e has {60 << 10} MiB free for it"
    assert pool.go(lease).ok
    assert pool.place(lease)[0] == [gpu(0), gpu(1, D)]


def test_while_it_goes_it_is_neither_suspended_nor_moved() -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    assert pool.go(lease).ok
    assert "being moved to another server" in pool.do(c.SuspendLease(lease, "", "ada")).why
    assert "being moved to another server" in pool.do(c.MoveLease(lease, C, "ada")).why


# --- what its servers do --------------------------------------------------------------------------


def test_the_new_server_waits_for_the_program_and_gives_it_up_without_ending_the_lease() -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    assert pool.go(lease).ok
    assert plan_host(pool.state, D, ONE, {}, {lease: 5.0}, {}).propose == ()
    (late,) = plan_host(pool.state, D, ONE, {}, {lease: 11.0}, {}).propose
    (gone,) = plan_host(pool.state, D, ONE, {}, {}, {lease: "its client has gone"}).propose
    assert isinstance(late, c.RefuseRelocation)
    assert isinstance(gone, c.RefuseRelocation)
    assert (late.reason, gone.reason) == (
        "its program did not connect to the other server",
        "its client has gone",
    )
    (ends,) = plan_host(pool.state, C, ONE, {}, {}, {lease: "its client has gone"}).propose
    assert isinstance(ends, c.EndLease)
    assert pool.do(gone).ok
    (frees,) = plan_host(pool.state, D, ONE, {}, {}, {}).propose
    assert frees == pool.freed(lease, D)


def test_the_old_server_kills_what_is_left_before_it_frees_its_part() -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    assert pool.go(lease).ok
    assert plan_host(pool.state, C, ONE, {lease: 1}, {}, {}).kill == ()
    assert pool.confirm(lease).ok
    plan = plan_host(pool.state, C, ONE, {lease: 1}, {}, {})
    assert (plan.kill, plan.propose) == ((lease,), ())
    assert plan_host(pool.state, C, ONE, {}, {}, {}).propose == (pool.freed(lease, C),)
    assert plan_host(pool.state, D, ONE, {lease: 1}, {}, {}).kill == ()


# --- what people see ------------------------------------------------------------------------------


def test_a_view_shows_where_it_goes_and_where_it_is() -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40))

    def look() -> tuple[str, str, str, list[ServerId]]:
        health = RaftHealth(Role.LEADER, C, 1, 1, 1, (C,), (), 0.0, {}, 0)
        [shown] = build_view(pool.state, health, C, pool.now_ms).leases
        return shown.state, shown.reason, shown.not_moved, [p.server for p in shown.partitions]

    assert pool.go(lease).ok
    assert look() == ("moving", "to d, by ada", "", [C, D])
    assert pool.refuse(lease).ok
    assert look() == ("held", "", "it will not", [C])
    assert places_text(pool.state, pool.lease(lease)) == "GPU 0 of c"
    assert pool.do(pool.freed(lease, D)).ok
    assert pool.go(lease).ok
    before = pool.lease(lease)
    again = c.RelocateLease(lease, E, "ada")
    error = refusal_of(again, before, pool.do(again), pool.state)
    assert error.what == f"lease {lease:04x} was not moved, and is being moved to d"
    assert pool.confirm(lease).ok
    assert look() == ("held", "", "", [D])
    assert pool.do(c.ServerContact(C, ONE, reachable=False)).ok
    assert look()[0] == "held", "the old server has nothing of it that counts"


@pytest.mark.parametrize(("server", "stayed"), [(C, True), (D, False)])
def test_a_view_shows_no_freed_part_of_a_server_that_a_lease_never_reached(
    server: ServerId, stayed: bool
) -> None:
    """Nothing is recorded of memory that was kept there for it."""
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    assert pool.go(lease).ok
    assert pool.do(c.EndLease(lease, "over")).ok
    assert pool.do(pool.freed(lease, server)).ok
    health = RaftHealth(Role.LEADER, C, 1, 1, 1, (C,), (), 0.0, {}, 0)
    [shown] = build_view(pool.state, health, C, pool.now_ms).leases
    assert shown.freed == ((server,) if stayed else ())
    assert [each.server for each in pool.state.records] == list(shown.freed)


# --- any order ------------------------------------------------------------------------------------

STEPS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5), st.integers(0, 2)), max_size=30)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_in_any_order_of_steps_the_books_are_right(steps: list[tuple[int, int, int]]) -> None:
    """``Pool.do`` checks all invariants of the table after each step."""
    pool = Going()
    leases = [pool.hold((gpu(0), 30)), pool.hold((gpu(1), 50)), pool.hold((gpu(0, D), 20))]
    old: list[c.Command] = []
    for what, which, at in steps:
        lease, server = leases[which % len(leases)], (C, D, E)[at]
        known = pool.state.leases.get(lease)
        found = known.relocation if known is not None else None
        number = found.number if found is not None else pool.state.index
        start = pool.state.servers[server].incarnation
        commands: list[c.Command] = [
            c.RelocateLease(lease, server, "ada"),
            c.RelocateLease(lease, server, "ada"),
            c.ConfirmRelocated(lease, server, start, number),
            c.RefuseRelocation(lease, number, "no", server, start),
            c.FreeLease(lease, server, start, number),
            pool.freed(lease, server),
            c.EndLease(lease, "over"),
            pool.up(server, start + 1),
            old[which % len(old)] if old else c.Tick(),
        ]
        command = commands[what]
        old.append(command)
        pool.now_ms += 1
        pool.do(command)
    for lease in leases:
        pool.do(c.EndLease(lease, "over"))
        for server in (C, D, E):
            pool.do(pool.freed(lease, server))
    assert not pool.state.leases
    granted = [g.memory_granted for s in pool.state.servers.values() for g in s.gpus.values()]
    assert granted == [0] * 6
    assert pool.state.usage == {}
    records = [(r.granted_at, r.ended_at, r.freed_at) for r in pool.state.records]
    assert all(begin <= end <= Milliseconds(freed) for begin, end, freed in records)


def test_what_the_old_server_said_of_its_use_does_not_go_along() -> None:
    pool = Going()
    lease = pool.hold((gpu(0), 40))
    assert pool.go(lease).ok
    for server in (C, D):
        assert pool.do(c.NoteIdle(lease, server, ONE, True)).ok
    assert pool.lease(lease).idle_on == (C, D)
    assert pool.confirm(lease).ok
    assert pool.lease(lease).idle_on == (D,)


# --- memory on two servers ------------------------------------------------------------------------


def newest(policy: str = POLICY) -> tuple[Going, LeaseId]:
    """Return a pool of servers of this version, and a lease of a whole GPU."""
    pool = Going(policy)
    upgraded(pool.machine)
    return pool, pool.hold((gpu(0), 80))


def test_the_accounts_have_what_is_held_on_both_servers_since_the_order() -> None:
    pool, lease = newest()
    pool.now_ms += 5000
    assert pool.go(lease).ok
    pool.now_ms += 30_000
    assert pool.refuse(lease).ok
    pool.now_ms += 1000
    assert pool.do(pool.freed(lease, D)).ok
    [record] = pool.state.records
    assert (record.server, record.granted_at, record.freed_at) == (
        D,
        MONDAY_MS + 5000,
        MONDAY_MS + 36_000,
    )
    assert record.reason == "it will not"
    assert pool.go(lease, E).ok, "it did not take long"
    pool.now_ms += 2000
    assert pool.confirm(lease).ok
    assert pool.do(pool.freed(lease, C)).ok
    pool.now_ms += 2000
    pool.end(lease)
    spans = [(each.server, each.freed_at - each.granted_at) for each in pool.state.records[1:]]
    assert spans == [(C, 38_000), (E, 4000)]


@pytest.mark.parametrize("by_leader", [False, True])
def test_after_a_move_that_came_to_nothing_late_there_is_none_for_a_while(by_leader: bool) -> None:
    pool, lease = newest()
    assert pool.go(lease).ok
    pool.now_ms += RELOCATION_MS if by_leader else BEGIN_MS
    assert pool.refuse(lease, None if by_leader else C).ok
    assert pool.do(pool.freed(lease, D)).ok
    pool.now_ms += RELOCATION_MS - 1000
    again = pool.go(lease)
    why = "its last move took long and came to nothing; try again in 1s"
    assert (again.ok, again.kind, again.why) == (False, "busy", why)
    operator = c.RelocateLease(lease, D, "root", operator=True)
    assert pool.do(operator).ok, "an operator empties a server when that has to be"
    assert pool.refuse(lease).ok
    assert pool.do(pool.freed(lease, D)).ok
    pool.now_ms += 1000
    assert pool.go(lease).ok


def test_a_pool_with_an_older_server_counts_and_waits_as_that_does() -> None:
    pool, lease = newest()
    upgraded(pool.machine, 11)
    assert pool.go(lease).ok
    pool.now_ms += RELOCATION_MS
    assert pool.refuse(lease, None).ok
    assert pool.do(pool.freed(lease, D)).ok
    assert pool.state.records == ()
    assert pool.go(lease).ok


@pytest.mark.parametrize(
    ("passed_ms", "workers", "late"),
    [
        (BEGIN_MS - 1, 0, False),
        (BEGIN_MS, 1, False),
        (BEGIN_MS, 0, True),
    ],
)
def test_the_new_server_waits_a_minute_for_the_program_to_begin(
    passed_ms: int, workers: int, late: bool
) -> None:
    pool, lease = newest()
    assert pool.go(lease).ok
    pool.now_ms += passed_ms
    pool.do(c.Tick())
    plan = plan_host(pool.state, D, ONE, {lease: workers}, {}, {})
    why = "its program has not begun to go within 60 s"
    refusal = c.RefuseRelocation(lease, pool.goes(lease).number, why, D, ONE)
    assert plan.propose == ((refusal,) if late else ())


def test_a_pause_between_moves_does_not_outlive_an_operator_who_sets_the_time() -> None:
    pool, lease = newest()
    assert pool.go(lease).ok
    pool.now_ms += RELOCATION_MS
    assert pool.refuse(lease, None).ok
    assert pool.do(pool.freed(lease, D)).ok
    to = Milliseconds(pool.now_ms - 24 * 3_600_000)
    assert pool.do(c.SetClock(to, pool.state.era, "root")).ok
    assert pool.lease(lease).moves_from == 0
