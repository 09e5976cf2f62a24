"""Serves the page of a pool that does not exist; lines on standard input change it.

``key`` prints an address, ``kill N`` and ``drain N`` do that to a server, ``orders`` prints what
the page has ordered.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fake_web_pool import START_MS, FakePool

from gpupool.monitoring.web.gate import LocalGate
from gpupool.monitoring.web.page_app import make_app
from gpupool.monitoring.web.serving import loopback_socket, serve_page
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.read_model.pool_snapshot import PoolSnapshot

MANY, FEW = 100, 12


class MovingPool(FakePool):
    """A pool with trio's clock, or a faster one; it makes a snapshot once a second of that."""

    _made: tuple[int, PoolSnapshot | None] = (-1, None)

    def __init__(self, speed: float = 1.0, **given: Any) -> None:
        super().__init__(**given)
        self._few: list[PoolSnapshot] = []
        self.speed = speed
        self.began = trio.current_time() - 100.0 / speed
        if self.servers > MANY:
            self.latest()

    def latest(self) -> PoolSnapshot:
        """Return the snapshot of this second."""
        self.time_s = self.speed * (trio.current_time() - self.began)
        if self.servers > MANY:
            return self._one_of_a_few()
        second, made = self._made
        if made is None or second != int(self.time_s):
            made = super().latest()
            self._made = int(self.time_s), made
        return made

    def _one_of_a_few(self) -> PoolSnapshot:
        """Return a snapshot that was made before: to make one anew takes longer than to tell it."""
        if not self._few:
            for second in range(100, 100 + FEW):
                self.time_s = second
                self._few.append(super().latest())
        now = self.speed * (trio.current_time() - self.began)
        found = self._few[int(now) % FEW]
        at = START_MS + int(now) * 1000
        view = replace(found.view, now=Milliseconds(at))
        return replace(found, view=view)

    began = 0.0


async def main() -> None:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", type=int, default=12)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--leases", type=int, default=40)
    parser.add_argument("--waiting", type=int, default=6)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--speed", type=float, default=1.0, help="seconds of it in a second")
    parser.add_argument("--hostile", action="store_true")
    given = vars(parser.parse_args())
    listener = loopback_socket(given.pop("port"))
    port = listener.getsockname()[1]
    pool = MovingPool(**given)
    gate = LocalGate(pool, port)
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_page, make_app(gate), listener)
        async for line in trio.wrap_file(sys.stdin):
            print(answer(line.split(), pool, gate, port), flush=True)
        nursery.cancel_scope.cancel()


def answer(words: list[str], pool: FakePool, gate: LocalGate, port: int) -> str:
    """Do the command of a line."""
    match words:
        case ["key"]:
            return f"http://127.0.0.1:{port}/#key={gate.new_key()}"
        case ["kill", number]:
            pool.dead = {*pool.dead, int(number)}
        case ["drain", number]:
            pool.drained = {*pool.drained, int(number)}
        case _:
            return repr(pool.orders)
    return "done"


if __name__ == "__main__":
    trio.run(main)
