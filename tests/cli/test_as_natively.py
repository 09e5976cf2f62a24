"""A program sees the same under ``gpupool run`` as natively: both are run, and compared."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Terminal
from tests.commands import GPUPOOL

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals tell less elsewhere")

# With --lazy a program that uses no GPU needs no pool.
NATIVE: list[str] = []
WRAPPED = [*GPUPOOL, "run", "--lazy", "--quiet", "--credentials", "/nowhere", "--"]
DEADLINE_S = 30.0
QUIET_S = 0.4
"""Longer than any signal is on its way."""

COUNTS = textwrap.dedent(
    """
    import json, os, select, signal, sys, time
    every = signal.valid_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, every)
    print(json.dumps([os.getpid(), os.getppid()]), flush=True)
    counts = {}
    while True:
        if signal.sigpending():
            number = signal.sigwait(every)
            counts[number] = counts.get(number, 0) + 1
        elif select.select([0], [], [], 0.01)[0]:
            if not sys.stdin.readline():
                break
            print(json.dumps(counts), flush=True)
            counts = {}
    """
)
UNTRIED = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD} | {
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)  # they take a pending SIGCONT back
}
SIGNALS = sorted(signal.valid_signals() - UNTRIED)
RAW_MAX = 5  # of each real-time signal, none of which merge


class Counting:
    """The program that counts its signals, in a separate process group."""

    def __init__(self, wrapper: Sequence[str]) -> None:
        self.process: subprocess.Popen[str] = subprocess.Popen(
            [*wrapper, sys.executable, "-c", COUNTS],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.shown = self.process.pid  # what a shell knows
        self.program, self.parent = json.loads(self._read())

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def counts(self) -> dict[str, int]:
        time.sleep(QUIET_S)
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found: dict[str, int] = json.loads(self._read())
        return found

    def group(self) -> list[int]:
        found: list[int] = []
        for each in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.getpgid(int(each.name)) == self.shown:
                    found.append(int(each.name))
        return sorted(found)


def to_one(counting: Counting, number: int) -> None:
    os.kill(counting.shown, number)


def to_the_program(counting: Counting, number: int) -> None:
    os.kill(counting.program, number)


def to_the_group(counting: Counting, number: int) -> None:
    os.killpg(counting.shown, number)


def to_each(counting: Counting, number: int) -> None:
    """Send as systemd and Slurm do, the oldest first."""
    for pid in counting.group():
        os.kill(pid, number)


def to_each_from_the_newest(counting: Counting, number: int) -> None:
    for pid in reversed(counting.group()):
        os.kill(pid, number)


SENDERS = (to_one, to_the_program, to_the_group, to_each, to_each_from_the_newest)


@contextmanager
def counting(wrapper: Sequence[str]) -> Generator[Counting]:
    program = Counting(wrapper)
    try:
        yield program
        program.process.communicate(timeout=DEADLINE_S)
        assert program.process.returncode == 0
    finally:
        program.process.kill()
        with program.process:
            pass


@pytest.mark.parametrize("sender", SENDERS)
def test_each_signal_arrives_as_often(sender: Callable[[Counting, int], None]) -> None:
    seen: list[dict[str, int]] = []
    for wrapper in (NATIVE, WRAPPED):
        with counting(wrapper) as program:
            for number in SIGNALS:
                for _ in range(RAW_MAX if number >= signal.SIGRTMIN else 1):
                    sender(program, number)
            seen.append(program.counts())
    assert seen[1] == seen[0]
    assert seen[0] == {str(int(n)): RAW_MAX if n >= signal.SIGRTMIN else 1 for n in SIGNALS}, (
        "natively"
    )


def test_signals_to_the_group_and_to_one_in_turn() -> None:
    """Each is one more, however they follow each other."""
    with counting(WRAPPED) as program:
        for sender in (to_the_group, to_one, to_the_group, to_the_group, to_one, to_one):
            sender(program, signal.SIGUSR1)
            assert program.counts() == {str(int(signal.SIGUSR1)): 1}, sender.__name__
        for _ in range(50):  # merges at the most, as natively
            to_the_group(program, signal.SIGUSR2)
        assert 1 <= program.counts()[str(int(signal.SIGUSR2))] <= 50
        for at in range(40):
            to_the_group(program, signal.SIGRTMIN + 1)
            if at % 4 == 0:
                to_one(program, signal.SIGRTMIN + 1)
        assert program.counts() == {str(int(signal.SIGRTMIN + 1)): 50}


def test_a_program_signals_the_parent_that_it_would_have() -> None:
    code = "import os, signal; os.kill(os.getppid(), signal.SIGUSR1); input()"
    old = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        with subprocess.Popen([*WRAPPED, sys.executable, "-c", code], stdin=subprocess.PIPE) as it:
            assert signal.sigtimedwait([signal.SIGUSR1], DEADLINE_S) is not None
            it.communicate(b"\n", timeout=DEADLINE_S)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def states(pids: Sequence[int], wanted: str) -> bool:
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        found = [Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] for pid in pids]
        if all((state == "T") == (wanted == "T") for state in found):
            return True
        time.sleep(0.02)
    return False


PAIRS = [
    *((to_one, to_one), (to_one, to_the_program), (to_the_program, to_one)),
    *((to_the_program, to_the_program), (to_the_program, to_the_group), (to_the_group, to_one)),
]


def test_both_stop_and_go_on_together() -> None:
    with counting(WRAPPED) as program:
        both = [program.shown, program.program]
        for stop, go in PAIRS:
            stop(program, signal.SIGSTOP)
            assert states(both, "T"), (stop, go)
            time.sleep(QUIET_S)
            assert states(both, "T"), (stop, go)
            go(program, signal.SIGCONT)
            assert states(both, "R"), (stop, go)
            assert program.counts() == {str(int(signal.SIGCONT)): 1}, (stop, go)
            assert states(both, "R"), (stop, go)


FACTS = textwrap.dedent(
    """
    import ctypes, json, os, resource, signal, sys
    wanted = ("SigBlk", "SigIgn", "Umask", "NoNewPrivs", "Seccomp", "Cpus_allowed", "CapEff")
    status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
    facts = {name: status[name].strip() for name in wanted}
    limits = {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource)
              if n.startswith("RLIMIT_")}
    facts["limits"] = limits
    facts["files"] = {}
    for each in os.listdir("/proc/self/fd"):
        try:
            place = os.readlink(f"/proc/self/fd/{each}")
        except OSError:
            continue
        if "/proc/" not in place:
            facts["files"][each] = place
    facts["folder"], facts["nice"] = os.getcwd(), os.nice(0)
    facts["oom"] = open("/proc/self/oom_score_adj").read()
    facts["group, session"] = os.getpgrp(), os.getsid(0)
    reaper = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(reaper), 0, 0, 0)
    facts["adopts"] = reaper.value
    facts["clock"] = int(open("/proc/self/timerslack_ns").read())
    facts["blocking"] = [os.get_blocking(n) for n in range(3)]
    facts["listen"] = os.environ.get("LISTEN_PID") == str(os.getpid())
    facts["words"] = sys.argv[1:]
    ours = ("GPUPOOL_", "PYTHONPATH", "LD_LIBRARY_PATH", "PATH", "LISTEN_PID")
    facts["variables"] = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    print(json.dumps(facts), file=open(sys.argv[1], "w"))
    """
)
# In a process of its own: limits, masks and open files as a launcher may leave them.
AROUND = textwrap.dedent(
    """
    import os, resource, signal, sys
    os.umask(0o027)
    os.nice(3)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGCHLD,
                   signal.SIGTSTP, signal.SIGRTMIN + 3):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGWINCH])
    reader, writer = os.pipe()
    os.dup2(reader, 40), os.dup2(writer, 41), os.dup2(1, 63)
    os.closerange(3, 40)
    os.dup2(40, 3), os.dup2(41, 7)
    os.close(40), os.close(41)
    os.environ["LISTEN_FDS"], os.environ["LISTEN_PID"] = "1", str(os.getpid())
    os.environ["ODD"] = os.fsdecode(b"\\xff\\n=")
    os.execv(sys.argv[1], sys.argv[1:])
    """
)


def test_all_that_a_program_inherits(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    for wrapper in (NATIVE, WRAPPED):
        file = tmp_path / f"{len(seen)}.json"
        words = [*wrapper, sys.executable, "-c", FACTS, str(file), "", "a b", "\udcff"]
        done = subprocess.run(
            [sys.executable, "-c", AROUND, *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            cwd=tmp_path, timeout=DEADLINE_S, check=False,
            env={k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG"))},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        seen.append(json.loads(file.read_text()))
    native, wrapped = seen
    for each in seen:
        del each["words"][0]
        each["files"] = {
            n: "a pipe" if "pipe:" in place else place for n, place in each["files"].items()
        }
    assert wrapped["listen"] and native["listen"]
    assert set(native["files"]) == {"0", "1", "2", "3", "7", "63"}
    assert wrapped == native


@contextmanager
def pair() -> Generator[tuple[int, int]]:
    reader, writer = os.pipe()
    try:
        yield reader, writer
    finally:
        for each in (reader, writer):
            with suppress(OSError):
                os.close(each)


@pytest.mark.parametrize("number", [1, 3, 9])
def test_a_reader_sees_the_end_when_the_program_closes_its_pipe(number: int) -> None:
    code = f"echo said >&{number}; exec {number}>&-; read line"
    with pair() as (reader, writer):
        setup = f'exec {number}>&{writer} {writer}>&-; exec "$@"'
        process = subprocess.Popen(
            ["bash", "-c", setup, "bash", *WRAPPED, "bash", "-c", code],
            stdin=subprocess.PIPE, pass_fds=[writer],
        )  # fmt: skip
        os.close(writer)
        with open(reader, "rb", closefd=False) as file:
            assert file.read() == b"said\n"  # up to the end, while the program runs
        assert process.poll() is None
        process.communicate(b"\n", timeout=DEADLINE_S)


def test_a_writer_hears_that_the_program_has_closed_its_input() -> None:
    code = "exec <&-; echo closed; sleep 30"
    process = subprocess.Popen(
        [*WRAPPED, "bash", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == b"closed\n"
    time.sleep(QUIET_S)
    with pytest.raises(BrokenPipeError):
        os.write(process.stdin.fileno(), b"x")
    process.terminate()
    with suppress(BrokenPipeError):
        process.communicate(timeout=DEADLINE_S)


def test_process_substitution_and_descriptors(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        "$@" cat <(echo one)
        "$@" bash -c 'echo two >&3' 3>&1
        "$@" tee >(cat >three) <<< three >/dev/null
        exec 8>lock; flock 8
        "$@" bash -c 'exec 8>&-; sleep 0.1'
        flock -n lock true || echo held
        """
    )
    said = [
        subprocess.run(
            ["bash", "-c", script, "bash", *(wrapper or ["env"])],
            cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        ).stdout
        for wrapper in (NATIVE, WRAPPED)
    ]  # fmt: skip
    assert said == ["one\ntwo\nheld\n"] * 2


