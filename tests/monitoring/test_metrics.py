"""The metrics: their recorded names, their values, and how many there can be."""

import json
import runpy
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.golden.recorded import GOLDEN, is_rewriting
from tests.monitoring.samples import (
    GIB,
    H200,
    ME,
    START_MS,
    gpu_id,
    health,
    measured,
    sample,
    table,
)

from gpupool.monitoring.exporter_link import targets_of
from gpupool.monitoring.http.http_app import discovered, is_in, written
from gpupool.monitoring.http.http_frames import Target, Targets
from gpupool.monitoring.metric_names import DECLARED
from gpupool.monitoring.metric_series import SERIES_MAX, Found
from gpupool.monitoring.metric_totals import Totals, reason_of
from gpupool.monitoring.metrics import Own, read
from gpupool.monitoring.sample import Sample, Sampler
from gpupool.pool.model.ids import LeaseId, Milliseconds, ServerId
from gpupool.pool.model.state import LeaseRecord, PoolState
from gpupool.pool.model.suspension import Suspension, SuspensionState
from gpupool.pool.model.tables import LeaseTable
from gpupool.pool.telemetry import ConsensusTelemetry, Finding, Health, Histogram
from gpupool.pool.view_building import build_view

OWN = Own(protocol=6, table=5)
ROOT = Path(__file__).parents[2]


def everything(gpus: int = 8, leases: int = 50) -> Sample:
    """Return a sample in which every reading is there."""
    found = sample(table(gpus=gpus, leases=leases), START_MS + 60_000)
    telemetry = found.telemetry
    full = [
        replace(
            gpu,
            ecc_errors=0,
            tensor_activity=0.1,
            memory_temperature_c=70.0,
            power_limit_w=700.0,
            sm_clock_hz=1.98e9,
            throttled_s=dict.fromkeys(
                ("power", "thermal", "hw_thermal", "hw_power_brake", "sync_boost"), 0.0
            ),
            ecc_corrected=1,
            remapped_rows=dict.fromkeys(("corrected", "uncorrected", "pending", "failed"), 0),
            pcie_bytes_in=1,
            pcie_bytes_out=2,
            pcie_replays=0,
            nvlink_errors=0,
            xids={13: 2},
            xid_at=Milliseconds(START_MS),
        )
        for gpu in telemetry.gpus
    ]
    buckets = Histogram(tuple(range(15)), 3.5)
    histograms = dict.fromkeys(
        ("grant_duration_seconds", "session_rtt_seconds:tcp", "session_rtt_seconds:tls"), buckets
    ) | dict.fromkeys(
        (
            "worker_start_seconds:cuda",
            "raft_commit_duration_seconds",
            "raft_fsync_duration_seconds",
        ),
        buckets,
    )
    consensus = ConsensusTelemetry(
        5_000_000, 30.0, {ServerId("b" * 12): 0.0002}, {ServerId("b" * 12): -0.001}
    )
    results = ("granted", "busy", "denied", "never", "no-quorum", "expired")
    counters = {f"grants_{result}": 7 for result in results} | {"workers_warm": 2}
    assert telemetry.host is not None
    findings = (Finding("disk", "/var", Health.OK, Milliseconds(0), "fine"),)
    return replace(
        found,
        telemetry=replace(
            telemetry,
            gpus=tuple(full),
            counters=counters,
            histograms=histograms,
            consensus=consensus,
            findings=findings,
            host=replace(telemetry.host, cpu_s={"server": 3.0}),
        ),
    )


def series_of(found: Found, name: str) -> dict[tuple[str, ...], object]:
    return dict(found.series.get(name, {}))


def test_names_kinds_and_labels_are_those_that_are_recorded() -> None:
    """Dashboards and rules of others are made of them: only add to the list."""
    path = GOLDEN / "metrics.txt"
    now = "".join(f"{m.kind} {m.name} {' '.join(m.labels)}".rstrip() + "\n" for m in DECLARED)
    if is_rewriting():
        path.write_text(now, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == now


def test_the_page_says_what_is_declared() -> None:
    written_page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(ROOT / "packaging" / "metrics_page.py"))["page"](written_page)
    assert written_page == made, "make docs writes it anew"


