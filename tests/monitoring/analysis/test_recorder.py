"""Recordings: the written rows, the rows after a pause, and the standalone script."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpupool.cli.main import run
from gpupool.monitoring.analysis import portable_recorder
from gpupool.monitoring.analysis.portable_recorder import (
    ROLL_UP_AFTER_S,
    Gpu,
    Owner,
    Owners,
    Reading,
    Store,
    process_of,
    salt_of,
    seconds,
)
from gpupool.monitoring.analysis.trace_files import read_recording, read_traces
from gpupool.monitoring.analysis.trace_form import TraceError

GIB = 1 << 30
BEGIN = 1_772_409_600
ADA = Owner("100.5", "ada", "python")


def reading(memory: int = 20 * GIB, busy: int | None = 500) -> Reading:
    return Reading("GPU-0", busy, memory, {100: memory})


def begun(path: Path) -> Store:
    store = Store(path, "gpu-1", 10)
    store.add_gpus([Gpu("GPU-0", "H200", 80 * GIB)])
    return store


def test_a_recording_goes_on_and_a_gap_is_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "use.db"
    for first in (0, 600):
        store = begun(path)
        for t in range(first, first + 60, 10):
            store.add(BEGIN + t + 0.7, [reading()], lambda pid: ADA)
        store.db.close()
    trace = read_traces([str(path)])
    assert len(trace.samples) == 12
    assert [(job.began - BEGIN, (job.end or 0) - BEGIN) for job in trace.jobs] == [
        (0, 60),
        (600, 660),
    ]


def test_old_readings_become_minutes_and_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "use.db"
    store = begun(path)
    for t in range(0, 7200, 10):
        busy = None if t % 60 == 0 else 1000 if t % 120 < 60 else 0
        store.add(BEGIN + t, [reading(busy=busy)], lambda pid: ADA)
    before = read_recording(path)
    store.add(BEGIN + ROLL_UP_AFTER_S + 7200, [reading()], lambda pid: ADA)
    rows = list(store.db.execute("SELECT count(*), max(span_s) FROM gpu_sample"))
    store.db.close()
    assert rows == [(121, 60)]
    after = read_recording(path)
    assert len(after.samples) == len(before.samples) + 1
    assert [job.end for job in after.jobs[:1]] == [job.end for job in before.jobs]
    hours = [sum((s.busy or 0) for s in trace.samples[:720]) for trace in (before, after)]
    assert hours[1] == pytest.approx(hours[0] * 6 / 5)  # what was unknown is spread


def test_a_recording_of_a_day_is_small(tmp_path: Path) -> None:
    path = tmp_path / "use.db"
    store = Store(path, "m", 10)
    uuids = [f"GPU-{n}" for n in range(8)]
    store.add_gpus([Gpu(uuid, "H200", 80 * GIB) for uuid in uuids])
    for t in range(0, 3600, 10):
        # Two processes on every other GPU and three on the rest: twenty.
        rows = [
            Reading(u, 500, GIB, {10 * n + p: GIB for p in range(2 + n % 2)})
            for n, u in enumerate(uuids)
        ]
        store.add(BEGIN + t, rows, lambda pid: Owner(f"{pid}.123456", f"u{pid}", "python"))
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.db.close()
    assert path.stat().st_size * 24 <= 12_000_000


# --- whose a process is ---------------------------------------------------------------------------


def test_processes_of_one_job_are_one_tree(tmp_path: Path) -> None:
    def process(pid: int, name: str, parent: int, start: int) -> None:
        (tmp_path / str(pid)).mkdir()
        rest = " ".join(["0"] * 17)
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} {rest} {start} 0 0")

    process(10, "bash", 1, 5)
    process(20, "torchrun (x) 1", 10, 7)
    process(30, "python", 20, 8)
    process(31, "python", 20, 9)
    owners = Owners(b"salt", tmp_path)
    assert process_of(20, tmp_path) == (10, os.getuid(), 7, "torchrun (x) 1")
    first, second = owners.of(30), owners.of(31)
    assert first.tree == second.tree == "20.7"
    assert first.program == "python"
    assert first.user.startswith("u-")
    assert owners.of(999) == Owner("999", "?", "?")
    assert Owners(None, tmp_path).of(30).user != first.user
    assert Owners(b"other", tmp_path).of(30).user != first.user


def test_the_salt_stays_and_is_its_owner_s(tmp_path: Path) -> None:
    salt = salt_of(tmp_path / "use.db")
    assert salt_of(tmp_path / "use.db") == salt
    assert len(salt) == 16
    assert (tmp_path / "use.db.salt").stat().st_mode & 0o777 == 0o600


def test_durations() -> None:
    assert [seconds(each) for each in ("90", "2m", "1.5h", "14d")] == [90, 120, 5400, 1209600]


# --- the script -----------------------------------------------------------------------------------


def test_the_script_is_short_and_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", "script"]) == 0
    text = capsys.readouterr().out
    assert text == script()
    assert text.count("\n") <= 400
    assert "import gpupool" not in text
    assert "from gpupool" not in text


def script() -> str:
    return Path(portable_recorder.__file__).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    target = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", target, source], check=True)
    return target


def run_script(folder: Path, library: Path, *options: str, **env: str) -> tuple[int, str]:
    """Run the script as over ssh: from standard input, isolated from installed packages."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-", "--library", str(library), *options],
        input=script(),
        env=os.environ | {"FAKE_NVML_PID": str(os.getpid())} | env,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stderr


