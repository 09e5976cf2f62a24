"""Each format as a miniature, with the traps that its real files have."""

import contextlib
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.cli.commands.monitoring import analyze
from gpupool.monitoring.analysis.csv_rows import LINE_MAX, Source
from gpupool.monitoring.analysis.importers import FORMATS, gpus_of, read
from gpupool.monitoring.analysis.trace_form import NOTES, Sample, Trace, TraceError

DAY = 86_400.0


def source(text: str, name: str = "file.csv") -> Source:
    return Source(name, text.splitlines(keepends=True))


def imported(form: str, *texts: str, zone: str = "", thin_s: float = 0.0) -> Trace:
    return read(form, [source(text) for text in texts], zone=zone, thin_s=thin_s)


def named(form: str, texts: dict[str, str]) -> Trace:
    return read(form, [source(text, name) for name, text in texts.items()])


def test_the_command_knows_the_formats() -> None:
    assert set(analyze.FORMATS) == set(FORMATS)


@pytest.mark.parametrize("form", list(FORMATS))
@given(text=st.text(max_size=300))
def test_any_text_is_a_trace_or_one_clear_error(form: str, text: str) -> None:
    trace: Trace | None = None
    with contextlib.suppress(TraceError):
        trace = imported(form, text)
    assert trace is None or trace.jobs or trace.samples


def test_what_is_no_format_is_said() -> None:
    with pytest.raises(TraceError, match="no format"):
        imported("sge", "")


# --- Slurm ----------------------------------------------------------------------------------------

SLURM = "JobID|User|Account|Submit|Start|End|State|ReqTRES|AllocTRES\n"


def slurm(*rows: str, zone: str = "UTC") -> Trace:
    return imported("slurm", SLURM + "\n".join(rows) + "\n", zone=zone)


def at(text: str) -> str:
    return f"2026-03-02T{text}:00"


def test_slurm_jobs() -> None:
    tres = "cpu=8,gres/gpu=4,gres/gpu:a100=4,mem=64G"
    trace = slurm(
        f"7|ada|chem|{at('10:00')}|{at('10:05')}|{at('11:00')}|COMPLETED|{tres}|{tres}",
        f"7.batch|||{at('10:05')}|{at('10:05')}|{at('11:00')}|COMPLETED||{tres}",
        f"8|bob|bio|{at('10:01')}|{at('10:02')}|{at('10:02')}|FAILED|gres/gpu=1|gres/gpu=1",
        f"9|eve|bio|{at('10:01')}|{at('10:02')}|{at('10:09')}|COMPLETED|cpu=4|cpu=4",
    )
    [ada, bob] = trace.jobs
    assert (ada.id, ada.user, ada.group, ada.gpus, ada.model) == ("7", "ada", "chem", 4, "a100")
    assert (ada.end or 0) - (ada.start or 0) == 55 * 60
    assert ada.began - ada.submit == 300
    assert bob.gpus == 1
    assert trace.notes == {"steps": 1, "cpu-only": 1, "zero-length": 1}
    assert "1 job(s) asked for no GPU and are left out" in trace.sentences


def test_slurm_jobs_that_did_not_start_or_end() -> None:
    trace = slurm(
        f"1|a|g|{at('10:00')}|{at('10:00')}|Unknown|RUNNING|gres/gpu=1|gres/gpu=1",
        f"2|a|g|{at('10:00')}|Unknown|Unknown|PENDING|gres/gpu=1|",
        f"3|a|g|{at('10:00')}|None|{at('12:00')}|CANCELLED by 5|gres/gpu=2|",
    )
    assert [(job.id, job.start, job.end) for job in trace.jobs] == [
        ("1", trace.jobs[0].submit, None),
        ("3", None, trace.jobs[0].submit + 7200),
    ]
    assert trace.notes == {"open-end": 1, "no-times": 1, "never-started": 1}
    assert trace.end == trace.jobs[0].submit + 7200


