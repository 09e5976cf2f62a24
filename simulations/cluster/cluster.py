"""The cluster: servers and clients of one pool in one process, and the faults that act on them."""

import itertools
from functools import partial
from hashlib import sha256
from random import Random

from gpupool.pool.model.commands import Command, CreatePool, CreateToken, JoinServer
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.model.state import ServerStatus, TokenKind
from gpupool.pool.ports import Role
from gpupool.remoting.server.proposer import Decision
from gpupool.simulations.cluster.client_connections import Credentials
from gpupool.simulations.cluster.clients import ClientProcess, Counters
from gpupool.simulations.cluster.operators import Joiner, Operator, draw_credentials
from gpupool.simulations.cluster.run_context import Checkers, Environment
from gpupool.simulations.cluster.servers import CONTROL, ServerProcess
from gpupool.simulations.cluster.simulated_driver import SimulatedCommitter
from gpupool.simulations.cluster.simulated_links import KIND as PEER
from gpupool.simulations.kernel.drifting_clock import DriftingClock
from gpupool.simulations.kernel.failure_reporter import FailureReporter
from gpupool.simulations.kernel.machines import RACKS, Machine
from gpupool.simulations.kernel.quiescence import QuiescenceTracker, between
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk
from gpupool.simulations.kernel.simulated_network import Network
from gpupool.simulations.kernel.swarm_options import Options
from gpupool.simulations.kernel.trace import Trace
from gpupool.simulations.workload.drawn_policies import USERS, draw_policy

PEER_TIMEOUT_S = 10.0
CLIENT_TIMEOUT_S = 10.0
"""As ``peer_transport`` and ``control_server`` have them."""

WITHOUT_VOTE_S = 0.1
"""How often an operator checks whether a removed server still has a vote."""

RESPAWN_S = 2.0
"""Mean time until another client comes for one that is gone."""


