"""Commands on their way into the log, beside a core that the test plays."""

from typing import Any

import pytest

from gpupool.consensus.core.library import BARRIER_TYPE, COMMAND_TYPE, FOLLOWER, LEADER, NEVER
from gpupool.consensus.node import ForwardRefusal, ProposalQueue
from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.raft_messages import Message
from gpupool.consensus.protocol.raft_settings import (
    COMMAND_BYTES_MAX,
    QUEUE_COMMANDS_MAX,
    UNCOMMITTED_ENTRIES_MAX,
)
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.pool.ports import Committed, NotCommitted, Outcome, Refusal, Unknown

A, B, C = ServerId("a"), ServerId("b"), ServerId("c")
CLOCK_MS = 5000


class Core:
    """A core with its leader's clock equal to the local one, in milliseconds."""

    def __init__(self, state: Any, leader: ServerId | None) -> None:
        self.state, self.leader, self.term, self.commit_index = state, leader, 3, 10
        self.last_index = 10
        self.appended: list[bytes] = []
        self.waits: list[tuple[int, int]] = []
        self.callbacks: list[Any] = []

    def append(self, command: bytes, callback: Any) -> tuple[int, int]:
        self.appended.append(command)
        self.callbacks.append(callback)
        self.last_index += 1
        return self.last_index, self.term

    def clock_ms(self) -> int:
        return CLOCK_MS

    def leader_clock_ms(self, at: float) -> int:
        return int(1000 * at)

    def await_commit(self, index: int, term: int, callback: Any) -> None:
        self.waits.append((index, term))
        self.callbacks.append(callback)


class Queue:
    """A queue, its sent messages, and the outcomes by the name of the command."""

    def __init__(self, state: Any = FOLLOWER, leader: ServerId | None = B) -> None:
        self.core = Core(state, leader)
        self.connected = {B, C}
        self.hands_over = False
        self.clock_refusal: str | None = None
        self.sent: list[tuple[ServerId, Message]] = []
        self.outcomes: list[tuple[Any, Outcome]] = []
        core: Any = self.core
        self.queue = ProposalQueue(
            core,
            core,
            send=lambda peer, message: self.sent.append((peer, message)),
            is_connected=lambda peer: peer in self.connected,
            is_handing_over=lambda: self.hands_over,
            resolved=lambda callback, outcome: self.outcomes.append((callback, outcome)),
            clock_refusal=lambda _command: self.clock_refusal,
        )

    def propose(self, command: Plain, *, now: float = 0.0, ttl_s: float = 5.0) -> None:
        name: Any = command
        self.queue.propose(command, now, ttl_s, name)

    def forwarded(self, command: Plain = "x") -> Message:
        """Propose and forward a command; return the forwarded message."""
        self.propose(command)
        self.queue.drain()
        return self.sent[-1][1]

    def answer(self, number: object, refused: str | None = None, *, peer: ServerId = B) -> None:
        message: Any = {"request_id": number, "log_idx": 12, "log_term": 3, "refused": refused}
        self.queue.on_forward_response(peer, message)

    def forward(self, command: bytes, *, term: int = 3, deadline_ms: int = CLOCK_MS + 1) -> Message:
        """Take a command from a peer; return the answer."""
        message: Any = {
            "request_id": 7,
            "command": command,
            "term": term,
            "deadline_ms": deadline_ms,
        }
        self.queue.on_forward(C, message)
        peer, answer = self.sent[-1]
        assert peer == C
        assert (answer["type"], answer["request_id"]) == ("forward_response", 7)
        return answer


def encoded(command: Plain) -> bytes:
    return COMMAND_TYPE + closed_cbor.encode(command)


# --- this server's own -----------------------------------------------------------------------


@pytest.mark.parametrize(("leader", "connected"), [(None, {B, C}), (B, {C}), (B, set[ServerId]())])
def test_without_a_connected_leader_nothing_is_sent(
    leader: ServerId | None, connected: set[ServerId]
) -> None:
    here = Queue(leader=leader)
    here.connected = connected
    here.propose("x")
    assert here.queue.waiting
    here.queue.drain()
    assert here.outcomes == [("x", NotCommitted("no leader is known"))]
    assert here.sent == []
    assert not here.queue.waiting


def test_a_follower_forwards_with_the_term_and_the_time() -> None:
    here = Queue()
    first = here.forwarded("x")
    assert first == {
        "type": "forward",
        "term": 3,
        "request_id": first["request_id"],
        "command": encoded("x"),
        "deadline_ms": 5000,
    }
    assert here.sent[0][0] == B
    assert here.forwarded("y")["request_id"] != first["request_id"]
    assert here.outcomes == []


