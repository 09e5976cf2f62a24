"""Chaos on real processes: servers and clients of this machine, killed, stopped and cut off.

An operator suspends, resumes and moves leases meanwhile.

The same rules are checked as under virtual time, from what the processes left behind: what the
clients wrote about their leases, what the servers answered, and their journals once they stopped.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

import trio

from gpupool.consensus.core.library import COMMAND_TYPE
from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.storage.store import DIRECTORY, Storage
from gpupool.pool.errors import GpupoolError
from gpupool.pool.invariants import violations
from gpupool.pool.model.commands import Grant, unwrap
from gpupool.pool.model.ids import GpuId, LeaseId, RequestId
from gpupool.pool.model.state import PoolState
from gpupool.pool.transitions.state_machine import PoolMachine
from gpupool.pool.view import PoolView
from gpupool.remoting.client.credentials import load_credentials
from gpupool.remoting.client.pool_client import connect_pool
from gpupool.simulations.chaos.chaos_operator import give_orders
from gpupool.simulations.chaos.fault_proxy import FaultProxy
from gpupool.simulations.checkers.history import History
from gpupool.simulations.kernel.swarm_options import random_source

START_S = 60.0
CONVERGE_S_MAX = 15.0
"""From the start of the last process: starting Python takes longer than finding each other."""

GONE_S_MAX = 20.0
EMULATE = "2:1G"
FAULT_EVERY_S = 2.0
RESTART_S = 2.0
STAMP_S = 0.002
"""By which the pool's instants, in whole milliseconds, may differ from those of clients."""


@dataclass(slots=True)
class RealReport:
    """The result of one run."""

    seed: int
    failures: list[str] = field(default_factory=list[str])
    faults: dict[str, int] = field(default_factory=dict[str, int])
    orders: dict[str, int] = field(default_factory=dict[str, int])
    """Of the operator, by kind, that the pool has taken."""
    granted: int = 0
    lost: int = 0
    converged_s: float = -1.0
    entries: int = 0
    histories: int = 0
    folder: str = ""


