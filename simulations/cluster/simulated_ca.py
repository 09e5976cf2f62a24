"""The CA of one server process: its rules are those of ``transport.authority.ca_exchange``.

The messages of an exchange take a moment here, and reach whom this server has a link with.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Protocol

from gpupool.pool.errors import DeniedError, GpupoolError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.transitions.authorities import fingerprint_of, moves_on
from gpupool.remoting.server.actions import Action
from gpupool.remoting.server.controller import Controller
from gpupool.remoting.transport.authority.ca_exchange import STRANGERS_AFTER_S
from gpupool.remoting.transport.authority.ca_store import NextCa
from gpupool.simulations.cluster.run_context import Environment
from gpupool.simulations.cluster.simulated_links import SimulatedTransport
from gpupool.simulations.cluster.watched_tables import WatchedMachine
from gpupool.simulations.kernel.ca_files import CaFiles, numbers, trust_each_other
from gpupool.simulations.kernel.machines import Machine

MESSAGE_S = 0.02
RETRY_S = 0.5


class CaProcess(Protocol):
    """The part of a server process that its CA needs."""

    server: ServerId
    table: WatchedMachine
    links: SimulatedTransport | None

    def after(self, delay_s: float, action: Callable[[], None], /) -> Any:
        """Do something later, if the process still lives."""
        ...

    def controlled(self, act: Callable[[Controller], list[Action]]) -> None:
        """Tell the controller something, and carry out its actions."""
        ...


class SimulatedSigner:
    """Signs anything with the oldest CA: certificates are not tested here."""

    def __init__(self, files: CaFiles) -> None:
        self._ca = files.trusted[0]

    def sign(self, server: ServerId, csr_pem: bytes) -> bytes:
        """Return a certificate."""
        return server.encode()

    def ca_pem(self) -> bytes:
        """Return the CA's certificate."""
        return self._ca

    def ca_sha256(self) -> bytes:
        """Return the SHA-256 of the CA's certificate."""
        return fingerprint_of(self._ca)


class SimulatedCa:
    """See the module."""

    signer_has_own_user = True

    def __init__(
        self, process: CaProcess, environment: Environment, machine: Machine, random: Random
    ) -> None:
        self._process = process
        self._environment = environment
        self._machine = machine
        self._random = random
        self._renewing = False

    @property
    def files(self) -> CaFiles:
        """Return the CA files on the disk."""
        return self._machine.authorities

    def ca_pem(self) -> bytes:
        """Return every CA that is trusted."""
        return b"".join(self.files.trusted)

    def problems(self) -> tuple[str, ...]:
        """Return nothing: certificates are not tested here."""
        return ()

    def signer(self) -> SimulatedSigner | None:
        """Return the signer for servers that join."""
        return SimulatedSigner(self.files) if self.files.trusted[0] in self.files.keys else None

    def has_keys(self) -> bool:
        """Return whether this server has the key of every CA that is trusted."""
        return self.files.keys.issuperset(self.files.trusted)

    def issuer(self) -> bytes:
        """Return the fingerprint of the CA that has signed the newest certificate."""
        return fingerprint_of(self.files.newest)

    def trusts(self, machine: str) -> bool:
        """Return whether a link with another machine can come up."""
        other = self._environment.find(machine)
        return other is not None and trust_each_other(self.files, other.authorities)

    def follow(self) -> None:
        """Trust the CAs that the table trusts, and get a certificate that fits."""
        files, authorities = self.files, self._process.table.state.authorities
        if authorities and moves_on(numbers(files.trusted), numbers(authorities)):
            text = " and ".join(each.decode() for each in authorities)
            self._environment.trace.note(self._machine.name, "trusts", f"CA {text}")
            files.trusted = authorities
            if files.usual not in authorities:
                files.usual = files.newest
            if len(authorities) == 1:
                files.keys &= set(authorities)
                self._process.after(STRANGERS_AFTER_S, self._cut)
            self._changed()
            tell = partial(self._process.controlled, lambda each: each.ca_changed())
            self._process.after(0.0, tell)
        if files.newest != files.trusted[-1] and not self._renewing:
            self._renewing = True
            self._process.after(MESSAGE_S, self._renew)

    def started(self) -> None:
        """Take note that the process serves."""
        self._changed()
        self.follow()

    def ask_key(self, peer: ServerId) -> None:
        """Get the keys that a peer has, if there is a link."""
        self._process.after(MESSAGE_S, partial(self._take_keys, peer))

    def make(self, number: int) -> None:
        """Make the next CA, and give its key to the voters."""
        self._process.after(MESSAGE_S, partial(self._make, number))

    # --- inside ----------------------------------------------------------------------------------

    def _changed(self) -> None:
        environment = self._environment
        state = environment.checkers.logs.state
        environment.checkers.authorities.changed(state, environment.machines.values())

    def _linked(self, servers: tuple[ServerId, ...]) -> dict[ServerId, CaFiles]:
        """Return the disks of those servers that this one has a link with."""
        links, found = self._process.links, dict[ServerId, CaFiles]()
        connected = links.connected() if links is not None else ()
        for server in servers:
            name = self._environment.locate(server)
            machine = self._environment.machines[name] if name is not None else None
            if server not in connected or machine is None or machine.server != server:
                continue
            if machine.process is not None and machine.process.alive:
                found[server] = machine.authorities
        return found

    def _take_keys(self, peer: ServerId) -> None:
        for other in self._linked((peer,)).values():
            self.files.keys |= other.keys.intersection(self.files.trusted)

    def _renew(self) -> None:
        files = self.files
        wanted = files.trusted[-1]
        signers = [files, *self._linked(self._process.table.state.voters()).values()]
        if not any(wanted in each.keys and each.trusted[-1] == wanted for each in signers):
            self._process.after(RETRY_S, self._renew)
            return
        self._renewing = False
        files.newest = wanted
        if len(files.trusted) == 1:
            files.usual = wanted
        self._changed()
        self._process.controlled(lambda each: each.reconcile_now())

    def _make(self, number: int) -> None:
        files, voters = self.files, self._process.table.state.voters()
        result: NextCa | GpupoolError = DeniedError("two CAs are trusted already")
        if len(files.trusted) == 1:
            old = files.trusted[0]
            new = b"%d %s" % (numbers((old,))[0] + 1, self._random.randbytes(4).hex().encode())
            linked = self._linked(voters)
            kept = {each: found for each, found in linked.items() if len(found.trusted) == 1}
            if self._process.server in voters:
                kept[self._process.server] = files
            for each in kept.values():
                each.keys.add(new)
            # The pool may have other voters by the time that anything is applied (seed 10281725).
            environment = self._environment
            now = environment.scheduler.now
            environment.checkers.authorities.look(environment.machines.values(), now)
            result = NextCa(old, new, keepers=tuple(kept))
            if 2 * len(kept) <= len(voters):
                result = GpupoolError("too few voters have the next CA's key")
        self._process.controlled(lambda each: each.ca_made(number, result))

    def _cut(self) -> None:
        """End all links: most of them were opened by certificates of the CA that was dropped."""
        if self._process.links is not None:
            self._process.links.drop_all()
