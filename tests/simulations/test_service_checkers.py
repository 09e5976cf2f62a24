"""Checkers of service: the permitted answers of a cut-off server, and the bounds of messages."""

from dataclasses import replace

import pytest

from gpupool.consensus.protocol import raft_settings
from gpupool.pool.model.commands import Envelope, RevokeToken
from gpupool.pool.model.ids import Incarnation, LeaseId, Milliseconds, ServerId, TokenId
from gpupool.pool.model.state import PoolState
from gpupool.pool.scheduling.offers import NoOffer, Offer
from gpupool.remoting.protocol import messages as m
from gpupool.simulations.checkers.service_checkers import (
    SERVED_S,
    MessageSizes,
    RevokedUnserved,
)
from gpupool.simulations.kernel.failure_reporter import FailureReporter
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.swarm_options import swarm
from gpupool.simulations.kernel.trace import Trace
from gpupool.simulations.tools.runner import Report, run

TOKEN = TokenId("t")
REVOKED_AT = 10.0
FRESH_S, STALE_S = 0.1, 3.0

OFFER = m.Offered(Offer(ServerId("s"), "s", Incarnation(1), (), 0.0), None)
NO_OFFER = m.Offered(None, NoOffer(ServerId("s"), "s", "no-quorum", "cut off"))
REFUSED = m.Refused("denied", "no", "", "")


def reporter() -> FailureReporter:
    scheduler = Scheduler(1, events_max=10, burst_max=10)
    return FailureReporter(scheduler, Trace(scheduler))


@pytest.mark.parametrize(
    ("message", "age_s", "late_s", "fails"),
    [
        (OFFER, FRESH_S, 0.1, False),  # it cannot know yet
        (OFFER, FRESH_S, 0.1 + SERVED_S, True),
        (OFFER, STALE_S, 0.1 + SERVED_S, True),
        (NO_OFFER, FRESH_S, 0.1 + SERVED_S, True),  # it should have closed the connection
        (NO_OFFER, STALE_S, 0.1 + SERVED_S, False),
        (REFUSED, FRESH_S, 0.1 + SERVED_S, False),
        (m.LeaseEnded(LeaseId(7), "revoked"), FRESH_S, 0.1 + SERVED_S, False),
    ],
)
def test_revoked_token_is_served_by_nobody(
    message: m.Message, age_s: float, late_s: float, fails: bool
) -> None:
    failures = reporter()
    checker = RevokedUnserved(failures)
    envelope = Envelope(RevokeToken(TOKEN, "admin"), Milliseconds(1), Milliseconds(0), 0)
    checker.applied(envelope, PoolState(), REVOKED_AT)
    checker.sent("s1", TokenId("another"), message, lambda: age_s, REVOKED_AT + late_s)
    assert failures.failure is None
    checker.sent("s1", TOKEN, message, lambda: age_s, REVOKED_AT + late_s)
    assert (failures.failure is not None) == fails


def test_a_revocation_that_comes_after_its_deadline_revokes_nothing() -> None:
    failures = reporter()
    checker = RevokedUnserved(failures)
    envelope = Envelope(RevokeToken(TOKEN, "admin"), Milliseconds(1), Milliseconds(5), 0)
    checker.applied(envelope, PoolState(now=Milliseconds(6)), REVOKED_AT)
    checker.sent("s1", TOKEN, OFFER, lambda: FRESH_S, REVOKED_AT + 2 * SERVED_S)
    assert failures.failure is None


def test_clocks_that_differ_by_far_excuse_a_server_for_a_while() -> None:
    failures = reporter()
    checker = RevokedUnserved(failures)
    envelope = Envelope(RevokeToken(TOKEN, "admin"), Milliseconds(1), Milliseconds(0), 0)
    checker.applied(envelope, PoolState(), REVOKED_AT)
    checker.clocks_differ(REVOKED_AT + 5.0)
    checker.sent("s1", TOKEN, OFFER, lambda: FRESH_S, REVOKED_AT + 10.0)
    assert failures.failure is None
    checker.sent("s1", TOKEN, OFFER, lambda: FRESH_S, REVOKED_AT + 30.0)
    assert failures.failure is not None