@dataclass(eq=False, slots=True)
class _Server:
    name: str
    port: int
    advertised: int = 0
    process: subprocess.Popen[bytes] | None = None
    token: str = ""

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Chaos:
    """One run on real processes."""

    def __init__(
        self,
        seed: int,
        *,
        servers: int,
        clients: int,
        duration_s: float,
        say: Callable[[str], None],
    ) -> None:
        """Prepare a run.

        Args:
            seed: of the faults; what the processes do meanwhile is up to this machine.
            servers: how many.
            clients: how many.
            duration_s: of the faults.
            say: takes one line for each event.
        """
        self._random: Random = random_source(seed, "real")
        self._duration_s = duration_s
        self._say = say
        self._folder = Path(tempfile.mkdtemp(prefix="gpupool-chaos-"))
        self._folder.chmod(0o711)  # workers have users of their own, and pass through here
        self._servers = {f"s{n}": _Server(f"s{n}", _free_port()) for n in range(1, servers + 1)}
        self._clients: dict[str, subprocess.Popen[bytes]] = {}
        self._client_count = clients
        self._client_number = 0
        self._healing = False
        self._proxy = FaultProxy(self._name_of_pid)
        self._env = self._environment()
        self._report = RealReport(seed, folder=str(self._folder))
        self._capacity: dict[GpuId, int] = {}

    async def run(self) -> RealReport:
        """Run all phases, and check the logs and tables that are left."""
        try:
            async with trio.open_nursery() as nursery:
                for server in self._servers.values():
                    serve = partial(self._proxy.serve, server.name, partial(_port, server))
                    server.advertised = await nursery.start(serve)
                await self._create()
                nursery.start_soon(self._keep_clients)
                async with trio.open_nursery() as faults:
                    faults.start_soon(self._operate)
                    with trio.move_on_after(self._duration_s):
                        await self._let_faults_happen()
                    faults.cancel_scope.cancel()
                await self._heal()
                await self._end_clients()
                await self._stop()
                nursery.cancel_scope.cancel()
            self._check()
        finally:
            self._kill_all()
        if not self._report.failures:
            shutil.rmtree(self._folder, ignore_errors=True)
        return self._report

    # --- processes -------------------------------------------------------------------------------

    def _environment(self) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        env["GPUPOOL_CREDENTIALS"] = str(self._folder / "credentials.json")
        env["XDG_CONFIG_HOME"] = str(self._folder / "config")
        env["XDG_CACHE_HOME"] = str(self._folder / "cache")
        env["RUNTIME_DIRECTORY"] = env["TMPDIR"] = str(self._folder)
        return env

    def _start(self, server: _Server) -> None:
        argv = [sys.executable, "-m", "gpupool.cli.main", "join"]
        argv += ["--emulate", EMULATE, "--listen", f"127.0.0.1:{server.port}"]
        argv += ["--advertise", f"127.0.0.1:{server.advertised}", "--name", server.name]
        argv += ["--pool-name", "chaos", "--state-dir", str(self._folder / server.name)]
        argv += ["--drain-timeout", "1s"]
        argv += ["--token", server.token] if server.token else []
        log = self._folder / f"{server.name}.log"
        with log.open("ab") as file:
            server.process = subprocess.Popen(
                argv,
                env=self._env,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def _start_client(self) -> None:
        self._client_number += 1
        name = f"c{self._client_number}"
        argv = [sys.executable, "-m", "gpupool.simulations.chaos.chaos_client"]
        argv += [self._env["GPUPOOL_CREDENTIALS"], name, str(self._random.random())]
        argv += [str(self._folder / "clients.jsonl")]
        with (self._folder / f"{name}.log").open("wb") as file:
            self._clients[name] = subprocess.Popen(
                argv, env=self._env, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    async def _keep_clients(self) -> None:
        while True:
            for name in [n for n, p in self._clients.items() if p.poll() is not None]:
                del self._clients[name]
            if not self._healing and len(self._clients) < self._client_count:
                self._start_client()
            await trio.sleep(0.3)

    def _name_of_pid(self, pid: int) -> str | None:
        for server in self._servers.values():
            if server.process is not None and server.process.pid == pid:
                return server.name
        return next((n for n, p in self._clients.items() if p.pid == pid), None)

    # --- making the pool -------------------------------------------------------------------------

    async def _create(self) -> None:
        first, *others = self._servers.values()
        self._start(first)
        log = self._folder / f"{first.name}.log"
        with trio.fail_after(START_S):
            while not re.search(r"The pool's new tokens are in \S+;", log.read_text("utf-8")):
                if not first.alive:
                    raise GpupoolError("the first server ended", why=log.read_text()[-300:])
                await trio.sleep(0.1)
        for server in others:
            done = await trio.run_process(
                [sys.executable, "-m", "gpupool.cli.main", "token", "create", "--server", "--json"],
                env=self._env,
                capture_stdout=True,
            )
            server.token = str(json.loads(done.stdout)["token"])
            self._start(server)
        with trio.fail_after(START_S):
            while True:
                if self._complete(await self._view()):
                    break
                await trio.sleep(0.2)
        for server in others:
            server.token = ""
        self._say(f"a pool of {len(self._servers)} servers is complete")

    async def _view(self) -> PoolView | None:
        """Return the pool's view from any server, if one answers."""
        try:
            credentials = load_credentials(Path(self._env["GPUPOOL_CREDENTIALS"]))
            with trio.move_on_after(3.0):
                async with connect_pool(credentials, version="chaos", client="chaos") as pool:
                    return await pool.view()
        except* GpupoolError:
            pass
        return None

    def _complete(self, view: PoolView | None) -> bool:
        if view is None or not view.raft.quorum or not view.raft.leader:
            return False
        up = [s for s in view.servers if s.state in ("idle", "mix", "full")]
        return len(up) == len(self._servers) == len(view.raft.voters)

    async def _operate(self) -> None:
        def note(kind: str) -> None:
            self._report.orders[kind] = self._report.orders.get(kind, 0) + 1

        credentials = Path(self._env["GPUPOOL_CREDENTIALS"])
        random = random_source(self._report.seed, "operator")
        await give_orders(credentials, random, note, lambda why: self._say(f"no order: {why}"))

    # --- faults ----------------------------------------------------------------------------------

    async def _let_faults_happen(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(self._random.expovariate(1.0) * FAULT_EVERY_S)
                kind = self._random.choice(
                    ("kill", "stop", "cut", "one-way", "isolate", "reset", "client-kill")
                )
                self._report.faults[kind] = self._report.faults.get(kind, 0) + 1
                nursery.start_soon(self._fault, kind)

    async def _fault(self, kind: str) -> None:
        names = list(self._servers)
        one, other = self._random.sample(names, 2) if len(names) > 1 else (names[0], names[0])
        for_s = 0.3 * 20 ** self._random.random()
        self._say(f"{kind} {one} {other} {for_s:.1f} s")
        match kind:
            case "kill":
                await self._kill(self._servers[one], for_s)
            case "stop":
                await self._stop_for(self._servers[one], for_s)
            case "reset":
                self._proxy.reset(one, other)
            case "client-kill":
                if self._clients:
                    self._random.choice(sorted(self._clients.items()))[1].kill()
            case _:
                pairs = [(one, other)]
                if kind == "isolate":
                    pairs = [(one, name) for name in [*names, *self._clients] if name != one]
                if kind != "one-way":
                    pairs += [(b, a) for a, b in pairs]
                for pair in pairs:
                    self._proxy.cut(*pair)
                await trio.sleep(for_s)
                self._proxy.mend(*pairs)

    async def _kill(self, server: _Server, for_s: float) -> None:
        if server.process is None or not server.alive:
            return
        server.process.kill()
        server.process.wait()
        await trio.sleep(min(for_s, RESTART_S))
        if not server.alive:
            self._start(server)

    async def _stop_for(self, server: _Server, for_s: float) -> None:
        process = server.process
        if process is None or not server.alive:
            return
        process.send_signal(signal.SIGSTOP)
        try:
            await trio.sleep(for_s)
        finally:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)

    async def _heal(self) -> None:
        self._say("healing")
        self._proxy.mend()
        for server in self._servers.values():
            if not server.alive:
                self._start(server)
        began = trio.current_time()
        while not self._complete(await self._view()):
            if trio.current_time() - began > CONVERGE_S_MAX:
                self._fail(f"converges: not within {CONVERGE_S_MAX:.0f} s of healing")
                return
            await trio.sleep(0.1)
        self._report.converged_s = trio.current_time() - began
        self._say(f"healed after {self._report.converged_s:.1f} s")
        await trio.sleep(3.0)  # of quiet use

    async def _end_clients(self) -> None:
        self._healing = True
        for process in self._clients.values():
            process.kill()
        began = trio.current_time()
        while True:
            view = await self._view()
            if view is not None and not view.leases:
                return
            if trio.current_time() - began > GONE_S_MAX:
                left = [lease.name for lease in view.leases] if view is not None else "no answer"
                self._fail(f"dead-clients-leave: {left} after {GONE_S_MAX:.0f} s")
                return
            await trio.sleep(0.3)

    async def _stop(self) -> None:
        for server in self._servers.values():
            if server.process is not None and server.alive:
                server.process.send_signal(signal.SIGTERM)
        with trio.move_on_after(15.0):
            while True:
                if not any(server.alive for server in self._servers.values()):
                    return
                await trio.sleep(0.1)

    def _kill_all(self) -> None:
        processes = [*self._clients.values(), *(s.process for s in self._servers.values())]
        for process in processes:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()

    # --- checking --------------------------------------------------------------------------------

    def _fail(self, text: str) -> None:
        self._say(f"FAILED {text}")
        self._report.failures.append(text)

    def _check(self) -> None:
        logs = {name: _read_log(self._folder / name) for name in self._servers}
        longest = max(logs.values(), key=len)
        self._report.entries = len(longest)
        for name, log in logs.items():
            different = next((i for i in log if log[i] != longest.get(i)), None)
            # The last entries of a server that stopped early may never have been committed.
            if different is not None and different < max(log) - 2:
                self._fail(f"logs-agree: {name} has another entry at {different}")
        grants, history = self._replay(longest)
        self._check_histories(grants, history)

    def _replay(self, log: dict[int, bytes]) -> tuple[dict[int, Grant], History]:
        """Apply the log; return the grants that were made, and a history of what the pool did."""
        machine = PoolMachine(PoolState())
        wall_to_monotonic_s = time.monotonic() - time.time()
        grants: dict[int, Grant] = {}
        history = History(stamp_s=STAMP_S)
        for index in sorted(log):
            if log[index][:1] != COMMAND_TYPE:
                continue
            plain = closed_cbor.decode(log[index][1:])
            machine.apply(index, plain)
            if found := violations(machine.state):
                self._fail(f"table-sound: after {index}: {found[0]}")
            command = unwrap(plain).command
            if isinstance(command, Grant) and LeaseId(index) in machine.state.leases:
                grants[index] = command
            now = machine.state.now / 1000 + wall_to_monotonic_s
            history.pool_holds(machine.state.leases.values(), now)
        for server in machine.state.servers.values():
            for gpu in server.gpus.values():
                self._capacity[gpu.id] = gpu.capacity
        history.capacity = self._capacity
        return grants, history

    def _check_histories(self, grants: dict[int, Grant], history: History) -> None:
        gpus: dict[LeaseId, tuple[GpuId, ...]] = {}
        for line in _client_lines(self._folder / "clients.jsonl"):
            if line["event"] == "granted":
                self._report.granted += 1
                lease = LeaseId(line["lease"])
                memory = {GpuId(gpu): int(size) for gpu, size in line["memory"].items()}
                gpus[lease] = tuple(memory)
                request = RequestId(bytes.fromhex(line["request"]))
                history.granted(request, lease, memory, line["called_at"], line["at"])
                known = grants.get(lease)
                sizes = {p.gpu: p.memory for p in known.partitions} if known else None
                if sizes != memory:
                    self._fail(f"acknowledged-stays: lease {lease} is {sizes} in the log")
            elif line["event"] == "over":
                self._report.lost += bool(line["lost"])
                lease = LeaseId(line["lease"])
                history.over(lease, gpus.pop(lease), line["called_at"], line["at"])
        for lease, held in gpus.items():
            history.over(lease, held, time.monotonic(), float("inf"))
        for name, verdict in history.verdicts():
            self._report.histories += 1
            if verdict.linearizable is False:
                self._fail(f"linearizable: the history of {name} has no valid order")


def _port(server: _Server) -> int:
    return server.port


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class _ReadOnlyDisk:
    """``consensus.disk.Disk`` over a copy in memory, so that reading changes nothing."""

    def __init__(self, folder: Path) -> None:
        self._files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    def names(self) -> list[str]:
        return sorted(self._files)

    def read(self, name: str) -> bytes:
        if name not in self._files:
            raise FileNotFoundError(name)
        return self._files[name]

    def append(self, name: str, data: bytes) -> None:
        self._files[name] += data

    def write(self, name: str, data: bytes) -> None:
        self._files[name] = data

    def overwrite(self, name: str, offset: int, data: bytes) -> None:
        content = self._files[name]
        self._files[name] = content[:offset] + data + content[offset + len(data) :]

    def sync(self, name: str) -> None:
        del name

    def rename(self, old: str, new: str) -> None:
        self._files[new] = self._files.pop(old)

    def remove(self, name: str) -> None:
        del self._files[name]

    def sync_directory(self) -> None:
        return

    def reserve(self, name: str, size: int) -> None:
        del name, size


def _read_log(state_dir: Path) -> dict[int, bytes]:
    """Return the entries of a stopped server's log, by index."""
    journal = Storage(_ReadOnlyDisk(state_dir / DIRECTORY), create=False).journal
    return {index: command for command, index, _term in journal.entries[1:]}


def _client_lines(path: Path) -> list[dict[str, Any]]:
    """Return what the clients wrote, in the order of time; a killed one may end in mid-line."""
    lines: list[dict[str, Any]] = []
    for text in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            lines.append(cast("dict[str, Any]", json.loads(text)))
    return sorted(lines, key=lambda line: line["at"])
