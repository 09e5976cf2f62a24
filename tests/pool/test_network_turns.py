"""Each network has its turn, however many of another one wait."""

import pytest

from gpupool.pool.fair_access import (
    FIRST_IN_ROW_MAX,
    SERVED_COUNT_MAX,
    NetworkTurns,
    network_of,
)


def test_networks_have_turns_and_each_of_its_own_keeps_its_order() -> None:
    turns = NetworkTurns[str]()
    for number in range(100):
        turns.add("a", f"a{number}")
    for item in ("b0", "b1", "c0"):
        turns.add(item[0], item)
    assert [turns.pop() for _ in range(8)] == ["a0", "b0", "c0", "a1", "b1", "a2", "a3", "a4"]
    assert turns.size == turns.count("a") == 95


def test_one_who_comes_for_the_first_time_goes_first_and_starves_nobody() -> None:
    turns = NetworkTurns[str]()
    for network in ("a", "b", "a", "b"):
        turns.add(network, f"{network}{turns.size}")
    turns.pop()
    turns.pop()
    for number in range(100):
        turns.add(f"new {number}", f"new {number}")
    found = [turns.pop() for _ in range(2 * FIRST_IN_ROW_MAX + 2)]
    assert sorted(each for each in found if not each.startswith("new")) == ["a2", "b3"]


def test_who_leaves_has_no_turn() -> None:
    turns = NetworkTurns[str]()
    turns.add("a", "x")
    turns.add("a", "y")
    assert turns.remove("a", "x")
    assert not turns.remove("a", "x")
    assert not turns.remove("b", "y")
    assert turns.pop() == "y"
    assert turns.size == 0


def test_a_network_is_forgotten_after_many_others_had_their_turn() -> None:
    turns = NetworkTurns[str]()
    for number in range(SERVED_COUNT_MAX + 2):
        turns.add(f"n{number}", f"n{number}")
    for _ in range(SERVED_COUNT_MAX + 1):
        turns.pop()
    for network, item in (("n1", "known 1"), ("n2", "known 2"), ("n0", "forgotten")):
        turns.add(network, item)
    newest = f"n{SERVED_COUNT_MAX + 1}"
    assert [turns.pop() for _ in range(4)] == ["known 1", newest, "forgotten", "known 2"]


def test_a_network_with_another_turn_has_one_of_four_while_new_ones_wait() -> None:
    turns = NetworkTurns[str]()
    for item in ("a0", "a1", "a2", "b0", "c0", "d0", "e0", "f0", "g0"):
        turns.add(item[0], item)
    found = [turns.pop() for _ in range(9)]
    assert found == ["a0", "b0", "c0", "a1", "d0", "e0", "f0", "a2", "g0"]


def test_who_has_left_a_network_that_is_empty_now_holds_up_nobody() -> None:
    turns = NetworkTurns[str]()
    assert turns.size == 0
    turns.add("a", "x")
    assert turns.remove("a", "x") is True
    assert turns.remove("a", "x") is False
    turns.add("b", "y")
    assert (turns.size, turns.count("a"), turns.count("b")) == (1, 0, 1)
    assert turns.pop() == "y"


def test_who_comes_again_stands_once_and_at_the_end_of_its_network() -> None:
    turns = NetworkTurns[str]()
    for item in ("x", "y", "x"):
        turns.add("a", item)
    assert (turns.size, turns.count("a")) == (2, 2)
    assert [turns.pop(), turns.pop()] == ["y", "x"]


def test_once_nobody_waits_every_network_is_new_again() -> None:
    turns = NetworkTurns[str]()
    turns.add("a", "a0")
    assert turns.pop() == "a0"
    turns.add("a", "a1")
    turns.add("b", "b0")
    assert [turns.pop(), turns.pop()] == ["a1", "b0"]


def test_a_network_that_had_another_turn_is_remembered_longer() -> None:
    turns = NetworkTurns[str]()
    turns.add("a", "a0")
    turns.add("a", "a1")
    turns.add("b", "b0")
    for number in range(SERVED_COUNT_MAX + 1):
        turns.add(f"n{number}", f"n{number}")
    assert [turns.pop() for _ in range(4)] == ["a0", "b0", "n0", "a1"]
    for _ in range(SERVED_COUNT_MAX - 2):
        turns.pop()
    turns.add("b", "forgotten")
    turns.add("a", "known")
    assert [turns.pop() for _ in range(4)] == [
        "known",
        f"n{SERVED_COUNT_MAX - 1}",
        f"n{SERVED_COUNT_MAX}",
        "forgotten",
    ]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::6", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
        ("", ""),
    ],
)
def test_a_network_is_an_ipv4_address_or_an_ipv6_64(address: str, network: str) -> None:
    assert network_of(address) == network
