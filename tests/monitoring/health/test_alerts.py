"""Alerts: their conditions, their delivery, their sender; and the same rules in Prometheus."""

import os
import runpy
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import pool, server

from gpupool.monitoring.health.alert_rules import RULES, SHOWN, holding, wasteful_classes
from gpupool.monitoring.health.check_table import CHECKS
from gpupool.monitoring.health.pool_health import merged
from gpupool.pool import alert_log
from gpupool.pool.alert_log import AlertLog, Condition, Message, Rule
from gpupool.pool.history_query import EVERYBODY, HistoryQuery, SampleSum
from gpupool.pool.model.ids import LeaseId, Milliseconds
from gpupool.pool.telemetry import Finding, Health, SessionTelemetry, Telemetry
from gpupool.pool.view import LeaseView, SilenceView, WaitingView
from gpupool.remoting.server.admin_service import as_seen_by

PACKAGED = Path(__file__).resolve().parents[3] / "packaging" / "prometheus" / "alerts.yml"
PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
DISK = next(rule for rule in RULES if rule.name == "Disk")
FAULT = next(rule for rule in RULES if rule.name == "GpuFault")
NO_MAJORITY = next(rule for rule in RULES if rule.name == "NoMajority")


def test_what_is_shipped_is_what_the_rules_say() -> None:
    """``make docs`` writes it anew."""
    made = runpy.run_path(str(PACKAGED.parent.parent / "alert_rules.py"))["rules"]()
    assert PACKAGED.read_text("utf-8") == made


def test_every_rule_is_of_checks_that_there_are() -> None:
    names, told = {check.name for check in CHECKS}, {each for rule in RULES for each in rule.checks}
    assert told - {"answer", "alarm"} == names - set(SHOWN)
    assert len({rule.name for rule in RULES}) == len(RULES)


POOL = 'pool="lab",instance="a:7470"'
BAD_MIN = 90
"""Minutes for which a series is bad; then it is good for as many."""

SERIES = {
    "IdleWhileOthersWait": [
        (f"gpupool_idle_gpu_seconds_total{{{POOL}}}", "0+60x90 5400+0x90"),
        (f"gpupool_pool_oldest_wait_seconds{{{POOL}}}", "5x180"),
    ],
    "ClassWaste": [
        (f'gpupool_idle_gpu_seconds_total{{class="a",{POOL}}}', "0+1500x90 135000+0x90"),
        (f'gpupool_granted_gpu_seconds_total{{class="a",{POOL}}}', "0+2000x180"),
    ],
    "WaitingWithFreeGpus": [
        (f"gpupool_pool_oldest_wait_seconds{{{POOL}}}", "1000x90 0x90"),
        (f'gpupool_pool_gpus{{state="idle",{POOL}}}', "2x180"),
    ],
}

BESIDE: dict[str, list[tuple[str, str]]] = {
    "IdleWhileOthersWait": [
        (f"gpupool_idle_gpu_seconds_total{{{POOL}}}", "0+60x180"),
        ('gpupool_pool_oldest_wait_seconds{pool="other"}', "5x180"),
    ],
    "ClassWaste": [
        ('gpupool_idle_gpu_seconds_total{class="a",pool="other"}', "0+900x180"),
        (f'gpupool_granted_gpu_seconds_total{{class="a",{POOL}}}', "0+800x180"),
        ('gpupool_granted_gpu_seconds_total{class="a",pool="other"}', "0+900x180"),
    ],
    "WaitingWithFreeGpus": [
        (f"gpupool_pool_oldest_wait_seconds{{{POOL}}}", "1000x180"),
        ('gpupool_pool_gpus{state="idle",pool="other"}', "2x180"),
    ],
}
"""Series of which no pool alone is bad, although all pools together are."""


def rule_test(rule: Rule, series: list[tuple[str, str]], *moments: tuple[int, int]) -> Any:
    """Return a test of promtool: how many alerts of a rule fire at each minute."""
    labels = f'alertname="Gpupool{rule.name}",alertstate="firing"'
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series],
        "promql_expr_test": [
            {
                "expr": f"count(ALERTS{{{labels}}}) or vector(0)",
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": "{}", "value": count}],
            }
            for minute, count in moments
        ],
    }


