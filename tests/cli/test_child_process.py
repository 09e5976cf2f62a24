"""The program under ``run``: exit codes, signals, terminals; with real processes."""

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from gpupool.remoting.program.child_process import ending_of
from gpupool.remoting.program.door_choice import NotExecutableError, NotFoundError, find_program

# What "gpupool run" does with its program, without any pool.
PARENT = textwrap.dedent(
    """
    import os, sys, trio
    from gpupool.remoting.program import child_process as child, door_choice
    from gpupool.cli.lib.output import run_async
    from gpupool.remoting.local.terminal import die_of
    from gpupool.pool.errors import GpupoolError

    async def main():
        supervisor = child.Supervisor(decided=lambda text: print(text, file=sys.stderr, flush=True))
        with supervisor:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(supervisor.watch)
                program = door_choice.find_program(sys.argv[1])
                ending = await supervisor.run(program, sys.argv[1:], os.environ)
                nursery.cancel_scope.cancel()
        return ending

    try:
        ending = run_async(main)
    except GpupoolError as error:
        print(error)
        sys.exit(error.exit_code)
    if ending.signal:
        die_of(ending.signal)
    sys.exit(ending.code)
    """
)
COUNTS_INTERRUPTS = textwrap.dedent(
    """
    import signal, sys, time
    seen = []
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGQUIT"):
        signal.signal(getattr(signal, name), lambda n, _: seen.append(n))
    print("ready", flush=True)
    end = time.monotonic() + 20
    while not seen and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.3)
    print("seen", *seen, flush=True)
    sys.exit(len(seen) + 40)
    """
)
DEADLINE_S = 20.0


@pytest.fixture
def parent(tmp_path: Path) -> list[str]:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    return [sys.executable, str(script)]


@pytest.fixture
def counter(tmp_path: Path) -> list[str]:
    script = tmp_path / "counter.py"
    script.write_text(COUNTS_INTERRUPTS)
    return [sys.executable, str(script)]


def outcome(argv: list[str]) -> tuple[int, str]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_exit_code_is_the_programs(parent: list[str]) -> None:
    assert outcome([*parent, "sh", "-c", "echo out; exit 7"]) == (7, "out\n")


def test_missing_program(parent: list[str]) -> None:
    code, text = outcome([*parent, "no-such-program"])
    assert code == 127
    assert "cannot find the program 'no-such-program'" in text


def test_programs_that_cannot_run(parent: list[str], tmp_path: Path) -> None:
    plain = tmp_path / "plain.py"
    plain.write_text("print(1)\n")
    assert outcome([*parent, str(plain)])[0] == 126
    assert outcome([*parent, str(tmp_path)])[0] == 126
    plain.chmod(0o755)  # no first line that names an interpreter: ENOEXEC
    code, text = outcome([*parent, str(plain)])
    assert code == 126
    assert "cannot run" in text
    plain.write_text("#!/no/such/python\n")
    code, text = outcome([*parent, str(plain)])
    assert code == 126
    assert "interpreter" in text


def test_hints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    with pytest.raises(NotExecutableError) as refused:
        find_program("./train.py")
    assert refused.value.hint == "python ./train.py"
    with pytest.raises(NotExecutableError) as folder:
        find_program(str(tmp_path))
    assert (folder.value.why, "chmod" in folder.value.hint) == ("it is a folder", False)
    with pytest.raises(NotFoundError) as missing:
        find_program("train.py")
    assert "./NAME" in missing.value.hint
    (tmp_path / "python3").write_text("#!/bin/sh\n")
    (tmp_path / "python3").chmod(0o755)
    with pytest.raises(NotFoundError) as old_name:
        find_program("python", str(tmp_path))
    assert old_name.value.hint == "this machine has python3"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_dies_of_the_same_signal(parent: list[str], number: int) -> None:
    code, _ = outcome([*parent, "sh", "-c", f"kill -{int(number)} $$"])
    assert code == -number


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT]
)
def test_forwarded_once_without_a_terminal(
    parent: list[str], counter: list[str], number: int
) -> None:
    process = subprocess.Popen(
        [*parent, *counter],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # no controlling terminal, as under cron or systemd
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    text, _ = process.communicate(timeout=DEADLINE_S)
    assert f"seen {int(number)}\n" in text
    assert process.returncode == 41


def test_ignored_signals_stay_ignored(parent: list[str]) -> None:
    # nohup's promise: a hangup ends neither us nor, through us, the program.
    program = ["sh", "-c", "echo ready; read x; echo $x"]
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *parent, *program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    time.sleep(0.2)  # until it would have been passed on
    os.killpg(process.pid, signal.SIGHUP)
    assert process.communicate("lives\n", timeout=DEADLINE_S)[0] == "lives\n"


@pytest.mark.parametrize(("key", "number"), [(b"\x03", 2), (b"\x1c", 3)])
def test_a_terminals_interrupt_arrives_once(
    terminal: Any, parent: list[str], counter: list[str], key: bytes, number: int
) -> None:
    terminal.spawn([*parent, *counter])
    terminal.read_until("ready")
    terminal.type(key)
    terminal.read_until("seen")
    assert terminal.wait() == 41  # exactly one signal, and the program's own code
    assert "was sent to the process group, and so to the program" in terminal.text
    assert f"seen {number}" in terminal.text


def test_a_program_that_dies_of_ctrl_c_takes_us_along(terminal: Any, parent: list[str]) -> None:
    terminal.spawn([*parent, "sh", "-c", "echo ready; exec sleep 20"])
    terminal.read_until("ready")
    terminal.type(b"\x03")
    assert terminal.wait() == -signal.SIGINT


def test_the_program_sees_the_terminal(terminal: Any, parent: list[str]) -> None:
    terminal.spawn([*parent, "sh", "-c", "test -t 0 && test -t 1 && test -t 2 && echo all three"])
    terminal.read_until("all three")
    assert terminal.wait() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does it, on Linux")
def test_a_killed_parent_takes_the_program_along(parent: list[str], tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*parent, "sh", "-c", "echo $$; exec sleep 60"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    descriptor = os.pidfd_open(child)
    time.sleep(0.1)  # longer than a thread of trio's is busy: none of them may be what counts
    process.kill()
    process.wait()
    with process.stdout:
        assert select.select([descriptor], [], [], DEADLINE_S)[0], "the program lives on"
    os.close(descriptor)


def test_the_program_starts_with_default_signals(parent: list[str]) -> None:
    """Python's changes to its signals are undone, and the environment is the given one."""
    _, text = outcome([*parent, "grep", "-E", "SigIgn|SigBlk", "/proc/self/status"])
    # Signals 32 and 33 are the C library's own, for its threads.
    masks = {int(line.split()[1], 16) & ~(0b11 << 31) for line in text.splitlines()}
    assert masks == {0}
    _, text = outcome([*parent, "sh", "-c", "echo $0 $@", "one", "two"])
    assert text == "one two\n"


def test_endings() -> None:
    assert not ending_of(0).failed
    assert ending_of(3).failed
    assert ending_of(-9).signal == 9


def test_die_of_a_signal_that_does_not_end_a_process() -> None:
    code = (
        "from gpupool.remoting.local.terminal import die_of; die_of(__import__('signal').SIGCHLD)"
    )
    assert outcome([sys.executable, "-c", code])[0] == 128 + signal.SIGCHLD
