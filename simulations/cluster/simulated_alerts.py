"""The sender of alerts beside a simulated server: the shipping log of alerts, and its input.

Each run draws what holds and when, as telemetry that every server in touch with a majority gets.
All times are so short that a few seconds suffice to tell, and a new sender's silence is over before
two servers have stopped taking themselves for the sender: each of them tells then.
"""

from random import Random

from gpupool.pool.alert_log import NO_MAJORITY, AlertLog, Condition, Rule, Times
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import PoolState
from gpupool.pool.ports import RaftHealth
from gpupool.pool.view import has_quorum
from gpupool.simulations.checkers.alert_checker import LATE_S, AlertsTold, OneSender

LOOK_EVERY_S = 0.5
TIMES = Times(
    group_s=1.0,
    repeat_s=3600.0,
    silent_first_s=2.0,
    over_after_s=1.5,
    standstill_s=LATE_S,
    hour_s=20.0,
)
FAULT = Rule("GpuFault", "critical", "a GPU is at fault", "", for_s=0.5)
CUT_OFF = Rule(NO_MAJORITY, "critical", "no majority", "", for_s=0.5)
GPUS = 4
HOLDS_S = 3.0, 25.0
QUIET_S = 2.0, 12.0
UNTIL_S = 600.0
"""Longer than any run."""


class Drawn:
    """When each of some GPUs is at fault."""

    def __init__(self, random: Random) -> None:
        """Draw all of it at once."""
        self._spans: dict[str, list[tuple[float, float]]] = {}
        for number in range(GPUS):
            spans = self._spans[f"GPU-{number}"] = []
            at = random.uniform(*QUIET_S)
            while at < UNTIL_S:
                end = at + random.uniform(*HOLDS_S)
                spans.append((at, end))
                at = end + random.uniform(*QUIET_S)

    def holding(self, now: float) -> list[Condition]:
        """Return the conditions that hold at a moment."""
        return [
            Condition(FAULT, gpu, f"{gpu} is at fault")
            for gpu, spans in self._spans.items()
            if any(begin <= now < end for begin, end in spans)
        ]


class SimulatedSender:
    """The alerts of one process of a server; it remembers nothing of a former one."""

    def __init__(
        self, server: ServerId, drawn: Drawn, gate: OneSender, checker: AlertsTold, now: float
    ) -> None:
        """Make it when its process begins."""
        self._server = server
        self._drawn = drawn
        self._gate = gate
        self._checker = checker
        self._log = AlertLog(TIMES)
        self._next = now
        checker.started(server, now)

    def look(self, state: PoolState, health: RaftHealth, now: float) -> None:
        """Look, if it is time to, and pass the message to the checker."""
        if now < self._next:
            return
        self._next = now + LOOK_EVERY_S
        majority, sends = has_quorum(health), self._gate.sends(self._server, state, health)
        lost = [Condition(CUT_OFF, "quorum", "no majority can be reached")]
        conditions = self._drawn.holding(now) if majority else lost
        message = self._log.look(conditions, now, int(1000 * now), sends=sends, majority=majority)
        self._checker.looked(
            self._server, conditions, now, sends=sends, majority=majority, message=message
        )
