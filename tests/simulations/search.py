"""A search over many seeds, on several processes, with the sums of their results."""

import hashlib
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpupool.simulations.kernel.swarm_options import Options
from gpupool.simulations.tools.runner import Report, run


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The result of one seed: a ``Report`` without its transcript."""

    seed: int
    process: int  # the process that ran it
    failure: str  # empty when it passed
    digest: str
    virtual_s: float
    processor_s: float
    granted: int
    converged_s: float
    histories: int
    histories_unknown: int


@dataclass(slots=True)
class Totals:
    """Sums over seeds."""

    seeds: int = 0
    failed: list[int] = field(default_factory=list[int])
    virtual_s: float = 0.0
    processor_s: float = 0.0
    grants: int = 0
    histories: int = 0
    histories_unknown: int = 0
    converged_s_max: float = 0.0
    _digests: dict[int, str] = field(default_factory=dict[int, str], repr=False)

    def add(self, result: SeedResult) -> None:
        """Take one more seed."""
        self.seeds += 1
        if result.failure:
            self.failed.append(result.seed)
        self.virtual_s += result.virtual_s
        self.processor_s += result.processor_s
        self.grants += result.granted
        self.histories += result.histories
        self.histories_unknown += result.histories_unknown
        self.converged_s_max = max(self.converged_s_max, result.converged_s)
        self._digests[result.seed] = result.digest

    @property
    def digest(self) -> str:
        """Return the trace of the only seed, or one hash over those of all seeds, in hex.

        It depends on the seeds alone, not on how they were divided, so two machines can compare.
        """
        if len(self._digests) == 1:
            return next(iter(self._digests.values()))
        lines = [f"{seed} {digest}\n" for seed, digest in sorted(self._digests.items())]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def plain(self) -> dict[str, object]:
        """Return the sums under names for JSON."""
        return {
            "seeds": self.seeds,
            "failed": sorted(self.failed),
            "virtual_s": round(self.virtual_s, 3),
            "processor_s": round(self.processor_s, 3),
            "grants": self.grants,
            "histories": self.histories,
            "histories_unknown": self.histories_unknown,
            "converged_s_max": round(self.converged_s_max, 3),
            "digest": self.digest,
        }


def search(runs: Sequence[Options], *, jobs: int = 1) -> Iterator[SeedResult]:
    """Run all of them, in any order; closing the iterator ends the processes."""
    if jobs <= 1:
        yield from map(run_seed, runs)
        return
    # A fresh interpreter for each: what a fork inherits could differ between two searches.
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(jobs, len(runs)), initializer=_begin) as pool:
        found: Iterable[SeedResult] = pool.imap_unordered(run_seed, runs)
        yield from found


def run_seed(options: Options) -> SeedResult:
    """Run one seed in this process."""
    began = time.process_time()
    return summary(run(options), time.process_time() - began)


def summary(report: Report, processor_s: float) -> SeedResult:
    """Return a report without its transcript."""
    return SeedResult(
        seed=report.options.seed,
        process=os.getpid(),
        failure=str(report.failure) if report.failure is not None else "",
        digest=report.digest,
        virtual_s=report.virtual_s,
        processor_s=processor_s,
        granted=report.granted,
        converged_s=report.converged_s,
        histories=report.histories,
        histories_unknown=report.histories_unknown,
    )


def _begin() -> None:
    """Leave Ctrl-C to the process that started the search, and silence the logs of servers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
