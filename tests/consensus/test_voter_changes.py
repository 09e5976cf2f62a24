"""Voters in a log: the permitted ones, the permitted changes, and the next change."""

import pytest

from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.membership import (
    Configuration,
    Configurations,
    decode_voters,
    encode_voters,
    next_step,
    objection,
)
from gpupool.consensus.protocol.raft_settings import VOTERS_MAX
from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.ids import Plain, ServerId


def voters(names: str) -> tuple[ServerId, ...]:
    return tuple(ServerId(name) for name in names)


@pytest.mark.parametrize("names", ["", "a", "ab", "abcdefg"])
def test_up_to_seven_voters_are_read_as_they_were_written(names: str) -> None:
    assert VOTERS_MAX == 7
    assert decode_voters(encode_voters(voters(names))) == voters(names)
    assert encode_voters(voters(names[::-1])) == encode_voters(voters(names)), "in one order"


@pytest.mark.parametrize(
    "value",
    [
        {"voters": list("abcdefgh")},
        {"voters": ["a", "a"]},
        {"voters": ["a", "b", "a"]},
        {"voters": [1]},
        {"voters": ["a", None]},
        {"voters": [None, None]},
        {"voters": "ab"},
        {"voters": {"a": 1}},
        {"voters": ["a"], "more": 1},
        {"names": ["a"]},
        {},
        ["a"],
        None,
    ],
)
def test_other_lists_of_voters_make_no_sense(value: Plain) -> None:
    with pytest.raises(RemoteProtocolError, match="a list of voters makes no sense"):
        decode_voters(closed_cbor.encode(value))


def test_before_the_first_configuration_that_is_known_it_is_the_base() -> None:
    known = Configurations(Configuration(5, voters("a")))
    assert known.current == known.at(9) == Configuration(5, voters("a"))
    known.append(8, voters("ab"))
    known.append(11, voters("abc"))
    assert [known.at(index).index for index in (0, 4, 5, 8, 11, 12)] == [5, 5, 5, 8, 11, 11]
    assert known.current == Configuration(11, voters("abc"))


@pytest.mark.parametrize(
    ("first", "left"), [(12, 11), (11, 8), (9, 8), (8, 5), (6, 5), (5, 5), (0, 5)]
)
def test_configurations_go_with_their_entries_and_the_base_stays(first: int, left: int) -> None:
    known = Configurations(Configuration(5, voters("a")))
    known.append(8, voters("ab"))
    known.append(11, voters("abc"))
    known.truncate(first)
    assert known.current.index == left
    assert known.at(99).index == left


@pytest.mark.parametrize(("base", "newest"), [(5, 11), (8, 11), (10, 11), (11, 11), (12, 12)])
def test_a_new_base_keeps_what_is_behind_it_only(base: int, newest: int) -> None:
    known = Configurations(Configuration(5, voters("a")))
    known.append(8, voters("ab"))
    known.append(11, voters("abc"))
    known.reset(Configuration(base, voters("xyz")))
    assert known.current.index == newest
    assert known.at(base) == Configuration(base, voters("xyz"))
    assert known.at(0) == Configuration(base, voters("xyz"))


@pytest.mark.parametrize(
    ("current", "desired", "why"),
    [
        ("ab", "abc", None),
        ("abc", "ab", None),
        ("abc", "abc", None),
        ("ab", "abcd", "voters change one at a time"),
        ("abc", "a", "voters change one at a time"),
        ("abc", "abd", "voters change one at a time"),
        ("a", "", "somebody must vote"),
        ("", "", "somebody must vote"),
        ("ab", "abb", "a voter is named twice"),
        ("ab", "abcc", "a voter is named twice"),
        ("abcdef", "abcdefg", None),
        ("abcdefg", "abcdefgh", "at most 7 servers vote"),
        ("abcdefgh", "abcdefghi", "at most 7 servers vote"),
        ("abcdefgh", "abcdefgh", None),
        ("abcdefghi", "abcdefgh", None),
        ("abcdefgh", "abcdefg", None),
        ("abcdefg", "abcdef", None),
    ],
)
def test_why_a_change_of_voters_is_refused(current: str, desired: str, why: str | None) -> None:
    """A pool that has more voters than are allowed may have fewer of them."""
    assert objection(voters(current), voters(desired)) == why


@pytest.mark.parametrize(
    ("current", "desired", "ready", "step"),
    [
        ("a", "a", "a", None),
        ("a", "ab", "ab", "ab"),
        ("a", "ab", "a", None),
        ("a", "abc", "bc", "ab"),
        ("a", "abc", "c", "ac"),
        ("abc", "a", "", "ac"),
        ("abc", "abd", "d", "abcd"),
        ("abc", "abd", "", None),
        ("abcd", "abe", "", "abd"),
        ("abcd", "abef", "", None),
        ("abcd", "aefgh", "", None),
        ("abcde", "abfg", "", "abde"),
        ("abcdefg", "abcdefh", "h", "abcdef"),
        ("abcdefg", "abcdefh", "", None),
        ("abcdefgh", "abcdefg", "", "abcdefg"),
        ("abcdef", "abcdegh", "gh", "abcdefg"),
        ("a", "b", "", None),
        ("ab", "b", "", None),
        ("bca", "a", "", "ca"),
    ],
)
def test_the_next_change_of_voters(
    current: str, desired: str, ready: str, step: str | None
) -> None:
    """The leader "a" adds before it removes, unless there are seven, and never leaves itself."""
    everyone = voters("abcdefgh")
    found = next_step(
        voters(current), voters(desired), ready=voters(ready), able=everyone, leader=ServerId("a")
    )
    assert found == (None if step is None else voters(step))


@pytest.mark.parametrize(
    ("able", "step"),
    [("abcd", "acd"), ("acd", "acd"), ("abc", "abc"), ("ac", "acd"), ("ab", "abd"), ("a", None)],
)
def test_a_voter_leaves_while_a_majority_of_the_rest_can_answer(
    able: str, step: str | None
) -> None:
    found = next_step(
        voters("abcd"), voters("a"), ready=(), able=voters(able), leader=ServerId("a")
    )
    assert found == (None if step is None else voters(step))


@pytest.mark.parametrize(("able", "step"), [("ac", "ac"), ("ab", "ab"), ("a", None)])
def test_of_two_that_stay_half_is_no_majority(able: str, step: str | None) -> None:
    found = next_step(voters("abc"), voters("a"), ready=(), able=voters(able), leader=ServerId("a"))
    assert found == (None if step is None else voters(step))