def test_only_what_is_known_is_said() -> None:
    state = table(gpus=2, leases=3)
    first = sample(state, START_MS)
    bare = [
        replace(gpu, utilization=None, temperature_c=None, sm_activity=None)
        for gpu in first.telemetry.gpus
    ]
    found = read(
        replace(first, telemetry=replace(first.telemetry, gpus=tuple(bare), host=None)),
        Totals(),
        OWN,
    )
    for absent in ("gpu_busy_ratio", "gpu_sm_activity_ratio", "gpu_temperature_celsius"):
        assert absent not in found.series
    assert "process_resident_bytes" not in found.series
    one = (str(0), gpu_id(0))
    assert series_of(found, "gpu_memory_granted_bytes")[one] == 10 * GIB
    assert series_of(found, "gpu_memory_total_bytes")[one] == H200
    text, kind = written(found)
    assert kind.startswith("text/plain")
    assert b"nan" not in text.lower()
    assert b"_created" not in text


def test_values_are_those_that_status_shows() -> None:
    state = table(gpus=8, leases=50)
    held = state.leases[LeaseId(2)]
    why = Suspension(SuspensionState.SUSPENDED, 1, "ada", "", Milliseconds(START_MS))
    state = replace(state, leases=state.leases.set(held.id, replace(held, suspension=why)))
    found = read(sample(state, START_MS), Totals(), OWN)
    telemetry = measured(state, START_MS)
    view = build_view(state, health(), ME, START_MS)
    (server,) = view.servers
    of_gpu = {gpu.id: (str(gpu.index), gpu.id) for gpu in server.gpus}
    for name, shown in {
        "gpu_memory_granted_bytes": {gpu.id: gpu.memory_granted for gpu in server.gpus},
        "gpu_memory_total_bytes": {gpu.id: gpu.memory_total for gpu in server.gpus},
        "gpu_memory_foreign_bytes": {gpu.id: gpu.memory_foreign for gpu in server.gpus},
        "gpu_leases": {gpu.id: len(gpu.leases) for gpu in server.gpus},
        "gpu_memory_used_bytes": {each.gpu: each.memory_used for each in telemetry.gpus},
        "gpu_busy_ratio": {each.gpu: each.utilization for each in telemetry.gpus},
        "gpu_power_watts": {each.gpu: each.power_w for each in telemetry.gpus},
    }.items():
        assert series_of(found, name) == {of_gpu[gpu]: v for gpu, v in shown.items()}, name
    states = Counter(("lab", lease.state) for lease in view.leases)
    assert series_of(found, "leases") == dict(states)
    assert states["lab", "suspended"] == 1
    assert series_of(found, "pool_servers") == {(server.state,): 1}


def test_a_lost_gpu_leaves_its_fault_alone() -> None:
    """The host goes on sending its last reading; see ``apply_silence``."""
    whole = everything()
    books = [
        replace(each, fault="the GPU has fallen off the bus: no answer")
        if each.index == 3
        else each
        for each in whole.gpus
    ]
    found = read(replace(whole, gpus=tuple(books)), Totals(), OWN)
    of_it = [
        (name, labels)
        for name, rows in found.series.items()
        for labels in rows
        if gpu_id(3) in labels
    ]
    assert of_it == [("gpu_fault", ("3", gpu_id(3), "lost"))]
    xid = replace(books[3], fault="Xid 79: the GPU has fallen off the bus; the GPU needs a reset")
    found = read(replace(whole, gpus=(xid,)), Totals(), OWN)
    assert [labels[-1] for labels in found.series["gpu_fault"]] == ["xid"]


def test_without_a_majority_nothing_is_said_of_the_pool() -> None:
    state = table(gpus=1, leases=1)
    alone = Sampler().sample(state, measured(state, START_MS), health(1e9), START_MS)
    found = read(alone, Totals(), OWN)
    assert not [name for name in found.series if name.startswith("pool_")]
    at_one = read(sample(state, START_MS), Totals(), OWN)
    assert series_of(at_one, "pool_gpus") == {("mix",): 1.0}
    assert series_of(at_one, "pool_gpu_granted") == {(): pytest.approx(10 / 140)}
    assert series_of(at_one, "raft_quorum_margin") == {(): 0.0}


