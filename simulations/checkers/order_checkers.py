"""The checkers of silences and of forgotten users: an operator's order holds, and no longer.

Both follow the log as the first server to apply each command saw it, and keep an own count of what
operators have ordered.
"""

from dataclasses import dataclass, replace

from gpupool.pool.model.commands import Envelope, SetSilence
from gpupool.pool.model.forgetting import ForgetUser, digest_of, pseudonym_of
from gpupool.pool.model.silences import SILENCE_MAX_MS
from gpupool.pool.model.state import WAITING_LAPSE_MS, LeaseRecord, PoolState
from gpupool.pool.transitions import silencing
from gpupool.simulations.checkers.late_commands import is_late
from gpupool.simulations.kernel.failure_reporter import FailureReporter

Key = tuple[str, str, str]
"""The scope of a silence: a check, a server, a subject."""


@dataclass(frozen=True, slots=True)
class _Ordered:
    """A silence as its latest order says."""

    at: int
    until: int
    lifted: bool
    orders: tuple[bytes, ...]


class SilencesEnd:
    """Silences match the orders of operators, up to the instant that the order names.

    A repetition of an order does not prolong its silence. A silence that began in an accident with
    the clocks lasts as long when the table's time is set back.
    """

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._ordered: dict[Key, _Ordered] = {}

    def applied(self, envelope: Envelope, before: PoolState, after: PoolState) -> None:
        """Count a command that was applied for the first time, and look at the silences."""
        if after.era != before.era:
            self._clock_set(max(before.now, envelope.at), after.now)
        # One that came after its deadline does nothing (seed 10151218).
        if isinstance(envelope.command, SetSilence) and not is_late(envelope, before):
            self._order(envelope.command, after.now)
        if not self._ordered and not after.silences:
            return
        ordered = {
            key: each.until
            for key, each in self._ordered.items()
            if each.until > after.now and not each.lifted
        }
        silent = {each.key: int(each.until) for each in silencing.silences_now(after, after.now)}
        if silent != ordered:
            text = f"at {after.now} silences are {silent}, and ordered were {ordered}"
            self._failures.fail("silences-end", text)

    def _order(self, command: SetSilence, now: int) -> None:
        lasting = {key: each for key, each in self._ordered.items() if each.until > now}
        key = command.check, command.server, command.subject
        known = lasting.get(key)
        if known is not None and command.order in known.orders:
            return
        orders = (*(known.orders if known is not None else ()), command.order)
        orders = orders[-silencing.ORDERS_KEPT :]
        if command.reason is not None:
            if 0 < command.until - now <= SILENCE_MAX_MS:
                self._ordered = {**lasting, key: _Ordered(now, command.until, False, orders)}
        elif known is not None and not known.lifted:
            self._ordered = {**lasting, key: replace(known, lifted=True, orders=orders)}

    def _clock_set(self, now: int, to: int) -> None:
        for key, each in self._ordered.items():
            if to < each.at <= now:
                moved = replace(each, at=each.at - (now - to), until=each.until - (now - to))
                self._ordered[key] = moved


class ForgottenStay:
    """A forgotten user's name is in no record from before the order, and its figures stay.

    Nobody is forgotten who has leases or waits. Who comes back has new records under the name.
    Tokens, the policy, the audit and the latest events keep it, as docs/monitoring.md says.
    """

    def __init__(self, failures: FailureReporter) -> None:
        self._failures = failures
        self._named: dict[bytes, str] = {}
        self._closed: dict[int, LeaseRecord] = {}
        """Records of forgotten users, as they must stay."""
        self.done = 0
        """The number of forgotten users."""

    def ordered(self, user: str, salt: bytes) -> None:
        """Note the user meant by an order: the table never has the name."""
        self._named[salt] = user

    def applied(self, envelope: Envelope, before: PoolState, after: PoolState) -> None:
        """Judge a command that was applied for the first time."""
        # As above (seed 10130501).
        if isinstance(envelope.command, ForgetUser) and not is_late(envelope, before):
            self._forget(envelope.command, before, after)
        if not self._closed or after.records is before.records:
            return
        for record in after.records:
            closed = self._closed.get(record.number)
            if closed is not None and record != closed:
                self._fail(f"record {record.number} of a forgotten user is {record}")

    def _forget(self, command: ForgetUser, before: PoolState, after: PoolState) -> None:
        user = self._named[command.salt]
        if any(each.salt == command.salt for each in before.forgotten):
            return
        # Who has long renewed no wait has none at the order's own time (seed 10030577).
        since = after.now - WAITING_LAPSE_MS
        waits = [each for each in before.waiting.values() if each.renewed >= since]
        held = [*before.leases.values(), *waits]
        forgotten = any(each.salt == command.salt for each in after.forgotten)
        if any(each.user == user for each in held):
            if forgotten:
                self._fail(f"{user} was forgotten, and has leases or waits")
            return
        if not forgotten:
            self._fail(f"{user} has neither leases nor requests, and was not forgotten")
            return
        self.done += 1
        pseudonym = pseudonym_of(digest_of(command.salt, user))
        for record in before.records:
            if record.user == user:
                reason = record.reason.replace(user, pseudonym)
                closed = replace(record, user=pseudonym, client="", reason=reason)
                self._closed[record.number] = closed
                if user in str(closed):
                    self._fail(f"record {record.number} names {user} besides: {closed}")
        if user in after.usage:
            self._fail(f"the table counts what {user} has: {after.usage[user]}")

    def _fail(self, text: str) -> None:
        self._failures.fail("forgotten-stay", text)
