"""Places of unauthenticated connections, and the order of handshakes."""

import logging

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpupool.pool.fair_access import network_of
from gpupool.remoting.server.listener.preauth_limits import (
    BURST_S,
    KNOWN_FACTOR,
    KNOWN_PER_S,
    PAUSE_MAX_S,
    REMEMBERED_S,
    Pauses,
    Place,
    PreauthLimits,
    Stage,
)
from gpupool.remoting.transport.connections import RateLimitedLog


class Clock:
    """A clock that tests set."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 0


class Port:
    """Limits on virtual time; remembers the evicted connections."""

    def __init__(
        self, *, total: int = 8, per_address: int = 4, rate: float = 10.0, tls: int = 1000
    ) -> None:
        self.clock = Clock()
        self.limits = PreauthLimits(
            self.clock,
            total=total,
            per_address=per_address,
            handshakes_per_s=rate,
            tls_count_max=tls,
        )
        self.evicted: list[str] = []
        self.places: dict[str, Place] = {}
        self.started: list[str] = []

    def enter(self, name: str, address: str) -> Place:
        self.places[name] = self.limits.enter(address, lambda: self.evicted.append(name))
        return self.places[name]

    def handshake(self, name: str) -> None:
        def go() -> None:
            self.started.append(name)
            self.limits.take_tls(self.places[name])

        self.limits.request_handshake(self.places[name], go)


def test_an_address_loses_its_own_oldest_connection() -> None:
    port = Port()
    for number in range(4):
        port.enter(f"a{number}", "10.0.0.1")
    port.enter("b", "10.0.0.2")
    port.places["a0"].stage = Stage.HANDSHAKE
    port.enter("a4", "10.0.0.1")
    assert port.evicted == ["a1"]  # the oldest of those that have come least far


def test_the_busiest_address_makes_room_for_a_new_one() -> None:
    port = Port()
    for number in range(8):
        port.enter(f"s{number}", f"10.0.0.{number % 3}")
    port.enter("new", "10.9.9.9")
    assert port.evicted == ["s0"]


def test_a_flood_of_strangers_costs_a_known_address_nothing() -> None:
    port = Port()
    port.limits.prove(port.enter("login", "192.0.2.1"))
    for number in range(3):
        port.enter(f"known{number}", "192.0.2.1")
    for number in range(1000):
        port.enter(f"s{number}", f"10.0.{number // 250}.{number % 250}")
    assert not [name for name in port.evicted if name.startswith("known")]
    port.clock.now += REMEMBERED_S
    place = port.enter("later", "192.0.2.1")
    assert place.counted


def test_the_newcomer_waits_for_one_handshake_of_each_and_not_for_all() -> None:
    port = Port(total=1000, per_address=100)
    for number in range(30):
        port.enter(f"flood{number}", "10.0.0.1")
        port.handshake(f"flood{number}")
    port.limits.release()
    begun = len(port.started)
    assert begun <= 2
    port.enter("new", "10.0.0.2")
    port.handshake("new")
    for _ in range(2):
        port.clock.now += 0.1
        port.limits.release()
    assert "new" in port.started
    assert len(port.started) <= begun + 2


def test_an_address_that_asks_for_the_first_time_goes_before_a_round_of_the_others() -> None:
    """With 50 turns a second, 100 attackers were a wait of 2 s, which is all that a login has."""
    port = Port(total=1000, per_address=100)
    for number in range(300):
        port.enter(f"flood{number}", f"10.0.0.{number % 100}")
        port.handshake(f"flood{number}")
    for _ in range(150):
        port.clock.now += 0.1
        port.limits.release()
    port.enter("new", "10.9.9.9")
    port.handshake("new")
    begun = len(port.started)
    port.clock.now += 0.1
    port.limits.release()
    assert port.started[begun] == "new"


def test_endless_new_addresses_starve_nobody() -> None:
    port = Port(total=1000, per_address=100)
    for name in ("first", "second", "once more"):
        port.enter(name, "192.0.2.1")
        port.handshake(name)
    port.limits.release()
    for number in range(60):
        port.enter(f"flood{number}", f"10.0.0.{number}")
        port.handshake(f"flood{number}")
        if number % 3 == 0:  # three of them for each turn
            port.clock.now += 0.1
            port.limits.release()
    assert "once more" in port.started
    assert len(port.started) <= 22


def test_who_was_evicted_waits_for_nothing_any_more() -> None:
    """The line is never longer than the connections are many."""
    port = Port(total=8, per_address=4)
    for number in range(1000):
        port.enter(f"flood{number}", f"10.0.0.{number % 5}")
        port.handshake(f"flood{number}")
        assert port.limits.waiting <= 8
    port.enter("new", "10.9.9.9")
    port.handshake("new")
    for _ in range(8):
        port.clock.now += 0.1
        port.limits.release()
    assert "new" in port.started


def test_strangers_wait_longer_when_the_loop_is_late() -> None:
    """On a busy machine their handshakes made the grants of others several times as long."""
    pauses, seen = Pauses(), [BURST_S]
    for late_s in (0.0, 0.002, 0.004, 10.0):
        pauses.woke_up(late_s)
        seen.append(pauses.next_s)
    assert seen[1] == BURST_S
    assert BURST_S < seen[2] < seen[3] < seen[4] == PAUSE_MAX_S
    for _ in range(300):  # and no longer than it is
        pauses.woke_up(0.0)
    assert pauses.next_s == pytest.approx(BURST_S)


def test_handshakes_of_a_known_address_wait_for_no_other_address() -> None:
    port = Port()
    port.limits.prove(port.enter("login", "192.0.2.1"))
    port.limits.prove(port.enter("hostile", "192.0.2.2"))
    for number in range(500):
        port.enter(f"h{number}", "192.0.2.2")
        port.handshake(f"h{number}")
    for number in range(4):
        port.enter(f"f{number}", "10.0.0.1")
        port.handshake(f"f{number}")
    before = len(port.started)
    port.enter("again", "192.0.2.1")
    port.handshake("again")
    assert port.started[before:] == ["again"]


def test_handshakes_of_a_known_address_have_a_pace_of_their_own() -> None:
    """A stranger behind the same address as a user had as many as the machine could do."""
    port = Port()
    port.limits.prove(port.enter("login", "192.0.2.1"))
    for number in range(2000):
        port.enter(f"h{number}", "192.0.2.1")
        port.handshake(f"h{number}")
    places = port.limits.waiting
    assert places == 4 * KNOWN_FACTOR  # those before them had to go
    begun = len(port.started)
    assert begun <= places + 1
    assert 0 < port.limits.release() <= 1 / KNOWN_PER_S + 1e-9
    for step in range(1, 11):
        port.clock.now = step / KNOWN_PER_S + 1e-9
        port.limits.release()
        assert begun + step <= len(port.started) <= begun + step + 1
    port.clock.now += 100
    assert port.limits.release() == float("inf")
    assert port.limits.waiting == 0
    assert {"h0", "h1999"} <= {*port.started}


def test_more_handshakes_of_a_known_address_than_its_pace_leave_most_of_them_theirs() -> None:
    """The first of the line went first, had waited for nearly 2 s, and gave up in the middle."""
    port = Port(per_address=500)
    port.limits.prove(port.enter("login", "192.0.2.1"))
    came: dict[str, float] = {}
    prompt = 0
    for number in range(150 * 60):  # 150 a second for a minute
        port.clock.now = number / 150
        for name in [each for each, at in came.items() if port.clock.now - at >= 2.0]:
            del came[name]
            port.limits.leave(port.places[name])
        came[f"h{number}"] = port.clock.now
        port.enter(f"h{number}", "192.0.2.1")
        before = len(port.started)
        port.handshake(f"h{number}")
        port.limits.release()
        prompt += sum(port.clock.now - came[each] < 1.0 for each in port.started[before:])
    assert prompt >= 0.9 * KNOWN_PER_S * 60


def test_clients_of_a_known_address_that_come_together_do_not_wait() -> None:
    """As many as have places: those of a login node that connect again after a failover."""
    port = Port()
    for _ in range(3):
        port.limits.prove(port.enter("login", "192.0.2.1"))
        began = len(port.started)
        for number in range(4 * KNOWN_FACTOR):
            port.enter(f"c{number}", "192.0.2.1")
            port.handshake(f"c{number}")
        assert len(port.started) == began + 4 * KNOWN_FACTOR
        assert port.limits.waiting == 0
        for number in range(4 * KNOWN_FACTOR):
            port.limits.prove(port.places[f"c{number}"])
        port.clock.now += 4 * KNOWN_FACTOR / KNOWN_PER_S


def test_who_leaves_a_known_address_waits_for_nothing_any_more() -> None:
    port = Port()
    port.limits.prove(port.enter("login", "192.0.2.1"))
    for number in range(3 * 4 * KNOWN_FACTOR):
        port.enter(f"h{number}", "192.0.2.1")
        port.handshake(f"h{number}")
    for place in port.places.values():
        port.limits.leave(place)
    begun = len(port.started)
    assert port.limits.waiting == 0
    port.clock.now += 100
    assert port.limits.release() == float("inf")
    assert len(port.started) == begun


def test_the_busiest_known_address_loses_its_tls_for_the_next() -> None:
    port = Port(tls=1, per_address=100)
    for address in ("192.0.2.1", "192.0.2.2"):
        port.limits.prove(port.enter("login", address))
    for number in range(KNOWN_FACTOR - 1):
        port.enter(f"h{number}", "192.0.2.1")
        port.handshake(f"h{number}")
    for number in range(3):
        port.enter(f"u{number}", "192.0.2.2")
        port.handshake(f"u{number}")
    port.enter("stranger", "10.0.0.1")
    port.handshake("stranger")
    port.limits.release()
    assert port.evicted == ["h0", "h1"]


def test_the_busiest_address_loses_its_tls_for_the_next_turn() -> None:
    port = Port(total=1000, per_address=100, tls=3, rate=10_000.0)
    for name in ("a0", "b0", "a1", "new"):
        port.enter(name, f"10.0.0.{name[0]}")
        port.handshake(name)
    port.clock.now += 1
    port.limits.release()
    assert port.started == ["a0", "b0", "new", "a1"]  # in turns
    assert port.evicted == ["a0"]
    for number in range(50):
        port.enter(f"b{number + 1}", "10.0.0.b")
        port.handshake(f"b{number + 1}")
        port.places[f"b{number + 1}"].stage = Stage.GREETING
    port.clock.now += 1
    port.limits.release()
    assert {"new", "a1"}.isdisjoint(port.evicted)
    assert len(port.evicted) == 51


def test_who_proves_himself_makes_room_for_tls() -> None:
    port = Port(tls=2, rate=1000.0)
    for name in ("a", "b", "c", "d"):
        port.enter(name, f"10.0.0.{name}")
        port.handshake(name)
        port.clock.now += 1
        port.limits.release()
        port.limits.prove(port.places[name])
    assert port.started == ["a", "b", "c", "d"]
    assert not port.evicted


def test_who_has_left_gets_no_turn() -> None:
    port = Port()
    port.enter("gone", "10.0.0.1")
    port.handshake("gone")
    port.limits.leave(port.places["gone"])
    assert port.limits.release() == float("inf")
    port.handshake("gone")
    assert port.limits.release() == float("inf")
    assert port.started == []


def test_who_asks_twice_waits_once() -> None:
    port = Port()
    port.enter("twice", "10.0.0.1")
    port.handshake("twice")
    port.handshake("twice")
    assert port.limits.waiting == 1
    assert port.limits.release() == float("inf")
    assert port.started == ["twice"]


def test_refusals_are_logged_at_a_bounded_rate(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "test")
    clock = Clock()
    log = RateLimitedLog(logging.getLogger("test"), clock)
    for number in range(500):
        log.say(f"refused {number}")
    assert [record.getMessage() for record in caplog.records] == [f"refused {n}" for n in range(20)]
    caplog.clear()
    clock.now += 2.5
    for number in range(500):
        log.say(f"later {number}")
    said = [record.getMessage() for record in caplog.records]
    assert said == ["480 more refused or lost connections", "later 0", "later 1"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["enter", "leave", "prove"]), st.integers(0, 5)), max_size=200
    )
)
@example([*[("enter", 0)] * 3, ("prove", 0), *[("enter", 0)] * 30])
def test_the_bounds_hold_and_nothing_is_lost(steps: list[tuple[str, int]]) -> None:
    port = Port(total=5, per_address=3)
    live: dict[str, int] = {}
    known: set[int] = set()
    for number, (verb, network) in enumerate(steps):
        if verb == "enter":
            name = f"c{number}"
            port.enter(name, f"10.0.0.{network}")
            live[name] = network
            for evicted in port.evicted:
                live.pop(evicted, None)
            assert name in live, "a new connection always gets in"
        elif mine := [name for name, at in live.items() if at == network]:
            del live[mine[0]]
            act = port.limits.leave if verb == "leave" else port.limits.prove
            act(port.places[mine[0]])
            if verb == "prove":
                known.add(network)
        assert sum(port.places[name].counted for name in live) <= 5
        for at in live.values():
            assert list(live.values()).count(at) <= 3 * (KNOWN_FACTOR if at in known else 1)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_networks(address: str, network: str) -> None:
    assert network_of(address) == network
