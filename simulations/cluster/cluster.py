"""The cluster: the machines, servers and clients of one pool, all in one process."""

import itertools
from functools import partial
from hashlib import sha256

from gpupool.pool.model.commands import Command, CreatePool, CreateToken, JoinServer
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.model.state import PoolState, ServerStatus, TokenKind
from gpupool.pool.ports import Role
from gpupool.remoting.server.proposer import Decision
from gpupool.simulations.cluster.caller import CONTROL
from gpupool.simulations.cluster.client_connections import Credentials
from gpupool.simulations.cluster.clients import ClientProcess, Counters
from gpupool.simulations.cluster.clones import Clones
from gpupool.simulations.cluster.operators import Joiner, Operator, PolicyWriter, draw_credentials
from gpupool.simulations.cluster.run_context import Checkers, Environment
from gpupool.simulations.cluster.server_process import ServerProcess
from gpupool.simulations.cluster.simulated_alerts import Drawn
from gpupool.simulations.cluster.simulated_driver import SimulatedCommitter
from gpupool.simulations.cluster.simulated_links import KIND as PEER
from gpupool.simulations.kernel.drifting_clock import DriftingClock
from gpupool.simulations.kernel.failure_reporter import FailureReporter
from gpupool.simulations.kernel.machines import Machine
from gpupool.simulations.kernel.quiescence import QuiescenceTracker
from gpupool.simulations.kernel.scheduler import Scheduler
from gpupool.simulations.kernel.simulated_disk import SimulatedDisk
from gpupool.simulations.kernel.simulated_network import Network
from gpupool.simulations.kernel.swarm_options import Options
from gpupool.simulations.kernel.trace import Trace
from gpupool.simulations.workload.drawn_policies import USERS
from gpupool.simulations.workload.long_lines import begin_line, part_in_line

PEER_TIMEOUT_S = CLIENT_TIMEOUT_S = 10.0
"""As ``peer_transport`` and ``control_server`` have them."""

EVENTS_PER_S = 300
"""Of one machine in a virtual second, over a whole run: five times the usual. More is a loop."""

BURST_PER_S = 1_000
"""The same in one single second: eight times the events of a scenario's busiest second."""

AROUND_S = 60.0
"""Seconds of a run besides its faults and its healing: to make the pool, and to settle."""

FORMER_AGAIN_S = 0.5
"""Interval at which a server orders the removal of its former self, as ``compose`` has it."""

WITHOUT_VOTE_S = 0.1
"""How often an operator checks whether a removed server still has a vote."""


