"""The client's allocation as transcripts: its input, and its actions.

Each ``tests/testdata/control-*.txt`` has blocks of one input line and, indented, the actions that
come of it. With ``GPUPOOL_REWRITE=1`` in the environment, what happens now is written into them;
commit that only if you understand what has changed.

    start wait=10s a b        begin, with these servers connected; known=40: of so many,
                              first=2: asking so many at first
    offer a free=80           server a offers one GPU with so many GiB free
    busy a [ahead]            ... or nothing now; also: never a, denied a, no-quorum a,
                              and elsewhere a: never here, though other servers could
    claimed granted           the answer to the claim; refused KIND, uncertain, lost
    cancelled [lost]          the answer to the cancel
    hint                      a server says that there may be room
    tick 1s                   time passes
    arrive c, leave c         a connection comes or goes
    retry-without a           the lease cannot be used
"""

import os
from pathlib import Path

import pytest

from gpupool.pool.errors import NotNowError, UnreachableError
from gpupool.pool.model.ids import GpuId, Incarnation, LeaseId, RequestId, ServerId
from gpupool.pool.model.state import Request
from gpupool.pool.scheduling.offers import NoOffer, Offer, OfferedGpu
from gpupool.remoting.client.negotiation import Negotiation
from gpupool.remoting.client.negotiation_actions import (
    Action,
    Call,
    Explain,
    Failed,
    Granted,
    NegotiationSettings,
    Tell,
    Widen,
)
from gpupool.remoting.protocol import messages as m

GIB = 1 << 30
FILES = sorted((Path(__file__).parents[2] / "testdata").glob("control-*.txt"))


class HandClock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return 0


class Middle:
    """Chance that is always in the middle; request ids count up."""

    count = 0

    def random(self) -> float:
        return 0.5

    def randbytes(self, n: int, /) -> bytes:
        self.count += 1
        return bytes([self.count]) * n


class Script:
    """Carries out one transcript."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.allocation: Negotiation | None = None
        self.asks: dict[str, int] = {}
        self.last: dict[type[m.Call], int] = {}

    def run(self, line: str) -> list[str]:
        verb, *words = line.split()
        if verb == "start":
            actions = self.start(words)
        else:
            assert self.allocation is not None
            actions = self.step(self.allocation, verb, words)
        actions = [action for action in actions if not isinstance(action, Explain)]
        return [self.describe(action) for action in actions] or ["nothing"]

    def start(self, words: list[str]) -> list[Action]:
        options = dict(word.split("=") for word in words if "=" in word)
        wait = options.get("wait")
        request = Request(
            RequestId(bytes(16)),
            int(options.get("count", "1")),
            float(options.get("fraction", "1")),
            across="across" in words,
        )
        self.allocation = Negotiation(
            request,
            ticket_hash=bytes(32),
            wait_s=None if wait == "forever" else float((wait or "0s").removesuffix("s")),
            clock=self.clock,
            rng=Middle(),
            settings=NegotiationSettings(ask_first_count=int(options.get("first", "32"))),
        )
        servers = [ServerId(w) for w in words if "=" not in w and w != "across"]
        return self.allocation.start(servers, int(options.get("known", "0")))

    def step(self, allocation: Negotiation, verb: str, words: list[str]) -> list[Action]:
        if verb == "tick":
            return self.tick(allocation, float(words[0].removesuffix("s")))
        if verb in ("offer", "busy", "elsewhere", "never", "denied", "no-quorum"):
            return allocation.answered(self.asks[words[0]], self.answer(verb, words))
        if verb == "claimed":
            number = self.last[m.Claim]
            if words[0] == "lost":
                return allocation.answered(number, UnreachableError("lost server"))
            if words[0] == "not-now":
                return allocation.answered(number, NotNowError("ada has 512 calls under way"))
            kind = words[1] if len(words) > 1 else ""
            lease = LeaseId(7) if words[0] == "granted" else None
            return allocation.answered(number, m.Claimed(words[0], lease, kind, "the reason"))
        if verb == "cancelled":
            lost = UnreachableError("lost server")
            return allocation.answered(self.last[m.Cancel], lost if words else m.Done())
        if verb == "hint":
            return allocation.hinted()
        server = ServerId(words[0])
        if verb == "arrive":
            return allocation.arrived(server)
        if verb == "leave":
            return allocation.left(server)
        assert verb == "retry-without"
        return allocation.retry_without(server)

    def tick(self, allocation: Negotiation, seconds: float) -> list[Action]:
        end = self.clock.now + seconds
        actions: list[Action] = []
        while allocation.wake_at() <= end:
            self.clock.now = allocation.wake_at()
            found = allocation.poll()
            # Asks are answered by nobody here, so time passes round by round.
            for action in found:
                self.describe(action)
            actions += found
        self.clock.now = end
        return actions

    def answer(self, verb: str, words: list[str]) -> m.Offered:
        server = ServerId(words[0])
        if verb != "offer":
            ahead = int(words[1]) if len(words) > 1 else 0
            if verb == "elsewhere":
                return m.Offered(None, NoOffer(server, server, "busy", "not I", never_here=True))
            return m.Offered(None, NoOffer(server, server, verb, "the reason", ahead))
        free = int(words[1].removeprefix("free=")) * GIB
        gpu = GpuId(f"GPU-{server}")
        size = 80 * GIB
        gpus = (OfferedGpu(gpu, 0, "H200", size, free, gpu),) if free >= size else ()
        return m.Offered(Offer(server, server, Incarnation(1), gpus, 0.0), None)

    def describe(self, action: Action) -> str:
        match action:
            case Call(number, server, m.Ask(), _):
                self.asks[server] = number
                return f"ask {server}"
            case Call(number, server, message, timeout_s):
                self.last[type(message)] = number
                name = {"AwaitGpus": "keep a place", "Claim": "claim", "Cancel": "cancel"}
                which = getattr(message, "request")  # noqa: B009
                request = which if isinstance(which, bytes) else which.id
                text = f"{name[type(message).__name__]} at {server}, request {request[0]}"
                return f"{text}, answer within {timeout_s:g} s"
            case Tell(text):
                return f"say: {text}"
            case Widen(count):
                return f"connect to {count} servers"
            case Granted(lease, request, choice):
                servers = ", ".join(offer.server for offer in choice.offers)
                return f"granted: lease {lease} on {servers}, request {request.id[0]}"
            case Explain():
                return ""
            case Failed(error, unsettled):
                hang_up = f"; hang up on {unsettled}" if unsettled is not None else ""
                return f"failed: {error.code}: {error}{hang_up}"


def replay(text: str) -> str:
    script = Script()
    blocks: list[str] = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        notes = [line for line in lines if line.startswith("#")]
        inputs = [line for line in lines if line and not line.startswith(("#", " "))]
        if not inputs:
            blocks.append("\n".join(notes))
            continue
        found = script.run(inputs[0])
        blocks.append("\n".join([*notes, inputs[0], *(f"    {each}" for each in found)]))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    expected = path.read_text(encoding="utf-8")
    found = replay(expected)
    if os.environ.get("GPUPOOL_REWRITE"):
        path.write_text(found, encoding="utf-8")
    else:
        assert found == expected


def test_there_are_transcripts() -> None:
    assert len(FILES) >= 5
