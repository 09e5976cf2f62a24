"""Processor time per second that viewers of one page cost its process.

    python tests/benchmarks/page_viewers.py [--servers 1000] [--viewers 50] [--seconds 20]

All are logged in by one token, and ask what has changed as often as the page does: each second, in
pools of more than 100 servers every other. The application is asked in memory, so HTTP's framing
and TLS are not among the figures; each answer is compressed, as it is for a browser.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import trio
from tests.asgi_client import Client
from tests.fake_web_pool import FakePool

from gpupool.monitoring.web.gate import LocalGate
from gpupool.monitoring.web.page_app import make_app

PORT = 7471
SLOW_FROM = 100
"""Largest number of servers at which a page polls every second."""


class Still(FakePool):
    """A pool with each second's snapshot made before the measurement."""

    def step(self) -> None:
        """Let a second pass."""
        self.time_s += 1.0
        self.made: Any = super().latest()

    def latest(self) -> Any:
        """Return the snapshot made before."""
        return self.made


async def measure(servers: int, viewers: int, seconds: int) -> None:
    """Print the processor time and the bytes of a second."""
    pool = Still(servers=servers, gpus=8, leases=10 * servers)
    pool.step()
    gate = LocalGate(pool, PORT)
    app = make_app(gate)
    clients = [Client(app, f"127.0.0.1:{PORT}") for _ in range(viewers)]
    for each in clients:
        await each.post("/api/v1/login", json_body={"key": gate.new_key()})
    versions = [0] * viewers
    every = 2 if servers > SLOW_FROM else 1
    spent, sent = 0.0, 0
    for second in range(seconds + every):
        pool.step()
        asking = range(second % every, viewers, every)
        began = time.process_time()
        answers = [await clients[at].get(f"/api/v1/live?since={versions[at]}") for at in asking]
        took = time.process_time() - began
        for at, answer in zip(asking, answers, strict=True):
            versions[at] = answer.json()["v"]
        if second >= every:  # the first answers are whole, and come once
            spent += took
            sent += sum(len(answer.body) for answer in answers)
    print(
        f"{servers} servers, {viewers} viewers: {100 * spent / seconds:.1f} % of a core, "
        f"{sent / seconds / viewers / 1000:.1f} kB a second to each"
    )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=1000)
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=20)
    arguments = parser.parse_args()
    trio.run(measure, arguments.servers, arguments.viewers, arguments.seconds)


if __name__ == "__main__":
    main()
