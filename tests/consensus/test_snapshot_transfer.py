"""Snapshots of one node whose storage, peers and works are played by the test."""

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
from gpupool.consensus.storage.snapshot import Snapshot, encode_snapshot
from gpupool.pool.model.ids import Plain, ServerId

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

    def snapshot_piece_arrived(self) -> None:
        self.did.append("piece")

    def pull(self, _peer: ServerId) -> None:
        self.did.append("pull")

    def write(self, _index: int, _data: bytes) -> None:
        self.did.append("write")

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
