"""Orders of silence, of forgetting a user and of a backup, in whole pools under faults."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from gpupool.pool.model.ids import ServerId, TokenId
from gpupool.pool.model.state import TokenKind
from gpupool.remoting.protocol import messages as m
from gpupool.simulations.cluster.caller import Caller, Packet
from gpupool.simulations.cluster.fault_schedule import EFFECTS
from gpupool.simulations.cluster.operators import draw_credentials
from gpupool.simulations.kernel.process import Process
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.simulated_network import End, Endpoint, Network
from gpupool.simulations.kernel.swarm_options import (
    FAULT_KINDS,
    NEWER_FROM,
    NEWER_KINDS,
    NEWEST_FROM,
    NEWEST_KINDS,
    swarm,
)
from gpupool.simulations.kernel.trace import Trace
from gpupool.simulations.tools.runner import run


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_orders_hold_while_servers_are_killed_and_the_time_is_set() -> None:
    options = replace(swarm(2), servers=3, clients=3, think_s=3.0, hold_s=1.0)
    faults = (("silence", 0.4), ("forget-user", 0.7), ("backup", 2.0))
    faults += (("reset", 1.0), ("kill", 3.0), ("set-clock", 3.0), ("clock-step", 2.0))
    report = run(replace(options, faults=faults, fault_s=12.0, heal_s=4.0))
    assert report.failure is None
    done = [line.text.split()[0] for line in report.lines if line.kind == "confirmed"]
    assert min(done.count(each) for each in ("silence", "no", "forget", "GetBackup")) >= 3


def test_only_later_seeds_draw_them() -> None:
    """Runs of earlier seeds are recorded."""
    assert set(NEWER_KINDS) < EFFECTS.keys()
    for seed in range(200):
        assert {kind for kind, _ in swarm(seed).faults} <= set(FAULT_KINDS)
    later = [{kind for kind, _ in swarm(NEWER_FROM + seed).faults} for seed in range(50)]
    assert all(any(kind in drawn for drawn in later) for kind in NEWER_KINDS)
    assert not any(drawn & set(NEWEST_KINDS) for drawn in later)
    newest = [{kind for kind, _ in swarm(NEWEST_FROM + seed).faults} for seed in range(50)]
    assert all(any(kind in drawn for drawn in newest) for kind in NEWEST_KINDS)


@pytest.mark.parametrize("seed", [0, 2])
def test_programs_go_to_other_servers_while_servers_and_clients_are_killed(seed: int) -> None:
    options = replace(swarm(seed), servers=4, clients=6, gpus=2, think_s=1.0, hold_s=6.0)
    faults = (("relocate", 0.4), ("kill", 3.0), ("reset", 1.0), ("client-kill", 3.0))
    faults += (("client-cut", 4.0), ("worker-death", 3.0), ("slow-kill", 4.0), ("suspend", 2.0))
    report = run(replace(options, faults=faults, fault_s=15.0, heal_s=4.0))
    assert report.failure is None
    assert sum(line.kind == "moved" for line in report.lines) >= 2


@dataclass
class LoneServer:
    """A server that exchanges no CA before another one has joined."""

    calls: list[type[m.Message]] = field(default_factory=list[type[m.Message]])

    def accept(self, machine: str, kind: str) -> Endpoint:
        assert (machine, kind) == ("operator", "control")
        return self

    def opened(self, end: End) -> None:
        """Wait for the hello."""

    def failed(self, reason: str) -> None:
        """Never called: this end does not dial."""

    def closed(self, end: End, reason: str) -> None:
        """Wait for the next connection."""

    def received(self, end: End, payload: object) -> None:
        assert isinstance(payload, Packet)
        if isinstance(payload.message, m.Hello):
            server = ServerId("s1")
            welcome = m.Welcome(1, "", server, "s1", "c", "p", "admin", TokenKind.OPERATOR, ())
            end.send(Packet(payload.call, welcome))
            return
        self.calls.append(type(payload.message))
        few = isinstance(payload.message, m.RotateCa) and m.CreateToken not in self.calls
        answer = m.Refused("failed", "too few voters have it") if few else m.Done()
        end.send(Packet(payload.call, answer))


def test_what_brings_servers_back_does_not_wait_behind_an_exchange_that_needs_them() -> None:
    """Seed 720739: the token for the server that was to join again was never ordered."""
    scheduler, server = Scheduler(1), LoneServer()
    random = scheduler.random("network")
    network = Network(scheduler, Trace(scheduler), random, delay_s=0.001, jitter_s=0.001)
    network.timeout_s = {"control": 10.0}
    network.listen(Process(scheduler, "s1"), server.accept)
    hello = draw_credentials(random, "admin").hello("operator")
    operator = Process(scheduler, "operator")
    caller = Caller(operator, network, hello=hello, targets=lambda: ["s1"])
    done: list[str] = []

    def answered(name: str, answer: m.Message, at: float) -> None:
        del at
        assert isinstance(answer, m.Done)
        done.append(name)

    caller.call(m.RotateCa(b"1"), partial(answered, "exchange"))
    token = m.CreateToken(TokenId("t"), TokenKind.SERVER, "admin", bytes(32), 60.0)
    caller.call(token, partial(answered, "token"))
    scheduler.run_until(5.0)
    assert done == ["token", "exchange"]
    assert server.calls == [m.RotateCa, m.CreateToken, m.RotateCa]
