"""Each published trace as a miniature, with the traps that its real files have."""

import contextlib
import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.benchmarks.academic_traces import FORMATS, elements, read
from tests.benchmarks.philly_form import GPUS, MACHINES, PhillyTrace

from gpupool.monitoring.analysis.csv_rows import Source
from gpupool.monitoring.analysis.trace_form import Sample, Trace, TraceError


def source(text: str, name: str = "file.csv") -> Source:
    return Source(name, text.splitlines(keepends=True))


def imported(form: str, *texts: str) -> Trace:
    return read(form, [source(text) for text in texts])


def named(form: str, texts: dict[str, str]) -> Trace:
    return read(form, [source(text, name) for name, text in texts.items()])


@pytest.mark.parametrize("form", list(FORMATS))
@given(text=st.text(max_size=300))
def test_any_text_is_a_trace_or_one_clear_error(form: str, text: str) -> None:
    trace: Trace | None = None
    with contextlib.suppress(TraceError):
        trace = imported(form, text)
    assert trace is None or trace.jobs or trace.samples


# --- Philly ---------------------------------------------------------------------------------------


def attempt(start: str | None, end: str | None, *gpus: str, ip: str = "m1") -> dict[str, object]:
    return {"start_time": start, "end_time": end, "detail": [{"ip": ip, "gpus": list(gpus)}]}


def philly(*attempts: dict[str, object], submitted: str = "2017-10-07 01:00:00") -> Trace:
    job = {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": "application_1",
        "attempts": list(attempts),
        "submitted_time": submitted,
        "user": "ce2f4c",
    }
    return imported("philly", json.dumps([job], indent=4))


def test_philly_attempts_become_jobs() -> None:
    trace = philly(
        attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", "gpu0", "gpu1"),
        attempt("2017-10-07 01:13:30", "2017-10-07 06:53:12", "gpu2", "gpu3", ip="m4"),
    )
    first, second = trace.jobs
    assert (first.id, first.gpus, first.user, first.group) == (
        *("application_1/1", 2, "ce2f4c", "ee9e8c"),
    )
    assert first.began - first.submit == 12 * 60 + 9
    assert second.submit == second.began
    assert second.places == (("m4", "gpu2"), ("m4", "gpu3"))
    assert trace.notes == {}
    assert trace.begin == 1507363200  # 01:00 in Los Angeles in summer is 08:00 UTC


def test_philly_attempts_that_overlap() -> None:
    trace = philly(
        attempt("2017-10-07 02:00:00", "2017-10-07 04:00:00", "gpu0"),
        attempt("2017-10-07 03:00:00", "2017-10-07 05:00:00", "gpu1"),
        attempt("2017-10-07 03:00:00", "2017-10-07 03:30:00", "gpu2"),
    )
    assert [(job.began, job.end) for job in trace.jobs] == [
        (trace.begin + 3600, trace.begin + 3 * 3600),
        (trace.begin + 3 * 3600, trace.begin + 4 * 3600),
    ]
    assert trace.notes == {"overlap": 1, "within": 1}


def test_philly_attempts_without_times() -> None:
    trace = philly(
        attempt(None, "2017-10-07 02:00:00", "gpu0"),
        attempt("2017-10-07 03:00:00", None, "gpu1"),
        attempt("2017-10-07 04:00:00", None, "gpu1"),
    )
    assert trace.notes == {"no-start": 1, "no-end": 1, "open-end": 1}
    assert [job.end for job in trace.jobs] == [trace.begin + 3 * 3600, None]


def test_philly_jobs_without_attempts() -> None:
    with pytest.raises(TraceError, match="no job on a GPU"):
        philly()


