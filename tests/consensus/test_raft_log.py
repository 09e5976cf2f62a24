"""What a log takes from another server, and what a repair learns of it."""

import pytest
from lone_node import Lone, entry

from gpupool.consensus.core.progress import Mode, Progress
from gpupool.consensus.core.raft_log import SafetyError
from gpupool.consensus.protocol.raft_settings import IN_FLIGHT_BYTES_MAX
from gpupool.consensus.storage.superblock import Floor


@pytest.mark.parametrize("indexes", [(4,), (3, 5), (3, 3), (4, 3)])
def test_entries_out_of_order_stop_the_server_before_any_is_stored(
    indexes: tuple[int, ...],
) -> None:
    lone = Lone()
    with pytest.raises(SafetyError, match="out of order"):
        lone.append(2, 1, [entry("x", index, 5) for index in indexes])
    assert lone.journal.last_index == 2


def test_a_server_in_repair_takes_in_what_others_remember_of_its_promises() -> None:
    lone = Lone()
    lone.node.storage.superblock.lose(Floor(1, 2))
    lone.take("b", "promised", term=7, index=40)
    assert lone.node.storage.superblock.floor == Floor(7, 40)
    assert lone.node.core.term == 7
    lone.take("c", "promised", term=6, index=50)
    assert lone.node.storage.superblock.floor == Floor(7, 50), "the highest of each counts"


@pytest.mark.parametrize("told", [0, 40])
def test_a_repair_ends_by_what_a_leader_committed_in_its_own_term(told: int) -> None:
    """Seed 10130639: others knew the leader's term and no entry, and the repair did not end.

    An index would be too little. Others know that of the last term alone, and what this server
    acknowledged in an earlier one may be committed and lie behind.
    """
    lone = Lone(entries=[entry("x", 3, 4)], term=5)
    superblock = lone.node.storage.superblock
    superblock.lose(Floor(4, 60))
    lone.take("c", "promised", term=5, index=told)
    behind = [entry("x", index, 4) for index in range(4, 51)]
    lone.append(3, 4, behind, commit=50)
    assert superblock.floor is not None, "committed by an earlier leader"
    lone.append(50, 4, [entry("x", 51, 5)], commit=50)
    assert superblock.floor is not None, "not committed yet"
    lone.append(51, 5, [], commit=51)
    assert superblock.floor is None


def test_a_server_that_lost_nothing_is_not_repaired_by_a_late_answer() -> None:
    lone = Lone()
    lone.take("b", "promised", term=7, index=40)
    assert lone.node.storage.superblock.floor is None


def test_the_bytes_on_the_way_are_counted_exactly_from_the_start_and_anew() -> None:
    progress = Progress()
    for mode in (Mode.REPLICATE, Mode.PROBE, Mode.REPLICATE):
        progress.sent(3, IN_FLIGHT_BYTES_MAX - 1)
        assert progress.has_room()
        progress.sent(4, 1)
        assert not progress.has_room()
        progress.become(mode)
        assert progress.has_room()
