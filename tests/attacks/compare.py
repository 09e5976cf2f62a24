"""Compare attacks with peace and with each other, in turns, at one pool of three real servers.

    python tests/attacks/compare.py [--kinds handshakes,handshakes_elsewhere] [--rounds 6]
        [--seconds 10] [--programs 4] [--csv FILE]

A round has one phase without an attack and one of each kind, in an order that turns from round to
round, so that what else the machine does meets all of them. A figure is the median of the rounds;
``all p99`` is that of all grants together, and ``pairs`` is the median of what each round's p99 of
grants is to that of its phase of peace. The threads of the servers' loops are looked at too: for
how long each ran, and for how long it waited for a core each time that it could have run.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import attack_pool
import trio
from attack_pool import GPUS, HERE, SERVER_COUNT, Noticed, Pool, measure
from failover import Servers
from results import Results, add_options

PEACE = "quiet"


@dataclass
class Phases:
    """Measurements in the phases of one kind, and the scheduling of the servers' event loops."""

    noticed: list[Noticed] = field(default_factory=list[Noticed])
    ran_s: float = 0.0
    waited_s: float = 0.0
    turns: int = 0

    def figures(self) -> dict[str, tuple[float, str]]:
        """Return the figures of this kind."""
        every = sorted(each for noticed in self.noticed for each in noticed.grants)
        count = max(1, len(self.noticed))
        return {
            "grant p50": (1000 * self.middle("grants", 0.5), "ms"),
            "grant p99": (1000 * self.middle("grants", 0.99), "ms"),
            "all p99": (1000 * at(every, 0.99), "ms"),
            "ping p50": (1000 * self.middle("pings", 0.5), "ms"),
            "ping p99": (1000 * self.middle("pings", 0.99), "ms"),
            "login p50": (1000 * self.middle("logins", 0.5), "ms"),
            "processor": (sum(each.cpu_s for each in self.noticed) / count, "s"),
            "attempts": (sum(each.attempts for each in self.noticed) / count, ""),
            "attacker": (sum(each.attacker_s for each in self.noticed) / count, "s"),
            "loops ran": (self.ran_s / count, "s"),
            "wait of a turn": (1000 * self.waited_s / max(1, self.turns), "ms"),
            "grants": (float(len(every)), ""),
            "failures": (float(sum(len(each.verdict()) for each in self.noticed)), ""),
        }

    def pairs(self, peace: "Phases") -> float:
        """Return the median of the rounds' ratios of p99 to that without an attack."""
        both = zip(self.noticed, peace.noticed, strict=True)
        return statistics.median(p99(here) / p99(there) for here, there in both)

    def middle(self, what: str, share: float) -> float:
        """Return the median over the phases of a share of their times."""
        return statistics.median(at(sorted(getattr(n, what)), share) for n in self.noticed)


def p99(noticed: Noticed) -> float:
    """Return the seconds that 99 % of the grants stayed below."""
    return at(sorted(noticed.grants), 0.99)


def at(ordered: list[float], share: float) -> float:
    """Return a quantile of sorted times; NaN without times."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def scheduled(servers: Servers) -> tuple[float, float, int]:
    """Return for how long the servers' loops ran and waited for a core, and how often they ran."""
    ran, waited, turns = 0, 0, 0
    for process in servers.processes.values():
        for proc in attack_pool.family(Path("/proc") / str(process.pid)):
            if b"keeper" in (proc / "cmdline").read_bytes():
                continue
            each = (proc / "task" / proc.name / "schedstat").read_text().split()
            ran, waited, turns = ran + int(each[0]), waited + int(each[1]), turns + int(each[2])
    return ran / 1e9, waited / 1e9, turns


async def run(folder: Path, options: argparse.Namespace, results: Results) -> None:
    """Run all rounds, and show the figures after each one."""
    servers = Servers(folder, SERVER_COUNT, GPUS, (str(HERE / "hostile_join.py"),))
    path = (str(HERE.parent / "remoting" / "host"), os.environ.get("PYTHONPATH"))
    servers.env["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    pool = Pool(servers, folder, options.programs)
    kinds = [PEACE, *options.kinds.split(",")]
    phases = defaultdict[str, Phases](Phases)
    try:
        await pool.start()
        for number in range(options.rounds):
            for kind in (*kinds[number % len(kinds) :], *kinds[: number % len(kinds)]):
                before = scheduled(servers)
                noticed = await measure(pool, "" if kind == PEACE else kind, options.seconds)
                after = scheduled(servers)
                one = phases[kind]
                one.noticed.append(noticed)
                one.ran_s += after[0] - before[0]
                one.waited_s += after[1] - before[1]
                one.turns += after[2] - before[2]
                times = [1000 * at(sorted(noticed.grants), share) for share in (0.5, 0.99)]
                print(
                    f"  {number} {kind:22} p50 {times[0]:6.1f} p99 {times[1]:6.1f}",
                    *noticed.verdict(),
                )
        show(phases, kinds, results)
        print(*pool.end_programs(), sep="\n")
    finally:
        for process in pool.programs:
            process.kill()
        servers.stop()


def show(phases: dict[str, Phases], kinds: list[str], results: Results) -> None:
    """Print and record the figures of each kind."""
    peace = phases[PEACE].figures()
    for kind in kinds:
        figures = phases[kind].figures()
        words: list[str] = []
        for metric, (figure, unit) in figures.items():
            results.add(kind, metric, figure, unit, native=peace[metric][0])
            share = f" ({figure / peace[metric][0]:.2f})" if unit == "ms" and kind != PEACE else ""
            words.append(f"{metric} {figure:.1f} {unit}".rstrip() + share)
        pairs = phases[kind].pairs(phases[PEACE])
        results.add(kind, "p99 of grants, median of pairs", pairs, "times")
        words.append(f"pairs {pairs:.2f}")
        print(f"{kind:22} {'  '.join(words)}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default="handshakes,handshakes_elsewhere")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase")
    parser.add_argument("--programs", type=int, default=4)
    add_options(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        trio.run(run, Path(name), options, Results.of("compare.py", options))


if __name__ == "__main__":
    sys.exit(main())