def test_philly_readings_in_winter_and_in_summer() -> None:
    heading = "time,machineId," + ",".join(f"gpu{n}_util" for n in range(4)) + "\n"
    trace = imported(
        "philly",
        heading
        + "2017-11-05 01:59:00 PDT,m29,60.8,99.5,NA,0.0,\n"
        + "2017-11-05 01:00:00 PST,m29,NA,100.0,NA,0.0,\n",
        "machineId,number of GPUs, single GPU mem\nm29,4, 24GB\n",
    )
    # The clocks were set back between the two readings, which are a minute apart.
    times = sorted({sample.t for sample in trace.samples})
    assert times[1] - times[0] == 60
    assert trace.samples[0] == Sample(times[0], "m29", "gpu0", 0.608, None)
    assert [s.busy for s in trace.samples if s.gpu == "gpu2"] == [None, None]
    assert trace.notes == {"not-available": 3}
    assert trace.machines[0].memory == 24 * 10**9


def test_a_trace_in_phillys_form_is_read_as_what_it_was_made_of(tmp_path: Path) -> None:
    made = PhillyTrace(jobs=1200)
    paths = made.write(tmp_path, readings=300)
    trace = read("philly", [source(path.read_text(), path.name) for path in paths])
    known = made.known
    assert trace.notes == known.notes
    assert {"overlap", "within", "no-start", "no-end", "open-end", "twice"} <= set(known.notes)
    assert len(trace.jobs) == known.jobs
    ended = [job for job in trace.jobs if job.end is not None]
    assert sum(job.gpus * (job.end - job.began) for job in ended if job.end) == known.gpu_seconds
    assert max(job.gpus for job in trace.jobs) == 3 * GPUS, "larger than any server"
    assert len(trace.samples) == known.samples
    times = sorted({sample.t for sample in trace.samples})
    assert {later - earlier for earlier, later in pairwise(times)} == {60.0}, "no hour is twice"
    assert len(trace.machines) == MACHINES


def test_philly_says_which_file_it_does_not_know() -> None:
    with pytest.raises(TraceError, match="no table of Philly"):
        imported("philly", "a,b\n1,2\n")


def test_an_array_is_read_piece_by_piece() -> None:
    text = json.dumps([{"a": n, "b": "x" * 5000} for n in range(100)], indent=1)
    found = list(elements(source(text)))
    assert [each["a"] for each in found if isinstance(each, dict)] == list(range(100))  # pyright: ignore[reportUnknownVariableType]
    with pytest.raises(TraceError, match="no whole JSON array"):
        list(elements(source(text[:-40])))


# --- Helios ---------------------------------------------------------------------------------------


def test_helios_jobs() -> None:
    heading = "job_id,user,vc,gpu_num,cpu_num,node_num,state,"
    heading += "submit_time,start_time,end_time,duration,queue\n"
    times = "2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0"
    trace = imported(
        "helios",
        heading + f"1425511,uXBbc,vcJkd,16,1,2,COMPLETED,{times}\n9,u,v,0,4,1,COMPLETED,{times}\n",
        "date,vchbv,total\n2020-09-01,64,1144\n",
    )
    [job] = trace.jobs
    assert (job.gpus, job.user, job.group) == (16, "uXBbc", "vcJkd")
    assert (job.end or 0) - job.began == 36848
    assert trace.notes == {"cpu-only": 1}


# --- Alibaba --------------------------------------------------------------------------------------

PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time\n"
)


def test_openb_pods_and_nodes() -> None:
    trace = imported(
        "openb2023",
        PODS
        + "pod-0,6000,12288,1,460,,LS,Running,100,1100,150\n"
        + "pod-1,6000,12288,8,1000,V100M16|V100M32,BE,Succeeded,200,300,200\n"
        + "pod-2,6000,12288,0,0,,LS,Running,100,1100,150\n"
        + "pod-3,6000,12288,1,1000,,BE,Pending,400,500,\n",
        "sn,cpu_milli,memory_mib,gpu,model\nnode-0,64000,262144,2,P100\nnode-1,1,1,0,\n",
    )
    assert [(job.id, job.gpus, job.fraction, job.start) for job in trace.jobs] == [
        ("pod-0", 1, 0.46, 150.0),
        ("pod-1", 8, 1.0, 200.0),
        ("pod-3", 1, 1.0, None),
    ]
    assert trace.notes == {"cpu-only": 1, "never-started": 1}
    assert [(machine.name, machine.gpus) for machine in trace.machines] == [("node-0", 2)]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("pod-0,1,1,1,1001,,LS,Running,0,1,0", "more than a GPU has"),
        ("pod-0,1,1,1.5,1000,,LS,Running,0,1,0", "no number of things"),
        ("pod-0,1,1,1,1000,,LS,Running,x,1,0", "no number"),
        ("pod-0,1,1,1,1000,,LS,Running,,1,0", "no creation_time"),
        ("pod-0,1,1,1,1000,,LS,Running,0,inf,0", "no number"),
    ],
)
def test_openb_rows_that_make_no_sense(row: str, why: str) -> None:
    with pytest.raises(TraceError, match=r"file.csv, line 2 cannot be read.*" + why):
        imported("openb2023", PODS + row + "\n")


