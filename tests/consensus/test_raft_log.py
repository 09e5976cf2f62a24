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
    assert lone.node.storage.superblock.floor == Floor(7, 40), "the highest counts"


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
