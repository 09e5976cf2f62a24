"""The catalogue of broken builds: each breaks one rule, and names the checker that must notice.

A broken build is a set of patches that are in force for one run, never a switch in the product. A
checker that catches no broken build checks nothing. ``python -m tests.simulations.mutations`` runs
one of them by name.
"""

from dataclasses import replace

from tests.simulations.mutations import (
    broken_accounts,
    broken_ca,
    broken_consensus,
    broken_drains,
    broken_policy,
    broken_servers,
    broken_suspensions,
)
from tests.simulations.mutations.audited_builds import CONSENSUS, LEASES
from tests.simulations.mutations.mutation import Mutation, short, two_gpus, with_policy
from tests.simulations.mutations.newer_builds import NEWER

from gpupool.simulations.kernel.swarm_options import Options


def _without_clones(options: Options) -> Options:
    """Leave out what makes a rare coincidence rarer."""
    faults = tuple(each for each in options.faults if each[0] not in ("clone", "recover"))
    return replace(options, faults=faults, small_messages=False, bulk_kib=0)


def _killed(options: Options) -> Options:
    """Let the sender's process begin anew now and then, and all else be at rest."""
    return replace(options, faults=(("kill", 2.0),), small_messages=False, bulk_kib=0)


MUTATIONS = (
    *LEASES,
    *CONSENSUS,
    *NEWER,
    Mutation(
        "vote-not-persisted",
        "one-vote",
        "a vote is remembered in memory only",
        broken_consensus.vote_not_persisted,
        (("kill", 1.0), ("kill-leader", 1.0)),
    ),
    Mutation(
        "not-synced",
        "acknowledged-stays",
        "the journal is written, and never synced",
        broken_consensus.not_synced,
        (("power-all", 4.0),),
    ),
    Mutation(
        "votes-count-twice",
        "one-leader",
        "each vote counts twice",
        broken_consensus.votes_count_twice,
        (("partition", 1.5), ("kill-leader", 2.0)),
    ),
    Mutation(
        "truncates-blindly",
        "acknowledged-stays",
        "a follower cuts its log behind what a leader sends, conflict or not",
        broken_consensus.truncates_blindly,
        (("kill-leader", 1.0), ("slow-link", 1.0)),
    ),
    Mutation(
        "commits-alone",
        "logs-agree",
        "a leader commits what it has, whether a majority has it or not",
        broken_consensus.commits_alone,
        (("isolate-leader", 2.0), ("kill-leader", 2.0)),
    ),
    Mutation(
        "votes-for-anybody",
        "safety",
        "a voter does not compare the candidate's log with its own",
        broken_consensus.votes_for_anybody,
        (("kill-leader", 1.0), ("slow-link", 1.0), ("isolate-leader", 2.0)),
    ),
    Mutation(
        "torn-tail-refused",
        "starts-again",
        "a batch that a crash has torn passes for damage",
        broken_consensus.torn_tail_refused,
        (("torn", 1.0), ("power", 2.0)),
    ),
    Mutation(
        "nobody-gets-a-vote",
        "creates",
        "no voter is ever added to the first",
        broken_consensus.nobody_gets_a_vote,
    ),
    Mutation(
        "unknown-outcome-crashes",
        "no-crash",
        "a server ends when it cannot know whether its command was committed",
        broken_consensus.unknown_outcome_crashes,
        (("isolate-leader", 2.0), ("kill-leader", 2.0)),
    ),
    Mutation(
        "never-rests",
        "no-progress",
        "a server looks at its table again and again without a pause",
        broken_consensus.never_rests,
    ),
    Mutation(
        "space-unchecked",
        "table-sound",
        "free memory is checked by the server that offers, not when the grant is applied",
        broken_servers.space_unchecked,
    ),
    Mutation(
        "double-grant",
        "memory-truth",
        "the same, seen by the workers",
        broken_servers.space_unchecked,
    ),
    Mutation(
        "limits-unchecked",
        "limits-hold",
        "the policy's limits are not checked when a grant is applied",
        broken_policy.limits_unchecked,
        tune=with_policy("gpus"),
    ),
    Mutation(
        "windows-ignored",
        "limits-hold",
        "a limit is the same whether its window is open or not",
        broken_policy.windows_ignored,
        tune=with_policy("window"),
    ),
    Mutation(
        "places-unchecked",
        "places-hold",
        "everybody may use every GPU",
        broken_policy.places_unchecked,
        tune=with_policy("places"),
    ),
    Mutation(
        "reservations-ignored",
        "reservations-hold",
        "GPUs that are kept for a class are granted to others",
        broken_policy.reservations_ignored,
        tune=with_policy("reservation"),
    ),
    Mutation(
        "terms-forgotten",
        "terms-given",
        "a lease gets no end and no idle timeout from the policy",
        broken_policy.terms_forgotten,
        tune=with_policy("lifetime", "idle"),
    ),
    Mutation(
        "policy-not-kept",
        "policy-stays",
        "a new policy is confirmed, and the old one stays in force",
        broken_policy.policy_not_kept,
        tune=with_policy("priority"),
    ),
    Mutation(
        "filters-ignored",
        "granted-as-asked",
        "whatever a request says of its GPUs, any will do",
        broken_policy.filters_ignored,
        tune=lambda options: replace(options, filtered=0.5),
    ),
    Mutation(
        "outlives-its-time",
        "time-is-over",
        "nobody ends a lease whose time is over",
        broken_policy.outlives_its_time,
        tune=lambda options: with_policy("lifetime")(
            short(8.0, 10.0)(replace(options, hold_s=8.0))
        ),
    ),
    Mutation(
        "never-idle",
        "unused-ends",
        "a lease that is not used goes on",
        broken_policy.never_idle,
        tune=lambda options: replace(short(8.0, 10.0)(options), idle=0.9, hold_s=8.0),
    ),
    Mutation(
        "keeps-what-is-free",
        "nobody-starves",
        "nothing is kept for a large request before all that it needs is free at once",
        broken_policy.keeps_what_is_free,
        tune=lambda options: replace(options, starved_s=1.0, think_s=0.3, gpus=2, wide=0.3),
    ),
    Mutation(
        "keeps-one-server",
        "nobody-starves",
        "for a request over several servers only what one of them has is kept",
        broken_policy.keeps_one_server,
        tune=lambda options: replace(
            options, starved_s=1.0, think_s=0.3, gpus=2, servers=3, across=0.5
        ),
    ),
    Mutation(
        "overtakes",
        "nobody-starves",
        "small requests take what one that has waited for long needs",
        broken_policy.overtakes,
        tune=lambda options: replace(options, starved_s=1.0, think_s=0.3, gpus=2, servers=3),
    ),
    Mutation(
        "waits-anew",
        "keeps-its-place",
        "a wait begins anew whenever the client asks again",
        broken_policy.waits_anew,
    ),
    Mutation(
        "has-no-place",
        "keeps-its-place",
        "clients wait without the pool's knowledge",
        broken_policy.has_no_place,
        tune=short(2.0, 16.0),
    ),
    Mutation(
        "apply-differs",
        "logs-agree",
        "a command has another effect on another server",
        broken_servers.apply_differs,
    ),
    Mutation(
        "snapshot-forgets",
        "logs-agree",
        "a snapshot lacks a part of the table",
        broken_servers.snapshot_forgets,
        (("power", 3.0), ("kill", 2.0)),
    ),
    Mutation(
        "revocation-ignored",
        "revoked-stays",
        "a revoked token goes on being good",
        broken_servers.revocation_ignored,
        (("revoke", 4.0),),
    ),
    Mutation(
        "drain-ignored",
        "policy-stays",
        "a drained server goes on granting",
        broken_servers.drain_ignored,
        (("drain", 3.0),),
    ),
    Mutation(
        "gpu-drain-ignored",
        "policy-stays",
        "a server goes on granting on a drained GPU",
        broken_drains.gpu_drain_ignored,
        (("drain-gpu", 1.0),),
    ),
    Mutation(
        "given-back-at-once",
        "suspended-is-away",
        "the memory of a lease is given back when its suspension is ordered",
        broken_suspensions.given_back_at_once,
        (("suspend", 0.7),),
    ),
    Mutation(
        "suspension-confirmed-early",
        "suspended-is-away",
        "a server confirms a suspension that its host has only begun",
        broken_suspensions.confirmed_too_early,
        (("suspend", 0.7),),
    ),
    Mutation(
        "goes-on-uncharged",
        "suspended-is-away",
        "a host resumes a lease before the table has charged it again",
        broken_suspensions.goes_on_uncharged,
        (("suspend", 0.7),),
    ),
    Mutation(
        "resumed-uncharged",
        "table-sound",
        "a resumed lease takes no memory",
        broken_suspensions.resumed_uncharged,
        (("suspend", 0.7),),
    ),
    Mutation(
        "moved-too-early",
        "moved-is-gone",
        "a server confirms that a lease has let go, for a move that its host has only begun",
        broken_suspensions.confirmed_too_early,
        (("move", 0.5),),
        two_gpus,
    ),
    Mutation(
        "moved-onto-others",
        "table-sound",
        "a lease goes on with other GPUs that somebody else has got meanwhile",
        broken_suspensions.moved_onto_others,
        (("move", 0.5),),
        two_gpus,
    ),
    Mutation(
        "goes-on-where-it-was",
        "moved-is-gone",
        "a host resumes a lease that was moved on the GPUs that it has left",
        broken_suspensions.goes_on_where_it_was,
        (("move", 0.5),),
        two_gpus,
    ),
    Mutation(
        "takes-the-way-back",
        "table-sound",
        "a lease that cannot go on elsewhere takes its old GPUs again from who has got them",
        broken_suspensions.takes_the_way_back,
        (("move", 0.5),),
        two_gpus,
    ),
    Mutation(
        "gives-up-the-way-back",
        "ends-for-a-reason",
        "a lease that cannot go on elsewhere is ended though its old GPUs are free",
        broken_suspensions.gives_up_the_way_back,
        (("move", 0.5),),
        two_gpus,
    ),
    Mutation(
        "stranded-for-ever",
        "suspensions-settle",
        "a server does not say that a lease cannot go on with the GPUs that it was moved to",
        broken_suspensions.stranded_for_ever,
        (("move", 0.5),),
        lambda options: replace(two_gpus(options), hold_s=20.0, fault_s=10.0, heal_s=14.0),
    ),
    Mutation(
        "undrain-forgotten",
        "undrain-holds",
        "a GPU that a person undrained is drained again for the same sign",
        broken_drains.undrain_forgotten,
        (("sign", 1.0),),
    ),
    Mutation(
        "onset-forgotten",
        "undrain-holds",
        "a restarted server takes each sign that it finds for a new one",
        broken_drains.onset_forgotten,
        (("sign", 1.0), ("kill", 1.0)),
    ),
    Mutation(
        "drains-unbounded",
        "drains-bounded",
        "every GPU with a sign is drained",
        broken_drains.drains_unbounded,
        (("sign", 0.3),),
    ),
    Mutation(
        "all-send",
        "one-sender",
        "every server in touch with a majority sends alerts",
        broken_drains.all_send,
    ),
    Mutation(
        "minority-sends",
        "one-sender",
        "a server without a majority goes on sending alerts",
        broken_drains.minority_sends,
        (("partition", 2.0),),
    ),
    Mutation(
        "told-by-the-former-sender",
        "alerts-told",
        "a new sender of alerts takes all that holds for told",
        broken_drains.told_by_the_former_sender,
        tune=_killed,
    ),
    Mutation(
        "tells-at-once",
        "alerts-told",
        "a sender of alerts is not silent at first, and puts nothing together",
        broken_drains.tells_at_once,
        tune=_killed,
    ),
    Mutation(
        "told-is-forgotten",
        "alerts-told",
        "a sender of alerts forgets what it has told",
        broken_drains.told_is_forgotten,
        tune=_killed,
    ),
    Mutation(
        "freed-too-early",
        "freed-is-gone",
        "a lease is freed while its worker still lives",
        broken_servers.freed_too_early,
    ),
    Mutation(
        "session-before-up",
        "freed-is-gone",
        "a restarted server opens sessions before the table knows its new incarnation",
        broken_servers.session_before_up,
        (("kill", 2.0),),
    ),
    Mutation(
        "not-swept",
        "freed-is-gone",
        "a restarted server offers its GPUs while former workers live",
        broken_servers.not_swept,
        (("kill", 2.0),),
    ),
    Mutation(
        "fencing-ignored",
        "memory-truth",
        "a server starts workers for whatever lease a client shows",
        broken_servers.fencing_ignored,
        (("end-lease", 0.15), ("client-slow", 0.15)),
        lambda options: replace(options, gpus=1, hold_s=1.0, clients=20),
    ),
    Mutation(
        "lost-client-unnoticed",
        "dead-clients-leave",
        "nobody ends the leases of a client that is gone",
        broken_servers.lost_client_unnoticed,
        (("client-kill", 3.0),),
        tune=short(8.0, 10.0),
    ),
    Mutation(
        "cancel-not-committed",
        "granted-is-wanted",
        "a client goes on to the next offer while its last claim may still be granted",
        broken_servers.cancel_not_committed,
        (("isolate-leader", 2.0), ("reset", 1.0), ("pause-leader", 2.0)),
    ),
    Mutation(
        "granted-before-commit",
        "linearizable",
        "a claim is answered before it is committed",
        broken_servers.granted_before_commit,
        tune=short(6.0, 2.0),
    ),
    Mutation(
        "expired-is-definite",
        "granted-is-wanted",
        "a claim counts as refused when a repetition of it has expired",
        broken_servers.expired_is_definite,
        (("reset", 0.3), ("isolate-leader", 2.0), ("kill-leader", 2.0)),
        lambda options: replace(_without_clones(options), think_s=0.3, hold_s=1.0),
    ),
    Mutation(
        "minority-silent",
        "answers-in-time",
        "a server without a majority keeps its clients waiting",
        broken_servers.minority_silent,
        (("isolate-leader", 2.0), ("power-all", 8.0)),
    ),
    Mutation(
        "own-clock-believed",
        "table-time",
        "servers stamp by their own wall clocks, and the leader takes every stamp",
        broken_servers.own_clock_is_believed,
        (("clock-wrong", 2.0),),
        tune=short(16.0, 1.0),
    ),
    Mutation(
        "never-reachable-again",
        "converges",
        "a server that was unreachable stays so",
        broken_servers.never_reachable_again,
        tune=lambda options: replace(
            options,
            servers=5,
            clients=3,
            faults=(("pause", 1.0), ("deaf", 3.0)),
            fault_s=20.0,
            heal_s=10.0,
        ),
    ),
    Mutation(
        "never-asks-again",
        "everything-granted",
        "a client that waits does not ask again",
        broken_servers.never_asks_again,
        tune=short(2.0, 10.0),
    ),
    Mutation(
        "counted-to-the-end",
        "accounts-close",
        "a record ends with its lease, before the memory is given back",
        broken_accounts.counted_to_the_end,
    ),
    Mutation(
        "suspended-counted",
        "accounts-close",
        "a record counts the time in which its lease was suspended",
        broken_accounts.suspended_counted,
        (("suspend", 0.7),),
    ),
    Mutation(
        "restart-unrecorded",
        "accounts-close",
        "a part that a restarted server frees leaves no record",
        broken_accounts.restart_unrecorded,
        (("kill", 1.0),),
    ),
    Mutation(
        "ca-dropped-while-used",
        "ca-holds",
        "the older of two CAs is dropped though a server has no certificate of the other one",
        broken_ca.dropped_while_used,
        (("rotate-ca", 2.0), ("retire-ca", 2.0), ("kill", 2.0)),
    ),
)
"""Every broken build, and the checker that must notice it."""
