"""The effects of faults on a cluster: each fault of the schedule is applied here, and healed."""

from functools import partial
from random import Random

from gpupool.consensus.storage.journal import JOURNAL, SUPERBLOCK
from gpupool.pool.model.ids import GpuId, ServerId
from gpupool.simulations.cluster.cluster import Cluster
from gpupool.simulations.cluster.moved_addresses import Moves
from gpupool.simulations.cluster.pool_recovery import Recovery
from gpupool.simulations.cluster.server_process import ServerProcess
from gpupool.simulations.kernel.machines import RACKS, Machine
from gpupool.simulations.kernel.quiescence import between
from gpupool.simulations.workload.drawn_policies import USERS

WRONG_CLOCK_PAUSE_S = 20.0
"""Between two wrong clocks: for so long the first may be believed where it cannot be asked."""

FORGET_PAUSE_S = 12.0
"""Between two servers that forget something: a pool stands one at a time."""

SIGN = "sign"
CURED_S = 2.5
"""After a sign: until nothing that its server proposed for it is under way."""

SILENCED = "disk", "clock", "temperature"
"""Checks that operators silence: so few that orders about the same one follow each other."""

RESPAWN_S = 2.0
"""Mean time until another client comes for one that is gone."""


class ClusterFaults:
    """Applies the faults of a run to its cluster; ``heal`` undoes all of them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._environment = cluster.environment
        self._scheduler = cluster.scheduler
        self._trace = cluster.trace
        self._network = cluster.network
        self._quiescence = cluster.quiescence
        self._healing = False
        self._turn = 0
        self._wrong_clock = ""
        self._wrong_by_ms = 0
        self._forgotten_at = -FORGET_PAUSE_S
        self._recovery = Recovery(cluster)
        self._moves = Moves(cluster.environment)
        self._episodes = 0

    # --- targets ----------------------------------------------------------------------------------

    def server_names(self) -> list[str]:
        """Return the machines of the pool's servers."""
        return self._cluster.server_names()

    def client_names(self) -> list[str]:
        """Return the machines of living clients."""
        return self._cluster.client_names()

    def leader_name(self) -> str | None:
        """Return the machine of the server that leads, if one does."""
        return self._cluster.leader_name()

    def next_server(self) -> str:
        """Return the next machine to be restarted."""
        names = self.server_names()
        self._turn += 1
        return names[self._turn % len(names)]

    # --- the network ------------------------------------------------------------------------------

    def reset(self, one: str, other: str) -> None:
        """Break the connections between two machines."""
        self._trace.note("nemesis", "reset", f"{one} - {other}")
        self._network.reset(one, other)
        self._quiescence.disturb(between(one, other))

    def slow(self, source: str, target: str, by_s: float, for_s: float) -> None:
        """Make one direction slow."""
        self._trace.note("nemesis", "slow-link", f"{source} > {target} by {by_s:.3f} s")
        link = self._network.link(source, target)
        link.slow_s = by_s
        self._quiescence.begin(between(source, target))

        def undo() -> None:
            link.slow_s = 0.0
            self._quiescence.end(between(source, target))

        self._scheduler.after(for_s, undo)

    def cut(self, pairs: list[tuple[str, str]], for_s: float) -> None:
        """Cut these directions."""
        if not pairs:
            return
        names = " ".join(f"{a}>{b}" for a, b in pairs if not (a[0] == "c" or b[0] == "c"))
        self._trace.note("nemesis", "cut", f"{names or len(pairs)} for {for_s:.2f} s")
        for source, target in pairs:
            self._network.block(source, target)
            self._quiescence.begin(between(source, target))
        self._scheduler.after(for_s, partial(self._mend, pairs))

    def _mend(self, pairs: list[tuple[str, str]]) -> None:
        self._trace.note("nemesis", "mend", f"{len(pairs)} directions")
        for source, target in pairs:
            self._quiescence.end(between(source, target))
            if self._network.blocked(source, target):
                self._network.unblock(source, target)

    # --- servers and their machines ---------------------------------------------------------------

    def kill(self, server: str, down_s: float) -> None:
        """Kill a server's process, and start the next one after ``down_s``."""
        process = self._cluster.servers.get(server)
        if process is None or not process.alive:
            return
        self._trace.note("nemesis", "kill", f"{server} for {down_s:.2f} s")
        self._cluster.end_process(process)
        self._cluster.restart_later(server, down_s)

    def readdress(self, random: Random) -> None:
        """Let servers come back with other addresses: all of them, some, or with one another's."""
        self._moves.readdress(sorted(self.server_names()), random, self.kill)

    def power_off(self, server: str, down_s: float) -> None:
        """Cut the power of a server's machine."""
        self._cluster.power_off(server, down_s)

    def tear(self, server: str, operations: int, down_s: float) -> None:
        """Let the power fail at one of the next file operations."""
        disk = self._environment.machines[server].disk
        if disk.power_fails_after is None:
            self._trace.note("nemesis", "torn", f"{server} after {operations} operations")
            disk.power_fails_after = operations

    def pause(self, server: str, for_s: float) -> None:
        """Stop a server's process for a while."""
        process = self._cluster.servers.get(server)
        if process is None or not process.alive or process.paused:
            return
        self._trace.note("nemesis", "pause", f"{server} for {for_s:.2f} s")
        process.pause()
        self._disturb(server, for_s)
        self._scheduler.after(for_s, process.resume)

    def clock_rate(self, server: str, rate: float, for_s: float) -> None:
        """Let a monotonic clock run at another rate."""
        self._trace.note("nemesis", "clock-rate", f"{server} at {rate} for {for_s:.2f} s")
        clock = self._environment.machines[server].clock
        clock.set_rate(rate)
        self._environment.checkers.unserved.clocks_differ(self._scheduler.now + for_s)
        self._environment.checkers.senders.clocks_differ(self._scheduler.now + for_s)
        self._disturb(server, for_s)
        self._scheduler.after(for_s, partial(clock.set_rate, 1.0))

    def clock_jump(self, server: str, by_ms: int) -> None:
        """Set a wall clock."""
        self._trace.note("nemesis", "clock-jump", f"{server} by {by_ms} ms")
        self._jump(server, by_ms)

    def clock_wrong(self, server: str, by_ms: int, for_s: float) -> None:
        """Set a wall clock wrong, and right again after ``for_s``; one at a time.

        The time of the pool is that of a majority: with more wrong clocks it would be theirs.
        """
        if self._wrong_clock:
            return
        self._trace.note("nemesis", "clock-wrong", f"{server} by {by_ms} ms for {for_s:.2f} s")
        self._wrong_clock, self._wrong_by_ms = server, by_ms
        self._jump(server, by_ms)
        self._scheduler.after(for_s, self._set_clock_right)
        self._scheduler.after(for_s + WRONG_CLOCK_PAUSE_S, self._clock_was_wrong)

    def _set_clock_right(self) -> None:
        if self._wrong_by_ms:
            self._trace.note("nemesis", "clock-right", self._wrong_clock)
            self._jump(self._wrong_clock, -self._wrong_by_ms)
            self._wrong_by_ms = 0

    def _clock_was_wrong(self) -> None:
        self._wrong_clock = ""

    def _jump(self, server: str, by_ms: int) -> None:
        # Before it too: a clock may be measured and set between two commands.
        environment = self._environment
        environment.checkers.time.observe(environment.wall_clocks(), self._scheduler.now)
        environment.machines[server].clock.jump_wall(by_ms)
        environment.checkers.time.observe(environment.wall_clocks(), self._scheduler.now)

    def forget(self, server: str, what: str, random: Random) -> None:
        """Let a server forget by "old-copy", "lost-tail" or "rot", if no other one does."""
        process, cluster = self._cluster.servers.get(server), self._cluster
        now, disk = self._scheduler.now, self._environment.machines[server].disk
        if process is None or not self._may_forget():
            return
        self._forgotten_at = now
        self._trace.note("nemesis", what, server)
        cluster.end_process(process)
        if SUPERBLOCK in disk.names():
            # A power loss that undoes the superblock's last note too would be a second fault, which
            # nobody notices while those that know more are down (decision 32; seed 10101811).
            disk.put(SUPERBLOCK, disk.read(SUPERBLOCK))
        if what == "old-copy":
            later_s = 2.0 + 4.0 * random.random()
            image = disk.image()
            self._scheduler.after(later_s, partial(self._bring_back, server, process, image))
        elif what == "lost-tail":
            size = len(disk.read(JOURNAL)) if JOURNAL in disk.names() else 0
            disk.lose_tail(JOURNAL, random.randint(1, max(1, min(400, size // 4))))
        else:
            disk.rot(random)
        if what != "old-copy":
            self._environment.checkers.promises.forgot(server)
            cluster.rotten[server] = what
            self._scheduler.after(FORGET_PAUSE_S / 2, partial(self._end_rot, server))
        cluster.restart_later(server, 0.05 + 0.5 * random.random())

    def _end_rot(self, server: str) -> None:
        self._cluster.rotten.pop(server, None)

    def flip(self, server: str, draw: float) -> None:
        """Let a bit of a server's table flip in memory, if tables are hashed, and no other has.

        With two such servers of three, nobody could say which table is the right one. Nor could
        they with fewer than three voters: a flipped one that is alone is the majority. So none
        flips while a server is on its way out, either (seed 10233183).
        """
        cluster, process = self._cluster, self._cluster.servers.get(server)
        if process is None or not process.alive or not cluster.options.hash_s:
            return
        if cluster.replacing or cluster.has_flipped:
            return
        state = process.table.state
        if state.acts and len(state.voters()) > 2:
            self._trace.note("nemesis", "bit", server)
            process.table.flip(draw)

    def clone(self, server: str) -> None:
        """Start a copy of a server beside it, while all servers are there and reach each other."""
        process, cluster = self._cluster.servers.get(server), self._cluster
        if process is None or not self._may_forget() or cluster.clones.active:
            return
        names = self.server_names()
        reach = all(not self._network.blocked(a, b) for a in names for b in names if a != b)
        # Each from its own side: one of the two may not know that the other has started anew.
        ends = [
            each.links.connected() for each in cluster.servers.values() if each.links is not None
        ]
        mine = process.links.connected() if process.links is not None else ()
        linked = len(mine) == len(names) - 1 == sum(process.server in end for end in ends)
        if reach and linked:
            self._forgotten_at = self._scheduler.now
            cluster.clones.start(process)

    def recover(self, random: Random) -> None:
        """Lose all servers but one for good, if all were there; their machines join anew."""
        if self._may_forget() and not self._cluster.clones.active:
            self._recovery.happen(random)

    def disturbed(self) -> None:
        """Take note of a fault that may keep servers from hearing of each other."""
        now = self._scheduler.now
        self._cluster.clones.disturbed(now)
        self._recovery.disturbed_at = now

    def _may_forget(self) -> bool:
        """Return whether all servers are there, so that one may lose its persisted votes."""
        cluster = self._cluster
        recent = self._scheduler.now - self._forgotten_at < FORGET_PAUSE_S
        return not (recent or self._healing or cluster.replacing) and self._all_vote()

    def _all_vote(self) -> bool:
        """Return whether all servers are there, and those vote that should.

        While the place of a lost voter is not taken yet, the loss of another one stops the pool
        for good, as it must (seed 108). So does that of one while another gets back what its
        journal has lost (seed 10020008).
        """
        servers = self._cluster.servers.values()
        ids = {each.server for each in servers}
        for each in servers:
            if not each.alive or each.replicated_log is None:
                return False
            if each.replicated_log.node.core.abstains:
                return False
            voters = set(each.replicated_log.health().voters)
            if voters != set(each.table.state.voters()) or not voters <= ids:
                return False
        return True

    def _bring_back(self, server: str, before: ServerProcess, image: dict[str, bytes]) -> None:
        """Replace a server's files by a copy from before its last start, of which all others know.

        With a server that does not know of it, the copy might make a majority that lacks what is
        committed: then two would have forgotten.
        """
        self._forgotten_at = -FORGET_PAUSE_S
        process, cluster = self._cluster.servers.get(server), self._cluster
        if process is None or process.server != before.server or not self._may_forget():
            return
        assert process.replicated_log is not None
        boot = process.replicated_log.node.storage.journal.boot
        for other in cluster.servers.values():
            assert other.replicated_log is not None
            memory = other.replicated_log.node.storage.memory
            if other is not process and memory.of(process.server).start.boot != boot:
                return
        self._forgotten_at = self._scheduler.now
        self._trace.note("nemesis", "restored", f"{server} from a copy before its last start")
        cluster.end_process(process)
        self._environment.machines[server].disk.restore(image)
        self._environment.checkers.leaders.forgot(process.server)
        self._environment.checkers.promises.forgot(server)
        cluster.restart_later(server, 0.1)

    def disk(self, server: str, what: str, for_s: float) -> None:
        """Make a disk slow, full or broken."""
        self._trace.note("nemesis", f"disk-{what}", f"{server} for {for_s:.2f} s")
        disk = self._environment.machines[server].disk
        if what == "slow":
            disk.sync_latency_s = 0.01 + 0.3 * self._cluster.random.random()
        elif what == "full":
            disk.full = True
        else:
            disk.broken = True
        self._disturb(server, for_s)
        self._scheduler.after(for_s, partial(self._repair, server))

    def _disturb(self, machine: str, for_s: float) -> None:
        self._quiescence.begin(machine)
        self._scheduler.after(for_s, partial(self._quiescence.end, machine))

    def _repair(self, server: str) -> None:
        disk = self._environment.machines[server].disk
        disk.repair()
        disk.sync_latency_s = self._cluster.options.sync_s

    def kill_worker(self, draw: float) -> None:
        """Let some worker die by itself."""
        workers = [(m, w) for m in self._environment.machines.values() for w in m.workers]
        if workers:
            machine, worker = workers[int(draw * len(workers))]
            self._trace.note("nemesis", "worker-death", f"of lease {worker.lease}")
            machine.kill(worker)

    def slow_kills(self, server: str, kill_s: float, for_s: float) -> None:
        """Let workers take long to die."""
        machine = self._environment.machines[server]
        machine.kill_s = kill_s

        def undo() -> None:
            machine.kill_s = self._cluster.options.kill_s

        self._scheduler.after(for_s, undo)

    def show_sign(self, server: str, draw: float, for_s: float, undrain_s: float) -> None:
        """Let a GPU show a sign of failing for a while; an operator undrains it meanwhile."""
        machine = self._environment.machines[server]
        gpu = machine.gpus()[int(draw * len(machine.gpus()))].id
        if self._healing or (gpu, SIGN) in machine.signs:
            return
        self._episodes += 1
        self._trace.note("nemesis", "sign", f"{gpu} for {for_s:.2f} s")
        machine.signs[gpu, SIGN] = f"episode {self._episodes}"
        self._scheduler.after(undrain_s, partial(self._undrain, machine, gpu))
        self._scheduler.after(for_s, partial(self._cure, machine, gpu))

    def _cure(self, machine: Machine, gpu: GpuId) -> None:
        machine.signs.pop((gpu, SIGN), None)
        # What its server proposed last may be applied yet.
        self._scheduler.after(CURED_S, partial(self._undrain, machine, gpu))

    def _undrain(self, machine: Machine, gpu: GpuId) -> None:
        self._cluster.operator.undrain_gpu(machine.server, gpu)

    # --- clients ----------------------------------------------------------------------------------

    def kill_client(self, name: str, *, silently: bool) -> None:
        """Let a client end, or vanish with its machine."""
        self._trace.note("nemesis", "client-dark" if silently else "client-kill", name)
        client = self._cluster.clients.pop(name)
        client.kill()
        if silently:
            self._network.machine_went_dark(name)
        else:
            self._network.process_died(client)
        if not self._healing:
            delay_s = RESPAWN_S * self._cluster.random.expovariate(1.0)
            self._scheduler.after(delay_s, self._cluster.spawn_client)

    def pause_client(self, name: str, for_s: float) -> None:
        """Stop a client's process for a while."""
        client = self._cluster.clients[name]
        if not client.paused:
            self._trace.note("nemesis", "client-pause", f"{name} for {for_s:.2f} s")
            client.pause()
            self._disturb(name, for_s)
            self._scheduler.after(for_s, client.resume)

    # --- operators --------------------------------------------------------------------------------

    def operate(self, what: str, random: Random) -> None:
        """Let an operator do something."""
        state = self._environment.checkers.logs.state
        if what == "end-lease" and state.leases:
            self._cluster.operator.end_lease(random.choice(sorted(state.leases)))
        elif what == "revoke":
            self._cluster.renew_token(random.choice(USERS))
        elif what == "drain":
            server = self._draw_server(random)
            self._cluster.operator.drain(server, 0.5 + 4 * random.random())
        elif what == "suspend" and state.leases:
            lease = random.choice(sorted(state.leases))
            self._cluster.operator.suspend(lease, 0.5 + 4 * random.random())
        elif what == "move" and state.leases:
            known = sorted(state.leases)
            running = [each for each in known if state.leases[each].suspension is None]
            lease = (
                random.choice(running or known) if random.random() < 0.8 else random.choice(known)
            )
            server = random.choice(sorted(state.leases[lease].parts))
            gpus = sorted(state.servers[server].gpus) if server in state.servers else []
            count = sum(part.server == server for part in state.leases[lease].partitions)
            named = random.random() < 0.5 and count <= len(gpus)
            to = random.sample(gpus, count) if named else []  # else the pool chooses
            self._cluster.operator.move(lease, server, tuple(to))
        elif what == "relocate" and state.leases:
            lease = random.choice(sorted(state.leases))
            self._cluster.operator.relocate(lease, self._draw_server(random))
        elif what == "drain-gpu":
            machine = self._environment.machines[random.choice(self.server_names())]
            gpu = random.choice(machine.gpus()).id
            self._cluster.operator.drain_gpu(machine.server, gpu, 0.5 + 4 * random.random())
        elif what == "relabel":
            server = self._draw_server(random)
            self._cluster.operator.relabel(server, {"rack": random.choice(RACKS)})
        elif what == "set-clock":
            self._cluster.operator.set_clock()
        elif what == "rotate-ca":
            self._cluster.operator.rotate_ca()
        elif what == "retire-ca":
            self._cluster.operator.retire_ca()
        elif what == "silence":
            named = self._environment.machines[random.choice(self.server_names())]
            server = f"{named.name}-{named.server[:4]}" if random.random() < 0.5 else ""
            for_s = 0.2 * 60 ** random.random() if random.random() < 0.8 else 0.0
            self._cluster.operator.silence(random.choice(SILENCED), server, for_s)
        elif what == "forget-user":
            patience_s = 8.0 if random.random() < 0.9 else 0.0
            self._cluster.operator.forget_user(random.choice(USERS), patience_s)
        elif what == "backup":
            self._cluster.operator.back_up()
        elif what == "replace":
            self._cluster.replace(random.choice(self.server_names()))

    def _draw_server(self, random: Random) -> ServerId:
        return self._environment.machines[random.choice(self.server_names())].server

    # --- healing ----------------------------------------------------------------------------------

    def heal(self) -> None:
        """Undo every fault that is still in force."""
        self._healing = True
        self._trace.note("nemesis", "heal", "")
        self._set_clock_right()
        names = [*self._environment.machines, *self._cluster.clients, "operator"]
        for source in names:
            for target in names:
                if source != target:
                    if self._network.blocked(source, target):
                        self._network.unblock(source, target)
                    self._network.link(source, target).slow_s = 0.0
        for name, machine in self._environment.machines.items():
            self._repair(name)
            machine.disk.power_fails_after = None
            machine.clock.set_rate(1.0)
            machine.kill_s = self._cluster.options.kill_s
            machine.hurry()
            for gpu, _ in list(machine.signs):
                self._cure(machine, gpu)
        for process in [*self._cluster.servers.values(), *self._cluster.clients.values()]:
            if process.paused:
                process.resume()
        self._cluster.restart_down_servers()
        self._recovery.heal()