def test_a_deadline_before_the_leaders_clock_began_is_told_as_its_beginning() -> None:
    here = Queue()
    here.propose("x", now=-10.0, ttl_s=5.0)
    here.queue.drain()
    assert here.sent[0][1]["deadline_ms"] == 0


@pytest.mark.parametrize("state", ["queued", "forwarded", "appended"])
def test_a_command_expires_at_its_time_and_not_before(state: str) -> None:
    here = Queue(state=LEADER if state == "appended" else FOLLOWER)
    assert here.queue.next_expiry_at() == NEVER
    here.propose("x", now=1.0, ttl_s=2.0)
    if state != "queued":
        here.queue.drain()
    assert here.queue.next_expiry_at() == 3.0
    here.queue.expire(2.999)
    assert here.outcomes == []
    here.queue.expire(3.0)
    late = NotCommitted("the time was up before it could be sent")
    assert here.outcomes == [("x", late if state == "queued" else Unknown("no answer in time"))]
    assert here.queue.next_expiry_at() == NEVER
    here.queue.drain()
    assert len(here.sent) == (1 if state == "forwarded" else 0)
    assert len(here.core.appended) == (1 if state == "appended" else 0)


def test_what_is_decided_leaves_the_list_of_times_once_it_is_at_its_head() -> None:
    here = Queue(state=LEADER)
    for name, ttl_s in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        here.propose(name, ttl_s=ttl_s)
    here.queue.drain()
    here.core.callbacks[1](Committed(12, None))
    here.core.callbacks[0](Committed(11, None))
    here.queue.expire(0.5)
    assert here.queue.next_expiry_at() == 3.0
    assert here.outcomes == [("b", Committed(12, None)), ("a", Committed(11, None))]
    here.queue.expire(3.0)
    here.core.callbacks[2](Committed(13, None))
    assert here.outcomes[2:] == [("c", Unknown("no answer in time"))]


@pytest.mark.parametrize("change", ["leader", "term", "none"])
def test_what_was_forwarded_to_a_former_leader_is_given_up(change: str) -> None:
    here = Queue()
    number = here.forwarded("x")["request_id"]
    if change == "leader":
        here.core.leader = C
    elif change == "term":
        here.core.term = 4
    here.queue.drain()
    gone = [("x", Unknown("the leader changed"))] if change != "none" else []
    assert here.outcomes == gone
    here.answer(number, "late")
    assert here.outcomes == (gone or [("x", NotCommitted("late", Refusal.NOT_NOW))])


def test_an_answer_that_nobody_asked_for_decides_nothing() -> None:
    here = Queue()
    here.answer(1)
    number = here.forwarded("x")["request_id"]
    here.answer(number, "no", peer=C)
    here.answer(-1, "no")
    assert (here.outcomes, here.core.waits) == ([], [])
    here.answer(number)
    here.answer(number)
    assert here.core.waits == [(12, 3)]
    here.core.callbacks[0](Committed(12, "result"))
    assert here.outcomes == [("x", Committed(12, "result"))]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (ForwardRefusal.UNREADABLE.value, Refusal.COMMAND),
        (ForwardRefusal.CLOCK.value, Refusal.CLOCK),
        (ForwardRefusal.NOT_LEADER.value, Refusal.NOT_NOW),
        (ForwardRefusal.LATE.value, Refusal.NOT_NOW),
        ("something that a later version says", Refusal.NOT_NOW),
    ],
)
def test_the_kind_of_a_refusal_follows_from_the_leaders_words(reason: str, kind: Refusal) -> None:
    here = Queue()
    here.answer(here.forwarded("x")["request_id"], reason)
    assert here.outcomes == [("x", NotCommitted(reason, kind))]


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_command_may_have_as_many_bytes_as_are_allowed_and_no_more(beyond: int) -> None:
    here = Queue(state=LEADER)
    command = "x" * (COMMAND_BYTES_MAX - 3 + beyond)
    size = len(closed_cbor.encode(command))
    assert size == COMMAND_BYTES_MAX + beyond
    here.propose(command)
    here.queue.drain()
    assert len(here.core.appended) == 1 - beyond
    why = f"the command has {size} bytes; at most {COMMAND_BYTES_MAX} are allowed"
    assert [each for _, each in here.outcomes] == [NotCommitted(why, Refusal.COMMAND)] * beyond


