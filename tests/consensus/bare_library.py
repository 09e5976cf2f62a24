"""Unmodified pysyncobj 0.3.17 under a clock, a seed and links that a test holds in its hands.

Only what a harness must replace is replaced, in a private copy of the module: the clock, the
randomness and the poller. Every method of ``SyncObj`` is the library's own.
"""

import importlib.util
import random
from collections.abc import Callable
from typing import Any

import pysyncobj
from pysyncobj.node import Node
from pysyncobj.transport import Transport

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2

_spec = importlib.util.find_spec("pysyncobj.syncobj")
assert _spec is not None and _spec.loader is not None
library: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(library)


class Time:
    """Advances by 20 us with every look, because the library leaves some loops by time only."""

    now = 1000.0

    def __call__(self) -> float:
        self.now += 2e-5
        return self.now


class _NoPoller:
    def poll(self, _timeout: float) -> None:
        return


time = Time()
library.monotonicTime = time
library.random = random.Random(1)
library.createPoller = lambda _kind: _NoPoller()  # pyright: ignore[reportUnknownLambdaType]
library.PIPE_NOTIFIER_ENABLED = False


class Wire(Transport):
    """Keeps a node's messages, until the test delivers them."""

    def __init__(self) -> None:
        super().__init__(None, None, [])
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        peer: Any = node
        self.sent.append((str(peer.id), message))
        return True

    def of_type(self, kind: str) -> list[tuple[str, dict[str, Any]]]:
        return [item for item in self.sent if item[1]["type"] == kind]


class Bare(library.SyncObj):  # pyright: ignore[reportUntypedBaseClass]
    """A list of values, as the library's users would write it."""

    def __init__(self, name: str, others: list[str], **settings: Any) -> None:
        self.wire: Any = Wire()
        options: dict[str, Any] = {
            "autoTick": False,
            "dynamicMembershipChange": True,
            "raftMinTimeout": 0.4,
            "raftMaxTimeout": 1.4,
            **settings,
        }
        conf: Any = pysyncobj.SyncObjConf(**options)
        base: Any = library.SyncObj
        base.__init__(
            self, Node(name), [Node(other) for other in others], conf, None, Node, self.wire
        )
        self.values: list[Any] = []
        for other in others:
            self.wire._onNodeConnected(Node(other))

    @library.replicated
    def put(self, value: Any) -> int:
        if value == "raise":
            self.values.append("half done")
            raise RuntimeError("a bug in a state machine")
        self.values.append(value)
        return len(self.values)

    def private(self, name: str) -> Any:
        return getattr(self, f"_SyncObj__{name}")

    def set_private(self, name: str, value: Any) -> None:
        setattr(self, f"_SyncObj__{name}", value)

    def take(self, sender: str, message: dict[str, Any]) -> None:
        self.wire._onMessageReceived(Node(sender), message)

    def tick(self, after: float = 0.0) -> None:
        time.now += after
        tick: Callable[[float], None] = self.doTick
        tick(0.0)

    def log(self) -> list[tuple[bytes, int, int]]:
        return list(self.private("raftLog")[:])

    def campaign(self) -> None:
        """Let the election timeout pass."""
        self.tick(2.0)

    def win(self, *votes: str) -> None:
        """Become leader with the votes of others."""
        self.campaign()
        for voter in votes:
            self.take(voter, {"type": "response_vote", "term": self.raftCurrentTerm})
        assert self.private("raftState") == LEADER


def command(value: Any) -> bytes:
    """Return a log entry's bytes as the library makes them."""
    return b"\x00" + library.pickle.dumps((0, (value,)))


def append(
    term: int, previous: int, previous_term: int, entries: list[Any], commit: int = 1
) -> Any:
    """Return an append_entries message of the library."""
    return {
        "type": "append_entries",
        "term": term,
        "commit_index": commit,
        "entries": entries,
        "prevLogIdx": previous,
        "prevLogTerm": previous_term,
    }