def test_slurm_counts_no_gpu_twice() -> None:
    assert gpus_of("gres/gpu=2,gres/gpu:h100=2") == (2, "h100", 1.0)
    assert gpus_of("gres/gpu:a100=2,gres/gpu:v100=1") == (3, "a100", 1.0)
    assert gpus_of("cpu=4,gres/mps=50") == (1, "", 0.5)
    assert gpus_of("gres/mps=150") == (2, "", 0.75)
    assert gpus_of("billing=3") == (0, "", 1.0)


def test_the_hour_that_daylight_saving_repeats() -> None:
    # In Berlin, 2026-10-25 02:30 comes twice. This job would end before it began.
    row = "1|a|g|2026-10-25T02:40:00|2026-10-25T02:50:00|2026-10-25T02:10:00|COMPLETED||gres/gpu=1"
    trace = slurm(row, zone="Europe/Berlin")
    [job] = trace.jobs
    assert (job.end or 0) - job.began == 20 * 60
    assert trace.notes == {"twice": 3}


def test_the_hour_that_daylight_saving_skips() -> None:
    row = "1|a|g|2026-03-29T01:50:00|2026-03-29T02:30:00|2026-03-29T03:40:00|COMPLETED||gres/gpu=1"
    [job] = (trace := slurm(row, zone="Europe/Berlin")).jobs
    assert trace.notes == {"skipped": 1}
    assert job.submit <= job.began <= (job.end or 0)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (f"1|a|g|yesterday|{at('10:00')}|{at('10:00')}|X||gres/gpu=1", "is no time"),
        (f"1|a|g|{at('10:00')}|{at('10:00')}|{at('11:00')}|X||gres/gpu=99999", "makes no sense"),
    ],
)
def test_slurm_rows_that_make_no_sense(row: str, why: str) -> None:
    with pytest.raises(TraceError, match=why):
        slurm(row)


def test_jobs_that_run_backwards_are_left_out() -> None:
    good = f"1|a|g|{at('10:00')}|{at('10:00')}|{at('11:00')}|X||gres/gpu=1"
    trace = slurm(good, f"2|a|g|{at('10:00')}|{at('10:00')}|{at('09:00')}|X||gres/gpu=1")
    assert [job.id for job in trace.jobs] == ["1"]
    assert trace.notes == {"backwards": 1}


def test_a_missing_column_is_named() -> None:
    with pytest.raises(TraceError, match="no column Submit, End"):
        imported("slurm", "JobID|Start\n1|x\n")


def test_lines_have_a_limit() -> None:
    with pytest.raises(TraceError, match="too long"):
        imported("slurm", SLURM + "x" * (LINE_MAX + 1))


def test_an_unknown_zone_is_said() -> None:
    with pytest.raises(TraceError, match="is not known here"):
        slurm("", zone="Europe/Atlantis")


# --- readings -------------------------------------------------------------------------------------


def test_nvidia_smi_readings() -> None:
    heading = "timestamp, index, uuid, name, utilization.gpu [%], memory.used [MiB], "
    heading += "memory.total [MiB]\n"
    row = "2026/03/02 10:00:{}.125, 0, GPU-a, NVIDIA A100, {}, 1024 MiB, 81920 MiB\n"
    text = heading + row.format("00", "35 %") + heading + row.format("10", "[N/A]")
    trace = named("nvidia-smi", {"gpu-1.csv": text + row.format("10", "50 %")})
    assert [(s.machine, s.gpu, s.busy) for s in trace.samples] == [
        ("gpu-1", "GPU-a", 0.35),
        ("gpu-1", "GPU-a", None),
    ]
    assert trace.samples[0].memory == 1 << 30
    assert trace.every_s == 10
    assert trace.notes == {"repeated": 1}
    assert trace.machines[0].memory == 80 << 30


