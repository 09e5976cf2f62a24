"""Processes that take turns at workloads, such as one natively and one behind a door.

A player is a process that reads ``make NAME`` and ``play NAME STEPS`` and answers as
``tests/gpu/cuda_programs/workloads.py`` says. What one cannot do is a failure of that workload
alone: its process ends then, because an error of CUDA lasts as long as its process, and the next
workload gets a new one.
"""

import contextlib
import os
import queue
import signal
import statistics
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROUND_S = 0.25
"""How long a round is meant to take."""
STEPS_MAX = 2000
LIMIT_S = 100.0
"""For one answer, unless it is said otherwise."""
END_S = 5.0
OFF = 0.02
"""How far a result may be off the native one, of it."""


class Player:
    """One process, started when it is first asked.

    Args:
        name: of the mode, such as ``native``.
        command: of the process.
        env: all of its environment.
        log: a file for its errors.
    """

    def __init__(self, name: str, command: list[str], env: dict[str, str], log: Path) -> None:
        self.name = name
        self.failed = ""
        """Why it takes no part in the workload; empty while it does."""
        self.value = 0.0
        self.steps = 1
        self._command = command
        self._env = env
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread()
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def _start(self) -> subprocess.Popen[str]:
        with self._log.open("a") as errors:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                text=True, env=self._env, start_new_session=True,
            )  # fmt: skip
        lines = self._lines = queue.SimpleQueue()
        output = process.stdout
        assert output is not None

        def read() -> None:
            with output:
                for line in output:
                    lines.put(line)
            lines.put("")

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()
        self._process = process
        return process

    def ask(self, line: str, limit: float) -> str:
        """Return the answer to a line; if there is none within ``limit`` seconds, why."""
        process = self._process or self._start()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(line + "\n")
            process.stdin.flush()
        try:
            answer = self._lines.get(timeout=max(limit, 1)).strip()
        except queue.Empty:
            return f"FAILED no answer within {limit:.0f} s"
        if answer:
            return answer
        code = process.wait()
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
        return f"FAILED it {ended}; {self._last_words()}"

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "no words")

    def _number(self, line: str, word: str, limit: float) -> float:
        """Return the number of an answer; NaN, with ``failed`` and a new process, without one."""
        said = self.ask(line, limit)
        first, *rest = said.split() or [""]
        if first == word and rest:
            return float(rest[0])
        self.failed = said.removeprefix("FAILED").strip() or "it said nothing"
        self.stop()
        return float("nan")

    def make(self, workload: str, limit: float) -> None:
        """Make a workload, and find out how many steps a round takes."""
        self.failed = ""
        self.value = self._number(f"make {workload}", "READY", limit)
        self.steps = 1
        for most in (10, STEPS_MAX):  # the first step of a process may be a slow one
            ms = 0.0 if self.failed else self.play(workload, limit)
            if self.failed or ms > ROUND_S * 1e3:
                return
            self.steps = max(1, min(most, round(ROUND_S * 1e3 / max(ms, 1e-6))))

    def play(self, workload: str, limit: float) -> float:
        """Run one round, and return the milliseconds of a step; NaN when that fails."""
        return self._number(f"play {workload} {self.steps}", "MS", limit)

    def stop(self) -> None:
        """End the process and its children; harmless when there is none."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        if self.failed.startswith("no answer"):
            process.terminate()
        for step in (process.terminate, lambda: os.killpg(process.pid, signal.SIGKILL)):
            try:
                process.wait(END_S)
                break
            except subprocess.TimeoutExpired:
                step()
        process.wait()
        self._reader.join(END_S)


def none() -> dict[str, list[float]]:
    """Return no times yet."""
    return {}


@dataclass
class Turns:
    """All players' figures for one workload."""

    workload: str
    times: dict[str, list[float]] = field(default_factory=none)
    """Milliseconds of a step, one of each round, by the player's name."""
    failures: dict[str, str] = field(default_factory=dict[str, str])
    """Why a player gave no figure, or none that counts."""

    def median(self, name: str) -> float | None:
        """Return the milliseconds of a step; None when the player failed."""
        times = self.times.get(name)
        return statistics.median(times) if times and name not in self.failures else None


def take_turns(
    workload: str,
    players: Sequence[Player],
    rounds: int,
    left: Callable[[], float],
    *,
    at_once: bool = True,
    limit_s: float = LIMIT_S,
) -> Turns:
    """Let players make a workload and play it in turns.

    Args:
        workload: its name.
        players: the first one is native: a result that is not its own is a failure.
        rounds: how many each plays.
        left: seconds that are left for all of it.
        at_once: whether they may make it side by side.
        limit_s: for one answer.
    """
    makers = [
        threading.Thread(target=each.make, args=(workload, min(limit_s, left())))
        for each in players
    ]
    for maker in makers:
        maker.start()
        if not at_once:
            maker.join()
    for maker in makers:
        maker.join()
    turns = Turns(workload)
    for number in range(rounds):
        for player in players[:: 1 if number % 2 else -1]:
            if player.failed or left() < END_S:
                continue
            took = player.play(workload, min(limit_s, left()))
            if not player.failed:
                turns.times.setdefault(player.name, []).append(took)
    expected = players[0].value
    for player in players:
        if player.failed:
            turns.failures[player.name] = player.failed
        elif not players[0].failed and not is_same(player.value, expected):
            turns.failures[player.name] = f"gives {player.value:g}, not {expected:g}"
    return turns


def is_same(value: float, expected: float) -> bool:
    """Return whether a result is the native one, but for how floats are added."""
    return abs(value - expected) <= OFF * abs(expected) + 1e-6
