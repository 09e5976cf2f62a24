"""The checker of late, repeated and stale commands: the table takes none of them for a new one.

A run has few of them, since servers withhold what is too late. So each command that is applied is
also tried in forms in which the log might have it, on the table before or after it and beside the
run: expired, repeated, of a former incarnation of a server, with a token that is revoked.
"""

from collections import deque
from dataclasses import replace

from gpupool.pool.model.commands import Command, Envelope, FreeLease, Grant, ServerUp, wrap
from gpupool.pool.model.ids import Incarnation, LeaseId, Milliseconds, Plain, RequestId
from gpupool.pool.model.results import RefusalKind
from gpupool.pool.model.state import PoolState, with_changes
from gpupool.pool.transitions import clock_setting
from gpupool.pool.transitions.apply import PoolMachine, lease_of
from gpupool.simulations.kernel.failure_reporter import FailureReporter

REPEATED_COUNT_MAX = 64
"""Grants and frees that are repeated in turn, one with each command that is tried."""

TRY_EVERY = 3
"""Commands that are no grants are tried at every index that this divides."""

_BOOKS = ("leases", "servers", "tokens", "closed", "by_request", "policy", "usage", "removed")


def is_late(envelope: Envelope, before: PoolState) -> bool:
    """Return whether a command comes after its deadline, by the time at which it is applied."""
    return max(before.now, envelope.at) > envelope.expires > 0


class LateCommands:
    """No expired command is applied, no request is granted twice, no stale server is heard."""

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._granted: dict[RequestId, LeaseId] = {}
        self._former: deque[Grant | FreeLease] = deque(maxlen=REPEATED_COUNT_MAX)

    def applied(
        self, index: int, envelope: Envelope, result: Plain, before: PoolState, after: PoolState
    ) -> None:
        """Judge a command that was applied for the first time, then try it in other forms."""
        command, kind = envelope.command, _kind(result)
        if is_late(envelope, before) and kind != RefusalKind.EXPIRED:
            self._failures.fail("expired-refused", f"{command} was applied after its deadline")
        if kind == RefusalKind.EXPIRED:
            return
        lease = after.leases.get(LeaseId(index))
        if lease is not None and isinstance(command, Grant):
            first = self._granted.setdefault(lease.request, lease.id)
            if first != lease.id:
                text = f"request {lease.request.hex()} was lease {first}, and now {lease.id}"
                self._failures.fail("granted-once", text)
            self._judge_grant(index, command, before)
            self._former.append(command)
        elif isinstance(command, FreeLease):
            self._former.append(command)
            self._judge_free(index, command, before, after)
        elif isinstance(command, ServerUp):
            self._judge_up(index, command, after)
        if lease is not None or index % TRY_EVERY == 0:
            self._try_expired(index, command, before)
            self._repeat(index, after)

    def _judge_grant(self, index: int, command: Grant, before: PoolState) -> None:
        server = min(command.incarnations)
        for step in (-1, 1):
            told = Incarnation(command.incarnations[server] + step)
            changed = replace(command, incarnations={**command.incarnations, server: told})
            if LeaseId(index) in self._try(index, changed, before)[0].leases:
                text = f"lease {index} is granted by the offer of incarnation {told} of {server}"
                self._failures.fail("incarnation-current", text)
        token = before.tokens[command.token]
        revoked = replace(token, revoked_at=Milliseconds(max(1, before.now)))
        state = with_changes(before, tokens=before.tokens | {token.id: revoked})
        if token.revoked_at or LeaseId(index) in self._try(index, command, state)[0].leases:
            self._failures.fail("revoked-refused", f"lease {index} is granted to a revoked token")

    def _judge_free(
        self, index: int, command: FreeLease, before: PoolState, after: PoolState
    ) -> None:
        if self._changes(index, command, after):
            text = f"{command} gives back again what it gave back"
            self._failures.fail("freed-once", text)
        former = replace(command, incarnation=Incarnation(command.incarnation - 1))
        if command.lease in before.leases and self._changes(index, former, before):
            text = f"{former} is heard, which is not its server's incarnation"
            self._failures.fail("incarnation-current", text)

    def _judge_up(self, index: int, command: ServerUp, after: PoolState) -> None:
        server = after.servers.get(command.server)
        if server is None or server.incarnation > command.incarnation:
            return
        former = replace(command, incarnation=Incarnation(command.incarnation - 1))
        if self._changes(index, former, after):
            text = f"{former.server} is up as incarnation {former.incarnation}, a former one"
            self._failures.fail("incarnation-current", text)

    def _try_expired(self, index: int, command: Command, before: PoolState) -> None:
        if not before.now:
            return
        expires = Milliseconds(before.now - 1)
        plain = wrap(command, at_ms=expires - 1, ttl_ms=1, era=before.era)
        machine = PoolMachine(before)
        if _kind(machine.apply(index, plain)) != RefusalKind.EXPIRED or any(
            getattr(machine.state, name) is not getattr(before, name) for name in _BOOKS
        ):
            self._failures.fail("expired-refused", f"{command} is applied after its deadline")

    def _repeat(self, index: int, after: PoolState) -> None:
        if not self._former:
            return
        command = self._former[0]
        self._former.rotate(-1)
        state, result = self._try(index + 1, command, after)
        if isinstance(command, Grant):
            known = self._granted[command.request.id]
            granted = isinstance(result, dict) and result.get("lease")
            if LeaseId(index + 1) in state.leases or (granted and granted != known):
                text = f"request {command.request.id.hex()}, once lease {known}, is granted anew"
                self._failures.fail("granted-once", text)
        elif self._changes(index + 1, command, after):
            self._failures.fail("freed-once", f"{command} comes late and gives back again")

    def _changes(self, index: int, command: Command, state: PoolState) -> bool:
        """Return whether a command changes the table, other than by the time that was set last.

        Any command has its lease moved to that time before it is judged, a refused one too.
        """
        moved = clock_setting.moved_ahead(state, lease_of(state, command))
        after, _ = self._try(index, command, moved)
        return any(getattr(after, n) != getattr(moved, n) for n in ("leases", "servers", "usage"))

    @staticmethod
    def _try(index: int, command: Command, state: PoolState) -> tuple[PoolState, Plain]:
        """Apply a command beside the run; return the table and the result."""
        machine = PoolMachine(state)
        result = machine.apply(index, wrap(command, at_ms=state.now, ttl_ms=0, era=state.era))
        return machine.state, result


def _kind(result: Plain) -> object:
    return result.get("kind") if isinstance(result, dict) else None
