"""A simulated week of 20 clients of three classes; the policy differs by day and by night.

The table and the leader's duties are those of a pool; its clients, its hosts and the time are not.
What must hold is judged by the words of the policy alone: no class is brought below its guarantee,
no lease is lost, and none is suspended twice within its minimum run time.

``python -m tests.pool.preemption_week --seeds 100`` prints the figures of many weeks.
"""

import argparse
from collections import Counter
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from random import Random
from typing import Any

from tests.pool.policy_kit import GIB, MONDAY_MS, ONE, A, founding, policy_commands

from gpupool.pool.invariants import violations
from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import Incarnation, LeaseId, Milliseconds, RequestId, ServerId, TokenId
from gpupool.pool.model.policy import MILLI
from gpupool.pool.model.state import Lease, PoolState, Request, TokenKind
from gpupool.pool.model.suspension import SuspensionState
from gpupool.pool.reconcile import due_resumptions, due_suspensions
from gpupool.pool.scheduling.offers import Offer
from gpupool.pool.scheduling.placement import make_offer
from gpupool.pool.scheduling.ranking import rank
from gpupool.pool.transitions.apply import apply

SERVERS = (A, ServerId("b" * 12))
GROUPS = {"live": 6, "dev": 6, "train": 8}
HOUR_MS, MINUTE_MS = 3_600_000, 60_000
DAY_MS = 24 * HOUR_MS
STEP_MS = 5 * MINUTE_MS
"""Between two looks of the leader, and of clients that wait."""

POLICY = """
[class.live]
users = ["live-*"]
priority = 20
[class.dev]
users = ["dev-*"]
priority = 10
preemptible = true
max_suspended = "{dev_h}h"
guarantee = 2
[class.train]
users = ["train-*"]
preemptible = true
max_suspended = "{train_h}h"
min_run_time = "30m"
guarantee = 1
[[window]]
name = "day"
days = ["mon", "tue", "wed", "thu", "fri"]
from = "08:00"
to = "20:00"
leases = "suspend"
[window.class.train]
max_gpus = 4
"""
MIN_RUN_MS = {"dev": 10 * MINUTE_MS, "train": 30 * MINUTE_MS}
DEV_H, TRAIN_H = 8, 48
"""Hours for which leases may be suspended; in these weeks none of ``train`` is for so long."""
GUARANTEES = {"dev": 2, "train": 1}
PRIORITIES = {"live": 20, "dev": 10, "train": 0}


class Broken(AssertionError):
    """A condition that must hold does not; the first argument names it, in a word or two."""


@dataclass(slots=True)
class Seen:
    """The events of the week."""

    suspended: dict[str, int] = field(default_factory=dict[str, int])
    by_window: int = 0
    resumed: int = 0
    finished: int = 0
    ended: list[str] = field(default_factory=list[str])
    waits_ms: dict[str, list[int]] = field(default_factory=dict[str, list[int]])


