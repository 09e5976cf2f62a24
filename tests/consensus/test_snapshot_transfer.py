"""Snapshots of one node with a storage, peers and works played by the test."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import pytest
from raft_world import Register

from gpupool.consensus.core.library import FOLLOWER, LEADER
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.snapshot_transfer import SnapshotTransfer, Work, run_at_once
from gpupool.consensus.storage.snapshot import Snapshot, decode_snapshot, encode_snapshot
from gpupool.pool.model.codec import CodecError
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.model.pieces import Field, PieceDecoder

ME, B = ServerId("me"), ServerId("b")
LOG_BYTES = 1000


@dataclass
class Around:
    """The node, its core, its storage and its connections, as far as snapshots need them."""

    voters: tuple[ServerId, ...] = (ME, B)
    state: int = FOLLOWER
    latest: Snapshot | None = None
    server_id: ServerId = ME
    now: float = 100.0
    term: int = 5
    base_index: int = 1
    applied_index: int = 1
    commit_index: int = 1
    bytes_since_rewrite: int = 0
    leader: ServerId | None = None
    settings: ConsensusSettings = field(
        default_factory=lambda: ConsensusSettings(snapshot_log_bytes=LOG_BYTES)
    )
    sent: list[Message] = field(default_factory=list[Message])
    did: list[str] = field(default_factory=list[str])
    written: tuple[int, bytes] = (0, b"")

    @property
    def core(self) -> "Around":
        return self

    storage = journal = snapshots = configurations = frames = core

    def encoded_latest(self) -> bytes:
        assert self.latest is not None
        return encode_snapshot(self.latest)

    def send(self, _peer: ServerId, message: Message) -> None:
        self.sent.append(message)

    def term_at(self, _index: int) -> int:
        return 1

    def at(self, _index: int) -> "Around":
        return self

    def follow(self, _peer: ServerId, _message: Message) -> bool:
        return True

    def takes_from(self, _peer: ServerId) -> bool:
        return True

    def answered(self, _peer: ServerId) -> float:
        return self.now

    def snapshot_piece_arrived(self) -> None:
        self.did.append("piece")

    def pull(self, _peer: ServerId) -> None:
        self.did.append("pull")

    def write(self, index: int, data: bytes) -> None:
        self.did.append("write")
        self.written = (index, data)

    def saved(self, _snapshot: Snapshot, _data: bytes) -> None:
        self.did.append("saved")

    def taken(self, **_least: int) -> None:
        self.did.append("taken")

    def acknowledge_snapshot(self, _peer: ServerId, _index: int) -> None:
        self.did.append("acknowledged")

    def installed(self, *_what: object) -> None:
        self.did.append("installed")


def transfer_of(
    around: Around, machine: Register, run_work: Callable[[Work], None] = run_at_once
) -> SnapshotTransfer:
    node: Any = around
    return SnapshotTransfer(node, machine, node, run_work)


def snapshot(state: Plain, index: int = 10) -> Snapshot:
    return Snapshot(index, 1, (ME, B), state)


@pytest.mark.parametrize(("state", "leads"), [(LEADER, True), (FOLLOWER, False)])
def test_every_piece_says_whether_a_leader_sends_it(state: int, leads: bool) -> None:
    around = Around(state=state, latest=snapshot("x" * 1_200_000))
    transfer = transfer_of(around, Register())
    transfer.send(B, leading=leads)
    while around.sent[-1]["offset"] + len(around.sent[-1]["data"]) < around.sent[-1]["total"]:
        received = around.sent[-1]["offset"] + len(around.sent[-1]["data"])
        transfer.on_snapshot_ack(B, {"index": 10, "received": received})
    assert [piece["leading"] for piece in around.sent] == [leads] * 3


@pytest.mark.parametrize("entries_up_to", [1, 10, 11])
def test_a_snapshot_does_not_undo_entries_that_were_quicker(entries_up_to: int) -> None:
    """Entries are applied while the snapshot is decoded, which goes on beside the loop."""
    around, machine, works = Around(), Register(), list[Work]()
    machine.restore(["from entries"])
    transfer = transfer_of(around, machine, works.append)
    data = encode_snapshot(snapshot(["from the snapshot"]))
    piece = {"leading": True, "index": 10, "total": len(data), "offset": 0, "data": data}
    transfer.on_snapshot(B, piece)
    [work] = works
    around.commit_index = entries_up_to
    run_at_once(work)
    if entries_up_to < 10:
        assert machine.log == ["from the snapshot"]
        assert around.did == ["piece", "write", "installed", "installed", "acknowledged"]
    else:
        assert machine.log == ["from entries"]
        assert around.did == ["piece", "write", "saved", "acknowledged"]


def test_a_server_without_a_vote_takes_its_snapshots_as_late_as_the_last_voter() -> None:
    """After one and a half times the bytes that are set, at most."""
    late = next(f"s{n}" for n in range(999) if crc32(f"s{n}".encode()) > 0.9 * 2**32)
    around = Around(server_id=ServerId(late))
    transfer = transfer_of(around, Register())
    around.applied_index = 2
    around.bytes_since_rewrite = int(1.4 * LOG_BYTES)
    transfer.take_if_due()
    assert around.did == []
    around.bytes_since_rewrite = int(1.5 * LOG_BYTES)
    for _ in range(2):  # the second time nothing more was written
        transfer.take_if_due()
        around.applied_index += 1
        assert around.did == ["write", "saved", "taken"]


@pytest.mark.parametrize(("applied", "taken"), [(1, False), (2, True)])
def test_no_snapshot_is_taken_while_nothing_was_applied_since_the_last_one(
    applied: int, taken: bool
) -> None:
    around = Around(applied_index=applied)
    transfer = transfer_of(around, Register())
    around.bytes_since_rewrite = 9 * LOG_BYTES
    transfer.take_if_due()
    assert around.did == (["write", "saved", "taken"] if taken else [])


@pytest.mark.parametrize(
    ("voters", "every", "taken_at"),
    [
        ((ME,), 10, [11, 21, 31]),
        ((B, ME), 10, [6, 16, 26, 36]),
        ((B, ME), 9, [14, 23, 32]),
        ((B, ServerId("c"), ME), 9, [7, 16, 25, 34]),
        ((ME, ServerId("z")), 9, [10, 19, 28, 37]),
    ],
)
def test_voters_take_their_snapshots_in_turn(
    voters: tuple[ServerId, ...], every: int, taken_at: list[int]
) -> None:
    settings = ConsensusSettings(snapshot_entries=every)
    around, found = Around(voters=voters, settings=settings), list[int]()
    transfer = transfer_of(around, Register())
    for index in range(1, 40):
        around.applied_index = index
        transfer.take_if_due()
        if around.did:
            found.append(index)
            around.did.clear()
    assert found == taken_at


@pytest.mark.parametrize("end", ["not needed", "disconnected"])
def test_a_peer_that_needs_a_snapshot_again_gets_it_from_the_start_at_once(end: str) -> None:
    around = Around(latest=snapshot("x" * 1_200_000))
    transfer = transfer_of(around, Register())
    transfer.send(B, leading=True)
    transfer.send(B, leading=True)
    assert len(around.sent) == 1, "the first piece may still be answered"
    if end == "disconnected":
        transfer.disconnected(B)
    else:
        transfer.not_needed_by(B)
    transfer.on_snapshot_ack(B, {"index": 10, "received": len(around.sent[0]["data"])})
    assert len(around.sent) == 1, "that answer comes too late"
    transfer.send(B, leading=True)
    assert [message["offset"] for message in around.sent] == [0, 0]


def test_a_piece_without_an_answer_is_sent_again() -> None:
    around = Around(latest=snapshot("x" * 1_200_000))
    transfer = transfer_of(around, Register())
    transfer.send(B, leading=True)
    for now, sent in ((100.4, 1), (100.5, 2), (100.9, 2), (101.0, 3)):
        around.now = now
        transfer.send(B, leading=True)
        assert len(around.sent) == sent


def piece_of(data: bytes, *, index: int = 10, leading: bool = True) -> Message:
    return {"leading": leading, "index": index, "total": len(data), "offset": 0, "data": data}


@pytest.mark.parametrize(("leading", "then"), [(True, "acknowledged"), (False, "pull")])
@pytest.mark.parametrize(("committed", "installs"), [(9, True), (10, False), (11, False)])
def test_only_a_snapshot_beyond_what_is_committed_is_taken(
    leading: bool, then: str, committed: int, installs: bool
) -> None:
    around, machine = Around(commit_index=committed), Register()
    data = encode_snapshot(snapshot(["from the snapshot"]))
    transfer_of(around, machine).on_snapshot(B, piece_of(data, leading=leading))
    installed = ["write", "installed", "installed"] if installs else []
    assert around.did == ["piece", *installed, then]
    assert around.sent == []
    assert machine.log == (["from the snapshot"] if installs else [])


def test_a_piece_of_a_snapshot_that_is_not_needed_is_not_kept() -> None:
    around = Around(commit_index=10)
    transfer = transfer_of(around, Register())
    transfer.on_snapshot(B, {**piece_of(b"half"), "total": 8})
    assert (around.did, around.sent) == (["piece", "acknowledged"], [])


def test_one_snapshot_is_installed_after_the_other() -> None:
    around, machine = Around(), Register()
    transfer = transfer_of(around, machine)
    for index in (10, 20):
        data = encode_snapshot(snapshot([index], index))
        transfer.on_snapshot(B, piece_of(data, index=index))
        assert machine.log == [index]
        around.commit_index = around.applied_index = index
    around.bytes_since_rewrite = 9 * LOG_BYTES
    transfer.take_if_due()
    assert around.did[-1] == "acknowledged", "nothing was applied since"
    around.applied_index = 21
    transfer.take_if_due()
    assert around.did[-1] == "taken"


def test_a_snapshot_waits_for_the_end_of_other_work() -> None:
    around, machine, works = Around(), Register(), list[Work]()
    transfer = transfer_of(around, machine, works.append)
    around.applied_index, around.bytes_since_rewrite = 2, 9 * LOG_BYTES
    transfer.take_if_due()
    data = encode_snapshot(snapshot(["from the snapshot"]))
    transfer.on_snapshot(B, piece_of(data))
    assert len(works) == 1
    run_at_once(works.pop())
    transfer.on_snapshot(B, piece_of(data))
    transfer.on_snapshot(B, piece_of(data))
    around.applied_index = 3
    transfer.take_if_due()
    assert len(works) == 1, "one at a time"
    run_at_once(works.pop())
    assert machine.log == ["from the snapshot"]


def test_pieces_of_a_connection_that_is_gone_are_dropped() -> None:
    around = Around()
    transfer = transfer_of(around, Register())
    data = encode_snapshot(snapshot(["x"]))
    half = len(data) // 2
    first = {**piece_of(data[:half]), "total": len(data)}
    second = {**piece_of(data[half:]), "total": len(data), "offset": half}
    transfer.on_snapshot(B, first)
    transfer.disconnected(B)
    transfer.on_snapshot(B, second)
    assert [message["received"] for message in around.sent] == [half, 0]


@pytest.mark.parametrize("longer", [0, 1])
def test_a_newer_snapshot_of_a_peer_begins_anew(longer: int) -> None:
    around, machine = Around(), Register()
    transfer = transfer_of(around, machine)
    older = encode_snapshot(snapshot(["old"], 10))
    newer = encode_snapshot(snapshot(["new" + "!" * longer], 20))
    half = len(older) // 2
    transfer.on_snapshot(B, {**piece_of(older[:half]), "total": len(older)})
    first = {**piece_of(newer[:half], index=20), "total": len(newer)}
    transfer.on_snapshot(B, first)
    assert [message["received"] for message in around.sent] == [half, half]
    transfer.on_snapshot(B, {**first, "offset": half, "data": newer[half:]})
    assert machine.log == ["new" + "!" * longer]


class Sliced(Register):
    """A table that reads snapshots in pieces, and rejects this one as foreign."""

    def snapshot_fields(self) -> list[Field]:
        return []

    def restoring(self) -> PieceDecoder[Any]:
        raise CodecError("a field of a later build")

    def adopt(self, state: Any) -> None:
        raise AssertionError(state)


def test_a_state_that_this_build_cannot_read_is_not_asked_for_again() -> None:
    around = Around()
    data = encode_snapshot(snapshot(["x"]))
    with pytest.raises(CodecError, match="of a later build"):
        transfer_of(around, Sliced()).on_snapshot(B, piece_of(data))
    assert around.sent == []


def test_a_damaged_snapshot_is_asked_for_again() -> None:
    around = Around()
    data = bytearray(encode_snapshot(snapshot(["x"])))
    data[-1] ^= 1
    transfer_of(around, Register()).on_snapshot(B, piece_of(bytes(data)))
    assert [message["received"] for message in around.sent] == [0]


@pytest.mark.parametrize("state", [["one", 2], []])
def test_a_snapshot_is_of_the_moment_at_which_it_was_due(state: list[Plain]) -> None:
    around, machine, works = Around(), Register(), list[Work]()
    machine.restore(state)
    transfer = transfer_of(around, machine, works.append)
    around.applied_index, around.bytes_since_rewrite = 7, 9 * LOG_BYTES
    transfer.take_if_due()
    machine.apply(8, "later")
    around.applied_index = 8
    run_at_once(works.pop())
    index, data = around.written
    assert (index, decode_snapshot(data)) == (7, Snapshot(7, 1, (ME, B), state))


def test_a_server_that_starts_has_its_newest_snapshot() -> None:
    around = Around(latest=snapshot(["x"], 50), applied_index=50)
    transfer = transfer_of(around, Register())
    around.bytes_since_rewrite = 9 * LOG_BYTES
    transfer.take_if_due()
    assert around.did == []


def test_without_a_snapshot_nothing_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    around = Around()
    transfer_of(around, Register()).send(B, leading=True)
    assert around.sent == []
    assert "b needs a snapshot, and there is none" in caplog.text
