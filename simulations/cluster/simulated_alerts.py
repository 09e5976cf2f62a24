"""The sender of alerts beside a simulated server: the shipping log of alerts, over its own table.

A real sender asks the pool as a client, and does not always get its own server's answer; that one
is the oldest that it could get. What holds is taken from the table alone: servers without contact.
All times are shorter than real ones, but the silence of a new sender is still longer than two
servers may both take themselves for the sender.
"""

from gpupool.pool.alert_log import NO_MAJORITY, AlertLog, Condition, Rule, Times
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import PoolState, ServerStatus
from gpupool.pool.ports import RaftHealth
from gpupool.pool.view import has_quorum
from gpupool.simulations.checkers.alert_checker import AlertsTold, OneSender

LOOK_EVERY_S = 0.5
TIMES = Times(group_s=2.0, repeat_s=3600.0, silent_first_s=7.0, over_after_s=1.5)
SILENT = Rule("ServerSilent", "critical", "no contact with a server", "", for_s=2.0)
CUT_OFF = Rule(NO_MAJORITY, "critical", "no majority", "", for_s=1.0)


class SimulatedSender:
    """What one process of a server would tell; it remembers nothing of a former one."""

    def __init__(self, server: ServerId, gate: OneSender, checker: AlertsTold, now: float) -> None:
        self._server = server
        self._gate = gate
        self._checker = checker
        self._log = AlertLog(TIMES)
        self._next = now
        checker.started(server, now)

    def look(self, state: PoolState, health: RaftHealth, now: float) -> None:
        """Look, if it is time to, and have what is told judged."""
        if now < self._next:
            return
        self._next = now + LOOK_EVERY_S
        majority, sends = has_quorum(health), self._gate.sends(self._server, state, health)
        conditions = [
            Condition(SILENT, each.id, f"{each.name} does not answer")
            for each in state.servers.values()
            if each.status is ServerStatus.UNREACHABLE
        ]
        if not majority:
            conditions.append(Condition(CUT_OFF, "quorum", "no majority can be reached"))
        message = self._log.look(conditions, now, int(1000 * now), sends=sends, majority=majority)
        self._checker.looked(
            self._server, conditions, now, sends=sends, majority=majority, message=message
        )
