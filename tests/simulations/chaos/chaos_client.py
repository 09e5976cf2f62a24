"""One real client process of a chaos run: asks, holds, releases, logs, repeats.

Run as ``python chaos_client.py CREDENTIALS NAME SEED LOG``. Its log, one JSON object a line, is all
that the checkers know of it; times are the machine's monotonic clock, which is the same in every
process.
"""

import json
import logging
import sys
import time
from pathlib import Path
from random import Random
from typing import TextIO

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.state import Request
from gpupool.remoting.client.credentials import load_credentials
from gpupool.remoting.client.lease_handle import LeaseHandle
from gpupool.remoting.client.pool_client import Pool, connect_pool

HOLD_S = 1.5
THINK_S = 0.3
WAIT_S = 10.0
SESSION_SHARE = 0.25
"""Leases that get a worker: each costs half a second of a processor to start."""


class _Client:
    def __init__(self, name: str, random: Random, log: TextIO) -> None:
        self._name = name
        self._random = random
        self._log = log

    async def live(self, credentials: Path) -> None:
        """Use the pool until killed."""
        loaded = load_credentials(credentials)
        while True:
            try:
                async with connect_pool(loaded, version="simulated", client=self._name) as pool:
                    while True:
                        await self._lease(pool)
                        await trio.sleep(self._random.expovariate(1.0) * THINK_S)
            except* GpupoolError as group:
                self._write("failed", why=str(group.exceptions[0])[:200])
            await trio.sleep(0.2)

    async def _lease(self, pool: Pool) -> None:
        request = Request(
            id=pool.new_request_id(),
            count=self._random.choice((1, 1, 1, 2)),
            fraction=self._random.choice((0.25, 0.5, 0.6, 1.0)),
            client=self._name,
            program="simulated",
        )
        called_at = time.monotonic()
        try:
            hold = await pool.allocate(request, wait_s=WAIT_S)
        except GpupoolError as error:
            self._write("not-granted", why=str(error)[:200], called_at=called_at)
            return
        self._write(
            "granted",
            lease=hold.lease,
            request=hold.granted.request.id.hex(),
            memory={partition.gpu: partition.memory for partition in hold.partitions},
            called_at=called_at,
        )
        await self._use(hold)

    async def _use(self, hold: LeaseHandle) -> None:
        reason = ""
        try:
            if self._random.random() < SESSION_SHARE:
                await hold.open_session("arrays", "simulated")
            with trio.move_on_after(self._random.expovariate(1.0) * HOLD_S):
                reason = await hold.wait_lost()
        except GpupoolError as error:
            reason = str(error)
        called_at = time.monotonic()
        try:
            await hold.release()
        except GpupoolError as error:
            reason = reason or str(error)
        self._write("over", lease=hold.lease, called_at=called_at, lost=reason[:200])

    def _write(self, event: str, **fields: object) -> None:
        line = {"event": event, "client": self._name, "at": time.monotonic(), **fields}
        self._log.write(json.dumps(line) + "\n")
        self._log.flush()


def main() -> None:
    """Run one client until it is killed."""
    credentials, name, seed, log = sys.argv[1:5]
    logging.disable(logging.WARNING)
    with open(log, "a", encoding="utf-8") as file:
        client = _Client(name, Random(seed), file)
        trio.run(client.live, Path(credentials))


if __name__ == "__main__":
    main()