def test_counters_go_on_when_a_lease_ends() -> None:
    state, totals = table(gpus=2, leases=2), Totals()
    for second in range(1, 11):
        totals.add(sample(state, START_MS + 1000 * second))
    (_, second_lease) = state.leases.values()
    ended = replace(state, leases=LeaseTable([(second_lease.id, second_lease)]))
    totals.add(sample(ended, START_MS + 11_000))
    totals.ended(_record(ME, "released"))
    last = sample(ended, START_MS + 12_000)
    totals.add(last)
    rows = read(last, totals, OWN).series
    assert rows["granted_gpu_seconds_total"][("lab",)] == pytest.approx((9 * 2 + 2) * 10 / 140)
    bytes_in = rows["session_bytes_total"][("lab", "in", "tcp")]
    assert bytes_in == 10 * 1_000_000 + 12 * 1_000_000
    assert rows["session_waits_total"][("lab",)] == 100 + 120
    assert rows["session_wait_seconds_total"][("lab",)] == pytest.approx(0.02 * 22)
    assert rows["leases_ended_total"] == {("lab", "released"): 1.0}
    waited = rows["lease_wait_seconds"][("lab",)]
    assert isinstance(waited, Histogram)
    assert (sum(waited.counts), waited.sum) == (1, 5.0)
    assert rows["leases"] == {("lab", "held"): 1.0}


def test_a_gap_of_the_samples_is_no_time() -> None:
    state, totals = table(gpus=1, leases=1), Totals()
    for at in (START_MS, START_MS + 3600_000, START_MS + 3000_000, START_MS + 3001_000):
        totals.add(sample(state, at))
    rows = read(sample(state, START_MS), totals, OWN).series
    assert rows["granted_gpu_seconds_total"][("lab",)] == pytest.approx(10 / 140)


def test_ten_thousand_leases_leave_no_series_behind() -> None:
    totals, whole = Totals(), everything(8, 50)
    first = 0
    for second in range(200):
        shifted = [
            replace(each, lease=LeaseId(1000 * second + each.lease)) for each in whole.leases
        ]
        at = Milliseconds(START_MS + 1000 * second)
        totals.add(replace(whole, leases=tuple(shifted), at=at))
        totals.ended(_record(ME, "released"))
        if second == 1:  # the counters of the class begin with its first ends
            first = read(whole, totals, OWN).count()
    after = read(whole, totals, OWN).count()
    assert first <= after <= 1.02 * first, "of 200 times 50 leases"


def test_users_have_rows_only_where_asked_for() -> None:
    state, totals = table(gpus=2, leases=4), Totals(users=1)
    for second in range(5):
        totals.add(sample(state, START_MS + 1000 * second))
    found = read(sample(state, START_MS + 5000), totals, OWN)
    users = {labels[1] for labels in found.series["leases"]}
    assert "_other" in users
    assert len(users) == 2
    text, _ = written(found, 1)
    assert b'user="_other"' in text
    assert b"ada" not in written(read(everything(), Totals(), OWN))[0]


def test_users_with_the_most_gpu_time_have_the_rows() -> None:
    """The first users have rows at first, and lose them to others with more use."""
    totals = Totals(users=2)

    def users_after(first: int, **gpus: int) -> dict[str, float]:
        """Let users hold so many GPUs for 121 s; return GPU seconds by user with rows."""
        whole = everything(8, 8)
        [gpu, *_] = whole.gpus
        leases = [
            replace(each, user=user, granted={gpu.gpu: count * gpu.capacity})
            for each, (user, count) in zip(whole.leases, gpus.items(), strict=False)
        ]
        for second in range(first, first + 121):
            at = Milliseconds(START_MS + 1000 * second)
            totals.add(replace(whole, leases=tuple(leases), at=at))
        rows = read(replace(whole, leases=()), totals, OWN).series
        values = rows["granted_gpu_seconds_total"].items()
        return {labels[1]: value for labels, value in values if isinstance(value, float)}

    assert users_after(0, ada=1, bob=1) == {"ada": 120.0, "bob": 120.0}
    second = users_after(121, ada=1, bob=0, cy=3)
    assert second.keys() == {"ada", "cy", "_other"}
    assert sum(second.values()) == pytest.approx(240.0 + 4 * 121 - 120.0), "but for bob's past"
    third = users_after(242, bob=1, dee=1)
    assert third.keys() == {"ada", "cy", "_other"}, "ada has used as much as bob and dee"
    assert third["_other"] == pytest.approx(second["_other"] + 2 * 121), "no counter falls"


