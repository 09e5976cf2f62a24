"""Leases that outlive a program, come at first use, or end unused: on a pool of real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gpupool.remoting.program.held_leases import HeldRecord, RecordFile

View = dict[str, Any]
SUM = "import cupy, os; print(float(cupy.ones(8).sum()), os.environ.get('GPUPOOL_LEASE'))"
DEADLINE_S = 20.0


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


def no_lease(pool: View) -> bool:
    return pool["leases"] == []


def some_lease(pool: View) -> bool:
    return pool["leases"] != []


def one_waits(pool: View) -> bool:
    return len(pool["waiting"]) == 1


def nobody_waits(pool: View) -> bool:
    return pool["waiting"] == []


def output(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=2 * DEADLINE_S)
    return process.returncode, out, errors


class User:
    """A user with a separate runtime folder, and a pool."""

    def __init__(self, live_pool: Any, folder: Path, **env: str) -> None:
        folder.mkdir(mode=0o700)
        self.pool = live_pool
        self.env = {"XDG_RUNTIME_DIR": str(folder), **env}

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        done: subprocess.CompletedProcess[str] = self.pool.run(*arguments, env=self.env)
        assert "Traceback" not in done.stderr
        return done

    def spawn(self, *arguments: str) -> "subprocess.Popen[str]":
        process: subprocess.Popen[str] = self.pool.spawn(*arguments, env=self.env)
        return process

    def alloc(self, *arguments: str) -> View:
        done = self.run("alloc", "--json", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        found: View = json.loads(done.stdout)
        return found


@pytest.fixture
def user(live_pool: Any, request: pytest.FixtureRequest) -> User:
    number = len(list(live_pool.folder.glob("user-*")))
    return User(live_pool, live_pool.folder / f"user-{number}")


@pytest.mark.long
def test_a_held_lease_serves_many_programs(user: User, live_pool: Any) -> None:
    held = user.alloc("-p", "0.25")
    lease = held["lease"]
    [listed] = live_pool.view()["leases"]
    assert (listed["name"], listed["program"]) == (lease, "alloc")
    run = ["run", "--lease", lease]
    both = [user.spawn(*run, *python(SUM)) for _ in range(2)]  # at once
    assert [output(each)[:2] for each in both] == [(0, f"8.0 {lease}\n")] * 2
    assert user.run(*run, "--", "sh", "-c", "exit 7").returncode == 7
    wrong = user.run(*run, "-n", "2", "--", "true")
    assert (wrong.returncode, "exclude each other" in wrong.stderr) == (2, True)

    code = "import cupy, time; cupy.ones(8); print('holding', flush=True); time.sleep(600)"
    program = user.spawn(*run, *python(code + "\ncupy.ones(8).sum().get()"))
    assert program.stdout is not None
    assert program.stdout.readline() == "holding\n"
    released = user.run("release", lease)
    assert released.returncode == 0, released.stderr
    assert released.stderr == f"gpupool: lease {lease} is released; 1 program used it\n"
    live_pool.wait_until(no_lease)
    os.killpg(program.pid, signal.SIGKILL)
    output(program)

    late = user.run(*run, "--", "true")
    assert late.returncode == 125
    assert late.stderr.startswith(f"gpupool: lease {lease} has ended\n  released\n")
    assert user.run("release", lease).returncode == 0  # as released as can be
    end = time.monotonic() + DEADLINE_S
    while Path(f"/proc/{held['pid']}").exists():  # the holder ends by itself
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_a_holder_that_is_killed_ends_its_lease(user: User, live_pool: Any) -> None:
    held = user.alloc("-p", "0.25")
    os.kill(held["pid"], signal.SIGKILL)
    live_pool.wait_until(no_lease)
    late = user.run("run", "--lease", held["lease"], "--", "true")
    assert late.returncode == 125
    assert "the process that held it on this machine was killed" in late.stderr
    assert not list(Path(user.env["XDG_RUNTIME_DIR"]).rglob("*.sock"))


@pytest.mark.slow
def test_leases_that_cannot_be_used(user: User, live_pool: Any) -> None:
    held = user.alloc("-p", "0.25", "--time", "1h")
    stranger = User(live_pool, Path(user.env["XDG_RUNTIME_DIR"] + "-else"))
    other = stranger.run("run", "--lease", held["lease"], "--", "true")
    assert other.returncode == 125
    assert other.stderr.splitlines()[0] == (
        f"gpupool: no lease {held['lease']} is held on this machine"
    )
    assert "holds it, on the machine where it was taken" in other.stderr
    unknown = user.run("run", "--lease", "ffffff", "--", "true")
    assert unknown.returncode == 125
    assert "the pool has no such lease" in unknown.stderr
    assert user.run("run", "--lease", "x y", "--", "true").returncode == 2
    assert user.run("release", "ffffff").returncode == 2
    assert user.run("release").returncode == 2
    # From another machine, too, one's own leases can be given back.
    assert stranger.run("release", held["lease"]).returncode == 0
    live_pool.wait_until(no_lease)
    assert user.run("release", "--all").returncode == 0


@pytest.mark.slow
def test_what_cannot_be_allocated(user: User) -> None:
    assert user.run("alloc", "-n", "3", "--no-wait").returncode == 1
    never = user.run("alloc", "-n", "3", "--json")
    assert json.loads(never.stdout)["error"]["code"] == "never"
    assert "largest server" in user.run("alloc", "-n", "3").stderr


@pytest.mark.slow
def test_an_interrupted_alloc_leaves_nothing(user: User, live_pool: Any) -> None:
    held = [user.alloc("-n", "2")["lease"] for _ in range(3)]
    waiting = user.spawn("alloc", "-p", "0.5")
    live_pool.wait_until(one_waits)
    waiting.send_signal(signal.SIGINT)
    assert output(waiting)[0] == -signal.SIGINT
    live_pool.wait_until(nobody_waits)
    assert user.run("release", "--all").returncode == 0
    live_pool.wait_until(no_lease)
    assert len(held) == 3


@pytest.mark.long
def test_a_lazy_run_takes_its_lease_at_first_use(user: User, live_pool: Any) -> None:
    code = f"import os, sys; print('on', flush=True); sys.stdin.readline()\n{SUM}"
    argv = [sys.executable, "-m", "gpupool.cli.main", "run", "--lazy", "-p", "0.25", *python(code)]
    with subprocess.Popen(
        argv, env=live_pool.env | user.env, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        assert program.stdout.readline() == "on\n"
        assert no_lease(live_pool.view())
        out, errors = program.communicate("\n", timeout=DEADLINE_S)
    assert (program.returncode, out) == (0, "8.0 None\n"), errors
    live_pool.wait_until(no_lease)
    nothing = user.run("run", "--lazy", "-n", "3", *python("print('no GPU needed')"))
    assert (nothing.returncode, nothing.stdout) == (0, "no GPU needed\n")
    never = live_pool.run("run", "--lazy", "-n", "3", *python(SUM), env=user.env)
    assert never.returncode == 1
    assert "no server could ever give 3 GPUs" in never.stderr


@pytest.mark.slow
def test_a_lease_in_use_lives_and_ends_once_it_is_not(
    user: User, live_pool: Any, tmp_path: Path
) -> None:
    """Calls put the end off, however short the timeout; an open session does not."""
    code = """if True:
        import cupy, sys, time
        a, end = cupy.ones(8), time.monotonic() + 6
        while time.monotonic() < end:
            a += 1
            time.sleep(0.2)
        print(float(a[0]) > 20, flush=True)
        sys.stdin.readline()
        a.sum().get()
    """
    argv = [sys.executable, "-m", "gpupool.cli.main", "run", "-p", "0.25", "--idle-timeout", "2s"]
    said = tmp_path / "stderr"
    with said.open("w") as stderr:
        program = subprocess.Popen(
            [*argv, *python(code)], env=live_pool.env | user.env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
        )  # fmt: skip
    assert program.stdout is not None
    assert program.stdout.readline() == "True\n"
    [lease] = live_pool.view()["leases"]
    assert (lease["state"], lease["age_s"] > 5) == ("held", True)
    live_pool.wait_until(no_lease)
    program.communicate("\n", timeout=DEADLINE_S)
    text, name = said.read_text(), lease["name"]
    why = "it was not used for 2 s, its idle timeout"
    assert text.count("has not been used for 1.8 s, and ends in 0.2 s unless it") == 1
    assert f"cudaErrorDevicesUnavailable: {why}; lease {name} is void" in text
    assert text.endswith(f"\ngpupool: {why}; lease {name} is void\n")
    assert program.returncode == 125


def was_unused(view: dict[str, Any]) -> bool:
    unused = "it was not used for 3 s, its idle timeout"
    return any(event["text"] == unused for event in view["events"])


@pytest.mark.long
def test_an_unused_lease_is_announced_and_ended(user: User, live_pool: Any, tmp_path: Path) -> None:
    """The program is told, then its lease is gone; a lazy run takes another one."""
    log = tmp_path / "run.log"
    code = "import cupy, sys; print(float(cupy.ones(8).sum()), flush=True); sys.stdin.readline()"
    shell = f'{sys.executable} -c "{code}" <&3; {sys.executable} -c "{code}" </dev/null'
    options = ["--lazy", "--idle-timeout", "3s", "--log-file", str(log)]
    argv = [sys.executable, "-m", "gpupool.cli.main", "run", "-p", "0.25", *options]
    reading, writing = os.pipe()
    program = subprocess.Popen(
        [*argv, "--", "sh", "-c", f"exec 3<&0; {shell}"], env=live_pool.env | user.env,
        stdin=reading, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(reading)
    assert program.stdout is not None
    assert program.stdout.readline() == "8.0\n"
    # A server that is behind shows no lease before it has applied the grant.
    live_pool.wait_until(was_unused)
    live_pool.wait_until(no_lease)
    os.close(writing)  # the first program ends, and the second one needs a GPU
    code_, out, errors = output(program)
    assert (code_, out) == (0, "8.0\n"), errors
    assert "it has not been used for 2.7 s, and ends in 0.3 s unless it is" in errors
    text = log.read_text()
    assert "Claim to " in text and "Claimed: granted" in text
    assert "LeaseNotice: it has not been used" in text
    secret = json.loads(Path(live_pool.env["GPUPOOL_CREDENTIALS"]).read_text())["secret"]
    assert secret not in text


def test_a_lease_of_another_pool_is_not_taken_for_one_of_the_same_name(
    user: User, live_pool: Any
) -> None:
    """Found by tests beside each other: names are short, and two pools soon have the same ones."""
    program = user.spawn("run", "-p", "0.25", *python("import time; time.sleep(600)"))
    live_pool.wait_until(some_lease)
    [lease] = live_pool.view()["leases"]
    folder = Path(user.env["XDG_RUNTIME_DIR"], "gpupool")
    folder.mkdir(mode=0o700, exist_ok=True)
    record = HeldRecord(lease["name"], "f" * 32, "other", "ada", 1, f"{folder}/x.sock", "there")
    held = RecordFile(folder, record)
    other = user.run("run", "--lease", record.lease, *python("print('ran')"))
    assert f"no lease {record.lease} is held on this machine" in other.stderr
    assert other.returncode == 125
    held.close()
    record = replace(record, ended="released there")
    path = folder / f"{record.lease}-{record.cluster_id[:12]}.json"
    path.write_text(json.dumps(asdict(record)))
    path.chmod(0o600)
    released = user.run("release", record.lease)
    assert "it was not held on this machine" in released.stderr
    live_pool.wait_until(no_lease)
    os.killpg(program.pid, signal.SIGKILL)
    output(program)
    path.unlink()