def test_sizes_of_frames_and_messages_are_bounded() -> None:
    failures = reporter()
    sizes = MessageSizes(failures)
    sizes.frame("s1", bytes(raft_settings.BATCH_BYTES_MAX + raft_settings.COMMAND_BYTES_MAX))
    sizes.message("c1", m.PutPolicy(bytes(48 * 1024), 1), from_server=False)
    assert failures.failure is None
    assert sizes.frame_max > raft_settings.BATCH_BYTES_MAX
    assert sizes.message_max > 48 * 1024
    sizes.message("c1", m.PutPolicy(bytes(65 * 1024), 1), from_server=False)
    assert failures.failure is not None
    assert "PutPolicy that is too large" in failures.failure.text


def test_frame_beyond_a_batch_fails() -> None:
    failures = reporter()
    MessageSizes(failures).frame("s1", bytes(3 * raft_settings.BATCH_BYTES_MAX))
    assert failures.failure is not None


def happened(report: Report, kind: str) -> list[str]:
    return [line.text for line in report.lines if line.kind == kind]


@pytest.mark.long
def test_copy_of_a_server_ends_and_the_original_goes_on() -> None:
    options = replace(swarm(8), faults=(("clone", 3.0),), fault_s=8.0, heal_s=4.0)
    report = run(options)
    assert report.failure is None
    copies = happened(report, "clone")
    assert copies
    stopped = [line for line in report.lines if line.kind == "stopped"]
    assert {line.subject for line in stopped} == set(copies), "no original"
    assert all("copy" in line.text for line in stopped)


@pytest.mark.long
def test_copy_of_a_server_ends_after_an_exchange_of_the_ca_too() -> None:
    faults = (("rotate-ca", 3.0), ("retire-ca", 3.0), ("clone", 3.0))
    report = run(replace(swarm(1), faults=faults, fault_s=14.0, heal_s=4.0))
    assert report.failure is None
    (copied,) = [line for line in report.lines if line.kind == "clone"]
    trusts = [line for line in report.lines if line.kind == "trusts" and line.at < copied.at]
    assert any(" and " not in line.text for line in trusts), "no CA was dropped before the copy"
    ended = [line for line in report.lines if line.kind == "stopped"]
    assert [line.subject for line in ended] == [copied.text]
    assert "copy" in ended[0].text


@pytest.mark.long
def test_pool_is_recovered_and_a_server_that_was_left_behind_is_told() -> None:
    options = replace(swarm(8), faults=(("recover", 4.0),), fault_s=8.0, heal_s=6.0)
    report = run(options)
    assert report.failure is None
    (recovered,) = [line for line in report.lines if line.kind == "recovered"]
    stopped = [line for line in report.lines if line.kind == "stopped"]
    assert ["recovered without this server" in line.text for line in stopped] == [True]
    joined = {line.subject for line in report.lines if line.kind == "removed"}
    assert joined == {"s1", "s2", "s3", "s4", "s5"} - {recovered.subject}


@pytest.mark.long
def test_pool_is_recovered_by_a_server_that_can_let_the_others_in() -> None:
    """Of nine servers two have no vote, and so no key of the CA; one of them knew most."""
    faults = (("recover", 2.0),)
    options = replace(swarm(7000002), clients=0, faults=faults, policy_s=0.0, fault_s=8.0)
    report = run(options)
    assert report.failure is None
    (recovered,) = [line for line in report.lines if line.kind == "recovered"]
    joined = {line.subject for line in report.lines if line.kind == "removed"}
    assert joined == {f"s{number}" for number in range(1, 10)} - {recovered.subject}


def test_server_that_a_recovery_left_behind_joins_again_after_an_exchange_of_the_ca() -> None:
    """It was cut off from the recovery until its CA was dropped, so nobody could tell it."""
    keep = (14, 16, 28, 39)  # a cut, the recovery, and the exchange of the CA
    report = run(replace(swarm(7000000), servers=3, clients=1, fault_s=16.0, keep=keep))
    assert report.failure is None
    healed, joined = 17.2, [line for line in report.lines if line.kind == "removed"]
    assert [line.subject for line in joined if line.at >= healed] == ["s1"]
    dropped = [line for line in report.lines if line.kind == "trusts" and "and" not in line.text]
    assert {line.subject for line in dropped if line.at < healed} == {"s2", "s3"}
