"""The commands that a run on real processes gives to its pool, and the pool's view."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.view import PoolView
from gpupool.remoting.client.credentials import load_credentials
from gpupool.remoting.client.pool_client import connect_pool

PATIENCE_S = 60.0
VIEW_S_MAX = 3.0
AGAIN_S = 0.5


class PoolCommands:
    """``gpupool`` as an operator types it, with the environment of one run."""

    def __init__(self, env: Mapping[str, str], say: Callable[[str], None]) -> None:
        """Use the credentials that ``env`` names; ``say`` takes one line for each failure."""
        self._env = env
        self._say = say

    async def run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Run one command, and return how it ended."""
        return await trio.run_process(
            [sys.executable, "-m", "gpupool.cli.main", *arguments],
            env=self._env,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )

    async def insist(self, *arguments: str) -> bytes:
        """Give a command again while it fails, as one does when the pool has no leader.

        Raises:
            GpupoolError: when it still fails after ``PATIENCE_S``.
        """
        end = trio.current_time() + PATIENCE_S
        while True:
            done = await self.run(*arguments)
            if done.returncode == 0:
                return done.stdout
            why = " ".join(done.stderr.decode().split())[-300:]
            if trio.current_time() > end:
                raise GpupoolError(f"gpupool {arguments[0]} fails for {PATIENCE_S:.0f} s: {why}")
            self._say(f"again: gpupool {arguments[0]}: {why}")
            await trio.sleep(AGAIN_S)

    async def token(self) -> str:
        """Return a new token for a server."""
        made = await self.insist("token", "create", "--server", "--json")
        return str(json.loads(made)["token"])

    async def view(self) -> PoolView | None:
        """Return the pool's view from any server, if one answers."""
        try:
            credentials = load_credentials(Path(self._env["GPUPOOL_CREDENTIALS"]))
            with trio.move_on_after(VIEW_S_MAX):
                async with connect_pool(credentials, version="chaos", client="chaos") as pool:
                    return await pool.view()
        except* GpupoolError:
            pass
        return None
