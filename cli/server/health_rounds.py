"""The rounds of checks that a server runs of itself: once a second, in its own process.

They are pure and take less than a millisecond. What they need of files is read by a thread.
"""

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

import trio

from gpupool.cli.server.alert_link import MAJORITY, SENDS, AlertLink
from gpupool.cli.server.state_dir import StateDir
from gpupool.monitoring.health.alert_settings import find_settings
from gpupool.monitoring.health.health_monitor import HealthMonitor
from gpupool.monitoring.health.readings import ObserverReadings, Readings
from gpupool.monitoring.observer_link import ObserverLink
from gpupool.pool.alert_gate import sends_alerts
from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.ports import RaftHealth
from gpupool.pool.transitions.state_machine import PoolMachine
from gpupool.pool.view import has_quorum
from gpupool.remoting.server.controller import Controller
from gpupool.remoting.transport.ca_bundle import newest_of
from gpupool.remoting.transport.pki import validity_of

ROUND_S = 1.0
CERTIFICATES_EVERY_S = 3600.0
TOLD_EVERY_S = 600.0


class HealthRounds:
    """Runs the checks, and tells the controller of what they find."""

    def __init__(self, drain_for: Iterable[str], files: StateDir, log: logging.Logger) -> None:
        """Make the rounds.

        Args:
            drain_for: the signs for which a GPU of this server is drained.
            files: with this server's certificates.
            log: gets each check that fails by a bug, now and then.
        """
        self._monitor = HealthMonitor(drain_for, self._failed)
        self._files = files
        self._log = log
        self._told_at: dict[str, float] = {}
        self._ends_ms: dict[str, int] = {}

    async def run(
        self,
        controller: Controller,
        machine: PoolMachine,
        health: Callable[[], RaftHealth],
        observer: ObserverLink,
    ) -> None:
        """Check this server once a second until cancelled."""
        async with trio.open_nursery() as nursery:
            if (settings := find_settings(self._files.path)) is not None:
                assert self._files.identity is not None
                gate = partial(_gate, machine, self._files.identity.server, health)
                log = logging.getLogger("gpupool.alerts")
                nursery.start_soon(AlertLink(settings, gate, log).run)
            await self._rounds(controller, machine, health, observer)

    async def _rounds(
        self,
        controller: Controller,
        machine: PoolMachine,
        health: Callable[[], RaftHealth],
        observer: ObserverLink,
    ) -> None:
        read_at = float("-inf")
        while True:
            began = trio.current_time()
            if began >= read_at + CERTIFICATES_EVERY_S:
                read_at = began
                self._ends_ms = await trio.to_thread.run_sync(self._read_certificates)
            try:
                self._round(controller, machine, health(), observer)
            except Exception:  # noqa: BLE001 - seeing must never stop a server that grants
                self._log.exception("the checks could not be made")
            await trio.sleep_until(began + ROUND_S)

    def _round(
        self,
        controller: Controller,
        machine: PoolMachine,
        health: RaftHealth,
        observer: ObserverLink,
    ) -> None:
        now_ms = Milliseconds(controller.table_clock.now_ms())
        readings = Readings(
            now_s=trio.current_time(),
            at=now_ms,
            telemetry=controller.telemetry(),
            state=machine.state,
            health=health,
            certificates={name: (end - now_ms) / 1000 for name, end in self._ends_ms.items()},
            observer=ObserverReadings(observer.restarts, observer.dropped),
        )
        before = {(each.check, each.subject): each.status for each in self._monitor.findings}
        findings = self._monitor.round(readings)
        controller.checks.findings = findings
        controller.checks.signs = self._monitor.signs()
        for each in findings:
            if before.get((each.check, each.subject)) != each.status:
                self._log.warning("health, %s: %s: %s", each.status.name, each.check, each.text)

    def _read_certificates(self) -> dict[str, int]:
        """Return when the certificates of this server and of the newest CA end."""
        try:
            identity = self._files.tls_identities()[0]
            leaf = identity.certificate_path.read_bytes()
            found = {"server": leaf, "ca": newest_of(identity.ca_pem)}
            return {name: validity_of(pem).ends_ms for name, pem in found.items()}
        except (GpupoolError, OSError) as error:
            self._log.debug("the certificates cannot be read: %s", error)
            return {}

    def _failed(self, text: str) -> None:
        now = time.monotonic()
        if now >= self._told_at.get(text, float("-inf")) + TOLD_EVERY_S:
            self._told_at[text] = now
            self._log.error("a check fails, which is a bug of gpupool: %s", text)


def _gate(machine: PoolMachine, me: ServerId, health: Callable[[], RaftHealth]) -> int:
    """Return what the sender of alerts is told: whether it sends, whether there is a majority."""
    now = health()
    sends = SENDS if sends_alerts(machine.state, me, now) else 0
    return sends | (MAJORITY if has_quorum(now) else 0)
