"""A policy's cost in ``apply``: processor time of grants and refusals, with and without it.

    python tests/benchmarks/policy.py [--rules 500] [--leases 256] [--users 200] [--rounds 300]
        [--csv FILE]

A pool of 8 servers with 8 GPUs each holds ``--leases`` leases of ``--users`` users. The policy has
``--rules`` rules, a fifth of them in windows, 20 classes and 4 reservations. Then grants are
applied, each of which is given back before the next: once without the policy, once with it. The
difference is what the policy costs. Refusals by a limit are measured too. The budget is 0.2 ms.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from results import Results, add_options

from gpupool.pool.model import commands as c
from gpupool.pool.model.commands import unwrap, wrap
from gpupool.pool.model.ids import GpuId, Incarnation, Milliseconds, RequestId, ServerId, TokenId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Gpu, Partition, PoolState, Request, TokenKind
from gpupool.pool.model.tables import LeaseTable
from gpupool.pool.policy.policy_document import parse_policy
from gpupool.pool.policy.rulebook import rulebook
from gpupool.pool.transitions import policy_versions
from gpupool.pool.transitions.apply import apply
from gpupool.pool.transitions.uploads import parts_of
from gpupool.remoting.protocol.time_zones import zone_of

GIB = 1 << 30
SERVERS = [ServerId(f"{n:012x}") for n in range(8)]
GPUS = 8
NOW_MS = 1_795_392_000_000
FAR = Milliseconds(2**52)
ONE = Incarnation(1)


def policy_text(rules: int) -> str:
    """Return a policy of so many rules."""
    lines = ['zone = "Europe/Berlin"', "[defaults]", "max_gpus = 64", 'idle_timeout = "2h"']
    lines += ["[pool]", "max_gpus = 64"]
    count = 3
    for group in range(20):
        users = ", ".join(f'"u{n}"' for n in range(200) if n % 20 == group)
        lines += [f"[class.g{group}]", f"users = [{users}]", "max_gpus = 60", "max_leases = 500"]
        lines += ["max_gpus_per_user = 20", 'gpus = ["*H200*", "*A100*"]', f"priority = {group}"]
        count += 5
    for n in range(4):
        lines += ["[[reservation]]", f'class = "g{n}"', "count = 1", "from = '00:00'"]
        lines += ["to = '24:00'"]
    windows = rules // 5
    user = 0
    lines += ["[user.u199]", "max_gpus = 0"]
    while count < rules - windows:
        lines += [f"[user.u{user}]", "max_gpus = 30", "max_memory = '4T'"]
        count, user = count + 2, user + 1
    for n in range(windows):
        lines += ["[[window]]", f"from = '{n % 23:02d}:{n % 60:02d}'", "to = '23:59'"]
        lines += [f"[window.class.g{n % 20}]", f"max_gpus_per_user = {10 + n % 20}"]
    return "\n".join(lines)


class Pool:
    """A pool in which commands are applied."""

    def __init__(self) -> None:
        self.state = PoolState()
        self.do(c.CreatePool("x", "lab", "tls"))
        for number, server in enumerate(SERVERS):
            token = TokenId(f"s{number}") if number else None
            if token is not None:
                self.do(c.CreateToken(token, TokenKind.SERVER, "s", bytes(32), FAR, ""))
            self.do(c.JoinServer(server, f"server-{number}", "x:1", False, token))
            gpus = tuple(
                Gpu(GpuId(f"{server}-{n}"), n, "NVIDIA H200", 141 * GIB) for n in range(GPUS)
            )
            self.do(c.ServerUp(server, ONE, "x:1", "1", "2", "3", gpus))
        for n in range(200):
            self.do(c.CreateToken(TokenId(f"u{n}"), TokenKind.USER, f"u{n}", bytes(32), FAR, ""))

    def do(self, command: c.Command) -> Result:
        """Apply one command."""
        envelope = unwrap(wrap(command, at_ms=NOW_MS, ttl_ms=0))
        self.state, result = apply(self.state, self.state.index + 1, envelope)
        return result

    def claim(self, number: int, user: str, memory: int) -> c.Grant:
        """Return a grant of one partition."""
        server = SERVERS[number % 8]
        part = Partition(server, GpuId(f"{server}-{number // 8 % 8}"), memory)
        request = Request(RequestId(number.to_bytes(16, "big")), 1, memory=memory)
        return c.Grant(request, user, TokenId(user), bytes(32), (part,), {server: ONE})


def cost_ms(act: Callable[[int], None], rounds: int) -> tuple[float, float]:
    """Return median and 99th percentile of the processor time of ``act``, in ms."""
    taken: list[float] = []
    for number in range(rounds):
        before = time.process_time_ns()
        act(number)
        taken.append((time.process_time_ns() - before) / 1e6)
    taken.sort()
    return statistics.median(taken), taken[int(len(taken) * 0.99)]


def main() -> None:
    """Measure, and print one line each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rules", type=int, default=500)
    parser.add_argument("--leases", type=int, default=256)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=300)
    add_options(parser)
    options = parser.parse_args()
    results = Results.of("policy.py", options)
    pool = Pool()
    for number in range(options.leases):
        result = pool.do(pool.claim(number, f"u{number % options.users}", 8 * GIB))
        assert result.ok, result
    text = policy_text(options.rules)
    draft = policy_versions.Draft(
        policy_versions.pack_text(text), parse_policy(text, lambda name: zone_of(name, NOW_MS))
    )
    data = policy_versions.pack_draft(draft)
    rules = len(draft.policy.rules) + sum(len(w.rules) for w in draft.policy.windows)
    parts = parts_of(data)
    print(f"{rules} rules: {len(text)} bytes of text, {len(data)} bytes in {len(parts)} command(s)")

    medians: dict[str, float] = {}

    def measure(name: str, user: str, expected: bool) -> None:
        granted = pool.state
        kept = rulebook(granted.policy).reserved(granted)
        places = (pool.claim(10_000 + n, user, GIB) for n in itertools.count())
        free = (p for p in places if (p.partitions[0].server, p.partitions[0].gpu) not in kept)
        commands = list(itertools.islice(free, options.rounds))

        # In a real log every command meets a table that the one before has changed.
        states = [
            replace(granted, leases=LeaseTable(granted.leases), usage=dict(granted.usage))
            for _ in range(options.rounds)
        ]

        def one(number: int) -> None:
            pool.state = states[number]
            assert pool.do(commands[number]).ok is expected

        one(0)  # whatever is compiled at first use
        median, p99 = cost_ms(one, options.rounds)
        pool.state = granted
        medians[name] = median
        print(f"{name:<34} median {median:.3f} ms  p99 {p99:.3f} ms")
        case = f"{name}, {options.leases} leases"
        results.add(case, "median", median, "ms")
        results.add(case, "p99", p99, "ms")

    measure("grant without a policy", "u5", True)
    for number, part in enumerate(parts):
        pool.do(c.StagePart(bytes(16), number, part))
    before = time.process_time_ns()
    result = pool.do(
        c.ApplyPolicy(bytes(16), len(parts), policy_versions.digest_of(data), 0, "root")
    )
    assert result.ok, result
    took_ms = (time.process_time_ns() - before) / 1e6
    print(f"putting it in force once           {took_ms:.3f} ms")
    results.add(f"a policy of {rules} rules is put in force", "once", took_ms, "ms")
    before = time.process_time_ns()
    # A user of a class with a reservation; the first grant compiles the policy.
    pool.do(pool.claim(9_999, "u5", GIB))
    took_ms = (time.process_time_ns() - before) / 1e6
    print(f"the first grant under it           {took_ms:.3f} ms")
    results.add(f"first grant under a policy of {rules} rules", "once", took_ms, "ms")
    measure("grant under the policy", "u5", True)
    measure("refusal by a limit", "u199", False)
    cost_of_policy_ms = medians["grant under the policy"] - medians["grant without a policy"]
    print(f"the policy costs {cost_of_policy_ms:.3f} ms a grant")
    case = f"a policy of {rules} rules, of each grant"
    results.add(case, "median cost", cost_of_policy_ms, "ms", budget="0.2 ms")


if __name__ == "__main__":
    main()
