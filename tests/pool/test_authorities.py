"""The exchange of the CA in the table: one or two are trusted, and the last one signs."""

from hashlib import sha256

import pytest
from tests.pool.pool_strategies import SERVERS, founding

from gpupool.pool.invariants import violations
from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import decode, encode
from gpupool.pool.model.ids import Incarnation, ServerId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import PoolState, with_changes
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.transitions.authorities import (
    fingerprint_of,
    moves_on,
    not_moved,
    report_issuer,
)

A, B, C = b"ca 1", b"ca 2", b"ca 3"
ONE = Incarnation(1)


class Table:
    """A pool of three servers, and the answers to its commands."""

    def __init__(self) -> None:
        self.machine = PoolMachine(PoolState())
        for command in founding():
            assert self.do(command).ok

    @property
    def state(self) -> PoolState:
        return self.machine.state

    def do(self, command: c.Command) -> Result:
        plain = c.wrap(command, at_ms=1000, ttl_ms=0)
        result = decode(Result, self.machine.apply(self.state.index + 1, plain))
        assert violations(self.state) == []
        return result

    def report(self, *issuers: bytes) -> None:
        for server, issuer in zip(SERVERS, issuers, strict=False):
            assert self.do(c.ReportIssuer(server, ONE, fingerprint_of(issuer))).ok


@pytest.fixture
def table() -> Table:
    return Table()


def retired(ca: bytes, *, force: bool = False) -> c.RetireCa:
    return c.RetireCa(fingerprint_of(ca), force, "root")


def test_a_table_without_an_exchange_has_the_bytes_that_it_had(table: Table) -> None:
    plain = encode(table.state)
    assert isinstance(plain, dict)
    assert "authorities" not in plain
    assert "issuer" not in str(plain["servers"])


def test_an_exchange_from_the_first_order_to_the_last(table: Table) -> None:
    assert table.do(c.RotateCa(A, B, "root")).ok
    assert table.state.authorities == (A, B)
    assert len(not_moved(table.state)) == 3
    refused = table.do(retired(A))
    assert (refused.kind, refused.why) == (
        "conflict",
        "certificates of the older CA are still used by a, b, c",
    )
    table.report(B, B)
    assert table.do(retired(A)).why.endswith("used by c")
    table.report(B, B, B)
    assert not_moved(table.state) == ()
    assert table.do(retired(A)).ok
    assert table.state.authorities == (B,)
    acts = [(act.kind, act.by, act.subject) for act in table.state.acts[-2:]]
    new, old = sha256(B).hexdigest()[:16], sha256(A).hexdigest()[:16]
    assert acts == [("ca-rotated", "root", new), ("ca-retired", "root", old)]
    # And once more: what servers said of the former exchange does not count.
    assert table.do(c.RotateCa(B, C, "root")).ok
    assert len(not_moved(table.state)) == 3


def test_a_third_ca_is_refused_while_two_are_trusted(table: Table) -> None:
    assert table.do(c.RotateCa(A, B, "root")).ok
    why = "two CAs are trusted already; drop the older one first (gpupool ca retire)"
    for old in (A, B):
        assert table.do(c.RotateCa(old, C, "root")) == Result(False, "conflict", why)
    assert table.state.authorities == (A, B)


def test_the_ca_that_signs_cannot_be_dropped(table: Table) -> None:
    assert table.do(c.RotateCa(A, B, "root")).ok
    assert table.do(retired(B, force=True)).kind == "conflict"
    assert table.do(retired(C, force=True)).kind == "never"
    assert table.do(retired(A, force=True)).ok
    assert table.do(retired(B, force=True)).kind == "conflict"
    assert table.state.authorities == (B,)


def test_repetitions_that_come_late_bring_no_dropped_ca_back(table: Table) -> None:
    first = c.RotateCa(A, B, "root")
    assert table.do(first).ok
    assert table.do(first).ok
    assert table.do(retired(A, force=True)).ok
    acts = table.state.act_count
    assert table.do(first).ok
    assert table.do(retired(A)).ok
    assert (table.state.authorities, table.state.act_count) == ((B,), acts)
    assert table.do(c.RotateCa(B, C, "root")).ok
    assert table.do(retired(B, force=True)).ok
    assert table.do(first).kind == "conflict"
    assert table.state.authorities == (C,)


def test_by_force_the_servers_that_are_left_behind_are_named(table: Table) -> None:
    assert table.do(c.RotateCa(A, B, "root")).ok
    table.report(B)
    done = table.do(retired(A, force=True))
    assert done.ok
    assert done.why == "b, c must join anew (gpupool rejoin)"
    assert table.state.acts[-1].text == "although b, c used it"


