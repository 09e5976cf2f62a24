"""``gpupool policy`` against one real server with two emulated GPUs, and its effect on programs."""

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# The pools of these tests are made as those of the other tests, but of one server.
from tests.cli.conftest import DEADLINE_S, LivePool
from tests.shared import Shared

from gpupool.cli.commands.policy import loss_text
from gpupool.pool.errors import ExitCode

LIMITS = """\
[defaults]
class = "students"

[class.students]
max_gpus_per_user = 1
max_lease_time = "1h"

[user.root]
class = "staff"

[class.staff]
priority = 5
"""
PASS = ["--", sys.executable, "-c", "pass"]
HOLD = ["--", sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


class OnePool(LivePool):
    """One server, its operator, and a user without special rights."""

    def start(self) -> None:
        """Start the server, and let the user log in."""
        first = self.servers["a"]
        first.start("--pool-name", "lab")
        first.wait_for_log("is listening")
        token = json.loads(self.run("token", "create", "--user", "ada", "--json").stdout)["token"]
        done = self.run("login", token, env=self.ada)
        assert done.returncode == 0, done.stderr
        self.at_first = self.run("policy", "show", env=self.ada)

    @property
    def ada(self) -> dict[str, str]:
        """Return the environment of the user."""
        return {"GPUPOOL_CREDENTIALS": str(self.folder / "ada.json")}


@contextmanager
def running() -> Generator[OnePool]:
    folder = Path(tempfile.mkdtemp(prefix="gpupool-test-"))
    pool = OnePool(folder)
    pool.servers = {"a": pool.servers["a"]}
    try:
        pool.start()
        yield pool
    finally:
        pool.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def shared_pool() -> Iterator[Shared[OnePool]]:
    shared = Shared(running, OnePool.wrong)
    yield shared
    shared.end()


@pytest.fixture
def pool(shared_pool: Shared[OnePool], request: pytest.FixtureRequest) -> Iterator[OnePool]:
    yield from shared_pool.lend(request)


def put(pool: OnePool, text: str) -> None:
    file = pool.folder / "policy.toml"
    file.write_text(text)
    done = pool.run("policy", "apply", "--yes", str(file))  # whatever was in force before
    assert done.returncode == 0, done.stderr


def holder(pool: OnePool, *arguments: str) -> "subprocess.Popen[str]":
    process = pool.spawn("run", *arguments, *HOLD, env=pool.ada)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n", process.stderr and process.stderr.read()
    return process


def test_a_pool_has_no_policy_at_first(pool: OnePool) -> None:
    done = pool.at_first
    assert (done.returncode, done.stdout) == (0, "")
    assert "has no policy" in done.stderr


def test_mistakes_are_listed_with_their_lines(pool: OnePool, tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text("[defaults]\nmax_gpu = 1\n\nmax_leases = 'x'\n")
    for command in ("check", "apply"):
        done = pool.run("policy", command, str(file))
        assert done.returncode == ExitCode.USAGE
        assert f"{file} has 2 mistakes" in done.stderr
        assert "\n  line 2: unknown key 'max_gpu' in [defaults]; did you mean" in done.stderr
        assert "\n  line 4: max_leases: write a whole number" in done.stderr
    assert pool.run("policy", "check", str(tmp_path / "none")).returncode == ExitCode.USAGE


def test_only_operators_apply_and_everybody_sees(pool: OnePool) -> None:
    put(pool, LIMITS)
    done = pool.run("policy", "apply", str(pool.folder / "policy.toml"), env=pool.ada)
    assert done.returncode == ExitCode.FAILED
    assert "it takes an operator's token" in done.stderr
    shown = pool.run("policy", "show", env=pool.ada)
    assert shown.stdout == LIMITS
    version = json.loads(pool.run("policy", "show", "--json").stdout)["version"]
    lines = pool.run("policy", "history", env=pool.ada).stdout.splitlines()
    assert lines[-1].split()[0] == str(version)


def test_what_would_command_a_terminal_is_shown_as_something_else_and_kept(
    pool: OnePool, tmp_path: Path
) -> None:
    """An edited policy had other signs than it was written with."""
    text = LIMITS + "# \u200fof right-to-left\n"
    put(pool, text)
    shown = pool.run("policy", "show", env=pool.ada)
    assert shown.stdout == text.replace("\u200f", "\ufffd")
    assert "--json has it as it is" in shown.stderr
    assert json.loads(pool.run("policy", "show", "--json").stdout)["text"] == text
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "# mine" >> "$1"\n')
    editor.chmod(0o755)
    assert pool.run("policy", "edit", env={"EDITOR": str(editor)}).returncode == 0
    assert json.loads(pool.run("policy", "show", "--json").stdout)["text"] == text + "# mine\n"


def test_a_denied_run_names_the_rule(pool: OnePool) -> None:
    put(pool, LIMITS)
    done = pool.run("run", "-n", "2", *PASS, env=pool.ada)
    assert done.returncode == ExitCode.RUN_FAILED
    assert "the pool's rules forbid this request" in done.stderr
    assert "ada may hold 1 GPU (policy v" in done.stderr
    assert "line 5: [class.students] max_gpus_per_user)" in done.stderr
    # The operator is of another class. A server that does not exist is named.
    done = pool.run("run", "-n", "2", "--server", "a,typo", *PASS)
    assert (done.returncode, done.stderr) == (0, "gpupool: the pool has no server named typo\n")


def test_at_the_limit_a_run_waits_until_a_lease_of_its_own_ends(pool: OnePool) -> None:
    put(pool, LIMITS)
    first = holder(pool, "-p", "0.8")
    try:
        done = pool.run("run", "-p", "0.5", "--no-wait", *PASS, env=pool.ada)
        assert done.returncode == ExitCode.NOT_NOW
        assert "ada holds 0.8, this takes 0.5" in done.stderr
        second = pool.spawn("run", "-p", "0.5", *PASS, env=pool.ada)
        view = pool.wait_until(some_wait)
        waiting = view["waiting"][0]
        assert (waiting["user"], waiting["priority"]) == ("ada", 0)
        assert "ada may hold 1 GPU" in waiting["reason"]
        header, row = pool.run("leases", "--waiting").stdout.splitlines()
        assert header.split()[2:5] == ["USER", "CLASS", "PRIORITY"]
        assert row.split()[2:5] == ["ada", "students", "0"]
        [lease] = view["leases"]
        slip = pool.run("release", lease["name"])  # an operator could
        assert (slip.returncode, "belongs to ada" in slip.stderr) == (ExitCode.FAILED, True), (
            slip.stderr
        )
        status = pool.run("status").stdout
        assert f", policy v{view['policy_version']}, as seen by a" in status
        assert "ada   students" in status
    finally:
        first.terminate()
        first.communicate(timeout=DEADLINE_S)
    second.communicate(timeout=DEADLINE_S)
    assert second.returncode == 0


def some_wait(view: dict[str, Any]) -> bool:
    return view["waiting"] != []


@pytest.mark.slow
def test_explain_says_the_verdict(pool: OnePool, tmp_path: Path) -> None:
    put(pool, LIMITS)
    done = pool.run("policy", "explain", "-n", "2", env=pool.ada)
    assert done.returncode == ExitCode.FAILED
    assert "ada is in class students" in done.stdout
    assert "a lease lasts 1h at most (policy v" in done.stdout
    assert "denied: ada may hold 1 GPU" in done.stdout
    assert pool.run("policy", "explain", "-n", "2", "--user", "root").returncode == 0
    draft = tmp_path / "draft.toml"
    draft.write_text("[user.ada]\nmax_gpus = 2\n")
    done = pool.run("policy", "explain", str(draft), "--user", "ada", "-n", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "allowed: it would be granted now" in done.stdout


GIVING_WAY = """\
[class.training]
users = ["ada"]
preemptible = true
[class.staff]
users = ["root"]
priority = 5
"""


def test_explain_names_the_leases_that_would_be_suspended(pool: OnePool, tmp_path: Path) -> None:
    put(pool, GIVING_WAY)
    processes = [holder(pool, "-p", "0.5"), holder(pool, "-p", "0.9"), holder(pool, "-p", "0.4")]
    try:
        names = {each["partitions"][0]["memory"]: each["name"] for each in leases_of(pool)}
        small, middle, large = (names[memory] for memory in sorted(names))
        done = pool.run("policy", "explain")
        assert done.returncode == ExitCode.NOT_NOW
        told = next(line for line in done.stdout.splitlines() if " for it: " in line)
        assert told.startswith(f"lease {large} of ada would be suspended for it: ")
        assert re.search(r": [0-9.]+ GiB, priority 0, runs for \d+s, never suspended$", told), told
        assert re.search(f"^lease {small} of ada would not: .* moved", done.stdout, re.M)
        assert re.search(f"^lease {middle} of ada would not: .* moved", done.stdout, re.M)
        for options, line in (
            (("--no-wait",), "with --no-wait it is refused at once, and nothing is suspended"),
            (("--user", "ada"), "no lease gives way to it: none has a priority below 0"),
            (("--server", "typo"), "the pool has no server named typo"),
        ):
            assert line in pool.run("policy", "explain", *options).stdout
        draft = tmp_path / "draft.toml"
        draft.write_text(GIVING_WAY.replace("preemptible = true", "guarantee = 1.8"))
        done = pool.run("policy", "explain", str(draft))
        assert f"lease {large} of ada would not: neither it nor its class is" in done.stdout
        wrong = pool.run("policy", "explain", "-n", "0")
        assert wrong.returncode == ExitCode.USAGE
    finally:
        for process in processes:
            process.terminate()
            process.communicate(timeout=DEADLINE_S)
    assert pool.run("policy", "explain", env=pool.ada).returncode == 0


COUNTING = """
import time, cupy
a = cupy.zeros(1)
for n in range(1, 1_000_000):
    a += 1
    print(n, int(a[0]), flush=True)
    time.sleep(0.01)
"""


@pytest.mark.long
def test_a_class_of_higher_priority_takes_the_gpus_of_another_for_a_while(pool: OnePool) -> None:
    """The program that gives way waits, its user hears of it, and it goes on by itself."""
    put(pool, GIVING_WAY.replace("preemptible = true", 'preemptible = true\nmin_run_time = "0s"'))
    words = ("-n", "2", "-p", "1", "--", sys.executable, "-c", COUNTING)
    program = pool.spawn("run", *words, env=pool.ada)
    urgent = None
    try:
        assert program.stdout is not None and program.stderr is not None
        assert program.stdout.readline() == "1 1\n"
        (lease,) = (each["name"] for each in leases_of(pool))
        urgent = pool.spawn("run", "-n", "2", "-p", "1", *HOLD)
        assert urgent.stdout is not None and urgent.stdout.readline() == "up\n"
        pool.wait_until(lambda view: states(view).get(lease) == "suspended")
        urgent.terminate()
        urgent.communicate(timeout=DEADLINE_S)
        pool.wait_until(lambda view: states(view) == {lease: "held"})
        for number in range(2, 200):  # no step was lost, and none was done twice
            assert program.stdout.readline() == f"{number} {number}\n"

        assert pool.run("suspend", lease).returncode == 0
        pool.wait_until(lambda view: states(view) == {lease: "suspended"})
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=DEADLINE_S)
        assert program.returncode == -signal.SIGINT  # its exit waited for the next resumption once
        pool.wait_until(lambda view: not view["leases"])
        # It gave way, went on, and was suspended by an operator: a line for each.
        found = re.findall(rf"^gpupool: lease {lease}: (.*)$", said, re.M)
        assert [line.split(" ", 4)[:3] for line in found] == [
            ["it", "is", "suspended"],
            ["it", "goes", "on"],
            ["it", "is", "suspended"],
        ], said
    finally:
        for each in (program, urgent):
            if each is not None and each.poll() is None:
                each.kill()
                each.communicate(timeout=DEADLINE_S)


def states(view: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["state"] for each in view["leases"]}


def leases_of(pool: OnePool) -> list[dict[str, Any]]:
    return json.loads(pool.run("leases", "--json").stdout)["leases"]


def without_times(answer: dict[str, Any]) -> tuple[str, list[str]]:
    return answer["kind"], [re.sub(r"runs for [0-9msh]+", "", line) for line in answer["lines"]]


LOOP = "import cupy\na = cupy.ones(8)\nprint('up', flush=True)\nwhile True:\n    a.sum().get()"


@pytest.mark.long
def test_a_class_that_weighs_more_is_due_more_of_a_gpu(pool: OnePool) -> None:
    """The policy in force reaches programs that run."""
    put(pool, "[class.lab]\nusers = ['ada']\n")
    programs: list[subprocess.Popen[str]] = []
    try:
        for env in (pool.ada, None):  # one after the other, so that they have the same GPU
            words = ("run", "-p", "0.5", "--", sys.executable, "-c", LOOP)
            programs.append(program := pool.spawn(*words, env=env))
            assert program.stdout is not None
            assert program.stdout.readline() == "up\n", program.stderr and program.stderr.read()
        wait_for_shares(pool, {"ada": 0.5, "root": 0.5})
        put(pool, "[class.lab]\nusers = ['ada']\nweight = 3\n")
        wait_for_shares(pool, {"ada": 0.75, "root": 0.25})
        assert "of 0.75" in pool.run("leases").stdout
    finally:
        for program in programs:
            program.terminate()
            program.communicate(timeout=DEADLINE_S)


def wait_for_shares(pool: OnePool, due: dict[str, float]) -> None:
    found: dict[str, float] = {}
    end = time.monotonic() + DEADLINE_S
    while found != due and time.monotonic() < end:
        body = json.loads(pool.run("leases", "--json").stdout)
        users = {each["name"]: each["user"] for each in body["leases"]}
        found = {users[n]: round(each["due"], 2) for n, each in body["shares"].items()}
    assert found == due


@pytest.mark.slow
def test_edit_keeps_the_text_when_somebody_was_faster(pool: OnePool, tmp_path: Path) -> None:
    put(pool, LIMITS)
    editor = tmp_path / "editor"
    apply = f"{sys.executable} -m gpupool.cli.main policy apply {pool.folder}/policy.toml"
    editor.write_text(f'#!/bin/sh\necho "# mine" >> "$1"\n{apply} 2> /dev/null\n')
    editor.chmod(0o755)
    (pool.folder / "policy.toml").write_text(LIMITS + "# theirs\n")
    done = pool.run("policy", "edit", env={"EDITOR": str(editor)})
    assert done.returncode == ExitCode.FAILED
    assert "gpupool: your text is kept in" in done.stderr
    assert "it was made from version" in done.stderr
    kept = Path(done.stderr.split("kept in ")[1].split()[0])
    assert kept.read_text() == LIMITS + "# mine\n"
    assert pool.run("policy", "show").stdout == LIMITS + "# theirs\n"
    editor.write_text('#!/bin/sh\necho "# mine" >> "$1"\n')
    done = pool.run("policy", "edit", env={"EDITOR": str(editor)})
    assert done.returncode == 0, done.stderr
    assert pool.run("policy", "show").stdout == LIMITS + "# theirs\n# mine\n"
    failed = pool.run("policy", "edit", env={"EDITOR": "false"})
    assert failed.stderr == "gpupool: the editor ended with 1\n"
    assert list(pool.folder.glob("gpupool-policy-*")) == [kept]
    unchanged = pool.run("policy", "edit", env={"EDITOR": "true"})
    assert "nothing was changed" in unchanged.stderr


@pytest.mark.slow
def test_the_longest_time_ends_a_lease_after_a_notice(pool: OnePool) -> None:
    put(pool, "[defaults]\nmax_lease_time = '4s'\n")
    begin = time.monotonic()
    process = pool.spawn(
        "run", "-p", "0.1", "--", sys.executable, "-c",
        "import cupy, time\nwhile True:\n    cupy.ones(8).sum().get(); time.sleep(0.1)",
        env=pool.ada,
    )  # fmt: skip
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == ExitCode.RUN_FAILED
    assert "it ends in 0s: a lease of ada" in errors
    assert "a lease of ada lasts 4s at most (policy v" in errors
    assert time.monotonic() - begin > 4


def test_a_policy_that_loses_most_of_its_lines_is_asked_about(pool: OnePool) -> None:
    assert loss_text(LIMITS, LIMITS) == ""
    assert loss_text(LIMITS, LIMITS.replace("priority = 5", "")) == ""
    assert loss_text("", LIMITS) == loss_text("# nothing yet\n", "") == ""
    assert loss_text(LIMITS, "# to do\n") == "is empty, and would end all 9 lines of"
    assert loss_text(LIMITS, "[defaults]\n") == "has 1 line in place of the 9 of"
    full, empty = pool.folder / "full.toml", pool.folder / "empty.toml"
    full.write_text(LIMITS)
    empty.write_text("")
    assert pool.run("policy", "apply", str(full)).returncode == 0
    refused = pool.run("policy", "apply", str(empty))
    assert refused.returncode == ExitCode.USAGE
    assert "is empty, and would end all 9 lines of version" in refused.stderr
    assert "--yes applies it without asking" in refused.stderr
    assert "max_gpus_per_user" in pool.run("policy", "show").stdout
    assert pool.run("policy", "apply", "--yes", str(empty)).returncode == 0
