"""The checks of a server by itself: once a second, in its own process.

They are pure and take less than a millisecond. What they need of files is read by a thread.

The sender of alerts is a process that hears each second whether it sends. Its end stops nothing
here, and the server never waits for it.
"""

import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from gpupool.monitoring.exporter_link import (
    AWAY,
    NO_HISTORY,
    ExporterLink,
    end_beside,
    start_beside,
)
from gpupool.monitoring.health.alert_settings import find_settings
from gpupool.monitoring.health.device_memory import FILE, DeviceMemory, SelfTest
from gpupool.monitoring.health.health_monitor import HealthMonitor
from gpupool.monitoring.health.readings import ExporterReadings, Readings
from gpupool.monitoring.health.server_tests import ServerTests
from gpupool.monitoring.history.history_settings import NOT_BEGUN
from gpupool.pool.alert_gate import sends_alerts
from gpupool.pool.errors import GpupoolError, NotNowError
from gpupool.pool.history_query import HistoryPage, HistoryQuery, Storage
from gpupool.pool.model.ids import GpuId, Milliseconds
from gpupool.pool.model.state import serves
from gpupool.pool.record_query import (
    BandwidthPage,
    BandwidthQuery,
    CheckPage,
    ExporterPage,
    ExporterQuery,
    RecordPage,
    RecordQuery,
    ServerTest,
)
from gpupool.pool.telemetry import Health
from gpupool.pool.view import has_quorum
from gpupool.remoting.daemon.state_dir import StateDir
from gpupool.remoting.daemon.web_door import WebParts
from gpupool.remoting.host.supervisor import HostSupervisor
from gpupool.remoting.server.controller import Controller
from gpupool.remoting.server.service_context import ServiceContext
from gpupool.remoting.transport.authority.ca_bundle import newest_of
from gpupool.remoting.transport.peer_transport import PeerTransport
from gpupool.remoting.transport.pki import validity_of
from gpupool.remoting.transport.watching import keep_watching

GATE_EVERY_S = 1.0
SENDS, MAJORITY = 1, 2


