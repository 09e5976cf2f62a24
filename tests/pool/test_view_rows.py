"""A view's data on itself: its rows, ages, and the progress of a CA's exchange."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import A, B, Pool

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import ServerId, TokenId
from gpupool.pool.model.state import with_changes
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.transitions.authorities import NAME_COUNT_MAX, fingerprint_of
from gpupool.pool.view_building import ViewSource, build_view

HEALTH = RaftHealth(Role.LEADER, A, 1, 1, 1, (A, B), (B,), 0.0, {}, 0)
OUT_OF_TOUCH = (
    "this server is not in touch with a majority of the voters: nothing is granted here, and what "
    "it shows may be old"
)


def test_the_rows_of_a_view_are_those_of_all_its_lists() -> None:
    """A view of more rows than some is made in pieces, so that it holds up nobody."""
    pool = Pool(gpu_count=4)
    for user in ("ada", "bob", "cy"):
        pool.grant(user)
    request = pool.request(9)
    assert pool.do(c.Wait(request, "ada", TokenId("ada"), "busy")).ok
    state = pool.state
    assert state.events
    source = ViewSource(state, HEALTH, A, state.now)
    assert source.row_count == 2 + 8 + 3 + 1 + len(state.events)


def test_a_lease_has_an_age_that_is_never_below_zero() -> None:
    pool = Pool()
    pool.grant("ada")
    for after_ms, age_s in ((2500, 2.5), (0, 0.0), (-1000, 0.0)):
        [lease] = build_view(pool.state, HEALTH, A, pool.now_ms + after_ms).leases
        assert lease.age_s == age_s


def test_a_request_has_waited_since_it_began_to() -> None:
    pool = Pool()
    assert pool.do(c.Wait(pool.request(9), "ada", TokenId("ada"), "busy")).ok
    for after_ms, waited_s in ((2500, 2.5), (0, 0.0), (-1000, 0.0)):
        [entry] = build_view(pool.state, HEALTH, A, pool.now_ms + after_ms).waiting
        assert entry.waited_s == waited_s


def exchange_of(names: int, moved: int) -> list[str]:
    """Return the warnings while two CAs are trusted, of so many servers."""
    state = Pool().state
    old, new = b"old CA", b"new CA"
    servers = [
        with_changes(
            state.servers[A],
            id=ServerId(f"{number:012}"),
            name=f"s{number}",
            issuer=fingerprint_of(new if number < moved else old),
            has_keys=True,
        )
        for number in range(names)
    ]
    table = PersistentMap((each.id, each) for each in servers)
    both = with_changes(state, servers=table, authorities=(old, new))
    one = with_changes(both, authorities=(old,))
    assert not [each for each in build_view(one, HEALTH, A, 0).warnings if "CA" in each]
    return [each for each in build_view(both, HEALTH, A, 0).warnings if "CA" in each]


def test_servers_without_a_certificate_of_the_new_ca_are_named() -> None:
    said = "two CAs are trusted, and these have no certificate of the new one yet: "
    assert exchange_of(3, 1) == [f"{said}s1, s2"]
    names = ", ".join(f"s{number}" for number in range(1, NAME_COUNT_MAX + 1))
    assert exchange_of(NAME_COUNT_MAX + 1, 1) == [f"{said}{names}"]
    assert exchange_of(NAME_COUNT_MAX + 3, 1) == [f"{said}{names} and 2 more"]


def test_once_all_have_one_the_exchange_can_be_ended() -> None:
    [said] = exchange_of(3, 3)
    assert said.endswith("gpupool ca retire ends the exchange")


@pytest.mark.parametrize(
    ("leader", "age_s", "contact"),
    [
        (A, 0.0, None),
        (None, 0.0, " (last contact 0 s ago)"),
        (None, 12.4, " (last contact 12 s ago)"),
        (A, 12.6, " (last contact 13 s ago)"),
        (None, float("inf"), ""),
    ],
)
def test_a_server_without_a_majority_says_since_when(
    leader: ServerId | None, age_s: float, contact: str | None
) -> None:
    """Before the first leader there has been none; that is no number of seconds."""
    state = Pool().state
    health = replace(HEALTH, leader=leader, majority_age_s=age_s)
    said = [each for each in build_view(state, health, A, 0).warnings if "in touch" in each]
    assert said == ([] if contact is None else [f"{OUT_OF_TOUCH}{contact}"])


def test_servers_whose_table_differs_are_named_whether_they_are_known_or_not() -> None:
    gone = ServerId("e" * 12)
    health = replace(HEALTH, diverged=(B, gone))
    said = [each for each in build_view(Pool().state, health, A, 0).warnings if "differs" in each]
    assert [each.split(" differs ")[0] for each in said] == [
        "the table of server b",
        f"the table of server {gone}",
    ]
