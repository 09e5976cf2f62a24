"""Pieces of a snapshot that arrive while connections come and go."""

from lone_node import Lone

from gpupool.pool.model.ids import ServerId

PIECE = b"x" * 1000


def received(lone: Lone, offset: int) -> int:
    """Take one piece of a longer snapshot from the leader; return how much is here."""
    sent = lone.take(
        "b",
        "snapshot",
        term=5,
        leading=True,
        index=10,
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
