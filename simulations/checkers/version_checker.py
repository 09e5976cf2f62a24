"""The version of the table: no server reads entries that its program does not know."""

from gpupool.pool.model.state import PoolState
from gpupool.simulations.kernel.failure_reporter import FailureReporter


class VersionsAgree:
    """The version that a pool has agreed on stays, and servers that are older read nothing of it.

    A command of that version may stand in the log from the entry on with which it was agreed.
    """

    def __init__(self, failures: FailureReporter) -> None:
        """Watch from an empty table on."""
        self._failures = failures

    def applied(self, before: PoolState, state: PoolState) -> None:
        """Compare the tables before and after a command."""
        if before.servers is state.servers:
            return
        former, agreed = before.formats(), state.formats()
        if agreed < former:
            text = f"the pool had agreed on version {former}, and takes a server of {agreed} in"
            self._failures.fail("version-stays", text)

    def read(self, server: str, version: int, before: PoolState) -> None:
        """Take note that a server of a version applies an entry to a table."""
        agreed = before.formats()
        if version < agreed:
            text = f"{server}, which knows version {version}, reads a log of version {agreed}"
            self._failures.fail("version-known", text)