def test_a_command_that_is_not_plain_is_refused_at_once() -> None:
    here, wrong = Queue(), object()
    here.queue.propose(wrong, 0.0, 5.0, "x")  # type: ignore[arg-type]  # pyright: ignore
    ((_, outcome),) = here.outcomes
    assert isinstance(outcome, NotCommitted)
    assert outcome.kind is Refusal.COMMAND
    assert outcome.reason.startswith("the command is not plain: ")


def test_as_many_commands_wait_as_are_allowed_and_each_that_is_decided_makes_room() -> None:
    here = Queue(state=LEADER)
    for _ in range(QUEUE_COMMANDS_MAX):
        here.propose("x")
    assert here.outcomes == []
    here.propose("one more")
    full = NotCommitted(f"{QUEUE_COMMANDS_MAX} commands of this server are waiting already")
    assert here.outcomes == [("one more", full)]
    here.core.commit_index = 10 + QUEUE_COMMANDS_MAX
    here.queue.drain()
    here.outcomes.clear()
    here.core.callbacks[0](Committed(11, None))
    here.propose("fits")
    here.propose("does not")
    assert here.outcomes == [("x", Committed(11, None)), ("does not", full)]


# --- those of other servers ------------------------------------------------------------------


@pytest.mark.parametrize(("after_ms", "late"), [(-1, True), (0, True), (1, False)])
def test_a_leader_appends_until_the_deadline_is_there(after_ms: int, late: bool) -> None:
    here = Queue(state=LEADER)
    answer = here.forward(encoded("x"), deadline_ms=CLOCK_MS + after_ms)
    assert answer["refused"] == (ForwardRefusal.LATE.value if late else None)
    assert here.core.appended == ([] if late else [encoded("x")])
    assert (answer["log_idx"], answer["log_term"]) == ((0, 0) if late else (11, 3))


@pytest.mark.parametrize(("state", "term"), [(FOLLOWER, 3), (LEADER, 2), (LEADER, 4)])
def test_a_server_that_does_not_lead_in_that_term_refuses(state: Any, term: int) -> None:
    here = Queue(state=state)
    answer = here.forward(encoded("x"), term=term, deadline_ms=0)
    assert answer["refused"] == ForwardRefusal.NOT_LEADER.value
    assert (answer["log_idx"], answer["log_term"], here.core.appended) == (0, 0, [])


@pytest.mark.parametrize(
    ("command", "readable"),
    [
        (BARRIER_TYPE, True),
        (BARRIER_TYPE + b"x", False),
        (b"", False),
        (COMMAND_TYPE, False),
        (COMMAND_TYPE + b"\xff", False),
        (b"\x02" + closed_cbor.encode("x"), False),
        (encoded("x" * (COMMAND_BYTES_MAX - 3)), True),
        (encoded("x" * (COMMAND_BYTES_MAX - 2)), False),
    ],
)
def test_a_leader_appends_what_can_be_read_and_is_not_too_long(
    command: bytes, readable: bool
) -> None:
    here = Queue(state=LEADER)
    answer = here.forward(command)
    assert answer["refused"] == (None if readable else ForwardRefusal.UNREADABLE.value)
    assert here.core.appended == ([command] if readable else [])


@pytest.mark.parametrize("foreign", [False, True])
def test_a_command_ahead_of_the_clocks_is_refused_and_a_barrier_is_not(foreign: bool) -> None:
    here = Queue(state=LEADER)
    here.clock_refusal = "400 days ahead"
    if foreign:
        assert here.forward(encoded("x"))["refused"] == ForwardRefusal.CLOCK.value
        assert here.forward(BARRIER_TYPE)["refused"] is None
    else:
        here.propose("x")
        here.queue.drain()
        assert here.outcomes == [("x", NotCommitted("400 days ahead", Refusal.CLOCK))]
    assert here.core.appended == ([BARRIER_TYPE] if foreign else [])


@pytest.mark.parametrize("why", ["too many", "hands over", "nothing"])
@pytest.mark.parametrize("foreign", [False, True])
def test_a_leader_appends_nothing_that_could_not_be_committed_soon(why: str, foreign: bool) -> None:
    here = Queue(state=LEADER)
    here.core.last_index = 10 + UNCOMMITTED_ENTRIES_MAX - (why != "too many")
    here.hands_over = why == "hands over"
    reasons = {
        "too many": f"{UNCOMMITTED_ENTRIES_MAX} commands wait for a majority already",
        "hands over": "the leader is handing over",
    }
    reason = reasons.get(why)
    if foreign:
        assert here.forward(encoded("x"))["refused"] == reason
    else:
        here.propose("x")
        here.queue.drain()
        assert here.outcomes == ([("x", NotCommitted(reason))] if reason else [])
    assert here.core.appended == ([] if reason else [encoded("x")])