class Week:
    """The pool, its clients and their actions, in virtual time."""

    def __init__(self, seed: int, train_h: int = TRAIN_H) -> None:
        self.random = Random(seed)
        self.max_away_ms = {"dev": DEV_H * HOUR_MS, "train": train_h * HOUR_MS}
        policy = POLICY.replace("{dev_h}", str(DEV_H)).replace("{train_h}", str(train_h))
        self.state = PoolState()
        self.now = MONDAY_MS
        self.seen = Seen()
        self.events: list[tuple[int, int, Any]] = []
        self.number = 0
        self.asked: dict[RequestId, tuple[str, Request, int]] = {}
        self.left_ms: dict[LeaseId, int] = {}  # of work
        self.resumed_at: dict[LeaseId, int] = {}
        self.suspended_at: dict[LeaseId, int] = {}
        commands = founding(SERVERS, 4, 80 * GIB)
        users = [f"{group}-{n}" for group, count in GROUPS.items() for n in range(count)]
        far = Milliseconds(2**52)
        for user in users:
            token = c.CreateToken(TokenId(user), TokenKind.USER, user, bytes(32), far, "root")
            commands.append(token)
        for command in (*commands, *policy_commands(policy, 0)):
            assert self.do(command), command
        for user in users:
            self.later(self.random.randrange(3 * HOUR_MS), lambda user=user: self.ask(user))

    # --- time -------------------------------------------------------------------------------------

    def later(self, ms: int, act: Any) -> None:
        self.number += 1
        heappush(self.events, (self.now + ms, self.number, act))

    def run(self, until: int) -> None:
        self.later(0, self.look)
        while self.events and self.events[0][0] <= until:
            self.now, _, act = heappop(self.events)
            act()

    def do(self, command: c.Command) -> bool:
        envelope = c.Envelope(command, Milliseconds(self.now), Milliseconds(0))
        before = self.state
        self.state, result = apply(before, before.index + 1, envelope)
        if result.ok:
            self.judge(command, before)
        return result.ok

    # --- clients and hosts ------------------------------------------------------------------------

    def ask(self, user: str) -> None:
        group = user.partition("-")[0]
        hour = self.now // HOUR_MS % 24
        if group != "train" and not 8 <= hour < 19:
            until_eight = (8 - hour) % 24 * HOUR_MS + self.random.randrange(HOUR_MS)
            self.later(until_eight, lambda: self.ask(user))
            return  # people develop by day
        self.number += 1
        number = RequestId(self.number.to_bytes(16, "big"))
        count, fraction = {"live": (1, 0.5), "dev": (1, 1.0), "train": (2, 1.0)}[group]
        self.asked[number] = (user, Request(number, count, fraction), self.now)
        self.try_to_begin(number)

    def try_to_begin(self, number: RequestId) -> None:
        user, request, since = self.asked[number]
        state = replace(self.state, now=Milliseconds(self.now))
        answers = [make_offer(state, each, request, user) for each in state.servers.values()]
        offers = [each for each in answers if isinstance(each, Offer)]
        if offers:
            choice = rank(offers, request)[0]
            claim = c.Grant(
                request, user, TokenId(user), bytes(32), choice.partitions, choice.incarnations
            )
            if self.do(claim):
                del self.asked[number]
                lease = self.state.by_request[number]
                group = user.partition("-")[0]
                self.seen.waits_ms.setdefault(group, []).append(self.now - since)
                hours = {"live": 0.5, "dev": 2, "train": 14}[group]
                self.left_ms[lease] = int(self.random.uniform(0.3, 1.7) * hours * HOUR_MS)
                return
        assert self.do(c.Wait(request, user, TokenId(user), "busy"))

    def look(self) -> None:
        """Let the leader do its duties, clients ask again, and programs compute."""
        if broken := violations(self.state):
            raise Broken("invariants", broken)
        for number in sorted(self.asked, key=lambda each: self.asked[each][2]):
            self.try_to_begin(number)
        self.lead()
        for lease in list(self.state.leases.values()):
            if lease.held and lease.suspension is None:
                self.left_ms[lease.id] -= STEP_MS
                if self.left_ms[lease.id] <= 0:
                    self.seen.finished += 1
                    self.end(lease, "done")
        self.later(STEP_MS, self.look)

    def lead(self) -> None:
        suspensions = due_suspensions(self.state, self.now)
        more_for = {each.for_request for each in suspensions} - {None}
        for command in (*suspensions, *due_resumptions(self.state, self.now, more_for)):
            if isinstance(command, c.EndLease):
                lease = self.state.leases[command.lease]
                since = lease.history.away_since if lease.history is not None else self.now
                if self.now - since < self.max_away_ms[lease.user.partition("-")[0]]:
                    raise Broken("lost", lease.id, command.reason)
                self.seen.ended.append(command.reason)
                self.end(lease, command.reason)
            elif self.do(command):
                moving = self.random.randrange(5000, 40_000)
                self.later(moving, lambda lease=command.lease: self.moved(lease))

    def moved(self, lease_id: LeaseId) -> None:
        """Let the hosts of a lease confirm its suspension or resumption."""
        lease = self.state.leases.get(lease_id)
        if lease is None or lease.suspension is None:
            return
        goes_on = lease.suspension.state is SuspensionState.RESUMING
        kind = c.ConfirmResumed if goes_on else c.ConfirmSuspended
        for server in lease.parts:
            more = () if goes_on else (GIB,)
            self.do(kind(lease_id, server, ONE, lease.suspension.number, *more))
        for number in list(self.asked):
            self.try_to_begin(number)  # they are told of what is free

    def end(self, lease: Lease, reason: str) -> None:
        assert self.do(c.EndLease(lease.id, reason))
        for server in lease.parts:
            assert self.do(c.FreeLease(lease.id, server, Incarnation(1)))
        group = lease.user.partition("-")[0]
        pause = {"live": 3, "dev": 2, "train": 1}[group] * HOUR_MS
        self.later(self.random.randrange(pause), lambda: self.ask(lease.user))

    def runs(self, lease: LeaseId) -> bool:
        return self.state.leases[lease].suspension is None

    # --- what must hold ---------------------------------------------------------------------------

    def judge(self, command: c.Command, before: PoolState) -> None:
        """Judge the leader's command by the words of the policy alone."""
        if isinstance(command, c.ConfirmResumed) and self.runs(command.lease):
            self.resumed_at[command.lease] = self.now
            self.seen.resumed += 1
        if not isinstance(command, c.SuspendLease):
            return
        lease = before.leases[command.lease]
        if lease.suspension is not None:
            return  # it is suspended already, and nothing has changed
        group = lease.user.partition("-")[0]
        self.seen.suspended[group] = self.seen.suspended.get(group, 0) + 1
        for since in (self.resumed_at.get(lease.id), self.suspended_at.get(lease.id)):
            if since is not None and self.now - since < MIN_RUN_MS.get(group, 0):
                raise Broken("minimum run time", lease.id, self.now - since)
        self.suspended_at[lease.id] = self.now
        if command.for_request is None:
            self.seen.by_window += 1
            return
        kept = sum(
            sum(each.units.values())
            for each in self.state.leases.values()
            if each.held and each.user.startswith(group) and each.suspension is None
        )
        if kept < GUARANTEES.get(group, 0) * 1000 * MILLI:
            raise Broken("guarantee", group, kept)
        asking = before.waiting[command.for_request].user.partition("-")[0]
        if PRIORITIES[asking] <= PRIORITIES[group]:
            raise Broken("priority", asking, group)

    def check_nobody_was_forgotten(self) -> None:
        for lease in self.state.leases.suspended().values():
            if lease.is_away and lease.history is not None:
                group = lease.user.partition("-")[0]
                away_ms = self.now - lease.history.away_since
                if away_ms > self.max_away_ms[group] + 2 * STEP_MS:
                    raise Broken("suspended too long", lease.id, away_ms)

    def check_no_lease_is_lost(self) -> None:
        """Each has finished, has ended with a reason that its user reads, or is there."""
        seen = self.seen
        there = sum(lease.held for lease in self.state.leases.values())
        granted = sum(map(len, seen.waits_ms.values()))
        if granted != seen.finished + len(seen.ended) + there:
            raise Broken("lost", granted, seen.finished, len(seen.ended), there)
        for reason in seen.ended:
            if not reason.startswith("it was suspended for "):
                raise Broken("lost", reason)


