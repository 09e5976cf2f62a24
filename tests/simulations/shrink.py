"""Makes a failing run smaller: fewer faults, fewer clients, less time, and the same failure.

Faults are taken away by delta debugging (Zeller and Hildebrandt, 2002). That works because every
fault has a random source of its own, so that taking one away does not change the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpupool.simulations.kernel.swarm_options import Options
from gpupool.simulations.tools.runner import Report

RUN_COUNT_MAX = 80
"""Attempts; each takes as long as the failing run, at most."""


def shrink(
    report: Report, run: Callable[[Options], Report], *, runs_max: int = RUN_COUNT_MAX
) -> Report:
    """Return the smallest run found that fails in the same checker as ``report``."""
    assert report.failure is not None, "only what fails can be shrunk"
    return _Shrinker(report, run, runs_max).shrink()


class _Shrinker:
    def __init__(self, report: Report, run: Callable[[Options], Report], runs_max: int) -> None:
        self._best = report
        self._run = run
        self._runs_left = runs_max

    def shrink(self) -> Report:
        options, failure = self._best.options, self._best.failure
        assert failure is not None
        # What would have happened later has nothing to do with it.
        numbers = tuple(
            fault.number
            for fault in self._best.faults
            if fault.at <= failure.at and (options.keep is None or fault.number in options.keep)
        )
        self._try(replace(options, keep=numbers))
        self._drop_faults()
        self._shorten()
        self._drop_clients()
        self._drop_faults()
        return self._best

    def _try(self, options: Options) -> bool:
        """Run ``options``, and keep them if they fail in the same way."""
        wanted = self._best.failure
        if self._runs_left <= 0 or options == self._best.options or wanted is None:
            return False
        self._runs_left -= 1
        report = self._run(options)
        if report.failure is None or report.failure.checker != wanted.checker:
            return False
        self._best = report
        return True

    def _drop_faults(self) -> None:
        keep = self._best.options.keep
        if not keep:
            return
        chunk = max(1, len(keep) // 2)
        while True:
            position, dropped = 0, False
            while position < len(keep):
                fewer: Sequence[int] = keep[:position] + keep[position + chunk :]
                if self._try(replace(self._best.options, keep=tuple(fewer))):
                    keep, dropped = tuple(fewer), True
                else:
                    position += chunk
            if chunk == 1 and not dropped:
                return
            chunk = max(1, chunk // 2)
            if self._runs_left <= 0 or not keep:
                return

    def _shorten(self) -> None:
        options, failure = self._best.options, self._best.failure
        assert failure is not None
        last = max((f.at for f in self._best.faults if f.number in (options.keep or ())), default=0)
        self._try(replace(options, fault_s=float(int(last) + 1)))

    def _drop_clients(self) -> None:
        while self._best.options.clients > 1:
            half = self._best.options.clients // 2
            if not self._try(replace(self._best.options, clients=half)):
                return


def reproduce(options: Options) -> str:
    """Return the command that runs exactly these options of a scenario again."""
    command = f"python -m tests.simulations --scenario {options.scenario} --seed {options.seed}"
    command += f" --servers {options.servers} --clients {options.clients}"
    command += f" --duration {options.fault_s:g}"
    if options.keep is not None:
        command += f" --keep {','.join(map(str, options.keep)) or 'none'}"
    return command