class AlertLink:
    """One server's sender of alerts."""

    def __init__(self, settings: Path, gate: Callable[[], int], log: logging.Logger) -> None:
        """Make the link.

        Args:
            settings: the file ``alerts.toml``.
            gate: whether this server sends and has a majority, as ``SENDS`` and ``MAJORITY``.
            log: gets each end of a sender.
        """
        self._settings = settings
        self._gate = gate
        self._log = log

    async def run(self) -> None:
        """Keep a sender running until cancelled."""
        await keep_watching(self._log.warning, "the sender of alerts", self._run_one)

    async def _run_one(self) -> str:
        """Run one sender to its end, and return its status in words."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await start_beside(
                *("gpupool.monitoring.health.alert_sender", str(theirs.fileno())),
                str(self._settings.resolve()),
                passed=(theirs.fileno(),),
            )
        ours.setblocking(False)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell, ours)
                await process.wait()
                nursery.cancel_scope.cancel()
        finally:
            ours.close()
            await end_beside(process)
        return f"status {process.returncode or 0}"

    async def _tell(self, ours: socket.socket) -> None:
        while True:
            # A sender that reads nothing for hours gets the rest later, or never.
            with suppress(OSError):
                ours.send(bytes([self._gate()]))
            await trio.sleep(GATE_EVERY_S)


ROUND_S = 1.0
CERTIFICATES_EVERY_S = 3600.0
TOLD_EVERY_S = 600.0
EXPORTER_EVERY_S = 60.0
DEVICES_EVERY_S = 3600.0
"""Seconds between writes of the remembered GPUs; the first write comes when they are known."""
ABSENCES = (AWAY, NO_HISTORY, NOT_BEGUN)
"""Texts of an exporter that has only just started, and for one that is away."""


class HealthRounds:
    """Runs the checks, and reports their findings to the controller."""

    def __init__(
        self,
        drain_for: Iterable[str],
        files: StateDir,
        log: logging.Logger,
        web: WebParts,
        exporter: ExporterLink,
        has_signer: Callable[[], bool],
    ) -> None:
        """Make the rounds.

        Args:
            drain_for: the signs for which a GPU of this server is drained.
            files: with this server's certificates.
            log: gets each check that fails by a bug, now and then.
            web: knows the certificate of the exporter.
            exporter: keeps the history.
            has_signer: whether the process that signs certificates is there.
        """
        self._has_signer = has_signer
        self._web = web
        self._exporter_link = exporter
        self._tests: ServerTests | None = None
        self._links: PeerTransport | None = None
        self.devices = DeviceMemory()
        self._gpus_before: int | None = None
        self._gpus = 0
        self._tested: Mapping[GpuId, SelfTest] = {}
        self._exporter = ExporterReadings()
        self._monitor = HealthMonitor(drain_for, self._failed)
        self._files = files
        self._log = log
        self._told_at: dict[str, float] = {}
        self._ends_ms: dict[str, int] = {}

    async def run(self, controller: Controller, host: HostSupervisor, links: PeerTransport) -> None:
        """Check this server once a second until cancelled."""
        self.remember(await trio.to_thread.run_sync(self._read_devices))
        context, self._links = controller.context, links
        self._tests = ServerTests(
            context.me.id,
            host,
            links,
            self.devices,
            state=lambda: context.state,
            telemetry=controller.telemetry,
            now_ms=context.now_ms,
        )
        async with trio.open_nursery() as nursery:
            if (settings := find_settings(self._files.path)) is not None:
                gate = partial(_gate, context)
                log = logging.getLogger("gpupool.alerts")
                nursery.start_soon(AlertLink(settings, gate, log).run)
            nursery.start_soon(self._keep_testing, self._tests)
            await self._rounds(nursery, controller)

    def remember(self, text: str) -> None:
        """Take the GPUs as the last start wrote them, without writing them again."""
        self.devices = DeviceMemory(text)
        self._gpus_before = self.devices.gpu_count
        self._tested = self.devices.tests()

    async def _keep_testing(self, tests: ServerTests) -> None:
        while True:
            try:
                await tests.run()
            except Exception:  # noqa: BLE001 - seeing must never stop a server that grants
                self._log.exception("the GPUs could not be tested")
            await trio.sleep(DEVICES_EVERY_S)

    async def answer(self, query: ExporterQuery) -> ExporterPage:
        """Answer a client's query about this server's data beside its table."""
        if not isinstance(query, ServerTest):
            page = await self._exporter_link.answer(query)
            return self._with_ends(page) if _asks_storage(query) else page
        if self._tests is None or self._links is None:
            raise NotNowError("this server has only just started")
        if isinstance(query, BandwidthQuery):
            speeds = await self._links.measure(query.peer)
            return BandwidthPage(speeds.there, speeds.back)
        return CheckPage(await self._tests.now())

    async def _rounds(self, nursery: trio.Nursery, controller: Controller) -> None:
        read_at = kept_at = asked_at = float("-inf")
        while True:
            began = trio.current_time()
            if began >= asked_at + EXPORTER_EVERY_S:
                asked_at = began
                nursery.start_soon(self._ask_exporter, self._exporter_link)
            if (began >= kept_at + DEVICES_EVERY_S and self._gpus) or self.tests_differ():
                kept_at = began
                text = self.devices.text(self._gpus)
                nursery.start_soon(trio.to_thread.run_sync, self._write_devices, text)
            if began >= read_at + CERTIFICATES_EVERY_S:
                read_at = began
                self._ends_ms = await trio.to_thread.run_sync(self._read_certificates)
            try:
                self._round(controller)
            except Exception:  # noqa: BLE001 - seeing must never stop a server that grants
                self._log.exception("the checks could not be made")
            await trio.sleep_until(began + ROUND_S)

    def _round(self, controller: Controller) -> None:
        exporter, context = self._exporter_link, controller.context
        state, now_ms, telemetry = context.state, context.now_ms(), controller.telemetry()
        self._gpus = len(telemetry.gpus)
        self.devices.note_errors(telemetry.gpus, now_ms)
        readings = Readings(
            now_s=trio.current_time(),
            at=now_ms,
            telemetry=telemetry,
            state=state,
            knows_table=serves(state, telemetry.server, context.me.incarnation),
            health=context.consensus.health(),
            certificates={name: (end - now_ms) / 1000 for name, end in self._ends().items()},
            has_signer=self._has_signer(),
            exporter=replace(self._exporter, restarts=exporter.restarts, dropped=exporter.dropped),
            gpus_before=self._gpus_before,
            errors_a_second=self.devices.errors_a_second(now_ms),
            tests=self.devices.tests(),
        )
        before = {(each.check, each.subject): each for each in self._monitor.findings}
        findings = self._monitor.round(readings)
        context.me.checks.findings = findings
        context.me.checks.signs = self._monitor.signs()
        for each in findings:
            known = before.get((each.check, each.subject))
            if known is None or (known.status != each.status and not (known.flaps and each.flaps)):
                text = f"{each.text}; {each.hint}" if each.status is Health.FAIL else each.text
                self._log.warning("health, %s: %s: %s", each.status.name, each.check, text)

    def _ends(self) -> dict[str, int]:
        """Return when the certificates of this server end, by the clock of the pool."""
        return self._ends_ms | ({"web": self._web.ends_ms} if self._web.ends_ms else {})

    def _with_ends(self, page: ExporterPage) -> ExporterPage:
        """Return the exporter's page with the certificates' ends, which the exporter lacks."""
        if not isinstance(page, HistoryPage):
            return page
        ends = {name: Milliseconds(end) for name, end in self._ends().items()}
        return replace(page, storage=replace(page.storage or Storage(), ends=ends))

    async def _ask_exporter(self, exporter: ExporterLink) -> None:
        """Ask the exporter whether it stores its data; its silence is counted elsewhere."""
        nothing = HistoryQuery("pool", "granted", since=Milliseconds(0), until=Milliseconds(1))
        pages = [await exporter.answer(each) for each in (RecordQuery(count=0), nothing)]
        problems = [page.problem for page in pages if isinstance(page, RecordPage | HistoryPage)]
        said = [each for each in problems if each not in ("", *ABSENCES)]
        text = said[0] if said else ""
        self._exporter = ExporterReadings(problem=text)

    def tests_differ(self) -> bool:
        """Return whether a test has ended since the last call."""
        before, self._tested = self._tested, self.devices.tests()
        return before != self._tested

    def _read_devices(self) -> str:
        try:
            return self._files.read(FILE).decode(errors="replace")
        except GpupoolError as error:
            self._log.debug("what was known of the GPUs cannot be read: %s", error)
            return ""

    def _write_devices(self, text: str) -> None:
        try:
            self._files.write(FILE, text.encode())
        except GpupoolError as error:
            self._log.debug("what is known of the GPUs cannot be written: %s", error)

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


def _asks_storage(query: ExporterQuery) -> bool:
    return isinstance(query, HistoryQuery) and query.of == "storage"


def _gate(context: ServiceContext) -> int:
    """Return the state for the sender of alerts: whether it sends, whether there is a majority."""
    now = context.consensus.health()
    sends = SENDS if sends_alerts(context.state, context.me.id, now) else 0
    return sends | (MAJORITY if has_quorum(now) else 0)