def week_of(seed: int, train_h: int = TRAIN_H) -> Seen:
    """Let a week pass, from Monday on; return its events.

    Raises:
        Broken: when something does not hold.
    """
    week = Week(seed, train_h)
    for day in range(7):
        week.run(MONDAY_MS + (day + 1) * DAY_MS)
        week.check_nobody_was_forgotten()
        week.check_no_lease_is_lost()
    return week.seen


def main() -> None:
    """Run many weeks, and print their sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--train-hours", type=int, default=TRAIN_H)
    asked = parser.parse_args()
    total, waits = Counter[str](), dict[str, list[int]]()
    for seed in range(asked.first, asked.first + asked.seeds):
        try:
            seen = week_of(seed, asked.train_hours)
        except Broken as error:
            total["failed"] += 1
            print(f"seed {seed}: {error}")
            continue
        total["weeks"] += 1
        total += Counter({f"suspended, {group}": n for group, n in seen.suspended.items()})
        total["suspended by the window"] += seen.by_window
        total["resumed"] += seen.resumed
        total["finished"] += seen.finished
        total["suspended for too long, so ended"] += len(seen.ended)
        for group, found in seen.waits_ms.items():
            waits.setdefault(group, []).extend(found)
    for what, count in total.items():
        print(f"{what}: {count}")
    for group, found in waits.items():
        found.sort()
        parts = [found[len(found) * part // 100] / MINUTE_MS for part in (50, 90, 99)]
        figures = ", ".join(f"{minutes:.0f}" for minutes in parts)
        print(f"{group}: {len(found)} granted; minutes waited, p50, p90, p99: {figures}")


if __name__ == "__main__":
    main()
