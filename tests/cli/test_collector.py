"""The live view's memory: newest wins, minorities do not, rates come from the servers' clocks."""

from dataclasses import replace

from gpupool.cli.collector import Collector
from gpupool.cli.tables import Rate, Seen
from gpupool.pool.ids import LeaseId, Milliseconds, ServerId
from gpupool.pool.view import SessionTelemetry, Telemetry

LEASE = LeaseId(0x7F3A)


def measured(server: str, at_ms: int, moved: int, calls: int) -> Telemetry:
    session = SessionTelemetry(LEASE, 1, calls, moved, 0, 0)
    return Telemetry(ServerId(server), Milliseconds(at_ms), sessions=(session,))


def rate(collector: Collector, seen: Seen) -> Rate:
    collector.take_view(seen.view, 0.0)
    known = collector.seen(0.0)
    assert known is not None
    return known.rates[LEASE]


def test_nothing_before_the_first_view() -> None:
    assert Collector().seen(5.0) is None


def test_ages_grow(seen: Seen) -> None:
    collector = Collector()
    collector.take_view(seen.view, 10.0)
    collector.take_telemetry(measured("000000000000", 1000, 0, 0), 11.0)
    known = collector.seen(14.0)
    assert known is not None
    assert known.view_age_s == 4.0
    assert known.telemetry_age_s == {ServerId("000000000000"): 3.0}


def test_a_minority_does_not_hide_what_the_majority_says(seen: Seen, minority: Seen) -> None:
    collector = Collector()
    collector.take_view(seen.view, 10.0)
    collector.take_view(minority.view, 10.5)
    assert collector.view is seen.view
    collector.take_view(minority.view, 13.0)  # but it is better than nothing
    assert collector.view is minority.view
    collector.take_view(seen.view, 13.1)
    assert collector.view is seen.view


def test_a_lagging_server_does_not_turn_time_back(seen: Seen) -> None:
    collector = Collector()
    collector.take_view(seen.view, 10.0)
    old = replace(seen.view, raft=replace(seen.view.raft, applied_index=3))
    collector.take_view(old, 10.1)
    assert collector.view is seen.view


def test_rates_add_up_over_servers(seen: Seen) -> None:
    collector = Collector()
    for server in ("000000000000", "000000000001"):
        collector.take_telemetry(measured(server, 1000, 0, 0), 1.0)
        collector.take_telemetry(measured(server, 3000, 10_000_000, 400), 9.0)
    assert rate(collector, seen) == Rate(10_000_000.0, 400.0)


def test_counters_that_fall_are_no_traffic(seen: Seen) -> None:
    collector = Collector()
    collector.take_telemetry(measured("000000000000", 1000, 500, 50), 1.0)
    collector.take_telemetry(measured("000000000000", 2000, 100, 10), 2.0)
    assert rate(collector, seen) == Rate(0.0, 0.0)


def test_ended_sessions_and_removed_servers_are_forgotten(seen: Seen) -> None:
    collector = Collector()
    collector.take_telemetry(measured("000000000000", 1000, 0, 0), 1.0)
    collector.take_telemetry(measured("000000000000", 2000, 10, 1), 2.0)
    collector.take_telemetry(measured("00000000dead", 2000, 10, 1), 2.0)
    assert rate(collector, seen) == Rate(10.0, 1.0)
    assert ServerId("00000000dead") not in collector.telemetry
    collector.take_telemetry(Telemetry(ServerId("000000000000"), Milliseconds(3000)), 3.0)
    known = collector.seen(3.0)
    assert known is not None
    assert known.rates == {}