def test_times_in_another_unit_are_refused() -> None:
    row = "pod-0,1,1,1,1000,,LS,Running,1700000000000,1700000000001,1700000000000\n"
    with pytest.raises(TraceError, match="makes no sense"):
        imported("openb2023", PODS + row)


def test_pai_tables() -> None:
    trace = named(
        "pai2020",
        {
            "pai_job_table.csv": "j1,i1,u1,Terminated,1000.0,2000.0\nj2,i2,u2,Waiting,1500.0,\n",
            "pai_task_table.csv": "j1,ps,1.0,Terminated,1010.0,2000.0,600.0,29.3,,\n"
            "j1,worker,2.0,Terminated,1010.0,2000.0,600.0,29.3,50.0,V100\n"
            "j2,worker,1.0,Waiting,,,600.0,29.3,200.0,MISC\n"
            "j9,worker,3.0,Running,1100.0,,600.0,29.3,200.0,T4\n",
            "pai_group_tag_table.csv": "i1,u1,V100,group-a,bert\n",
            "pai_machine_spec.csv": "m1,V100,96,512,8\n",
            "pai_sensor_table.csv": "whatever",
        },
    )
    worker, lone = trace.jobs
    assert (worker.gpus, worker.fraction, worker.user, worker.group) == (2, 0.5, "u1", "group-a")
    assert (worker.submit, worker.start, worker.end) == (1000.0, 1010.0, 2000.0)
    assert (lone.gpus, lone.fraction, lone.user, lone.end) == (6, 1.0, "", None)
    assert trace.notes == {"cpu-only": 1, "no-times": 1, "open-end": 1}
    assert trace.machines[0].gpus == 8


def test_pai_headers_are_read() -> None:
    header = "plan_gpu,job_name,task_name,inst_num,status,start_time,end_time,"
    header += "plan_cpu,plan_mem,gpu_type\n"
    row = "25.0,j,worker,1.0,Terminated,5.0,9.0,1,1,T4\n"
    trace = named("pai2020", {"pai_task_table.csv": row, "pai_task_table.header": header})
    assert trace.jobs[0].fraction == 0.25
    with pytest.raises(TraceError, match=r"lack pai_task_table"):
        named("pai2020", {"pai_job_table.csv": ""})
    with pytest.raises(TraceError, match="no table of PAI"):
        named("pai2020", {"jobs.csv": ""})


def test_dlrm_instances() -> None:
    heading = "instance_sn,role,app_name,gpu_request,creation_time,scheduled_time,deletion_time\n"
    trace = imported(
        "dlrm2025",
        heading
        + "instance_1,HN,app_0,1,,,\ninstance_2,HN,app_0,1,,,500.0\n"
        + "instance_3,CN,app_1,0,1.0,1.0,2.0\ninstance_4,HN,app_0,1,70.0,80.0,\n",
    )
    assert [(job.id, job.start, job.end) for job in trace.jobs] == [
        ("instance_1", 0.0, None),
        ("instance_2", 0.0, 500.0),
        ("instance_4", 80.0, None),
    ]
    assert trace.notes == {"open-begin": 2, "open-end": 2, "cpu-only": 1}
