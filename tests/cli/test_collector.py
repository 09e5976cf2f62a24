"""The live view's memory: newest wins, old stays old, rates come from the servers' clocks."""

from dataclasses import replace

import pytest

from gpupool.cli.tui.live_state import Collector
from gpupool.pool.model.ids import LeaseId, Milliseconds, ServerId
from gpupool.pool.read_model.figures import Rate
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot
from gpupool.pool.read_model.pool_watch import PoolUpdate
from gpupool.pool.telemetry import SessionTelemetry, Telemetry
from gpupool.pool.view import PoolView

LEASE = LeaseId(0x7F3A)


def measured(server: str, at_ms: int, moved: int, calls: int) -> Telemetry:
    session = SessionTelemetry(LEASE, 1, calls, moved, 0, 0)
    return Telemetry(ServerId(server), Milliseconds(at_ms), sessions=(session,))


def update(view: PoolView, *telemetry: Telemetry, age_s: float = 0.0) -> PoolUpdate:
    by_server = {each.server: each for each in telemetry}
    return PoolUpdate(view, by_server, age_s, tuple(by_server))


def rate_of(known: PoolSnapshot) -> Rate:
    """Return the traffic of the lease, which is on the first two servers."""
    [row] = known.leases
    assert row.rate is not None
    return row.rate


def fed(view: PoolView, *telemetry: Telemetry) -> PoolSnapshot:
    """Return the snapshot after each of ``telemetry`` has come, a second apart."""
    first, second = view.leases[0].partitions
    apart = replace(view.leases[0], partitions=(first, replace(second, server=view.servers[1].id)))
    view = replace(view, leases=(apart,))
    collector = Collector(0.5)
    for at, each in enumerate(telemetry):
        collector.take(PoolUpdate(view, {each.server: each}, 0.0, view.raft.voters), float(at))
    known = collector.snapshot(float(len(telemetry)))
    assert known is not None
    return known


def test_nothing_before_the_first_view() -> None:
    assert Collector(0.5).snapshot(5.0) is None


def test_ages_grow(snapshot: PoolSnapshot) -> None:
    collector = Collector(0.5)
    collector.take(update(snapshot.view, measured("000000000000", 1000, 0, 0), age_s=1.0), 10.0)
    known = collector.snapshot(14.0)
    assert known is not None
    assert known.view_age_s == 5.0
    assert known.telemetry_age_s[ServerId("000000000000")] == 4.0


def test_the_same_measurement_again_is_not_newer(snapshot: PoolSnapshot) -> None:
    collector = Collector(0.5)
    once = measured("000000000000", 1000, 0, 0)
    collector.take(update(snapshot.view, once), 10.0)
    collector.take(update(snapshot.view, once), 12.0)
    known = collector.snapshot(12.0)
    assert known is not None and known.telemetry_age_s[once.server] == 2.0


def test_a_server_that_is_gone_keeps_its_last_numbers_as_old_ones(snapshot: PoolSnapshot) -> None:
    collector = Collector(0.5)
    collector.take(update(snapshot.view, measured("000000000000", 1000, 0, 0)), 10.0)
    collector.take(update(snapshot.view), 11.0)
    known = collector.snapshot(11.0)
    assert known is not None
    assert ServerId("000000000000") in known.telemetry
    assert known.silent == {each.id for each in snapshot.view.servers}
    assert known.nobody_answers
    assert all(row.unreachable for row in known.servers)


def test_rates_add_up_over_servers(snapshot: PoolSnapshot) -> None:
    known = fed(
        snapshot.view,
        measured("000000000000", 1000, 0, 0),
        measured("000000000001", 1000, 0, 0),
        measured("000000000000", 3000, 10_000_000, 400),
        measured("000000000001", 3000, 10_000_000, 400),
    )
    assert rate_of(known) == Rate(400.0, 10_000_000.0, 0.0)


def test_rates_are_means_over_a_few_seconds(snapshot: PoolSnapshot) -> None:
    # Workers report once a second, and here the view looks twice as often.
    counts = (0, 0, 100, 100, 200, 200, 300, 300, 400)
    looks = [measured("000000000000", 500 * at, 0, calls) for at, calls in enumerate(counts)]
    assert rate_of(fed(snapshot.view, *looks[:-1])).calls_per_s == pytest.approx(100, rel=0.2)
    assert rate_of(fed(snapshot.view, *looks)).calls_per_s == pytest.approx(100, rel=0.2)


def test_counters_that_fall_are_no_traffic(snapshot: PoolSnapshot) -> None:
    known = fed(
        snapshot.view,
        measured("000000000000", 1000, 500, 50),
        measured("000000000000", 2000, 100, 10),
        measured("000000000000", 3000, 100, 10),
    )
    assert rate_of(known) == Rate(0.0, 0.0, 0.0)


def test_ended_sessions_and_removed_servers_are_forgotten(snapshot: PoolSnapshot) -> None:
    known = fed(
        snapshot.view,
        measured("00000000dead", 1000, 0, 0),
        measured("000000000000", 1000, 0, 0),
        measured("000000000000", 2000, 10, 1),
        Telemetry(ServerId("000000000000"), Milliseconds(3000)),
    )
    assert known.rates == {}
    assert ServerId("00000000dead") not in known.telemetry


def session(at_ms: int, waits: int | None, rtt_us: int | None, server: str = "0" * 12) -> Telemetry:
    known = SessionTelemetry(LEASE, 1, 0, 1000 * at_ms, 250 * at_ms, 0, waits=waits, rtt_us=rtt_us)
    return Telemetry(ServerId(server), Milliseconds(at_ms), sessions=(known,))


def test_time_on_the_wire_is_waits_times_the_round_trip(snapshot: PoolSnapshot) -> None:
    rate = rate_of(fed(snapshot.view, session(1000, 100, 500), session(3000, 2100, 500)))
    assert (rate.up_per_s, rate.down_per_s) == (1_000_000.0, 250_000.0)
    assert rate.waits_per_s == 1000.0
    assert rate.wire_s == pytest.approx(0.5)


def test_what_is_not_known_of_one_server_is_not_known(snapshot: PoolSnapshot) -> None:
    silent = fed(snapshot.view, session(1000, None, 500), session(2000, None, 500))
    assert rate_of(silent) == Rate(0.0, 1_000_000.0, 250_000.0)
    near, far = [session(at, at, 500) for at in (1000, 2000)], "000000000001"
    unix = [session(at, at, None, far) for at in (1000, 2000)]
    rate = rate_of(fed(snapshot.view, near[0], unix[0], near[1], unix[1]))
    assert (rate.waits_per_s, rate.wire_s) == (2000.0, None)