@pytest.mark.parametrize(
    ("count", "more"), [(7, ""), (8, ""), (9, " and 1 more"), (20, " and 12 more")]
)
def test_of_many_servers_that_are_left_behind_eight_are_named(
    table: Table, count: int, more: str
) -> None:
    assert table.do(c.RotateCa(A, B, "root")).ok
    server = table.state.servers[SERVERS[0]]
    many = (
        with_changes(server, id=ServerId(f"{number:012}"), name=f"s{number}", voter=False, gpus={})
        for number in range(count)
    )
    servers = PersistentMap((each.id, each) for each in many)
    table.machine.state = with_changes(table.state, servers=servers)
    names = ", ".join(f"s{number}" for number in range(min(8, count))) + more
    why = f"certificates of the older CA are still used by {names}"
    assert table.do(retired(A)).why == why
    assert table.do(retired(A, force=True)).why == f"{names} must join anew (gpupool rejoin)"


def test_a_server_reports_a_ca_that_is_trusted_and_of_its_present_process(table: Table) -> None:
    assert not table.do(c.ReportIssuer(SERVERS[0], ONE, fingerprint_of(A))).ok
    assert table.do(c.RotateCa(A, B, "root")).ok
    assert not table.do(c.ReportIssuer(SERVERS[0], Incarnation(2), fingerprint_of(B))).ok
    assert not table.do(c.ReportIssuer(SERVERS[0], ONE, fingerprint_of(C))).ok
    assert table.do(c.ReportIssuer(SERVERS[0], ONE, fingerprint_of(A))).ok


@pytest.mark.parametrize(("old", "new"), [(A, b""), (b"", B), (A, A), (A, b"x" * 5000)])
def test_what_is_no_exchange_is_refused(table: Table, old: bytes, new: bytes) -> None:
    assert table.do(c.RotateCa(old, new, "root")).kind == "invalid"


def test_a_table_that_a_server_has_left_behind_moves_nothing() -> None:
    path = [(1,), (1, 2), (2,), (2, 3), (3,)]
    for at, trusted in enumerate(path):
        assert [moves_on(trusted, table) for table in path] == [n > at for n in range(len(path))]
        assert not moves_on(trusted, ())


@pytest.mark.parametrize("size", [1, 4096, 4097])
def test_a_ca_has_at_most_4096_bytes(size: int) -> None:
    for old, new in ((b"o" * size, B), (A, b"n" * size)):
        table = Table()
        done = table.do(c.RotateCa(old, new, "root"))
        if size <= 4096:
            assert (done.ok, table.state.authorities) == (True, (old, new))
        else:
            assert (done.kind, done.why) == ("invalid", "a CA has at most 4096 bytes")
            assert table.state.authorities == ()


def test_what_a_server_reports_again_changes_nothing(table: Table) -> None:
    assert table.do(c.RotateCa(A, B, "root")).ok
    table.report(B)
    before = table.state
    state, done = report_issuer(before, c.ReportIssuer(SERVERS[0], ONE, fingerprint_of(B)))
    assert done.ok
    assert state is before


def test_an_older_ca_that_nobody_needs_is_dropped_without_more_words(table: Table) -> None:
    assert table.do(c.RotateCa(A, B, "root")).ok
    act, event = table.state.acts[-1], table.state.events[-1]
    old, new = (sha256(each).hexdigest()[:16] for each in (A, B))
    assert (act.subject, act.text) == (new, f"beside {old}")
    assert (event.kind, event.text) == ("ca-rotated", f"CA {new} signs now (by root)")
    table.report(B, B, B)
    for force in (False, True):
        done = table.do(retired(A, force=force))
        assert done.ok
        assert done.why == ("this CA is not trusted" if force else "")
    act, event = table.state.acts[-1], table.state.events[-1]
    assert (act.kind, act.subject, act.text) == ("ca-retired", old, "")
    assert (event.kind, event.text) == ("ca-retired", f"CA {old} is trusted no more (by root)")


def test_each_refusal_of_an_exchange_says_why(table: Table) -> None:
    assert table.do(retired(A)).why == "this CA is not trusted"
    assert table.do(c.RotateCa(A, B, "root")).ok
    assert table.do(c.RotateCa(A, B, "root")).why == "the CA was exchanged already"
    assert table.do(retired(C)).why == "the pool does not know this CA"
    assert table.do(retired(B)).why == "this CA signs; the older one can be dropped"
    assert table.do(retired(A, force=True)).ok
    assert table.do(retired(B)).why == "this CA is the only one"
    assert table.do(c.RotateCa(A, C, "root")).why == "the CA was exchanged meanwhile"
