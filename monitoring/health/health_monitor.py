"""One server's monitor of its own health: rounds of checks, findings, and the signs that drain.

The checks of 1 s and those of 10 s have a tracker each. Pure code: ``compose`` calls ``round``
every second.
"""

from collections.abc import Callable, Iterable

from gpupool.monitoring.health.check_table import FAST, PATIENCE_S, SLOW, SLOW_S, Run
from gpupool.monitoring.health.finding_tracker import FindingTracker
from gpupool.monitoring.health.gpu_checks import PROGRAM_XIDS
from gpupool.monitoring.health.pool_checks import quorum
from gpupool.monitoring.health.readings import Past, Readings, Result
from gpupool.pool.model.ids import GpuId
from gpupool.pool.telemetry import Finding

SIGNS = {
    "thermal": ("temperature", "throttle"),
    "repeated-xid": ("repeated-xid",),
    "ecc": ("ecc",),
    "remapped-rows": ("remapped-rows",),
    "pcie": ("pcie", "pcie-link"),
    "nvlink": ("nvlink",),
    "self-test": ("self-test",),
}
"""The signs for which GPUs can be drained, with the checks whose findings are one."""


class HealthMonitor:
    """The checks of one server, and what they have found."""

    def __init__(
        self, drain_for: Iterable[str] = (), failed: Callable[[str], None] = lambda _text: None
    ) -> None:
        """Make a monitor.

        Args:
            drain_for: the signs of ``SIGNS`` for which GPUs are drained.
            failed: gets the name of a check that raised, which is a bug of it.
        """
        self.findings: tuple[Finding, ...] = ()
        self._drain_for = tuple(drain_for)
        self._failed = failed
        self._past = Past()
        self._fast, self._slow = FindingTracker(PATIENCE_S), FindingTracker(PATIENCE_S)
        self._found: tuple[tuple[Finding, ...], tuple[Finding, ...]] = ((), ())
        self._slow_at = float("-inf")

    def round(self, readings: Readings) -> tuple[Finding, ...]:
        """Run the checks that are due, and return what there is to say."""
        past, now, at = self._past, readings.now_s, readings.at
        if not readings.knows_table:
            self._found = self._fast.round(self._results((quorum,), readings), now, at), ()
            past.remember(readings)
            return self._said()
        past.look(readings, PROGRAM_XIDS)
        fast, slow = self._found
        fast = self._fast.round(self._results(FAST, readings), now, at)
        if now >= self._slow_at + SLOW_S - 0.5:
            self._slow_at = now
            slow = self._slow.round(self._results(SLOW, readings), now, at)
        past.remember(readings)
        self._found = fast, slow
        return self._said()

    def _said(self) -> tuple[Finding, ...]:
        fast, slow = self._found
        found = sorted((*fast, *slow), key=lambda each: (-each.status, each.check, each.subject))
        if tuple(found) != self.findings:
            self.findings = tuple(found)
        return self.findings

    def _results(self, checks: Iterable[Run], readings: Readings) -> list[Result]:
        found: list[Result] = []
        for check in checks:
            try:
                found += check(readings, self._past)
            except Exception as error:  # noqa: BLE001 - seeing must never stop a server that grants
                self._failed(f"{check.__name__}: {type(error).__name__}: {error}")
        return found

    def signs(self) -> dict[tuple[GpuId, str], str]:
        """Return the signs for which GPUs are to be drained now; see ``pool.automatic_drains``."""
        return {
            (GpuId(finding.subject), sign): finding.text
            for sign in self._drain_for
            for finding in self.findings
            if finding.check in SIGNS.get(sign, ())
        }