class Cluster:
    """Everything that one run simulates. Faults act on it through ``faults.FaultTarget``."""

    def __init__(self, options: Options, *, only: str = "") -> None:
        """Make a cluster that does nothing yet; with ``only``, one checker alone can fail it."""
        scheduler = Scheduler(options.seed)
        trace = Trace(scheduler)
        self.failures = FailureReporter(scheduler, trace, only=only)
        network = Network(
            scheduler,
            trace,
            scheduler.random("network"),
            delay_s=options.delay_s,
            jitter_s=options.jitter_s,
        )
        network.timeout_s = {PEER: PEER_TIMEOUT_S, CONTROL: CLIENT_TIMEOUT_S}
        self.quiescence = QuiescenceTracker(scheduler)
        self.environment = Environment(
            options, scheduler, trace, network, Checkers(self.failures), self.quiescence
        )
        self.options = options
        self.scheduler = scheduler
        self.trace = trace
        self.network = network
        self.counters = Counters()
        self.servers: dict[str, ServerProcess] = {}
        self.clients: dict[str, ClientProcess] = {}
        self.healing = False
        self._joiners: dict[str, Joiner] = {}
        self._random = scheduler.random("cluster")
        self._client_numbers = itertools.count(1)
        self._policy_numbers = itertools.count(1)
        self._restarts: set[str] = set()
        self._replacing = ""
        self._turn = 0
        admin = draw_credentials(self._random, "admin")
        self._admin = admin
        self._users: dict[str, Credentials] = {}
        self.operator = Operator(
            self.environment,
            admin=admin,
            random=scheduler.random("operator"),
            targets=self.server_names,
        )
        for number in range(1, options.servers + 1):
            self._add_machine(f"s{number}")

    # --- making the pool --------------------------------------------------------------------------

    def create(self) -> None:
        """Start the first server; the rest follows by itself."""
        first = self.environment.machines["s1"]
        process = self._start("s1", create=True, first=True)
        address = "s1:7470"
        commands: list[Command] = [
            CreatePool("simulated", "simulated", "tls"),
            JoinServer(first.server, f"s1-{first.server[:4]}", address, False, None),
            CreateToken(
                self._admin.token,
                TokenKind.OPERATOR,
                self._admin.user,
                sha256(self._admin.secret).digest(),
                Milliseconds(2**52),
                "the pool",
            ),
        ]
        committer = SimulatedCommitter(
            process,
            process.table,
            clock=self.environment.machines["s1"].clock,
            rng=self.scheduler.random("bootstrap"),
            propose=process.propose,
        )
        self._commit_all(committer, process, commands)

    def _commit_all(
        self, committer: SimulatedCommitter, process: ServerProcess, commands: list[Command]
    ) -> None:
        if not commands:
            for user in USERS:
                self._new_user_token(user)
            for name in sorted(self.environment.machines):
                if name != process.machine:
                    self._join(name)
            return

        def decided(decision: Decision) -> None:
            done = decision.result is not None
            self._commit_all(committer, process, commands[1:] if done else commands)

        committer.commit(commands[0], 2.0, decided)

    def _new_user_token(self, user: str) -> None:
        def created(credentials: Credentials) -> None:
            self._users[user] = credentials

        self.operator.create_token(TokenKind.USER, user, created)

    @property
    def complete(self) -> bool:
        """Return whether all servers are up and vote as they should."""
        state = self.environment.checkers.logs.state
        up = [s for s in state.servers.values() if s.status is ServerStatus.UP]
        return len(up) == len(self.environment.machines) and self.converged

    def start_clients(self) -> None:
        """Let the clients come."""
        if self.options.policy_s:
            self._policy_later()
        for _ in range(self.options.clients):
            self._spawn_client()

    def _policy_later(self) -> None:
        delay_s = self.options.policy_s * self._random.expovariate(1.0)
        self.scheduler.after(delay_s, self._put_policy)

    def _put_policy(self) -> None:
        """Put a policy in force, and after a while another one."""
        state = self.environment.checkers.logs.state
        number = next(self._policy_numbers)
        random = self.scheduler.random(f"policy/{number}")
        text = draw_policy(random, self.options, state.now)
        # No two documents are the same, so that each is a version of its own.
        text += f"# {number}\n"
        self.trace.note("operator", "policy", " ".join(text.split()))
        self.operator.put_policy(text, state.policy.version, self._policy_later)

    def _add_machine(self, name: str) -> None:
        options, random = self.options, self.scheduler.random(f"machine/{name}")
        drift = options.drift * (2 * random.random() - 1)
        wall_error_ms = int(options.wall_error_s * 1000 * (2 * random.random() - 1))
        clock = DriftingClock(
            self.scheduler,
            origin_s=random.random() * 1e6,
            rate=1.0 + drift,
            wall_error_ms=wall_error_ms,
        )
        environment = self.environment
        machine = Machine(
            name,
            ServerId(random.randbytes(6).hex()),
            scheduler=self.scheduler,
            trace=self.trace,
            random=random,
            clock=clock,
            gpu_count=options.gpus,
            gpu_gib=random.choice(options.gpu_gib),
            idle=options.idle,
            kill_s=options.kill_s,
            workers_changed=environment.checkers.memory.changed,
        )
        machine.disk.sync_latency_s = options.sync_s
        environment.machines[name] = machine
        environment.machine_of[machine.server] = name
        for gpu in machine.gpus():
            environment.history.capacity[gpu.id] = gpu.capacity

    def _join(self, name: str) -> None:
        self.operator.create_token(TokenKind.SERVER, "admin", partial(self._join_with, name))

    def _join_with(self, name: str, credentials: Credentials) -> None:
        machine = self.environment.machines[name]
        self._joiners[name] = Joiner(
            self.environment,
            name,
            machine.server,
            credentials=credentials,
            targets=lambda: [n for n in self.server_names() if n != name],
            joined=partial(self._joined, name),
        )

    def _joined(self, name: str, servers: list[ServerId]) -> None:
        del self._joiners[name]
        self._start(name, create=True, servers=servers)

    # --- servers ----------------------------------------------------------------------------------

    def _start(
        self,
        name: str,
        *,
        create: bool = False,
        first: bool = False,
        servers: list[ServerId] | None = None,
    ) -> ServerProcess:
        machine = self.environment.machines[name]
        process = ServerProcess(
            self.environment,
            machine,
            died=self._died,
            create=create,
            first=first,
            servers=servers or (),
        )
        machine.process = process
        self.servers[name] = process
        process.start()
        return process

    def _died(self, process: ServerProcess, reason: str) -> None:
        """Start a server again that ended by itself: its disk failed, or the power did."""
        if reason == "power":
            self.power_off(process.machine, 1.0)
            return
        self.trace.note(process.machine, "stopped", reason)
        if "damaged" in reason or "missing" in reason:
            self.failures.fail("starts-again", f"{process.machine} {reason}")
        self._end_process(process)
        self._restart_later(process.machine, 1.0 + self._random.random())

    def _end_process(self, process: ServerProcess) -> None:
        self.quiescence.disturb(process.machine)
        process.kill()
        self.network.process_died(process)

    def _restart_later(self, name: str, down_s: float) -> None:
        if name not in self._restarts:
            self._restarts.add(name)
            self.scheduler.after(down_s, partial(self._restart, name))

    def _restart(self, name: str) -> None:
        self._restarts.discard(name)
        machine = self.environment.machines[name]
        process = self.servers.get(name)
        if process is None or process.alive or name in self._joiners:
            return
        if machine.dark:
            machine.dark = False
            self.network.machine_came_back(name)
        create = "journal" not in machine.disk.names()
        if create:
            self.trace.note(name, "start", "with nothing on its disk: it had not begun")
        self._start(name, create=create, servers=list(self.environment.machine_of))

    def _spawn_client(self) -> None:
        name = f"c{next(self._client_numbers)}"
        random = self.scheduler.random(f"client/{name}")
        user = random.choice(USERS)
        clock = DriftingClock(
            self.scheduler,
            origin_s=random.random() * 1e6,
            rate=1.0 + self.options.drift * (2 * random.random() - 1),
            wall_error_ms=0,
        )
        client = ClientProcess(
            self.environment,
            name,
            clock=clock,
            random=random,
            credentials=lambda: self._users[user],
            targets=self.server_names,
            counters=self.counters,
        )
        self.clients[name] = client
        client.start()

    # --- faults.FaultTarget -----------------------------------------------------------------------

    def server_names(self) -> list[str]:
        """Return the machines of the pool's servers, those that just join again too."""
        return list(self.environment.machines)

    def client_names(self) -> list[str]:
        """Return the machines of living clients."""
        return [name for name, client in self.clients.items() if client.alive]

    def leader_name(self) -> str | None:
        """Return the machine of the server that leads, if one does."""
        leaders = [
            (process.replicated_log.node.core.term, name)
            for name, process in self.servers.items()
            if process.alive
            and process.replicated_log is not None
            and process.replicated_log.node.leads
        ]
        return max(leaders)[1] if leaders else None

    def next_server(self) -> str:
        """Return the machine whose turn it is to be restarted."""
        names = self.server_names()
        self._turn += 1
        return names[self._turn % len(names)]

    def reset(self, one: str, other: str) -> None:
        """Break the connections between two machines."""
        self.trace.note("nemesis", "reset", f"{one} - {other}")
        self.network.reset(one, other)
        self.quiescence.disturb(between(one, other))

    def slow(self, source: str, target: str, by_s: float, for_s: float) -> None:
        """Make one direction slow."""
        self.trace.note("nemesis", "slow-link", f"{source} > {target} by {by_s:.3f} s")
        link = self.network.link(source, target)
        link.slow_s = by_s
        self.quiescence.begin(between(source, target))

        def undo() -> None:
            link.slow_s = 0.0
            self.quiescence.end(between(source, target))

        self.scheduler.after(for_s, undo)

    def cut(self, pairs: list[tuple[str, str]], for_s: float) -> None:
        """Cut these directions."""
        if not pairs:
            return
        names = " ".join(f"{a}>{b}" for a, b in pairs if not (a[0] == "c" or b[0] == "c"))
        self.trace.note("nemesis", "cut", f"{names or len(pairs)} for {for_s:.2f} s")
        for source, target in pairs:
            self.network.block(source, target)
            self.quiescence.begin(between(source, target))
        self.scheduler.after(for_s, partial(self._mend, pairs))

    def _mend(self, pairs: list[tuple[str, str]]) -> None:
        self.trace.note("nemesis", "mend", f"{len(pairs)} directions")
        for source, target in pairs:
            self.quiescence.end(between(source, target))
            if self.network.blocked(source, target):
                self.network.unblock(source, target)

    def kill(self, server: str, down_s: float) -> None:
        """Kill a server's process, and start the next one after ``down_s``."""
        process = self.servers.get(server)
        if process is None or not process.alive:
            return
        self.trace.note("nemesis", "kill", f"{server} for {down_s:.2f} s")
        self._end_process(process)
        self._restart_later(server, down_s)

    def power_off(self, server: str, down_s: float) -> None:
        """Cut the power of a server's machine."""
        machine, process = self.environment.machines[server], self.servers.get(server)
        if machine.dark or process is None:
            return
        self.trace.note("nemesis", "power", f"{server} for {down_s:.2f} s")
        machine.dark = True
        self.quiescence.disturb(server)
        process.kill()
        machine.disk.lose_power()
        machine.lose_workers()
        self.network.machine_went_dark(server)
        self._restart_later(server, down_s)

    def tear(self, server: str, operations: int, down_s: float) -> None:
        """Let the power fail at one of the next file operations."""
        del down_s
        disk = self.environment.machines[server].disk
        if disk.power_fails_after is None:
            self.trace.note("nemesis", "torn", f"{server} after {operations} operations")
            disk.power_fails_after = operations

    def pause(self, server: str, for_s: float) -> None:
        """Stop a server's process for a while."""
        process = self.servers.get(server)
        if process is None or not process.alive or process.paused:
            return
        self.trace.note("nemesis", "pause", f"{server} for {for_s:.2f} s")
        process.pause()
        self._disturb(server, for_s)
        self.scheduler.after(for_s, process.resume)

    def clock_rate(self, server: str, rate: float, for_s: float) -> None:
        """Let a monotonic clock run at another rate."""
        self.trace.note("nemesis", "clock-rate", f"{server} at {rate} for {for_s:.2f} s")
        clock = self.environment.machines[server].clock
        clock.set_rate(rate)
        self._disturb(server, for_s)
        self.scheduler.after(for_s, partial(clock.set_rate, 1.0))

    def clock_jump(self, server: str, by_ms: int) -> None:
        """Set a wall clock."""
        self.trace.note("nemesis", "clock-jump", f"{server} by {by_ms} ms")
        self.environment.machines[server].clock.jump_wall(by_ms)

    def disk(self, server: str, what: str, for_s: float) -> None:
        """Make a disk slow, full or broken."""
        self.trace.note("nemesis", f"disk-{what}", f"{server} for {for_s:.2f} s")
        disk = self.environment.machines[server].disk
        if what == "slow":
            disk.sync_latency_s = 0.01 + 0.3 * self._random.random()
        elif what == "full":
            disk.full = True
        else:
            disk.broken = True
        self._disturb(server, for_s)
        self.scheduler.after(for_s, partial(self._repair, server))

    def _disturb(self, machine: str, for_s: float) -> None:
        self.quiescence.begin(machine)
        self.scheduler.after(for_s, partial(self.quiescence.end, machine))

    def _repair(self, server: str) -> None:
        disk = self.environment.machines[server].disk
        disk.repair()
        disk.sync_latency_s = self.options.sync_s

    def kill_client(self, name: str, *, silently: bool) -> None:
        """Let a client end, or vanish with its machine."""
        self.trace.note("nemesis", "client-dark" if silently else "client-kill", name)
        client = self.clients.pop(name)
        client.kill()
        if silently:
            self.network.machine_went_dark(name)
        else:
            self.network.process_died(client)
        if not self.healing:
            self.scheduler.after(RESPAWN_S * self._random.expovariate(1.0), self._spawn_client)

    def pause_client(self, name: str, for_s: float) -> None:
        """Stop a client's process for a while."""
        client = self.clients[name]
        if not client.paused:
            self.trace.note("nemesis", "client-pause", f"{name} for {for_s:.2f} s")
            client.pause()
            self._disturb(name, for_s)
            self.scheduler.after(for_s, client.resume)

    def kill_worker(self, draw: float) -> None:
        """Let some worker die by itself."""
        workers = [(m, w) for m in self.environment.machines.values() for w in m.workers]
        if workers:
            machine, worker = workers[int(draw * len(workers))]
            self.trace.note("nemesis", "worker-death", f"of lease {worker.lease}")
            machine.kill(worker)

    def slow_kills(self, server: str, kill_s: float, for_s: float) -> None:
        """Let workers take long to die."""
        machine = self.environment.machines[server]
        machine.kill_s = kill_s

        def undo() -> None:
            machine.kill_s = self.options.kill_s

        self.scheduler.after(for_s, undo)

    def operate(self, what: str, random: Random) -> None:
        """Let an operator do something."""
        state = self.environment.checkers.logs.state
        if what == "end-lease" and state.leases:
            self.operator.end_lease(random.choice(sorted(state.leases)))
        elif what == "revoke":
            user = random.choice(USERS)
            credentials = self._users.get(user)
            if credentials is not None:
                self.operator.revoke(credentials.token)
                self._new_user_token(user)
        elif what == "drain":
            server = self.environment.machines[random.choice(self.server_names())].server
            self.operator.drain(server, 0.5 + 4 * random.random())
        elif what == "relabel":
            server = self.environment.machines[random.choice(self.server_names())].server
            self.operator.relabel(server, {"rack": random.choice(RACKS)})
        elif what == "replace":
            self._replace(random.choice(self.server_names()))

    def _replace(self, name: str) -> None:
        """Remove a server for good; its machine joins again as another server.

        One at a time: an operator waits until the server has no vote before its disk is wiped.
        """
        if name not in self.servers or len(self.servers) < 3 or self._replacing:
            return
        self._replacing = name
        server = self.environment.machines[name].server
        self.operator.remove(server, partial(self._removed, name, server))

    def _removed(self, name: str, server: ServerId, agreed: bool) -> None:
        # The answer to an order that was done may be lost; its repetition finds no such server.
        agreed = agreed or server in self.environment.checkers.logs.state.removed
        leader = self.leader_name()
        replicated_log = self.servers[leader].replicated_log if leader is not None else None
        if not agreed or name not in self.servers:
            self._replacing = ""
        elif (
            replicated_log is None
            or server in replicated_log.node.core.voters
            or not replicated_log.node.core.settled
        ):
            self.scheduler.after(WITHOUT_VOTE_S, partial(self._removed, name, server, agreed))
        else:
            self._wipe(name)
            self._replacing = ""

    def _wipe(self, name: str) -> None:
        self.trace.note(name, "removed", "joins again as another server")
        machine = self.environment.machines[name]
        process = self.servers.pop(name)
        if process.alive:
            self._end_process(process)
        if machine.dark:
            machine.dark = False
            self.network.machine_came_back(name)
        machine.disk = SimulatedDisk(self.scheduler.random(f"disk/{name}/{self.scheduler.now}"))
        machine.disk.sync_latency_s = self.options.sync_s
        machine.server = ServerId(self._random.randbytes(6).hex())
        self.environment.machine_of[machine.server] = name
        self._join(name)

    # --- healing ----------------------------------------------------------------------------------

    def heal(self) -> None:
        """Undo every fault that is still in force."""
        self.healing = True
        self.trace.note("nemesis", "heal", "")
        names = [*self.environment.machines, *self.clients, "operator"]
        for source in names:
            for target in names:
                if source != target:
                    if self.network.blocked(source, target):
                        self.network.unblock(source, target)
                    self.network.link(source, target).slow_s = 0.0
        for name, machine in self.environment.machines.items():
            self._repair(name)
            machine.disk.power_fails_after = None
            machine.clock.set_rate(1.0)
            machine.kill_s = self.options.kill_s
            machine.hurry()
        for process in [*self.servers.values(), *self.clients.values()]:
            if process.paused:
                process.resume()
        for name in list(self.servers):
            if not self.servers[name].alive:
                self._restarts.add(name)
                self._restart(name)

    @property
    def replacing(self) -> bool:
        """Return whether a server is on its way out, or in."""
        return bool(self._replacing or self._joiners) or len(self.servers) < len(
            self.environment.machines
        )

    @property
    def converged(self) -> bool:
        """Return whether all servers agree on a leader, and the table shows all of them up."""
        state = self.environment.checkers.logs.state
        if self.replacing:
            return False
        leaders: set[ServerId | None] = set()
        for process in self.servers.values():
            server = state.servers.get(process.server)
            if not process.alive or process.controller is None or process.replicated_log is None:
                return False
            health = process.replicated_log.health()
            leaders.add(health.leader)
            current = self.environment.machines[process.machine].incarnation
            if server is None or server.status is not ServerStatus.UP:
                return False
            if server.incarnation != current or health.role is Role.REMOVED:
                return False
            if set(health.voters) != set(state.voters()):
                return False
            if process.table.state.index < self.environment.checkers.logs.newest - 20:
                return False
        return len(leaders) == 1 and None not in leaders