def test_the_script_records_by_nvml(tmp_path: Path, library: Path) -> None:
    options = ("--for", "2.5s", "--every", "1", "--out", "use.db", "--names")
    assert run_script(tmp_path, library, *options) == (0, "2 GPUs are recorded into use.db\n")
    trace = read_recording(tmp_path / "use.db")
    by_gpu = {sample.gpu: sample for sample in trace.samples}
    assert (by_gpu["GPU-first"].busy, by_gpu["GPU-first"].memory) == (0.37, 20 * GIB)
    assert (by_gpu["GPU-second"].busy, by_gpu["GPU-second"].memory) == (None, 10 * GIB)
    [job] = trace.jobs
    assert job.gpus == 2


def test_the_script_says_why_it_cannot_record(tmp_path: Path, library: Path) -> None:
    code, text = run_script(tmp_path, tmp_path / "none.so")
    assert code == 1
    assert "cannot record" in text
    code, text = run_script(tmp_path, library, FAKE_NVML_NO_DRIVER="1")
    assert (code, text.rstrip().rpartition(": ")[2]) == (1, "the driver is not loaded")


class FakeNvml:
    """Two GPUs, of which one computes; or none."""

    def __init__(self, library: str) -> None:
        del library

    def gpus(self) -> list[Gpu]:
        return [Gpu(f"GPU-{n}", "NVIDIA H200", 80 * GIB) for n in range(2)]

    def readings(self) -> list[Reading]:
        return [reading(), Reading("GPU-1", 0, 0, {})]


def test_the_command_records_as_the_script_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(portable_recorder, "CtypesNvml", FakeNvml)
    monkeypatch.setattr(portable_recorder, "time", clock := FakeClock())
    before = signal.getsignal(signal.SIGTERM)
    path = tmp_path / "use.db"
    assert run(["analyze", "record", "--for", "60s", "--names", "--out", str(path)]) == 0
    assert capsys.readouterr().err == f"2 GPUs are recorded into {path}\n"
    assert signal.getsignal(signal.SIGTERM) is before
    trace = read_recording(path)
    assert (trace.every_s, trace.begin, trace.end) == (10.0, BEGIN, BEGIN + 70)
    assert {s.busy for s in trace.samples if s.gpu == "GPU-0"} == {0.5}
    [job] = trace.jobs
    assert (job.gpus, job.fraction) == (1, 0.3)  # 20 GiB of 80, and a tenth more
    assert (job.began, job.end) == (BEGIN, BEGIN + 70)
    assert trace.machines[0].gpus == 2
    clock.stops = True
    assert run(["analyze", "record", "--names", "--out", str(path)]) == 0
    assert "goes on with the same file" in capsys.readouterr().err


class FakeClock:
    """Time that passes in sleeps alone, until somebody stops the program."""

    stops = False

    def __init__(self) -> None:
        self.now = BEGIN + 3.0

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if self.stops:
            raise KeyboardInterrupt
        self.now += seconds


def test_the_command_says_why_it_cannot_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "use.db"
    out = ["analyze", "record", "--for", "0", "--out"]
    assert run([*out, str(path)]) == 1
    assert "nothing to record" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(portable_recorder, "CtypesNvml", FakeNvml)
    begun(path).db.close()
    (tmp_path / "text").write_text("no database" * 100)
    for name, why in (
        ("use.db", "it has machine gpu-1, and this would add "),
        ("text", "file is not a database"),
        ("nowhere/file", "No such file"),
    ):
        assert run([*out, str(tmp_path / name)]) == 1
        said = capsys.readouterr().err
        assert "the recording cannot be written" in said
        assert why in said


def test_a_damaged_recording_is_said(tmp_path: Path) -> None:
    (tmp_path / "use.db").write_bytes(b"SQLite format 3\0" + bytes(200))
    with pytest.raises(TraceError, match="no recording of gpupool, or a damaged one"):
        read_recording(tmp_path / "use.db")
