"""The time that the parts of a node share."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from gpupool.consensus.core.freshness import LATE_S
from gpupool.consensus.node_context import NodeContext
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.pool.model.ids import ServerId


class DoubtfulCore:
    """A core that counts its doubts of waiting messages."""

    def __init__(self) -> None:
        self.doubts: list[float] = []
        self.now = 0.0

    def stepping(self, now: float) -> AbstractContextManager[None]:
        self.now = now
        return nullcontext()

    def doubt_messages(self) -> None:
        self.doubts.append(self.now)


def context_at(now: float, core: DoubtfulCore) -> NodeContext:
    anything: Any = core
    return NodeContext(
        server_id=ServerId("me"),
        settings=ConsensusSettings(),
        storage=anything,
        core=anything,
        frames=anything,
        now=now,
    )


@pytest.mark.parametrize(("now", "then"), [(99.0, 100.0), (100.0, 100.0), (101.0, 101.0)])
def test_the_time_of_a_node_never_goes_back(now: float, then: float) -> None:
    context = context_at(100.0, DoubtfulCore())
    context.advance(now)
    assert context.now == then


@pytest.mark.parametrize(("pause_s", "late"), [(LATE_S, False), (LATE_S + 0.001, True)])
def test_a_node_that_stood_still_for_long_doubts_what_waited(pause_s: float, late: bool) -> None:
    core = DoubtfulCore()
    context_at(100.0, core).advance(100.0 + pause_s)
    assert core.doubts == ([100.0 + pause_s] if late else [])
