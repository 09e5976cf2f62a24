"""What an audit of consensus found (H3, H5, H6, H7), as it was shown, and that it is mended."""

from typing import Any

import pytest
from lone_node import Lone, entry
from raft_world import MemoryDisk

from gpupool.consensus.core.library import COMMAND_TYPE
from gpupool.consensus.node import ApplyError
from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.membership import encode_voters
from gpupool.consensus.storage.store import MEMBERSHIP_TYPE, Storage
from gpupool.pool.model.ids import Plain, ServerId


def forward(lone: Lone, value: Plain) -> bytes:
    """Return the frame by which "b" forwards a command to the leader."""
    command = COMMAND_TYPE + closed_cbor.encode(value)
    term = lone.node.core.term
    return lone.frame("b", "forward", term=term, request_id=1, command=command, deadline_ms=10**9)


# --- H3: an error that one server alone has ----------------------------------------------------


@pytest.mark.parametrize("error", [MemoryError(), RecursionError("deep"), KeyError("a bug")])
def test_h3_a_foreign_error_in_apply_stops_the_server(error: Exception) -> None:
    lone = Lone(("me", "b", "c"), term=5)
    real = lone.machine.apply

    def apply(index: int, command: Plain) -> Plain:
        if command == "grant":
            raise error
        return real(index, command)

    lone.machine.apply = apply  # type: ignore[method-assign]
    lone.append(2, 1, [entry("grant", 3, 5), entry("b", 4, 5)], term=5, commit=2)
    with pytest.raises(ApplyError) as raised:
        lone.append(4, 5, [], term=5, commit=4)
    assert "entry 3" in str(raised.value)
    assert type(error).__name__ in str(raised.value)
    assert lone.node.core.applied_index == 2
    assert lone.machine.log == []
    lone.restart()  # Now there is memory.
    lone.append(4, 5, [], term=5, commit=4)
    assert lone.machine.log == ["grant", "b"]


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_h3_a_command_that_this_server_alone_cannot_read_stops_it(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    lone = Lone(("me", "b", "c"), term=5)
    lone.append(2, 1, [entry("unread", 3, 5)], term=5, commit=2)

    def decoder(*_arguments: object, **_options: object) -> Any:
        raise error

    monkeypatch.setattr(closed_cbor.cbor2, "CBORDecoder", decoder)
    closed_cbor.decode_command.cache_clear()
    lone.node.core.commit_to(3)
    with pytest.raises(ApplyError):
        lone.tick()


def test_h3_what_no_server_can_read_or_the_rules_refuse_is_a_result() -> None:
    lone = Lone(("me", "b", "c"), term=5)
    broken = (COMMAND_TYPE + b"\xff", 3, 5)
    lone.append(2, 1, [broken, entry("raise", 4, 5), entry("b", 5, 5)], term=5, commit=5)
    assert lone.machine.log == ["half done", "b"]


# --- H5: how far a follower may commit --------------------------------------------------------


def test_h5_what_matched_in_an_earlier_term_of_a_leader_is_not_committed_in_a_later_one() -> None:
    lone = Lone(("me", "b", "c"), term=5)
    entries = [entry("a", 3, 5), entry("b", 4, 5), entry("old", 5, 5), entry("older", 6, 5)]
    lone.append(2, 1, entries, term=5, commit=4)
    assert lone.machine.log == ["a", "b"]
    # In term 6 "c" led, and wrote other entries at 5 and 6. Now "b" leads again: its probe
    # arrives, the entries do not, and then it says how far it has committed.
    assert lone.append(4, 5, [], term=7, commit=4)[-1][1]["success"]
    lone.take("b", "commit", term=7, commit_index=7)
    assert lone.machine.log == ["a", "b"]
    assert lone.node.core.commit_index == 4


def test_h5_a_commit_goes_no_further_than_the_log_is_known_to_match() -> None:
    old = [entry("old", 3, 2), entry("older", 4, 2), entry("oldest", 5, 2)]
    lone = Lone(("me", "b", "c"), term=2, entries=old)
    lone.take("b", "heartbeat", term=5, clock_ms=0, majority_age_ms=0)
    lone.take("b", "commit", term=5, commit_index=5)
    assert lone.machine.log == [], "nothing of this leader's log has arrived"
    lone.append(3, 2, [], term=5, commit=1)
    lone.take("b", "commit", term=5, commit_index=5)
    assert lone.machine.log == ["old"], "up to 3 the logs are the same; 4 and 5 may differ"
    lone.append(5, 2, [], term=5, commit=1)
    lone.take("c", "commit", term=5, commit_index=5)
    lone.take("b", "commit", term=4, commit_index=5)
    assert lone.machine.log == ["old"], "of another server, and of another term"
    lone.take("b", "commit", term=5, commit_index=5)
    assert lone.machine.log == ["old", "older", "oldest"]


# --- H7: nothing is applied before this server has synced it -----------------------------------


def test_h7_a_single_voter_applies_a_forwarded_command_after_its_own_sync() -> None:
    lone = Lone(("me",), peers=("b",))
    lone.tick(1.0)
    lone.tick()
    lone.tick()
    lone.node.receive(ServerId("b"), forward(lone, "x"), lone.now)
    lone.node.step(lone.now)
    assert lone.machine.log == []
    lone.node.ready()
    assert lone.node.next_step_at() <= lone.now + 0.001
    lone.node.step(lone.now)
    assert lone.machine.log == ["x"]


def test_h7_a_single_voter_applies_nothing_of_its_old_log_before_it_is_synced_again() -> None:
    lone = Lone(("me",), entries=[entry("old", 3, 1)])
    lone.now += 1.0
    lone.node.step(lone.now)
    assert lone.node.leads
    assert lone.machine.log == [], "the vote and the first entry of the term are not on the disk"
    lone.node.ready()
    lone.node.step(lone.now)
    assert lone.machine.log == ["old"]


def test_h7_a_leader_counts_its_own_log_as_far_as_it_is_synced() -> None:
    """Two voters: the other one has the entry, this one has not synced it."""
    lone = Lone(("me", "b"))
    term = lone.win("b")
    lone.acknowledge("b", lone.journal.last_index)
    lone.tick()
    lone.node.receive(ServerId("b"), forward(lone, "x"), lone.now)
    index = lone.journal.last_index
    answer = {"term": term, "next_node_idx": index + 1, "success": True, "rejected": -1}
    lone.node.receive(ServerId("b"), lone.frame("b", "next_node_idx", **answer), lone.now)
    lone.node.step(lone.now)
    assert lone.machine.log == []
    lone.tick()
    lone.tick()
    assert lone.machine.log == ["x"]


def test_h7_entries_that_replaced_synced_ones_are_not_synced() -> None:
    """A follower that becomes the leader in the step in which entries gave way to others."""
    disk = MemoryDisk()
    journal = Storage(disk, create=True).journal
    names = [ServerId(name) for name in ("me", "b", "c")]
    journal.append(MEMBERSHIP_TYPE + encode_voters(names), 2, 1)
    journal.append(*entry("gives way", 3, 1))
    journal.set_vote(1, None)
    journal.sync()
    lone = Lone(("me", "b", "c"), disk=disk)
    assert lone.node.core.synced_index == 3
    lone.node.core.store(2, 1, [entry("new", 3, 2)])
    assert lone.node.core.synced_index == 2
    lone.tick()
    assert lone.node.core.synced_index == 3
