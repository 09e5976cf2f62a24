"""Each network has its turn, however many of another one wait."""

from gpupool.pool.network_turns import FIRST_IN_ROW_MAX, SERVED_COUNT_MAX, NetworkTurns


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
