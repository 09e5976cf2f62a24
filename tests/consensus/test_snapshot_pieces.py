"""Pieces of a snapshot that arrive while connections come and go."""

from lone_node import Lone

from gpupool.pool.model.ids import ServerId

PIECE = b"x" * 1000


def received(
    lone: Lone,
    offset: int,
    sender: str = "b",
    *,
    term: int = 5,
    leading: bool = True,
    index: int = 10,
) -> int:
    """Take one piece of a longer snapshot; return how much of it is here."""
    sent = lone.take(
        sender,
        "snapshot",
        term=term,
        leading=leading,
        index=index,
        total=10_000,
        offset=offset,
        data=PIECE,
    )
    [answer] = [message for _, message in sent if message["type"] == "snapshot_ack"]
    return int(answer["received"])


def test_pieces_stay_when_another_server_hangs_up() -> None:
    lone = Lone()
    assert received(lone, 0) == 1000
    lone.node.disconnected(ServerId("c"), lone.now)
    assert received(lone, 1000) == 2000


def test_the_leader_and_the_source_of_pulls_send_their_snapshots_at_once() -> None:
    """A server that does not know of its vote yet gets both (seed 10003254).

    Each piece of the one began the other from the start, for ever.
    """
    lone = Lone(("b", "c"), peers=("b", "c"))
    asked = [peer for peer, message in lone.tick(2.0) if message["type"] == "pull"]
    [source] = asked
    leader = "c" if source == "b" else "b"
    for offset in range(0, 3000, 1000):
        assert received(lone, offset, source, leading=False) == offset + 1000
        assert received(lone, offset, leader, index=12) == offset + 1000


def test_pieces_of_a_former_leader_are_dropped() -> None:
    lone = Lone()
    assert received(lone, 0, "b", term=5) == 1000
    assert received(lone, 0, "c", term=6) == 1000
    assert received(lone, 1000, "b", term=7) == 0, "it leads again, and begins anew"