def bad_then_good(rule: Rule) -> list[tuple[str, str]]:
    """Return series that are bad for ``BAD_MIN``, and good after it."""
    check = rule.checks[0] if rule.checks else ""
    name = f'gpupool_health_check_status{{check="{check}",subject="x",{POOL}}}'
    return SERIES.get(rule.name, [(name, f"{rule.status}x90 0x90")])


@pytest.mark.long
@pytest.mark.skipif(PROMTOOL is None, reason="promtool of Debian's package prometheus is not here")
def test_promtool_finds_each_rule_firing_and_resolved_and_of_one_pool(tmp_path: Path) -> None:
    import json

    assert PROMTOOL is not None
    tests = [rule_test(rule, bad_then_good(rule), (85, 1), (175, 0)) for rule in RULES]
    tests += [rule_test(rule, BESIDE[rule.name], (85, 0)) for rule in RULES if rule.name in BESIDE]
    path = tmp_path / "tests.yml"
    said = {"rule_files": [str(PACKAGED)], "evaluation_interval": "5m", "tests": tests}
    path.write_text(json.dumps(said), encoding="utf-8")  # JSON is YAML
    done = subprocess.run(
        [PROMTOOL, "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- what holds -----------------------------------------------------------------------------------

VIEW = replace(pool(server(0, ()), server(1, ())), waiting=(), leases=())


def telemetry(number: int, *findings: Finding, **more: Any) -> Telemetry:
    return Telemetry(VIEW.servers[number].id, Milliseconds(1), findings=findings, **more)


def held(view: Any, *said: Telemetry) -> list[tuple[str, str]]:
    health = merged(view, {each.server: each for each in said})
    return sorted((c.rule.name, c.subject) for c in holding(health, view, said))


def test_findings_become_alerts() -> None:
    name = VIEW.servers[0].name
    disk = Finding("disk", "free", Health.FAIL, Milliseconds(1), "0.5 GiB are free", "make room")
    assert held(VIEW, telemetry(0, disk), telemetry(1)) == [
        ("Disk", f"{name}/disk/free"),
        ("DiskSoon", f"{name}/disk/free"),
    ]
    assert held(VIEW, telemetry(0, replace(disk, status=Health.WARN)), telemetry(1)) == [
        ("DiskSoon", f"{name}/disk/free")
    ]
    lost = VIEW.servers[1].name
    assert held(VIEW, telemetry(0)) == [("ServerSilent", f"{lost}/answer/{lost}")]


def class_sum(name: str, held_h: float, wasted_h: float) -> SampleSum:
    hour = 3600 * 1_000_000
    return SampleSum(name, 9, 9, round(held_h * hour), round(wasted_h * hour), 1, 1, 1, 1, 1)


def test_a_class_that_wastes_most_of_a_week() -> None:
    sums = [class_sum("lab", 20, 12), class_sum("few", 23, 23), class_sum("ok", 90, 44)]
    assert wasteful_classes(sums) == []
    [found] = wasteful_classes([*sums, class_sum("lab", 20, 12)])  # of another server
    assert (found.rule.name, found.subject) == ("ClassWaste", "class/lab")
    assert found.text == "of 40 GPU-hours of class lab in a week, 60 % were idle"
    [nameless] = wasteful_classes([class_sum("", 30, 30)])
    assert nameless.subject == "class/none"


def test_sums_by_class_are_for_everybody() -> None:
    asked = HistoryQuery("sums", "class", EVERYBODY)
    assert as_seen_by("ada", asked).user == ""
    for of, metric, name in (("sums", "class", ""), ("sums", "user", "*"), ("user", "busy", "*")):
        assert as_seen_by("ada", HistoryQuery(of, metric, name)).user == "ada"


def test_what_is_silenced_is_told_to_nobody() -> None:
    name = VIEW.servers[0].name
    disk = Finding("disk", "free", Health.FAIL, Milliseconds(1), "0.5 GiB are free", "make room")

    def left(check: str, server: str = "", subject: str = "") -> list[str]:
        until = Milliseconds(VIEW.now + 1)
        known = SilenceView(check, server, subject, until, "why", "root", VIEW.now)
        view = replace(VIEW, silences=(known,), waiting=(waiting(1000.0),))
        return [rule for rule, _ in held(view, telemetry(0, disk), telemetry(1))]

    assert left("disk", name) == []
    assert left("disk", "another") == ["Disk", "DiskSoon"]
    assert left("Disk") == ["DiskSoon"], "one alert of two"
    assert left("DiskSoon", name) == ["Disk"]


def waiting(waited_s: float) -> WaitingView:
    return WaitingView("00" * 16, "ada", "ada@pc", "x.py", 1, 1.0, 0, waited_s, "busy")


def test_a_lease_that_idles_while_somebody_waits() -> None:
    lease = LeaseView(LeaseId(7), "0007", "eve", "", "", "held", "", (), Milliseconds(1), 9000.0)
    view = replace(VIEW, leases=(lease,))
    idle = SessionTelemetry(LeaseId(7), 1, 0, 0, 0, 0, idle_s=2000.0)
    busy = replace(idle, idle_s=3.0)
    said = telemetry(0, sessions=(idle,)), telemetry(1)
    assert held(view, *said) == []
    view = replace(view, waiting=(waiting(5.0),))
    assert held(view, *said) == [("IdleWhileOthersWait", "lease/0007")]
    assert held(view, telemetry(0, sessions=(idle, busy)), telemetry(1)) == []
    suspended = tuple(replace(each, is_away=True) for each in view.leases)
    assert held(replace(view, leases=suspended), *said) == [], "it holds nothing"


# --- telling --------------------------------------------------------------------------------------


class Told:
    """An alert log, second by second, with its messages."""

    def __init__(self, *, sends: bool = True) -> None:
        self.log, self.now_s, self.sends = AlertLog(), 0.0, sends
        self.majority = True
        self.messages: list[tuple[float, Message]] = []

    def run(self, seconds: int, *conditions: Condition, step: float = 1.0) -> list[Message]:
        before = len(self.messages)
        for _ in range(seconds):
            self.now_s += step
            message = self.log.look(
                conditions,
                self.now_s,
                int(1000 * self.now_s),
                sends=self.sends,
                majority=self.majority,
            )
            if message is not None:
                self.messages.append((self.now_s, message))
        return [message for _, message in self.messages[before:]]


def bad(subject: str = "a", rule: Rule = FAULT) -> Condition:
    return Condition(rule, subject, f"{subject} is bad")


def settled() -> Told:
    told = Told()
    assert told.run(200) == []
    return told


def test_an_alert_is_told_within_90_s_and_once() -> None:
    told = settled()
    [message] = told.run(3600, bad())
    assert told.messages[0][0] - 200 <= 90
    assert [alert.rule for alert in message.alerts] == ["GpuFault"]
    assert message.alerts[0].ended_ms == 0


def test_a_new_sender_is_silent_for_a_minute_and_sends_one_message() -> None:
    told = Told(sends=False)
    subjects = [bad(str(number)) for number in range(15)]
    assert told.run(100, *subjects) == []
    told.sends = True
    [message] = told.run(120, *subjects)
    assert told.messages[0][0] == 100 + 1 + alert_log.SILENT_FIRST_S
    assert len(message.alerts) == 15


def test_what_begins_one_by_one_after_the_silence_is_two_messages() -> None:
    """Fifteen servers go within 30 s, when their sender has just begun to tell."""
    told = Told()
    assert told.run(61) == []
    for number in range(30):
        told.run(1, *[bad(str(each)) for each in range(number // 2 + 1)])
    told.run(60, *[bad(str(each)) for each in range(15)])
    assert len(told.messages) <= 2
    assert sum(len(message.alerts) for _, message in told.messages) == 15


def test_a_sender_that_comes_back_from_a_minority_is_silent_for_a_minute() -> None:
    """Another one has sent meanwhile."""
    told = settled()
    told.majority = told.sends = False
    told.run(120, bad("pool", NO_MAJORITY))
    told.majority = told.sends = True
    back_s = told.now_s
    told.run(120, bad())
    last_s, message = told.messages[-1]
    assert "GpuFault" in [alert.rule for alert in message.alerts]
    assert last_s - back_s >= alert_log.SILENT_FIRST_S


def test_a_sender_that_stood_still_is_silent_for_a_minute() -> None:
    """Seed 140019: it sent at once messages that another one may have sent meanwhile."""
    told = settled()
    assert told.run(20, bad()) == []
    told.now_s += alert_log.STANDSTILL_S
    back_s = told.now_s
    [message] = told.run(120, bad())
    assert [alert.rule for alert in message.alerts] == ["GpuFault"]
    assert told.messages[-1][0] - back_s >= alert_log.SILENT_FIRST_S
    told.now_s += alert_log.STANDSTILL_S - 2
    assert len(told.run(40, bad(), bad("b"))) == 1, "so short a time is none"


def test_every_sender_calls_an_alert_the_same_that_began_at_a_known_time() -> None:
    since = replace(bad(), since_ms=7_000)
    first, second = settled(), settled()
    second.run(500)
    ids = {told.run(200, since)[0].alerts[0].id for told in (first, second)}
    assert len(ids) == 1


def test_it_goes_on_after_four_hours_and_ends_once() -> None:
    told = settled()
    assert len(told.run(3 * 360, bad(), step=10.0)) == 1
    assert len(told.run(2 * 360, bad(), step=10.0)) == 1
    [over] = told.run(100)
    assert over.alerts[0].ended_ms > over.alerts[0].began_ms
    assert told.run(3600) == []
    ids = {message.alerts[0].id for _, message in told.messages}
    assert len(ids) == 1, "receivers know it as one"


def test_what_is_over_before_it_fires_is_not_told() -> None:
    told = settled()
    told.run(20, bad(rule=DISK))
    assert told.run(300) == []
    assert len(told.run(100, bad(rule=DISK))) == 1


def test_a_short_gap_ends_nothing() -> None:
    told = settled()
    for _ in range(20):
        told.run(100, bad())
        told.run(10)
    assert len(told.messages) == 1


def test_twenty_messages_an_hour() -> None:
    told = settled()
    for number in range(40):
        told.run(60, *[bad(str(each)) for each in range(number + 1)])
    assert len(told.messages) == 20
    [held_back] = told.run(1500, *[bad(str(number)) for number in range(40)])
    assert held_back.left_out >= 20
    assert len(held_back.alerts) == 20, "none is lost"


def test_without_a_majority_only_that_is_told() -> None:
    told = settled()
    told.majority = False
    messages = told.run(300, bad(), bad("pool", NO_MAJORITY))
    assert [alert.rule for message in messages for alert in message.alerts] == ["NoMajority"]
    told.majority = True
    assert [a.rule for m in told.run(100, bad()) for a in m.alerts] == ["GpuFault", "NoMajority"]


def test_who_told_of_no_majority_tells_that_it_is_over_though_another_one_sends() -> None:
    told = settled()
    told.sends = told.majority = False
    told.run(120, bad("quorum", NO_MAJORITY))
    told.majority = True  # another server is the sender now
    messages = told.run(300, bad())
    assert [(a.rule, bool(a.ended_ms)) for m in messages for a in m.alerts] == [
        ("NoMajority", True)
    ]


@pytest.mark.parametrize(("count", "told"), [(99, 99), (100, 100), (101, 100), (250, 100)])
def test_a_message_has_a_hundred_alerts_at_most(count: int, told: int) -> None:
    [message] = settled().run(120, *(bad(f"gpu-{number}") for number in range(count)))
    assert [each.subject for each in message.alerts] == [f"gpu-{n}" for n in range(told)]
