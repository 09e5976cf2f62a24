"""Broken builds: persisted votes, sizes, sends before the sync, answers of a cut-off server."""

from dataclasses import replace

from tests.simulations.mutations import (
    broken_ca,
    broken_drains,
    broken_leases,
    broken_promises,
    broken_suspensions,
    broken_versions,
)
from tests.simulations.mutations.broken_orders import ORDERS
from tests.simulations.mutations.broken_relocations import RELOCATIONS
from tests.simulations.mutations.mutation import Mutation, short

from gpupool.simulations.kernel.swarm_options import Options


def _small(options: Options) -> Options:
    return replace(options, servers=5, clients=12, small_messages=True, snapshot_entries=40)


def _five(options: Options) -> Options:
    return short(16.0, 2.0)(replace(options, servers=5, clients=6))


def _preempting(options: Options) -> Options:
    """Return a small, quiet pool in which leases give way all the time."""
    quiet = replace(options, faults=(), servers=3, clients=10, think_s=0.3, starved_s=1.0)
    quiet = replace(quiet, idle=0.0, filtered=0.0, fault_s=16.0, heal_s=2.0)
    return replace(quiet, policy=("preempt",), policy_s=6.0, preemptible=0.3)


def _sleeping(options: Options) -> Options:
    """Return one that has time enough for leases to be suspended for too long."""
    return replace(_preempting(options), hold_s=8.0, fault_s=6.0, heal_s=14.0, starved_s=60.0)


_WRONG_CLOCKS = (("set-clock", 1.0), ("clock-jump", 2.0), ("clock-wrong", 4.0))


def _moving(options: Options) -> Options:
    """Return one in which a time that is set back moves one lease with each command."""
    return replace(short(12.0, 6.0)(options), ends_at_once=1, hold_s=8.0, clients=12)


