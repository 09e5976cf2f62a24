"""The buckets in which a server counts durations."""

from typing import cast

import pytest

from gpupool.pool.measures import RESULTS, Measures, Transport
from gpupool.pool.model.ids import LeaseId, Milliseconds, ServerId
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.telemetry import HISTOGRAMS


@pytest.mark.parametrize(
    ("value", "bucket"),
    [(-1.0, 0), (0.0, 0), (0.0005, 0), (0.00051, 1), (0.001, 1), (4.096, 13), (4.097, 14)],
)
def test_a_value_lies_in_the_first_bucket_that_bounds_it(value: float, bucket: int) -> None:
    measures = Measures()
    measures.observe("grant_duration_seconds", value)
    (found,) = measures.histograms().values()
    assert [at for at, count in enumerate(found.counts) if count] == [bucket]
    assert found.sum == max(value, 0.0)


def test_claims_are_counted_by_result() -> None:
    measures = Measures()
    for kind in ("", "busy", "conflict", "no-quorum", "of-a-newer-program"):
        measures.claimed(kind, 0.001)
    assert measures.counters == {
        "grants_granted": 1,
        "grants_busy": 2,
        "grants_no-quorum": 1,
        "grants_denied": 1,
    }
    assert sum(measures.histograms()["grant_duration_seconds"].counts) == 1
    assert {f"grants_{each}" for each in RESULTS} >= set(measures.counters)


def test_each_label_has_buckets_of_its_own() -> None:
    measures = Measures()
    measures.observe("session_rtt_seconds", 0.001, Transport.TCP)
    measures.observe("session_rtt_seconds", 0.001, Transport.TLS)
    assert set(measures.histograms()) == {"session_rtt_seconds:tcp", "session_rtt_seconds:tls"}


def test_nobody_makes_a_series_by_a_word() -> None:
    measures = Measures()
    with pytest.raises(ValueError, match="a word"):
        measures.observe("session_rtt_seconds", 0.001, cast(Transport, "a word"))
    for made in (lambda: measures.observe("a word", 0.001), lambda: measures.count("a word")):
        with pytest.raises(KeyError):
            made()
    assert not measures.histograms()
    assert not measures.counters


def test_histograms_are_those_that_have_values_and_counters_grow() -> None:
    measures = Measures()
    assert measures.histograms() == {}
    measures.count("worker_start_failures")
    measures.count("worker_start_failures", 2)
    assert measures.counters == {"worker_start_failures": 3}
    assert all(
        list(bounds) == sorted(bounds) and len(bounds) == 14 for bounds in HISTOGRAMS.values()
    )


def test_the_end_of_a_lease_counts_how_long_it_waited_and_ran_in_seconds() -> None:
    record = LeaseRecord(
        number=1,
        lease=LeaseId(1),
        server=ServerId("a" * 12),
        server_name="a",
        user="ada",
        user_class="",
        department="",
        client="",
        program="",
        gpus=(),
        requested_at=Milliseconds(5_000),
        granted_at=Milliseconds(47_500),
        ended_at=Milliseconds(9_000_000),
        freed_at=Milliseconds(10_047_750),
        reason="",
        idle_timeout_ms=0,
    )
    measures = Measures()
    measures.ended(record)
    sums = {name: found.sum for name, found in measures.histograms().items()}
    assert sums == {"lease_wait_seconds": 42.5, "lease_duration_seconds": 10_000.25}


def test_the_first_bound_of_each_histogram() -> None:
    assert {name: bounds[0] for name, bounds in HISTOGRAMS.items()} == {
        "lease_wait_seconds": 0.01,
        "lease_duration_seconds": 1.0,
        "grant_duration_seconds": 0.0005,
        "session_rtt_seconds": 0.00002,
        "worker_start_seconds": 0.005,
        "raft_commit_duration_seconds": 0.0005,
        "raft_fsync_duration_seconds": 0.0001,
    }
