"""The sources of a program's lease: requested for it, held before, or requested at first use."""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from gpupool.pool.errors import DeniedError, GpupoolError, LeaseLostError, first_error
from gpupool.pool.model.ids import RequestId
from gpupool.pool.model.state import Filter, Placement, Request
from gpupool.remoting.client.lease_handle import LeaseHandle
from gpupool.remoting.client.moving_lease import Bring
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.client.session_answer import SessionAnswer
from gpupool.remoting.local.logins import Patience, client_name, connected, stored_credentials
from gpupool.remoting.program.held_leases import HeldRecord, LocalLease, find_held
from gpupool.remoting.program.lease_devices import Devices, lease_devices
from gpupool.remoting.program.program_lease import ProgramLease, SessionRequest

if TYPE_CHECKING:
    from gpupool.pool.view import PoolView


@dataclass(frozen=True, slots=True)
class Wanted:
    """The GPUs that a command line asks for, and the longest wait for them."""

    count: int = 1
    fraction: float = 1.0  # of each GPU; 0 when ``memory`` is given
    memory: int = 0  # bytes on each GPU; 0 when ``fraction`` is given
    servers: tuple[str, ...] = ()
    filters: tuple[Filter, ...] = ()
    across: bool = False
    placement: Placement = Placement.PACK
    wait_s: float | None = None  # None: for as long as it takes
    idle_timeout_s: float = 0.0  # give it up when unused for so long; 0: no wish
    preemptible: bool = False  # it may be suspended for requests of higher priority
    share: float = 0.0  # of each GPU's time when others want theirs; 0: as of its memory

    def request(self, program: str) -> Request:
        """Return a new request for this, on behalf of ``program``."""
        return Request(
            id=RequestId(secrets.token_bytes(16)),
            count=self.count,
            fraction=self.fraction,
            memory=self.memory,
            servers=self.servers,
            across=self.across,
            filters=self.filters,
            placement=self.placement,
            client=client_name(),
            program=program,
            idle_timeout_s=self.idle_timeout_s,
            preemptible=self.preemptible,
            share=self.share,
        )


def unknown_text(names: Sequence[str]) -> str:
    """Return the message about requested servers that do not exist."""
    return f"the pool has no server named {', '.join(names)}"


RELEASE_S = 2.0
"""Longest wait for the release to be confirmed; closing the connection ends the lease as well."""

VIEW_TIMEOUT_S = 3.0
"""Longest wait for the pool's view, which says more of a lease not held on this machine."""


def void_text(hold: LeaseHandle, why: str) -> str:
    """Return the text for programs about the loss of their lease."""
    return f"{why}; lease {hold.name} is void"


class GrantedLease(ProgramLease):
    """A lease that this process has taken and keeps until the program ends."""

    def __init__(self, handle: LeaseHandle) -> None:
        self._handle = handle

    @property
    def name(self) -> str:
        """Return the name of the lease."""
        return self._handle.name

    def server_names(self) -> tuple[str, ...]:
        """Return the names of its servers."""
        return self._handle.server_names()

    async def open_session(self, request: SessionRequest) -> list[SessionAnswer]:
        """Open a session on every server of the lease.

        Raises:
            GpupoolError: when the lease is over, or a server cannot start a worker.
        """
        return await self._handle.open_session(
            request.door, request.program, request.visible, request.settings
        )

    def follow(self, bring: Bring) -> None:
        """Call ``bring`` to move the program's process when the lease goes to another server."""
        self._handle.bring = bring

    async def wait_lost(self) -> str:
        """Wait until the lease ends without having been released; return the text for programs."""
        return void_text(self._handle, await self._handle.wait_lost())

    async def check(self) -> str:
        """Ask the servers of the lease; return why it is over, empty while it is held."""
        why = await self._handle.check()
        return void_text(self._handle, why) if why else ""

    async def describe(self) -> dict[str, object]:
        """Return the partitions of the lease.

        Raises:
            GpupoolError: when no server answers.
        """
        return (await lease_devices(self._handle)).fields()


