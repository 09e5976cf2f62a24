"""Kept and compared hashes of tables, with peers played by the test."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import pytest
from raft_world import Register

from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.table_comparison import RUNS_KEPT, DivergedError, TableComparison
from gpupool.pool.model.ids import ServerId

ME, B, C = ServerId("me"), ServerId("b"), ServerId("c")
EVERY = 16
RIGHT, WRONG, OTHER = bytes([1] * 16), bytes([2] * 16), bytes([3] * 16)
SHAPE = 5


@dataclass
class Around:
    """The node, its core and its connections, as far as hashes need them."""

    voters: tuple[ServerId, ...] = (ME, B, C)
    servers: tuple[ServerId, ...] = ()
    server_id: ServerId = ME
    now: float = 100.0
    applied_index: int = 1
    commit_index: int = 1000
    settings: ConsensusSettings = field(
        default_factory=lambda: ConsensusSettings(compare_entries=EVERY)
    )
    sent: list[tuple[ServerId, Message]] = field(default_factory=list[tuple[ServerId, Message]])

    @property
    def core(self) -> "Around":
        return self

    frames = core

    def connected(self) -> set[ServerId]:
        return {B, C}

    def send(self, peer: ServerId, message: Message) -> None:
        self.sent.append((peer, message))


class Marked(Register):
    """A table that is to be hashed when the test says so."""

    mark = 0

    def hash_mark(self) -> int:
        return self.mark


def comparison_of(around: Around, machine: Register | None = None) -> TableComparison:
    node: Any = around
    return TableComparison(node, machine or Register())


def run_of(comparison: TableComparison, index: int, hashes: dict[ServerId, bytes]) -> None:
    for server, its in hashes.items():
        comparison.on_table_hash(server, {"index": index, "hash": its})
    comparison.judge()


def whole(comparison: TableComparison, index: int, hashes: dict[ServerId, bytes]) -> None:
    for server, its in hashes.items():
        comparison.on_whole_hash(server, {"index": index, "shape": SHAPE, "hash": its})
    comparison.judge()


@pytest.mark.parametrize("machine", [Register(), Marked()])
def test_all_builds_hash_a_run_alike(machine: Register) -> None:
    around = Around()
    comparison = comparison_of(around, machine)
    expected = hashlib.blake2b(digest_size=16)
    for index in range(2, 2 * EVERY + 1):
        comparison.applied(index, b"command", ["result", index])
        if EVERY <= index < 2 * EVERY:
            result = closed_cbor.encode(["result", index])
            expected.update(b"\x08\x00\x00\x00" + bytes([index, 0, 0, 0, 0, 0, 0, 0]))
            expected.update(b"\x07\x00\x00\x00command")
            expected.update(bytes([len(result), 0, 0, 0]) + result)
    told = {"type": "table_hash", "index": 2 * EVERY, "hash": expected.digest()}
    assert around.sent == [(B, told), (C, told)]


def test_a_run_is_told_after_its_last_entry_even_when_entries_are_missing() -> None:
    around = Around()
    comparison = comparison_of(around)
    comparison.applied(EVERY, b"x", None)
    comparison.applied(5 * EVERY, b"x", None)
    assert [message["index"] for _, message in around.sent] == [2 * EVERY] * 2


def test_a_server_that_differs_leaves_at_the_instant_that_it_names() -> None:
    around = Around()
    comparison = comparison_of(around)
    run_of(comparison, EVERY, {ME: WRONG, B: RIGHT, C: RIGHT})
    assert comparison.is_leaving
    leaves_at = comparison.due_at()
    assert leaves_at > around.now
    around.now = leaves_at - 0.001
    comparison.judge()
    around.now = leaves_at
    with pytest.raises(DivergedError):
        comparison.judge()


def test_a_whole_table_is_hashed_in_pieces_with_pauses() -> None:
    around, machine = Around(), Marked()
    machine.log = list(range(40))
    comparison = comparison_of(around, machine)
    machine.mark = 1
    comparison.applied(20, b"x", None)
    assert comparison.due_at() == around.now
    for _ in range(3):
        comparison.judge()
        comparison.judge()
        assert not around.sent
        assert around.now < comparison.due_at() < around.now + 0.1
        around.now = comparison.due_at()
    comparison.judge()
    assert [peer for peer, _ in around.sent] == [B, C]
    message = around.sent[0][1]
    assert (message["type"], message["index"], message["shape"]) == ("whole_hash", 20, SHAPE)
    assert comparison.due_at() == float("inf")


def test_the_oldest_run_that_is_kept_is_still_compared() -> None:
    comparison = comparison_of(Around())
    for run in range(2, 2 + RUNS_KEPT):
        run_of(comparison, run * EVERY, {ME: RIGHT})
    run_of(comparison, EVERY, {B: WRONG, C: WRONG})
    assert not comparison.is_leaving, "it is too old"
    run_of(comparison, 2 * EVERY, {B: RIGHT, C: WRONG})
    assert comparison.differing == (C,)


def test_whole_tables_do_not_push_out_runs() -> None:
    comparison = comparison_of(Around())
    for run in range(1, 1 + RUNS_KEPT):
        run_of(comparison, run * EVERY, {ME: RIGHT})
    for index in range(1, 1 + RUNS_KEPT):
        whole(comparison, 100 + index, {ME: RIGHT})
    run_of(comparison, EVERY, {B: RIGHT, C: WRONG})
    assert comparison.differing == (C,)
    whole(comparison, 101, {B: WRONG, C: RIGHT})
    assert comparison.differing == (B,)


@pytest.mark.parametrize(
    ("ahead", "counts"), [(RUNS_KEPT * EVERY, True), (RUNS_KEPT * EVERY + EVERY, False)]
)
def test_hashes_of_entries_far_ahead_say_nothing(ahead: int, counts: bool) -> None:
    around = Around(commit_index=EVERY)
    comparison = comparison_of(around)
    run_of(comparison, EVERY + ahead, {ME: RIGHT, B: RIGHT, C: WRONG})
    assert (comparison.differing == (C,)) == counts


@pytest.mark.parametrize(("index", "counts"), [(EVERY, True), (EVERY + 1, False)])
def test_hashes_of_runs_of_another_length_say_nothing(index: int, counts: bool) -> None:
    comparison = comparison_of(Around())
    run_of(comparison, index, {ME: RIGHT, B: RIGHT, C: WRONG})
    assert (comparison.differing == (C,)) == counts


@pytest.mark.parametrize(
    ("run", "differing"), [(2 * EVERY, ()), (4 * EVERY, ()), (5 * EVERY, (C,))]
)
def test_a_run_from_before_a_right_whole_table_accuses_nobody(
    run: int, differing: tuple[ServerId, ...]
) -> None:
    comparison = comparison_of(Around())
    whole(comparison, 4 * EVERY, {ME: RIGHT, B: RIGHT, C: RIGHT})
    run_of(comparison, run, {ME: RIGHT, B: RIGHT, C: WRONG})
    assert comparison.differing == differing


@pytest.mark.parametrize(
    ("later", "differing"), [(2 * EVERY - 1, (C,)), (2 * EVERY, ()), (2 * EVERY + 1, ())]
)
def test_a_right_whole_table_clears_the_name_of_a_server(
    later: int, differing: tuple[ServerId, ...]
) -> None:
    comparison = comparison_of(Around())
    run_of(comparison, EVERY, {ME: RIGHT, B: RIGHT, C: WRONG})
    run_of(comparison, 2 * EVERY, {ME: RIGHT, B: RIGHT, C: WRONG})
    whole(comparison, later, {ME: RIGHT, B: RIGHT, C: RIGHT})
    assert comparison.differing == differing


@pytest.mark.parametrize(
    ("hashes", "differing"),
    [
        ({ME: RIGHT, B: RIGHT}, ()),
        ({B: RIGHT, C: WRONG}, ()),
        ({B: RIGHT}, ()),
        ({ME: RIGHT, B: WRONG, C: OTHER}, (B, C, ME)),
        ({ME: RIGHT, B: RIGHT, C: OTHER}, (C,)),
        ({ServerId("d"): WRONG}, ()),
        ({ME: RIGHT, B: RIGHT, ServerId("d"): WRONG}, (ServerId("d"),)),
    ],
)
def test_who_differs_is_said_by_a_majority_of_all_voters_or_by_all_of_them(
    hashes: dict[ServerId, bytes], differing: tuple[ServerId, ...]
) -> None:
    comparison = comparison_of(Around(servers=(B, C, ServerId("d"))))
    run_of(comparison, EVERY, hashes)
    assert comparison.differing == differing


def test_runs_that_are_too_old_are_not_compared_again_when_the_voters_change() -> None:
    around = Around()
    comparison = comparison_of(around)
    run_of(comparison, EVERY, {B: RIGHT, C: WRONG})
    for run in range(2, 2 + RUNS_KEPT):
        run_of(comparison, run * EVERY, {B: RIGHT, C: RIGHT})
    around.voters = (B, C)
    run_of(comparison, (2 + RUNS_KEPT) * EVERY, {B: RIGHT, C: RIGHT})
    assert comparison.differing == ()


def test_a_server_that_starts_skips_the_run_that_it_is_in() -> None:
    around = Around(applied_index=EVERY + 3)
    comparison = comparison_of(around)
    for index in range(EVERY + 4, 3 * EVERY + 1):
        comparison.applied(index, b"x", None)
    assert [message["index"] for _, message in around.sent] == [3 * EVERY] * 2
    comparison.begin(5 * EVERY)
    for index in range(5 * EVERY + 1, 6 * EVERY + 1):
        comparison.applied(index, b"x", None)
    assert len(around.sent) == 2


def test_only_marks_that_come_later_are_hashed() -> None:
    around, machine = Around(), Marked()
    machine.mark = 3
    comparison = comparison_of(around, machine)
    comparison.applied(2, b"x", None)
    assert comparison.due_at() == float("inf")
    machine.mark = 4
    comparison.begin(2)
    comparison.applied(3, b"x", None)
    assert comparison.due_at() == float("inf")
    machine.mark = 5
    comparison.applied(4, b"x", None)
    assert comparison.due_at() == around.now
    comparison.judge()
    comparison.applied(5, b"x", None)
    assert comparison.due_at() > around.now, "one mark is hashed once"