def test_a_socket_that_the_program_closes_is_closed() -> None:
    ours, theirs = socket.socketpair()
    number = theirs.fileno()
    process = subprocess.Popen(
        [*WRAPPED, "bash", "-c", f"exec {number}>&-; read line"],
        stdin=subprocess.PIPE, pass_fds=[number],
    )  # fmt: skip
    theirs.close()
    ours.settimeout(DEADLINE_S)
    assert ours.recv(1) == b""
    assert process.poll() is None
    process.communicate(b"\n", timeout=DEADLINE_S)
    ours.close()


def jobs(terminal: Any, wrapper: Sequence[str], folder: Path) -> list[str]:
    """Return an interactive shell's messages on a job, as it stops, goes on and ends."""
    (folder / "rc").write_text("PS1='% '\nbind 'set enable-bracketed-paste off'\n")
    variables = dict(os.environ) | {"HISTFILE": "", "HOME": str(folder)}
    terminal.spawn(["bash", "--rcfile", str(folder / "rc"), "-i"], variables)
    terminal.read_until("% ")
    said: list[str] = []
    before = shlex.join(wrapper)

    def enter(words: str, *until: str) -> None:
        terminal.text = ""
        terminal.type(words.encode())
        terminal.read_until(*until)

    def note(words: str) -> None:
        enter(words + "; echo no''ted\n", "noted\r\n")
        found = terminal.plain.replace(before, "").splitlines()
        said.extend(" ".join(line.split()) for line in found)

    program = f"{before} bash -c 'echo u''p; exec sleep 60'".strip()
    enter(f"{program}\n", "up\r\n")
    enter("\x1a", "Stopped")
    note("jobs")
    enter("fg\n", "exec sleep 60")
    time.sleep(QUIET_S)
    enter("\x1a", "Stopped")
    note("bg; jobs")
    note("kill -STOP %1; sleep 1; jobs")
    note("kill -CONT %1; sleep 1; jobs")
    enter("fg\n", "exec sleep 60")
    time.sleep(QUIET_S)
    enter("\x03", "% ")
    note("echo code $?")
    program = f"{before} bash -c 'kill -TSTP $$; echo again'".strip()
    enter(f"{program}\n", "Stopped")
    enter("fg\n", "again\r\n")
    note("echo code $?")
    program = f"{before} sleep 60".strip()
    note(f"{program} & sleep 1; kill %1; wait %1; echo code $?")
    enter(f"{program}\n", "\r\n")
    time.sleep(2)
    enter("\x1c", "% ")
    note("echo code $?")
    terminal.type(b"exit\n")
    terminal.wait()
    return [line for line in said if line.startswith(("[1]+", "code"))]  # and not the prompts


def test_jobs_of_an_interactive_shell(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    for wrapper in (NATIVE, WRAPPED):
        terminal = Terminal()
        try:
            seen.append(jobs(terminal, wrapper, tmp_path))
        finally:
            terminal.close()
    assert seen[1] == seen[0]
    assert "code 143" in seen[0]  # TERM
