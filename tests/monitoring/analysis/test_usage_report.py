"""The report: every GPU-hour counts once, and the page is one file in which texts are inert."""

import random
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from gpupool.cli.lib.analysis_charts import report_page
from gpupool.cli.main import run
from gpupool.monitoring.analysis.demand import Readings, concurrency
from gpupool.monitoring.analysis.gpu_hours import HELD_FROM, account_of
from gpupool.monitoring.analysis.report_figures import hourly, report_of
from gpupool.monitoring.analysis.sizing import Goal
from gpupool.monitoring.analysis.trace_files import write_trace
from gpupool.monitoring.analysis.trace_form import Builder, Job, Machine, Sample, Trace
from gpupool.monitoring.analysis.virtual_pool import Task

GOAL = Goal(resamples=0)
MONDAY = 1772409600.0  # 2026-03-02 00:00 UTC
GIB = 1 << 30
EVIL = "<script>alert(1)</script>\" onload='x' \u202e\x1b[31m&amp;"


def day(users: int = 3, *, name: str = "u{}", gaps: bool = False, seed: int = 1) -> Trace:
    """Return a day of a machine with a GPU for each user."""
    draw = random.Random(seed)
    builder = Builder("a day")
    builder.add_machine(Machine("m", users, "A100", 80 * GIB))
    for user in range(users):
        gpu = str(user)
        builder.add_job(
            Job(gpu, MONDAY, MONDAY, MONDAY + 43_200, name.format(user), places=(("m", gpu),))
        )
        for minute in range(0, 1440, 10):
            if gaps and draw.random() < 0.2:
                continue
            busy = draw.choice((None, 0.0, 0.0, 0.5, 1.0)) if minute < 720 else 0.0
            memory = 20 * GIB if minute < 720 else 0
            builder.add_sample(Sample(MONDAY + minute * 60, "m", gpu, busy, memory))
    return builder.trace()


def test_each_gpu_hour_is_of_one_kind() -> None:
    builder = Builder("known")
    builder.add_machine(Machine("m", 2))
    builder.add_job(Job("1", 0, 0, 5400, "ada", places=(("m", "0"),)))
    for minute in range(0, 240, 10):
        busy = None if minute >= 180 else float(minute < 60)
        memory = HELD_FROM if 120 <= minute < 150 else 0
        builder.add_sample(Sample(minute * 60.0, "m", "0", busy, memory))
    trace = builder.trace()
    account = account_of(trace, Readings(trace.samples, trace.every_s))
    hours = account.hours
    # 60 min of work; the job holds it to 90, strangers from 120 to 150; from 180 nothing is known.
    assert (hours.working, hours.idle, hours.free) == pytest.approx((1.0, 1.0, 1.0))
    assert hours.unknown == pytest.approx(1.0 + 4.0)  # the other GPU was never read
    assert account.gpu_count == 2
    assert account.bins[9] == pytest.approx(1.0)
    ada = account.users["ada"]
    assert (ada.held, ada.working, ada.idle) == pytest.approx((1.5, 1.0, 0.5))


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 1000), gaps=st.booleans(), users=st.integers(1, 5))
def test_the_hours_close(seed: int, gaps: bool, users: int) -> None:
    trace = day(users, gaps=gaps, seed=seed)
    hours = account_of(trace, Readings(trace.samples, trace.every_s)).hours
    assert hours.total == pytest.approx(users * trace.span_s / 3600, rel=1e-3)
    if gaps:
        assert hours.unknown > 0


def test_a_trace_without_readings_says_unknown() -> None:
    builder = Builder("jobs")
    builder.add_machine(Machine("m", 4))
    builder.add_job(Job("1", 0, 0, 3600, "ada", gpus=2))
    builder.add_job(Job("2", 0, 0, 7200, "bob", gpus=1, fraction=0.5))
    hours = report_of(builder.trace(), GOAL).account.hours
    assert (hours.working, hours.unknown, hours.free) == pytest.approx((0.0, 3.0, 5.0))


