"""Chaos on real processes: servers and clients of this machine, killed, stopped and cut off.

An operator suspends, resumes and moves leases meanwhile.

The same rules are checked as under virtual time, from what the processes left behind: what the
clients wrote about their leases, what the servers answered, and their journals once they stopped.
"""

import os
import re
import shutil
import signal
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

import trio
from tests.simulations.chaos.chaos_operator import give_orders
from tests.simulations.chaos.fault_proxy import FaultProxy
from tests.simulations.chaos.left_behind import Checks
from tests.simulations.chaos.pool_commands import PoolCommands
from tests.simulations.chaos.real_server import OLD_COPY, RealServer
from tests.simulations.chaos.small_disks import SmallDisks
from tests.simulations.chaos.wrong_clocks import WrongClocks

from gpupool.pool.errors import GpupoolError
from gpupool.pool.view import PoolView
from gpupool.simulations.kernel.swarm_options import random_source

START_S = 60.0
CONVERGE_S_MAX = 15.0
"""From the start of the last process: starting Python takes longer than finding each other."""

GONE_S_MAX = 20.0
REFUSED_S_MAX = 30.0
EMULATE = "2:1G"
FAULT_EVERY_S = 2.0
RESTART_S = 2.0
DEAD_S = 2.0
"""Interval at which servers that have ended by themselves are looked for, in seconds."""
KINDS = {
    "kill": 4,
    "stop": 4,
    "cut": 4,
    "one-way": 4,
    "isolate": 4,
    "reset": 4,
    "client-kill": 4,
    "clock": 3,
    "full": 3,
    "old": 1,
}
"""Kinds of faults, and how often each happens beside the others."""

CLOCK_S_MAX = 25.0
"""Servers measure each other's clocks every 5 s: a shorter jump moves nothing."""

CLOCK_LATE_S = 40.0
"""From when a clock is right again: 16 s until that is known, and 10 s until 5 s are made up."""

COPY_SHARE = 0.3
"""Of the kills after which an older copy is replaced."""