class Cluster:
    """Everything that one run simulates. Faults act on it through ``ClusterFaults``."""

    def __init__(self, options: Options, *, only: str = "") -> None:
        """Make a cluster that does nothing yet; with ``only``, one checker alone can fail it."""
        machines = options.servers + options.clients
        run_s = AROUND_S + options.fault_s + options.heal_s
        scheduler = Scheduler(
            options.seed,
            events_max=int(EVENTS_PER_S * machines * run_s),
            burst_max=BURST_PER_S * machines,
        )
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
        empty = PoolState(starved_after_ms=int(options.starved_s * 1000))
        checkers = Checkers(self.failures, empty)
        self.environment = Environment(
            options,
            scheduler,
            trace,
            network,
            checkers,
            empty,
            self.quiescence,
            Drawn(scheduler.random("alerts")),
        )
        self.options = options
        self.scheduler = scheduler
        self.trace = trace
        self.network = network
        self.counters = Counters()
        self.servers: dict[str, ServerProcess] = {}
        self.clients: dict[str, ClientProcess] = {}
        self._joiners: dict[str, Joiner] = {}
        self.random = scheduler.random("cluster")
        self._client_numbers = itertools.count(1)
        self._restarts: set[str] = set()
        self.clones = Clones(self.environment)
        self._replacing = self._rejoining = ""
        self._former: dict[str, ServerId] = {}
        self.rotten: dict[str, str] = {}  # by machine, what happened to its disk
        """Machines with a damaged disk, so that their server may be unable to start."""
        admin = draw_credentials(self.random, "admin")
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
            process.table_clock,
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

    def renew_token(self, user: str) -> None:
        """Let the operator revoke a user's token, and make another."""
        credentials = self._users.get(user)
        if credentials is not None:
            self.operator.revoke(credentials.token)
            self._new_user_token(user)

    @property
    def complete(self) -> bool:
        """Return whether all servers are up and vote as they should."""
        state = self.environment.checkers.logs.state
        up = [s for s in state.servers.values() if s.status is ServerStatus.UP]
        return len(up) == len(self.environment.machines) and self.converged

    def start_clients(self) -> None:
        """Let the clients come."""
        if self.options.policy_s:
            PolicyWriter(self.environment, self.operator, self.random).put_later()
        begin_line(self.options, self.operator, self.environment.last_server)
        for _ in range(self.options.clients):
            self.spawn_client()

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
            gpus_gib=[random.choice(options.gpu_gib)] * options.gpus,
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
        if name in self._former:
            self._remove_former(self._former.pop(name))

    def _remove_former(self, former: ServerId) -> None:
        self.operator.remove(former, partial(self._rejoined, former))

    def _rejoined(self, former: ServerId, agreed: bool) -> None:
        """Order it once more if the pool refused, as a server does after ``gpupool rejoin``."""
        if agreed or former not in self.environment.checkers.logs.state.servers:
            self._rejoining = ""
        else:
            self.scheduler.after(FORMER_AGAIN_S, partial(self._remove_former, former))

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
        name = process.machine
        self.trace.note(name, "stopped", reason)
        self.clones.died(process, reason)
        passes = "cannot be written" in reason or "cannot be reserved" in reason
        if (name in self.rotten and not passes) or "may not take part" in reason:
            self.end_process(process)
            self.rejoin(name)
            return
        if "damaged" in reason or "missing" in reason:
            self.failures.fail("starts-again", f"{process.machine} {reason}")
        self.end_process(process)
        self.restart_later(process.machine, 1.0 + self.random.random())

    def end_process(self, process: ServerProcess) -> None:
        """Kill a server's process; nothing starts it again by itself."""
        self.quiescence.disturb(process.machine)
        process.kill()
        self.network.process_died(process)
        self.clones.died(process, "")

    def power_off(self, server: str, down_s: float) -> None:
        """Cut the power of a server's machine."""
        machine, process = self.environment.machines[server], self.servers.get(server)
        if machine.dark or process is None:
            return
        self.trace.note("nemesis", "power", f"{server} for {down_s:.2f} s")
        machine.dark = True
        self.quiescence.disturb(server)
        process.kill()
        self.clones.died(process, "power")
        machine.disk.lose_power()
        machine.lose_workers()
        self.network.machine_went_dark(server)
        self.restart_later(server, down_s)

    def restart_later(self, name: str, down_s: float) -> None:
        """Start a machine's server after ``down_s``, unless its restart is due already."""
        if name not in self._restarts:
            self._restarts.add(name)
            self.scheduler.after(down_s, partial(self.start_again, name))

    def restart_down_servers(self) -> None:
        """Start every server that is down, at once."""
        for name in list(self.servers):
            self.start_again(name)

    def start_again(self, name: str) -> None:
        """Start a machine's server, unless it runs."""
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

    def server_names(self) -> list[str]:
        """Return the machines of the pool's servers, those that just join again too."""
        return list(self.environment.machines)

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

    # --- clients ----------------------------------------------------------------------------------

    def spawn_client(self) -> None:
        """Let one more client come."""
        name = f"c{next(self._client_numbers)}"
        random = self.scheduler.random(f"client/{name}")
        user, _ = part_in_line(self.options, name) or (random.choice(USERS), "")
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

    def client_names(self) -> list[str]:
        """Return the machines of living clients."""
        return [name for name, client in self.clients.items() if client.alive]

    # --- replacing a server -----------------------------------------------------------------------

    def replace(self, name: str) -> None:
        """Remove a server for good; its machine joins again as another server.

        One at a time: an operator waits until the server has no vote before its disk is wiped.
        None while another's disk or table is damaged: of three one is left (seed 10041486).
        """
        under_way = self._replacing or self._rejoining or "rot" in self.rotten.values()
        if name not in self.servers or len(self.servers) < 3 or under_way or self.has_flipped:
            return
        self._replacing = name
        server = self.environment.machines[name].server
        self.operator.remove(server, partial(self._removed, name, server))

    def rejoin(self, name: str, *, at_once: bool = False) -> None:
        """Do ``gpupool rejoin`` on a machine with a server that must not go on as itself.

        One at a time, or ``at_once``: those that wait may be started again as they were.
        """
        self._rejoin(name, self.environment.machines[name].server, at_once=at_once)

    def _rejoin(self, name: str, former: ServerId, *, at_once: bool = False) -> None:
        if name not in self.servers or self.environment.machines[name].server != former:
            return  # It was removed or has joined again meanwhile (seed 1039): once is enough.
        # No wait for a replacement: it may need the answers of this very server (seed 89).
        if self._rejoining and self._rejoining != name and not at_once:
            self.scheduler.after(WITHOUT_VOTE_S, partial(self._rejoin, name, former))
            return
        self.rotten.pop(name, None)
        self._rejoining = name
        self._former[name] = former
        self._wipe(name)

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
            self.end_process(process)
        if machine.dark:
            machine.dark = False
            self.network.machine_came_back(name)
        machine.disk = SimulatedDisk(self.scheduler.random(f"disk/{name}/{self.scheduler.now}"))
        machine.disk.sync_latency_s = self.options.sync_s
        machine.server = ServerId(self.random.randbytes(6).hex())
        self.environment.machine_of[machine.server] = name
        self._join(name)

    # --- the state of the pool --------------------------------------------------------------------

    @property
    def has_flipped(self) -> bool:
        """Return whether a bit has flipped in the table of a living server."""
        return any(each.alive and each.table.is_flipped for each in self.servers.values())

    @property
    def replacing(self) -> bool:
        """Return whether a server is on its way out, or in."""
        under_way = self._replacing or self._rejoining or self._joiners
        return bool(under_way) or len(self.servers) < len(self.environment.machines)

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