def test_demand_by_hour() -> None:
    steps = concurrency([Task(1800, 2, 1.0, 0, ((5400, 0.0),)), Task(7200, 1, 1.0, 0, ((60, 0),))])
    assert hourly(steps, 0, 10_800) == pytest.approx([1.0, 2.0, 1 / 60, 0.0])


def test_figures_of_a_day() -> None:
    report = report_of(day(), GOAL)
    assert report.begins == "Mon 2026-03-02 00:00"
    assert report.heat[0][18] == 0.0
    assert (report.heat[0][6] or 0) > 0.1
    assert report.heat[1] == (None,) * 24
    assert report.peak_demand == 3
    assert report.busiest == ("Mon 2026-03-02 00:00", 3.0)
    assert [each.mode.value for each in report.sizes] == ["recorded", "attached", "whole", "silos"]
    # 20 GiB and a tenth of 80 GiB are 30 %.
    assert [(each.jobs, each.share) for each in report.too_large] == [(1, 0.3)] * 3
    assert any("Otherwise it is free" in each for each in report.assumptions)


class Page(HTMLParser):
    """Notes the elements and addresses of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_texts_in_the_page_are_inert() -> None:
    trace = day(30, name=EVIL + "{}")
    builder = Builder(EVIL)
    builder.jobs, builder.samples = list(trace.jobs), list(trace.samples)
    builder.add_machine(Machine("m", 30, EVIL, 80 * GIB))
    page = report_page(report_of(builder.trace(), GOAL, modes=("recorded",)))
    seen = Page(page)
    assert not seen.tags & {"script", "link", "img", "iframe", "object", "a", "form"}
    assert not {name for name in seen.attributes if name.startswith("on")} | (
        seen.attributes & {"src", "href"}
    )
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "&lt;script&gt;alert(1)" in page


def test_the_page_is_small_whatever_is_in_the_trace() -> None:
    builder = Builder("x" * 200)
    for user in range(3000):
        builder.add_job(Job(str(user), user, user, user + 60.0, f"{user}" + "&" * 200, gpus=1))
    page = report_page(report_of(builder.trace(), GOAL, sized=False))
    assert len(page.encode()) < 125_000


def test_the_command_shows_the_same_charts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, page = str(tmp_path / "day.trace"), tmp_path / "report.html"
    write_trace(day(name=EVIL[:20] + "{}"), trace)
    options = ["--html", str(page), "--resamples", "2", "--mode", "whole"]
    assert run(["analyze", "report", trace, *options]) == 0
    shown = capsys.readouterr()
    for text in ("GPU-HOURS", "held idle", "HOUR", "Mon", "ASKED FOR WHOLE GPUS", "busiest hour"):
        assert text in shown.out
    assert "\x1b" not in shown.out
    assert f"the page is {page}" in shown.err
    assert page.read_text().startswith("<!doctype html>")
    assert run(["analyze", "report", trace, "--json", "--no-sizes"]) == 0
    assert '"schema": 1' in capsys.readouterr().out


def test_errors_say_what_why_and_what_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("JobID|Start\n")
    out = str(tmp_path / "out")
    assert run(["analyze", "import", "slurm", str(path), "-o", out]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"gpupool: {path} has no column Submit, End"
    assert lines[1].startswith("  its first line is")
    assert lines[2].startswith("  hint: check the format")
    path.write_text(
        "JobID|User|Submit|Start|End|AllocTRES\n"
        "1|ada|2026-03-02T10:00:00|2026-03-02T10:00:00|2026-03-02T11:00:00|gres/gpu=2\n"
    )
    assert run(["analyze", "import", "slurm", str(path), "-o", out]) == 0
    assert "1 jobs and 0 readings" in capsys.readouterr().err
    assert run(["analyze", "size", out, "--gpus", "2", "--strict-queue"]) == 0
    assert "RECORDED" in capsys.readouterr().out
    assert run(["analyze", "size", out, "--resamples", "1"]) == 0
    assert "whole GPUs only" in capsys.readouterr().out
    assert run(["analyze", "size", out, "--mode", "attached"]) == 1
    assert "does not say when jobs compute" in capsys.readouterr().err
