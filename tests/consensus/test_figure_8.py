"""Figure 8 of the Raft paper: an entry of an earlier term is not committed by counting copies.

A leader that counted them would apply an entry which another server, elected without it, replaces.
(Ongaro and Ousterhout, In search of an understandable consensus algorithm, section 5.4.2.)
"""

import pytest
from lone_node import Lone, entry
from tests.simulations.mutations.broken_consensus import commits_old_terms

from gpupool.consensus.core.raft_log import SafetyError


def leads_again() -> tuple[Lone, int, int]:
    """Return S1 of the figure at (c), the index of its old entry, and that entry's term.

    S1 wrote the entry, which b got and nobody else. It crashed, and e led in the next term, with an
    entry at the same index that S1 never got. S1 leads again, with an entry of its new term behind.
    """
    lone = Lone(("me", "b", "c", "d", "e"))
    term = lone.win("b", "c")
    begun = lone.journal.last_index
    lone.acknowledge("b", begun)
    lone.acknowledge("c", begun)
    lone.propose("x")
    lone.tick()
    index = lone.journal.last_index
    lone.acknowledge("b", index)
    assert lone.node.core.commit_index == begun
    lone.restart()
    lone.append(begun, term, [], term=term + 1, commit=begun, leader="e")
    assert lone.win("b", "c") == term + 2
    assert lone.journal.last_index == index + 1
    return lone, index, term


def test_a_majority_of_copies_does_not_commit_an_entry_of_an_earlier_term() -> None:
    lone, index, term = leads_again()
    lone.acknowledge("b", index)
    lone.acknowledge("c", index)
    assert lone.node.core.commit_index < index
    assert "x" not in lone.machine.log
    # (d): b, c and d elect e, whose last entry is of a later term than theirs.
    lone.append(
        index - 1, term, [entry("y", index, term + 1)], term=term + 3, commit=index, leader="e"
    )
    assert lone.machine.log == ["y"]


def test_an_entry_of_the_leaders_own_term_commits_those_before_it() -> None:
    """(e) of the figure: from then on e cannot be elected."""
    lone, index, _ = leads_again()
    lone.acknowledge("b", index + 1)
    assert lone.node.core.commit_index < index
    lone.acknowledge("c", index + 1)
    assert lone.node.core.commit_index == index + 1
    assert lone.machine.log == ["x"]


def test_a_build_that_counts_copies_of_old_entries_is_noticed() -> None:
    with commits_old_terms():
        lone, index, term = leads_again()
        lone.acknowledge("b", index)
        lone.acknowledge("c", index)
        assert lone.machine.log == ["x"]
        with pytest.raises(SafetyError):
            lone.append(index - 1, term, [entry("y", index, term + 1)], term=term + 3, leader="e")
