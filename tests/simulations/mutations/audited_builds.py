"""Broken builds that the audit of November 2026 found unnoticed, and some of their kind."""

from dataclasses import replace

from tests.simulations.mutations import broken_consensus, broken_leases
from tests.simulations.mutations.mutation import Mutation, with_policy

LEASES = (
    Mutation(
        "ends-healthy-leases",
        "ends-for-a-reason",
        "a third of all leases ends after 0.7 s, though its client is attached",
        broken_leases.ends_healthy_leases,
    ),
    Mutation(
        "unconnected-ends-at-once",
        "ends-for-a-reason",
        "a client has no time to connect with the servers of its lease",
        broken_leases.unconnected_ends_at_once,
        tune=lambda options: replace(options, across=0.4),
    ),
    Mutation(
        "worker-death-ends-lease",
        "ends-for-a-reason",
        "a lease ends that has no worker now",
        broken_leases.worker_death_ends_lease,
        (("worker-death", 1.0),),
    ),
    Mutation(
        "release-ends-another",
        "ends-for-a-reason",
        "a client that gives a lease back ends another one of its user",
        broken_leases.release_ends_another,
    ),
    Mutation(
        "lost-contact-ends-leases",
        "ends-for-a-reason",
        "the leases of a server end that the leader cannot reach",
        broken_leases.lost_contact_ends_leases,
        # A client that is there gives such a lease up after 4 s, before its server is unreachable.
        tune=lambda options: replace(
            options, hold_s=15.0, faults=(("pause", 2.0), ("client-pause", 0.3))
        ),
    ),
    Mutation(
        "drain-ends-leases",
        "ends-for-a-reason",
        "the leases of a server end when it is drained",
        broken_leases.drain_ends_leases,
        (("drain", 2.0),),
    ),
    Mutation(
        "revocation-ends-all-of-user",
        "ends-for-a-reason",
        "a revoked token ends the leases of its user's other tokens",
        broken_leases.revocation_ends_all_of_user,
        (("revoke", 1.0),),
        lambda options: replace(options, hold_s=8.0),
    ),
    Mutation(
        "lease-ends-5s-early",
        "ends-in-time",
        "a lease ends five seconds before its time is over",
        broken_leases.ends_5s_early,
        tune=lambda options: with_policy("lifetime")(replace(options, hold_s=8.0)),
    ),
    Mutation(
        "notice-without-grace",
        "ends-in-time",
        "a window that ends leases gives them no time",
        broken_leases.notice_without_grace,
        tune=lambda options: with_policy("window")(replace(options, hold_s=8.0)),
    ),
    Mutation(
        "idle-counts-tenfold",
        "ends-in-time",
        "a lease counts as unused for ten times as long as it is",
        broken_leases.idle_counts_tenfold,
        tune=lambda options: replace(options, idle=0.9, hold_s=8.0),
    ),
    Mutation(
        "expiry-ignored",
        "expired-refused",
        "a command is applied after its deadline",
        broken_leases.expiry_ignored,
    ),
    Mutation(
        "revocation-not-checked-at-commit",
        "revoked-refused",
        "a grant is applied whose token has been revoked since it was proposed",
        broken_leases.revocation_unchecked,
    ),
    Mutation(
        "grant-ignores-incarnation",
        "incarnation-current",
        "a grant is applied by the offer of a server that has restarted since",
        broken_leases.grant_ignores_incarnation,
    ),
    Mutation(
        "free-ignores-incarnation",
        "incarnation-current",
        "a former process of a server gives back what the present one has",
        broken_leases.free_ignores_incarnation,
    ),
    Mutation(
        "former-incarnation-is-up",
        "incarnation-current",
        "a server is taken back to a former incarnation",
        broken_leases.former_incarnation_is_up,
        (("kill", 2.0),),
    ),
    Mutation(
        "starting-worker-not-counted",
        "freed-is-gone",
        "a lease is freed while a worker of it is starting",
        broken_leases.starting_worker_not_counted,
        (("client-kill", 2.0), ("end-lease", 2.0)),
    ),
    Mutation(
        "free-twice-counts-twice",
        "freed-once",
        "what is freed twice is given back twice",
        broken_leases.free_twice_counts_twice,
        tune=lambda options: replace(options, across=0.5),
    ),
    Mutation(
        "closed-table-forgets-leases",
        "granted-once",
        "a request is forgotten once its lease has ended",
        broken_leases.closed_forgets_leases,
    ),
    Mutation(
        "closed-table-of-3",
        "granted-once",
        "three requests that are over are remembered",
        broken_leases.closed_table_of_3,
    ),
    Mutation(
        "grant-not-idempotent",
        "granted-once",
        "a repeated grant of a request that has a lease is a new one",
        broken_leases.grant_not_idempotent,
    ),
    Mutation(
        "drain-undone-by-restart",
        "policy-stays",
        "a drained server grants again once it has restarted",
        broken_leases.drain_undone_by_restart,
        (("drain", 2.0), ("kill", 1.0)),
    ),
)
"""Broken builds of how leases end, and of late, repeated and stale commands."""

CONSENSUS = (
    Mutation(
        "commits-one-ahead",
        "acknowledged-stays",
        "a leader commits one entry beyond those that a majority has",
        broken_consensus.commits_one_ahead,
        (("isolate-leader", 2.0), ("kill-leader", 2.0)),
    ),
    Mutation(
        "pull-gives-uncommitted",
        "logs-agree",
        "a server without a vote is given entries that are not committed",
        broken_consensus.pull_gives_uncommitted,
        (("isolate-leader", 2.0), ("kill-leader", 2.0)),
        lambda options: replace(options, servers=10, clients=12),
    ),
    Mutation(
        "vote-lost-term-kept",
        "one-vote",
        "a server that restarts knows its term, and not its vote",
        broken_consensus.vote_lost_term_kept,
        tune=lambda options: replace(
            options,
            servers=5,
            clients=3,
            fault_s=20.0,
            heal_s=1.0,
            faults=(("blink", 0.1), ("kill-leader", 1.0), ("slow-link", 2.0)),
        ),
    ),
    Mutation(
        "directory-not-synced",
        "acknowledged-stays",
        "names of new files are not synced",
        broken_consensus.directory_not_synced,
        (("power", 2.0), ("power-all", 6.0)),
    ),
    Mutation(
        "new-journal-not-synced",
        "acknowledged-stays",
        "a journal that is written anew is not synced",
        broken_consensus.new_journal_not_synced,
        (("power", 2.0), ("power-all", 6.0)),
        lambda options: replace(options, snapshot_entries=40),
    ),
)
"""Broken builds of consensus that the audit of November 2026 added."""