NEWER = (
    *ORDERS,
    *RELOCATIONS,
    Mutation(
        "revoked-stays-connected",
        "revoked-unserved",
        "connections of a token go on after its revocation",
        broken_promises.revoked_stays_connected,
        (("revoke", 1.0),),
        short(10.0, 1.0),
    ),
    Mutation(
        "majority-not-required",
        "revoked-unserved",
        "a server that is cut off goes on offering GPUs and opening sessions",
        broken_promises.majority_not_required,
        (("revoke", 1.0), ("isolate-leader", 2.0), ("deaf", 2.0)),
    ),
    Mutation(
        "hangs-up-on-clients",
        "ends-for-a-reason",
        "a server closes connections of clients, which ends their leases",
        broken_promises.hangs_up_on_clients,
    ),
    Mutation(
        "batches-without-bound",
        "size-bounds",
        "a server sends all that another one lacks in one message",
        broken_promises.batches_without_bound,
        (("kill", 2.0), ("pause", 2.0)),
        lambda options: replace(_small(options), snapshot_entries=10_000),
    ),
    Mutation(
        "snapshot-in-one-piece",
        "size-bounds",
        "a server sends a whole snapshot in one message",
        broken_promises.snapshot_in_one_piece,
        (("kill", 2.0), ("replace", 3.0)),
        lambda options: replace(
            _small(options), bulk_kib=38, policy=("priority",), policy_s=2.0, clients=6
        ),
    ),
    Mutation(
        "clone-not-noticed",
        "one-serves",
        "a server welcomes each start of another one, whichever ones it has heard of",
        broken_promises.clone_not_noticed,
        (("clone", 2.0),),
        _five,
    ),
    Mutation(
        "no-probation",
        "one-serves",
        "a start counts at once that takes the place of a connection that lives",
        broken_promises.no_probation,
        (("clone", 2.0),),
        _five,
    ),
    Mutation(
        "refusal-ignored",
        "one-serves",
        "a server goes on that the others refuse",
        broken_promises.refusal_ignored,
        (("clone", 2.0),),
        lambda options: replace(_five(options), faults=(("clone", 2.0),)),
    ),
    Mutation(
        "original-refused",
        "one-serves",
        "the former of two starts of a server passes for the clone",
        broken_promises.original_refused,
        (("clone", 2.0),),
        _five,
    ),
    Mutation(
        "recover-fences-nobody",
        "one-serves",
        "a server returns that a recovered pool went on without",
        broken_promises.recover_fences_nobody,
        tune=lambda options: replace(_five(options), faults=(("recover", 2.0),)),
    ),
    Mutation(
        "told-and-hung-up",
        "one-serves",
        "the notice to a server that was left behind is lost with its connection",
        broken_promises.told_and_hung_up,
        tune=lambda options: replace(_five(options), faults=(("recover", 2.0),)),
    ),
    Mutation(
        "recover-drops-the-end",
        "logs-agree",
        "the survivor goes on without the newest entries of its log",
        broken_promises.recover_drops_the_end,
        tune=lambda options: replace(_five(options), faults=(("recover", 2.0),)),
    ),
    Mutation(
        "revocation-left-undone",
        "revoked-ends",
        "a leader ends no more leases of a revoked token than the first command does",
        broken_leases.revocation_left_undone,
        (("revoke", 1.0),),
        lambda options: replace(short(8.0, 6.0)(options), ends_at_once=1, hold_s=8.0),
    ),
    Mutation(
        "removal-left-undone",
        "removed-goes",
        "a leader leaves a server in the table of which the first command did not free all",
        broken_leases.removal_left_undone,
        (("replace", 2.0),),
        lambda options: replace(short(8.0, 6.0)(options), ends_at_once=1, hold_s=8.0),
    ),
    Mutation(
        "set-time-left-undone",
        "set-time-moves",
        "a leader leaves leases as they were that the first command did not move",
        broken_leases.set_time_left_undone,
        _WRONG_CLOCKS,
        _moving,
    ),
    Mutation(
        "moved-too-late",
        "accounts-close",
        "a lease that is not moved is ended, and its end taken for one of the accident",
        broken_leases.moved_ahead_of_nothing,
        _WRONG_CLOCKS,
        _moving,
    ),
    Mutation(
        "latest-clock-believed",
        "table-time",
        "the table's time follows the clock that is furthest ahead",
        broken_promises.latest_clock_believed,
        (("clock-wrong", 2.0),),
        short(16.0, 1.0),
    ),
    Mutation(
        "hash-not-begun-anew",
        "no-crash",
        "a server that got a snapshot hashes the rest of a run as the whole",
        broken_promises.hash_not_begun_anew,
        (("kill", 1.0),),
        lambda options: replace(short(12.0, 1.0)(options), snapshot_entries=40),
    ),
    Mutation(
        "acknowledges-before-sync",
        "promises-durable",
        "votes and answers leave before what they tell of is on the disk",
        broken_promises.acknowledges_before_sync,
        (("torn", 1.0), ("power", 1.0)),
        lambda options: replace(short(8.0, 1.0)(options), clients=6, sync_s=0.005),
    ),
    Mutation(
        "row-flips-in-memory",
        "no-crash",
        "a bit of one server's table flips, on which no result depends",
        broken_promises.row_flips_in_memory,
        tune=lambda options: replace(short(8.0, 1.0)(options), clients=6, hash_s=2.0),
    ),
    Mutation(
        "whole-tables-not-compared",
        "flips-found",
        "a server passes over the hashes of the others' tables",
        broken_promises.whole_tables_not_compared,
        (("bit", 2.0),),
        lambda options: replace(short(6.0, 6.0)(options), hash_s=2.0),
    ),
    Mutation(
        "pauses-ignored",
        "no-thrashing",
        "a lease is suspended again before its minimum run time is over",
        broken_suspensions.pauses_ignored,
        tune=_preempting,
    ),
    Mutation(
        "anybody-gives-way",
        "may-give-way",
        "leases that are not preemptible are suspended for requests",
        broken_suspensions.anybody_gives_way,
        tune=_preempting,
    ),
    Mutation(
        "guarantees-ignored",
        "guarantees-hold",
        "a class is left with less than its guarantee",
        broken_suspensions.guarantees_ignored,
        tune=_preempting,
    ),
    Mutation(
        "suspends-too-many",
        "no-more-than-needed",
        "all that may give way is suspended for a request",
        broken_suspensions.suspends_too_many,
        tune=_preempting,
    ),
    Mutation(
        "overtakes-the-suspended",
        "suspended-go-on",
        "GPUs of a lease that waits to go on are granted to others",
        broken_suspensions.overtakes_the_suspended,
        tune=_preempting,
    ),
    Mutation(
        "away-for-ever",
        "suspended-too-long",
        "a lease may be suspended for longer than the policy says",
        broken_suspensions.away_for_ever,
        tune=_sleeping,
    ),
    Mutation(
        "away-for-a-moment",
        "ends-in-time",
        "a suspended lease ends before it has been suspended for too long",
        broken_suspensions.away_for_a_moment,
        tune=_preempting,
    ),
    Mutation(
        "older-reads-on",
        "version-known",
        "a server reads the log of a pool that its program is too old for",
        broken_versions.older_goes_on,
        tune=short(4.0, 1.0),
    ),
    Mutation(
        "older-let-in",
        "version-stays",
        "a pool takes in a server that is older than what its servers have agreed on",
        broken_versions.older_let_in,
        tune=short(4.0, 1.0),
    ),
    Mutation(
        "last-key-leaves",
        "converges",
        "the last server that has the CA's key leaves, and nobody can join any more",
        broken_ca.last_key_leaves,
        (("replace", 0.5),),
        short(8.0, 10.0),
    ),
    Mutation(
        "drains-before-the-sign",
        "undrain-holds",
        "a drain has an earlier time than its sign, so that an undrain comes before the sign too",
        broken_drains.drains_before_the_sign,
        (("sign", 0.3), ("clock-jump", 1.0)),
    ),
)
"""Broken builds of the mechanisms that came after the audit of November 2026."""