def test_nvidia_smi_without_units_and_with_nonsense() -> None:
    heading = "timestamp, index, utilization.gpu\n"
    trace = imported("nvidia-smi", heading + "2026/03/02 10:00:00, 3, 35\n")
    assert trace.samples[0][2:4] == ("3", 0.35)
    for row in ("2026/03/02 10:00:00, 3, 350", "2026/03/02 10:00:00, 3, fast", "now, 3, 5"):
        with pytest.raises(TraceError):
            imported("nvidia-smi", heading + row + "\n")


def test_nvidia_smi_processes_become_jobs() -> None:
    gpus = "timestamp, uuid, utilization.gpu [%], memory.total [MiB]\n"
    gpus += "2026/03/02 10:00:00, GPU-a, 1 %, 81920 MiB\n"
    rows = ["timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]"]
    rows += [
        f"2026/03/02 10:{minute:02}:00, GPU-a, 17, /usr/bin/python, 20000 MiB"
        for minute in (0, 1, 2, 30, 31)
    ]
    trace = named("nvidia-smi", {"a.csv": gpus, "a.procs.csv": "\n".join(rows) + "\n"})
    assert [(job.end or 0) - job.began for job in trace.jobs] == [180, 120]
    assert trace.jobs[0].fraction == 0.3  # 20,000 MiB and a tenth of 81,920, in twentieths


def answer(*series: tuple[dict[str, str], Sequence[tuple[float, str]]]) -> str:
    result = [{"metric": labels, "values": [list(v) for v in values]} for labels, values in series]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def test_prometheus_answers() -> None:
    labels = {"Hostname": "n1", "UUID": "GPU-a", "instance": "10.0.0.1:9400"}
    pod = {"exported_namespace": "ml", "exported_pod": "train-0"}
    trace = imported(
        "prometheus",
        answer(
            ({"__name__": "DCGM_FI_DEV_GPU_UTIL", **labels, **pod}, [(60, "50"), (120, "NaN")]),
            ({"__name__": "DCGM_FI_DEV_FB_USED", **labels}, [(60, "1024")]),
        ),
        answer(
            (
                {"__name__": "gpupool_gpu_busy_ratio", "server": "s", "gpu": "0"},
                [(60, "0.25"), (120, "1")],
            )
        ),
    )
    assert trace.samples == (
        Sample(60, "n1", "GPU-a", 0.5, 1 << 30),
        Sample(60, "s", "0", 0.25, None),
        Sample(120, "n1", "GPU-a", None, None),
        Sample(120, "s", "0", 1.0, None),
    )
    [job] = trace.jobs
    assert (job.user, job.places, job.began, job.end) == ("ml", (("n1", "GPU-a"),), 60, 180)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"status": "error"}', "no answer of a range query"),
        (answer(({"__name__": "up", "instance": "a", "gpu": "0"}, [(1, "1")])), "'up'"),
        (answer(({"__name__": "DCGM_FI_DEV_GPU_UTIL", "gpu": "0"}, [(1, "1")])), "no machine"),
        (
            answer(({"__name__": "DCGM_FI_DEV_GPU_UTIL", "gpu": "0", "node": "n"}, [(1, "101")])),
            "makes no sense",
        ),
    ],
)
def test_prometheus_answers_that_make_no_sense(text: str, why: str) -> None:
    with pytest.raises(TraceError, match=why):
        imported("prometheus", text)


def test_readings_are_joined_to_intervals() -> None:
    heading = "timestamp, index, utilization.gpu, memory.used\n"
    rows = [f"2026/03/02 10:{m:02}:{s:02}, 0, {m * 10}, {s}" for m in range(2) for s in (0, 30)]
    trace = imported("nvidia-smi", heading + "\n".join(rows) + "\n", thin_s=60)
    assert [(s.busy, (s.memory or 0) >> 20) for s in trace.samples] == [(0.0, 30), (0.1, 30)]
    assert trace.every_s == 60


def test_each_note_is_one_sentence_with_its_number() -> None:
    for text in NOTES.values():
        assert text.count("{}") == 1
        assert not text.endswith(".")