DAY_S = 86_400.0
USE_S = 3.0
"""In which a pool without faults is used, so that an old copy lacks something."""


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
    ended_by_full_disk: int = 0
    """Servers that did not start because their disk was full."""
    refused: int = 0
    """Old state directories that the other servers refused."""
    rejoined: int = 0
    """Servers that came back by ``gpupool rejoin`` after that."""
    converged_s: float = -1.0
    entries: int = 0
    histories: int = 0
    folder: str = ""


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
        names = [f"s{n}" for n in range(1, servers + 1)]
        self._disks = SmallDisks(self._folder / "disks", names)
        self._clocks = WrongClocks(self._folder / "clocks")
        self._wrong: set[str] = set()
        self._forgetful: RealServer | None = None
        """The server with an old copy as its state directory."""
        self._servers = {
            f"s{n}": RealServer(f"s{n}", self._disks.folder(f"s{n}") / "state")
            for n in range(1, servers + 1)
        }
        self._clients: dict[str, subprocess.Popen[bytes]] = {}
        self._client_count = clients
        self._client_number = 0
        self._healing = False
        self._proxy = FaultProxy(self._name_of_pid)
        self._env = self._environment()
        self._commands = PoolCommands(self._env, say)
        self._report = RealReport(seed, folder=str(self._folder))
        self._checks = Checks(self._fail)

    async def run(self) -> RealReport:
        """Run all phases, and check the logs and tables that are left."""
        try:
            async with trio.open_nursery() as nursery:
                for server in self._servers.values():
                    serve = partial(self._proxy.serve, server.key, partial(_port, server))
                    server.advertised = await nursery.start(serve)
                await self._create()
                nursery.start_soon(self._keep_clients)
                async with trio.open_nursery() as faults:
                    faults.start_soon(self._operate)
                    faults.start_soon(self._keep_servers)
                    with trio.move_on_after(self._duration_s):
                        await self._let_faults_happen()
                    faults.cancel_scope.cancel()
                await self._heal()
                await self._end_clients()
                await self._stop()
                nursery.cancel_scope.cancel()
            self._check()
        except BaseException as error:
            self._fail(f"the run itself: {error!r}")
            raise
        finally:
            self._kill_all()
            self._disks.close(keep=self._folder / "left" if self._report.failures else None)
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

    def _start(self, server: RealServer) -> None:
        self._note_full(server)
        env = self._env | self._clocks.environment(server.key)
        server.start(self._folder, env, emulate=EMULATE)

    def _start_dead(self) -> None:
        for server in self._servers.values():
            if not server.alive:
                self._start(server)

    def _start_client(self) -> None:
        self._client_number += 1
        name = f"c{self._client_number}"
        argv = [sys.executable, str(Path(__file__).with_name("chaos_client.py"))]
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
                return server.key
        return next((n for n, p in self._clients.items() if p.pid == pid), None)

    # --- making the pool -------------------------------------------------------------------------

    async def _create(self) -> None:
        first, *others = self._servers.values()
        self._start(first)
        log = self._folder / f"{first.key}.log"
        with trio.fail_after(START_S):
            while not re.search(r"The pool's new tokens are in \S+;", log.read_text("utf-8")):
                if not first.alive:
                    raise GpupoolError("the first server ended", why=log.read_text()[-300:])
                await trio.sleep(0.1)
        for server in others:
            server.token = await self._commands.token()
            self._start(server)
        with trio.fail_after(START_S):
            while True:
                if self._complete(await self._commands.view()):
                    break
                await trio.sleep(0.2)
        for server in others:
            server.token = ""
        # From now on the credentials have the addresses of all servers.
        await self._commands.run("status")
        self._say(f"a pool of {len(self._servers)} servers is complete")

    def _complete(self, view: PoolView | None) -> bool:
        # A new leader calls also a server reachable that has just ended.
        alive = all(server.alive for server in self._servers.values())
        if view is None or not alive or not view.raft.quorum or not view.raft.leader:
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
        kinds = {k: n for k, n in KINDS.items() if k != "full" or self._disks.small}
        if len(kinds) < len(KINDS):
            self._say("no disk can be filled here: that takes root's right to mount")
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(self._random.expovariate(1.0) * FAULT_EVERY_S)
                (kind,) = self._random.choices([*kinds], [*kinds.values()])
                if kind != "old":
                    nursery.start_soon(self._fault, kind)
                    continue
                while nursery.child_tasks:  # noqa: ASYNC110 - faults tell nobody of their end
                    await trio.sleep(0.1)
                # A server that has forgotten something is fault enough at a time.
                self._count(kind)
                with trio.CancelScope(shield=True):
                    await self._put_back()

    def _count(self, kind: str) -> None:
        self._report.faults[kind] = self._report.faults.get(kind, 0) + 1

    async def _fault(self, kind: str) -> None:
        names = list(self._servers)
        one, other = self._random.sample(names, 2) if len(names) > 1 else (names[0], names[0])
        for_s = 0.3 * 20 ** self._random.random()
        if kind == "clock" and not self._may_jump(one):
            return
        self._count(kind)
        self._say(f"{kind} {one} {other} {for_s:.1f} s")
        match kind:
            case "kill":
                await self._kill(self._servers[one], for_s)
            case "stop":
                await self._stop_for(self._servers[one], for_s)
            case "clock":
                await self._jump(one)
            case "full":
                await self._fill_disk(self._servers[one], for_s)
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

    async def _kill(self, server: RealServer, for_s: float) -> None:
        if not server.alive:
            return
        await server.kill()
        if not server.alive and (not server.old.exists() or self._random.random() < COPY_SHARE):
            server.copy()
        await trio.sleep(min(for_s, RESTART_S))
        if not server.alive:
            self._start(server)

    def _may_jump(self, name: str) -> bool:
        """Return whether only a minority of clocks is wrong with this one."""
        return name not in self._wrong and len(self._wrong) < (len(self._servers) - 1) // 2

    async def _jump(self, name: str) -> None:
        """Let a server's clock be wrong for a while, by seconds or by days."""
        error_s = self._random.choice((-1, 1)) * self._random.uniform(0.5, 30.0)
        if self._random.random() < 0.5:
            error_s *= DAY_S
        self._wrong.add(name)
        began = time.monotonic()
        self._say(f"the clock of {name} jumps by {error_s:.1f} s")
        self._clocks.set(name, error_s)
        try:
            await trio.sleep(self._random.uniform(1.0, CLOCK_S_MAX))
        finally:
            self._clocks.set(name, 0.0)
            self._wrong.discard(name)
            # Earlier, too: entries are found by the time that the pool gave them.
            end = time.monotonic() + CLOCK_LATE_S
            self._checks.doubtful.append((began - CLOCK_LATE_S, end))

    async def _fill_disk(self, server: RealServer, for_s: float) -> None:
        """Leave a server's disk no room for a while; it waits for some, unless it is to start."""
        server.filled_at = server.filled_at or server.log_size
        self._disks.fill(server.key)
        try:
            await trio.sleep(for_s)
        finally:
            self._disks.free(server.key)

    async def _keep_servers(self) -> None:
        """Start the servers that have ended by themselves, as at a start on a full disk."""
        while True:
            await trio.sleep(DEAD_S)
            dead = [each for each in self._servers.values() if each is not self._forgetful]
            dead = [server for server in dead if not server.alive]
            await trio.sleep(RESTART_S + 1.0)
            for server in dead:
                if not server.alive and server is not self._forgetful:
                    self._say(f"{server.key} has ended, and starts again")
                    self._start(server)

    def _note_full(self, server: RealServer) -> None:
        """Find out why a server with a full disk has ended."""
        since, server.filled_at = server.filled_at, 0
        said = server.said(since) if since else ""
        full = server.status == 1 and "no space left on device" in said.lower()
        self._report.ended_by_full_disk += full
        if "Traceback" in said or "went wrong" in said:
            self._fail(f"full-disk: {server.key} ended with {server.status}: {said[-300:]}")

    async def _put_back(self) -> None:
        """Put a server's old state directory back: it is refused, and comes back as a new one."""
        server = self._random.choice([*self._servers.values()])
        self._say(f"old {server.key}")
        try:
            await self._put_back_at(server)
        finally:
            self._forgetful = None

    async def _put_back_at(self, server: RealServer) -> None:
        await self._whole("before an old copy is put back")
        token = await self._commands.token()
        self._forgetful = server
        await server.kill()
        if not server.old.exists():
            server.copy()
            self._start(server)
            await self._whole("before an old copy is put back")
            await trio.sleep(USE_S)
            await server.kill()
        server.put_back()
        began = server.log_size
        self._start(server)
        with trio.move_on_after(REFUSED_S_MAX):
            while server.alive:  # noqa: ASYNC110 - a process tells nobody of its end
                await trio.sleep(0.1)
        said = server.said(began)
        if server.alive or server.status != 1 or OLD_COPY not in said:
            self._fail(f"old-copy-refused: {server.key}, {server.status}: {said[-300:]}")
            return
        self._report.refused += 1
        server.generation += 1
        here = ["--state-dir", str(server.state_dir), "--token", token]
        await self._commands.insist("rejoin", *here, "--name", server.name)
        self._start(server)
        if await self._whole("after a rejoin"):
            self._report.rejoined += 1

    async def _whole(self, when: str) -> bool:
        """Wait until the pool is complete."""
        with trio.move_on_after(START_S):
            while not self._complete(await self._commands.view()):
                self._start_dead()
                await trio.sleep(0.2)
            return True
        self._fail(f"whole: the pool is not complete {when} within {START_S:.0f} s")
        return False

    async def _stop_for(self, server: RealServer, for_s: float) -> None:
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
        self._disks.free()
        began = trio.current_time()
        while not self._complete(await self._commands.view()):
            if trio.current_time() - began > CONVERGE_S_MAX:
                self._fail(f"converges: not within {CONVERGE_S_MAX:.0f} s of healing")
                return
            self._start_dead()  # also one that was ending when its disk got room again
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
            view = await self._commands.view()
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

    def _fail(self, text: str) -> None:
        self._say(f"FAILED {text}")
        self._report.failures.append(text)

    def _check(self) -> None:
        state_dirs = {server.key: server.state_dir for server in self._servers.values()}
        found = self._checks.run(state_dirs, self._folder / "clients.jsonl")
        report = self._report
        report.entries, report.histories = found.entries, found.histories
        report.granted, report.lost = found.granted, found.lost


def _port(server: RealServer) -> int:
    return server.port