def test_users_who_take_turns_do_not_take_each_others_rows() -> None:
    totals, whole = Totals(users=1), everything(8, 1)
    [lease] = whole.leases
    named = set[str]()
    for second in range(100):
        turn = replace(lease, user=("ada", "bob")[second // 10 % 2])
        totals.add(replace(whole, leases=(turn,), at=Milliseconds(START_MS + 1000 * second)))
        found = read(whole, totals, OWN).series["granted_gpu_seconds_total"]
        named |= {labels[1] for labels in found}
    assert named == {"ada", "_other"}


def test_eight_gpus_and_fifty_leases_are_within_the_bound() -> None:
    totals = Totals()
    whole = everything()
    for second in range(3):
        totals.add(replace(whole, at=Milliseconds(START_MS + 1000 * second)))
        totals.ended(_record(ME, "released"))
    found = read(whole, totals, OWN)
    body, _ = written(found)
    assert found.count() <= 1200
    assert len(body) <= 120_000
    assert len([line for line in body.splitlines() if not line.startswith(b"#")]) == found.count()
    assert found.series["metrics_limited"] == {(): 0.0}


def test_more_than_the_most_are_left_out() -> None:
    totals = Totals()
    whole = everything()
    for at in range(400):
        books = [
            replace(each, user_class=f"class-{(at * 50 + n) % 2000:04d}")
            for n, each in enumerate(whole.leases)
        ]
        totals.add(replace(whole, leases=tuple(books), at=Milliseconds(START_MS + 1000 * at)))
    found = read(whole, totals, OWN)
    assert found.count() <= SERIES_MAX
    assert found.series["metrics_limited"] == {(): 1.0}
    assert found.series["gpu_busy_ratio"]  # what has few values is left alone


def test_it_is_what_promtool_takes() -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    totals = Totals()
    totals.add(everything())
    totals.ended(_record(ME, "released"))
    body, _ = written(read(everything(), totals, OWN))
    done = subprocess.run([promtool, "check", "metrics"], input=body, capture_output=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_openmetrics_is_written_for_those_who_ask() -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    body, kind = written(read(everything(), Totals(), OWN), accept=accept)
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("released", "released"),
        ("the client is gone", "client-gone"),
        ("its client never connected", "client-gone"),
        ("it was not used for 30 min, its idle timeout", "idle"),
        ("token 0123 was revoked", "operator"),
        ("the server stops", "server-lost"),
        ("it was moved to another server", "moved"),
        ('window "night" ends (policy v3, line 7)', "policy"),
        ("", "other"),
    ],
)
def test_the_reason_of_an_end_is_one_of_a_few(text: str, word: str) -> None:
    assert reason_of(text) == word


def test_each_server_is_a_target_with_the_labels_that_were_named() -> None:
    state = table(gpus=1, leases=0)
    labelled = replace(state.servers[ME], labels={"rack": "r1", "secret": "x"})
    state = replace(state, servers=state.servers.set(ME, labelled))
    targets = targets_of(state, ("rack", "zone"))
    assert targets == Targets("lab", (Target("gpu-a", "gpu-a:7470", {"rack": "r1"}),))
    assert json.loads(discovered(targets)) == [
        {"targets": ["gpu-a:7470"], "labels": {"server": "gpu-a", "pool": "lab", "rack": "r1"}}
    ]
    assert targets_of(PoolState(), ()).servers == ()


def test_networks_that_need_no_token() -> None:
    networks = ("10.1.0.0/16", "fd00::/8")
    inside = ("10.1.2.3", "::ffff:10.1.2.3", "fd12::1", "fd12::1%eth0")
    assert [is_in(each, networks) for each in inside] == [True] * 4
    assert not any(is_in(each, networks) for each in ("10.2.0.1", "", "fe80::1", "unix"))
    assert not is_in("10.1.2.3", ())


def _record(server: ServerId, reason: str) -> LeaseRecord:
    return LeaseRecord(
        number=1,
        lease=LeaseId(2),
        server=server,
        server_name="gpu-a",
        user="ada",
        user_class="lab",
        department="",
        client="ada@laptop",
        program="train.py",
        gpus=(),
        requested_at=Milliseconds(START_MS - 5000),
        granted_at=Milliseconds(START_MS),
        ended_at=Milliseconds(START_MS + 60_000),
        freed_at=Milliseconds(START_MS + 60_100),
        reason=reason,
        idle_timeout_ms=0,
    )
