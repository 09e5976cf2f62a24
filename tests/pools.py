"""Looks at pools of real servers, without another process for each look."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio
from tests import commands

from gpupool.pool.model.plain import to_plain
from gpupool.pool.view import PoolView
from gpupool.remoting.local.logins import connected

LOOK_TIMEOUT_S = 20.0
END_TIMEOUT_S = 20.0

Servers = Mapping[str, "subprocess.Popen[bytes] | None"]
"""The processes of a pool's servers, by the server's name."""


def view_of(credentials: str) -> dict[str, Any]:
    """Return the pool's view as of ``status --json``."""

    async def look() -> PoolView:
        with trio.fail_after(LOOK_TIMEOUT_S):
            async with connected(credentials) as pool:
                return await pool.view()

    seen: dict[str, Any] = json.loads(json.dumps(to_plain(trio.run(look))))
    return seen


def wrong_with(servers: Servers, credentials: str) -> str:
    """Return why a pool is not whole, idle and undrained; empty if it is."""
    for name, process in servers.items():
        if process is None or process.poll() is not None:
            return f"server {name} has ended"
    try:
        pool = view_of(credentials)
    except Exception as error:  # noqa: BLE001 - mostly it is in a group
        return f"it cannot be looked at: {error!r}"
    states = {server["name"]: server["state"] for server in pool["servers"]}
    if states != dict.fromkeys(servers, "idle"):
        return f"its servers are {states}"
    if not pool["raft"]["quorum"] or len(pool["raft"]["voters"]) != len(servers):
        return f"it has no quorum of all its servers: {pool['raft']}"
    users = [each["program"] for each in (*pool["leases"], *pool["waiting"])]
    return f"programs have leases, or wait for one: {', '.join(users)}" if users else ""


def exporters_of(state_dir: Path) -> list[int]:
    """Return the processes of exporters that write into a server's state directory."""
    module, folder = b"gpupool.monitoring.exporter", os.fsencode(state_dir.resolve() / "monitoring")
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        if module in words and folder in words:
            found.append(int(entry.name))
    return found


class Spawned:
    """The commands that a test has started, each in a separate session."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, words: list[str], env: Mapping[str, str]) -> "subprocess.Popen[str]":
        """Start one without a terminal; it ends with its test."""
        process = commands.start(words, env=env, start_new_session=True)
        self._processes.append(process)
        return process

    def end(self) -> None:
        """End those that still run, as after a test that has failed, and forget all."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(END_TIMEOUT_S)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        self._processes.clear()