class LazyLease(ProgramLease):
    """A lease that is taken when the program first asks for a session.

    When it ends before the program, the next session takes a new one.
    """

    def __init__(
        self,
        credentials: str | None,
        allocate: Callable[[Pool], Awaitable[LeaseHandle]],
        taken: Callable[[Pool, LeaseHandle], Awaitable[None]],
        be_patient: Callable[[], Patience | None] = lambda: None,
    ) -> None:
        """Prepare; ``run`` must be running for anything to happen.

        Args:
            credentials: file of the credentials, if not the user's own.
            allocate: waits for GPUs.
            taken: called with each lease that was taken.
            be_patient: begins the time to wait, at each connecting.
        """
        self._credentials = credentials
        self._allocate = allocate
        self._taken = taken
        self._be_patient = be_patient
        self._wanted = trio.Event()
        self._settled = trio.Event()
        self._lost = trio.Event()
        self._hold: LeaseHandle | None = None
        self._bring: Bring | None = None
        self._failure: GpupoolError | None = None
        self._why_lost = ""
        self._closing = False
        self._connecting = trio.CancelScope()
        self._holding: trio.CancelScope | None = None

    @property
    def name(self) -> str:
        """Return the name of the lease; empty while there is none."""
        return self._hold.name if self._hold is not None else ""

    def server_names(self) -> tuple[str, ...]:
        """Return the names of its servers; none while there is no lease."""
        return self._hold.server_names() if self._hold is not None else ()

    async def run(self) -> None:
        """Take a lease whenever one is wanted, until ``close``."""
        while not self._closing:
            await self._wanted.wait()
            if self._closing:
                return
            try:
                with trio.CancelScope() as self._connecting:
                    async with connected(self._credentials, self._be_patient()) as pool:
                        with trio.CancelScope() as self._holding:
                            await self._hold_one(pool)
            except Exception as group:
                error = first_error(group)
                if not isinstance(error, GpupoolError):
                    raise
                self._failure = error
                self._settle()
            finally:
                self._holding = None

    def close(self) -> None:
        """Give the lease back, or the place in the line; ``run`` returns once that is done."""
        self._closing = True
        self._wanted.set()
        # Connections that exist are needed to withdraw the request from the pool.
        (self._holding or self._connecting).cancel()

    def _settle(self) -> None:
        """Wake the session requests that wait; the next one asks for a lease again."""
        self._wanted, settled = trio.Event(), self._settled
        self._settled = trio.Event()
        settled.set()

    async def _hold_one(self, pool: Pool) -> None:
        hold = await self._allocate(pool)
        try:
            await self._taken(pool, hold)
            if self._bring is not None:
                hold.bring = self._bring
            self._hold = hold
            self._settle()
            self._why_lost = void_text(hold, await hold.wait_lost())
            lost, self._lost = self._lost, trio.Event()
            lost.set()
        finally:
            self._hold = None
            with trio.move_on_after(RELEASE_S, shield=True):
                await hold.release()

    async def open_session(self, request: SessionRequest) -> list[SessionAnswer]:
        """Open a session, on a lease that is taken now if there is none.

        Raises:
            GpupoolError: when there is no lease to be had, or it cannot serve a session.
        """
        if self._hold is None:
            self._failure = None
            self._wanted.set()
            await self._settled.wait()
        hold = self._hold
        if hold is None:
            raise self._failure or LeaseLostError(self._why_lost)
        return await GrantedLease(hold).open_session(request)

    def follow(self, bring: Bring) -> None:
        """Call ``bring`` to move the program's process when the lease goes to another server."""
        self._bring = bring

    async def wait_lost(self) -> str:
        """Wait until a lease ends that was not released; return the text for programs."""
        await self._lost.wait()
        return self._why_lost

    async def check(self) -> str:
        """Return why the latest lease is over; empty while it is held, and before there is one."""
        if self._hold is None:
            return self._why_lost
        return await GrantedLease(self._hold).check()

    async def describe(self) -> dict[str, object]:
        """Return the partitions of the lease; none while there is no lease.

        Raises:
            GpupoolError: when no server answers.
        """
        if self._hold is None:
            return Devices((), "", "").fields()
        return await GrantedLease(self._hold).describe()


# --- held leases ----------------------------------------------------------------------------------


def is_own(record: HeldRecord, credentials: str | None) -> bool:
    """Return whether the logged-in user may use a held lease."""
    with suppress(GpupoolError):
        login = stored_credentials(credentials)
        return record.cluster_id != login.cluster_id or record.user == login.user
    return True


async def _means_another(record: HeldRecord, credentials: str | None) -> bool:
    """Return whether a record is of another pool, and the pool in use has a lease of its name.

    Names are short: two pools soon have the same ones.
    """
    with suppress(GpupoolError):
        if record.cluster_id != stored_credentials(credentials).cluster_id:
            async with connected(credentials) as pool:
                return record.lease in {each.name for each in (await pool.view()).leases}
    return False


async def own_held(name: str, credentials: str | None) -> LocalLease | None:
    """Return the lease of that name that is held on this machine, if there is one.

    One of another pool counts where the pool in use has no lease of that name.

    Raises:
        DeniedError: when it was taken by another user of the pool than who is logged in now. One
            account of this machine may have the tokens of several.
    """
    cluster_id = ""
    with suppress(GpupoolError):
        cluster_id = stored_credentials(credentials).cluster_id
    found = find_held(name, cluster_id)
    if found is not None and not is_own(found.record, credentials):
        why = f"you are logged in as {stored_credentials(credentials).user}"
        raise DeniedError(f"lease {name} belongs to {found.record.user}", why=why)
    if found is not None and await _means_another(found.record, credentials):
        return None
    return found


async def held_record(name: str, credentials: str | None) -> HeldRecord:
    """Return the record of a lease that ``gpupool alloc`` holds on this machine.

    Raises:
        LeaseLostError: when it holds none; the error gives the reason if the pool knows it.
        DeniedError: when it is another user's.
    """
    found = await own_held(name, credentials)
    if found is not None and not found.why_over:
        return found.record
    hint = 'take a new one with "gpupool alloc"'
    if found is not None:
        raise LeaseLostError(f"lease {name} has ended", why=found.why_over, hint=hint)
    why = ""
    with trio.move_on_after(VIEW_TIMEOUT_S), suppress(GpupoolError):
        async with connected(credentials) as pool:
            why = _who_holds(await pool.view(), name, pool.credentials.user)
    raise LeaseLostError(f"no lease {name} is held on this machine", why=why, hint=hint)


def _who_holds(view: "PoolView", name: str, user: str) -> str:
    lease = next((each for each in view.leases if each.name == name), None)
    if lease is None:
        return "the pool has no such lease: it has ended, or never was"
    if lease.user != user:
        return f"it belongs to {lease.user}"
    if lease.program == "alloc":
        return f"{lease.client} holds it, on the machine where it was taken"
    return f"it is that of a program, {lease.program}, and ends with it"
