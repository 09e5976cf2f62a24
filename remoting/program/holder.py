"""The holder: the process behind ``gpupool alloc``, which keeps a lease for programs to come.

It starts in a session of its own, with a pipe to and from ``gpupool alloc``. It reads the request
from the pipe, reports its progress and its result, and goes on by itself once ``alloc`` has read
the result. If ``alloc`` ends before that, the request ends too. Afterwards the lease ends by
``gpupool release``, by its time, by SIGTERM, by the pool, or with this process.
"""

import logging
import os
import secrets
import signal
import sys
from dataclasses import asdict, dataclass, replace

import trio

from gpupool.pool.errors import GpupoolError, first_error
from gpupool.pool.model.codec import CodecError, decode
from gpupool.pool.model.state import Request
from gpupool.pool.policy.lease_ends import notice_s
from gpupool.pool.values import duration_text
from gpupool.remoting.client.lease_handle import LeaseHandle
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.local.logins import Patience, connected
from gpupool.remoting.local.logs import log_to_file
from gpupool.remoting.program.agent import Agent, HolderActions
from gpupool.remoting.program.dry_run import NEVER, follow_start
from gpupool.remoting.program.held_leases import HeldRecord, RecordFile, holder_dir
from gpupool.remoting.program.json_lines import LineReader, line_of, object_of, words_of
from gpupool.remoting.program.lease_source import RELEASE_S, GrantedLease, unknown_text
from gpupool.remoting.program.program_run import ESTIMATE_AFTER_S, lease_text
from gpupool.remoting.protocol.framing import load

FILES_CHECK_INTERVAL_S = 2.0
"""How often the holder checks that its files are still there."""

FAREWELL_S = 1.0
SPEC_SIZE_MAX = 64 * 1024
LOG = logging.getLogger("gpupool.holder")


@dataclass(frozen=True, slots=True)
class HolderSpec:
    """The request for a lease, and how long to hold it."""

    request: Request
    wait_s: float | None
    time_s: float  # give it back after so long; 0: never
    credentials: str | None
    log_file: str | None


def parse_spec(line: bytes) -> HolderSpec:
    """Return the specification that ``gpupool alloc`` sent.

    Raises:
        GpupoolError: when the line is not one of ``gpupool alloc``.
    """
    try:
        body = object_of(line)
        request = load(bytes.fromhex(str(body["request"])))
        return decode(HolderSpec, body | {"request": request})
    except (ValueError, KeyError, TypeError, CodecError) as error:
        raise GpupoolError("the holder is started by gpupool alloc", why=str(error)) from error


def main() -> None:
    """Hold one lease to its end."""
    try:
        trio.run(_main)
    except BaseException as group:
        error = first_error(group)
        if not isinstance(error, GpupoolError):
            LOG.exception("the holder failed")
            error = GpupoolError("the holder failed", why=f"{type(error).__name__}: {error}")
        _say(failed=words_of(error) | {"exit_code": int(error.exit_code)})
        sys.exit(1)


def _say(**fields: object) -> None:
    """Write one line to ``gpupool alloc``, which reads until it has the lease or an error."""
    try:
        os.write(1, line_of(fields))
    except OSError:
        LOG.debug("gpupool alloc has gone")


async def _estimate(pool: Pool, request: Request) -> None:
    """Say when GPUs are free, if limits of leases or the policy say so."""
    await trio.sleep(ESTIMATE_AFTER_S)
    await follow_start(pool, request, lambda by_s: _say(free_in=by_s if by_s < NEVER else None))


async def _main() -> None:
    async with trio.open_nursery() as nursery:
        parent = LineReader(trio.lowlevel.FdStream(os.dup(0)), SPEC_SIZE_MAX)
        spec = parse_spec(await parent.next() or b"")
        if spec.log_file:
            log_to_file(spec.log_file)
        holder = _Holder(spec)
        nursery.start_soon(holder.watch_signals)
        nursery.start_soon(holder.watch_parent, parent)
        await holder.run()
        nursery.cancel_scope.cancel()


class _Holder:
    """One lease, from the request to its end."""

    def __init__(self, spec: HolderSpec) -> None:
        self._spec = spec
        self._accepted = False
        self._connecting, self._waiting = trio.CancelScope(), trio.CancelScope()
        self._is_connected = False
        self._over = trio.Event()
        self._why_over = ""

    async def watch_parent(self, parent: LineReader) -> None:
        """Give up when ``gpupool alloc`` ends before it has received the lease.

        A Python program never says that it has: its lease ends with it.
        """
        self._accepted = await parent.next() == b"taken"
        if not self._accepted:
            alloc = self._spec.request.program == "alloc"
            self._end("gpupool alloc was interrupted" if alloc else "its program is done")

    async def watch_signals(self) -> None:
        """Give the lease back when asked to end."""
        # The terminal's hangup does not reach this session; nohup-like wrappers may send it.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                self._end(f"its holder got {signal.Signals(number).name}")

    def _end(self, why: str) -> None:
        self._why_over = self._why_over or why
        self._over.set()
        # Connections that exist are needed to withdraw the request from the pool.
        (self._waiting if self._is_connected else self._connecting).cancel()

    async def run(self) -> None:
        """Allocate, hold, release."""
        patience = Patience(self._spec.wait_s, lambda text: _say(status=text))
        with self._connecting:
            async with connected(self._spec.credentials, patience) as pool:
                self._is_connected = True
                await self._run(pool, patience)

    async def _run(self, pool: Pool, patience: Patience) -> None:
        unknown = pool.unknown_servers(self._spec.request.servers)
        if unknown and unknown != self._spec.request.servers:
            _say(warning=unknown_text(unknown))
        request = self._spec.request
        hold: LeaseHandle | None = None
        with self._waiting:
            async with trio.open_nursery() as estimating:
                estimating.start_soon(_estimate, pool, request)
                hold = await pool.allocate(
                    request,
                    wait_s=patience.left_s(),
                    on_status=lambda text: _say(status=text),
                )
                estimating.cancel_scope.cancel()
        if hold is None:
            return
        try:
            await self._hold(pool, hold)
        finally:
            with trio.move_on_after(RELEASE_S, shield=True):
                await hold.release()

    async def _hold(self, pool: Pool, hold: LeaseHandle) -> None:
        view = None
        with trio.move_on_after(RELEASE_S):
            view = await pool.view()
        record = HeldRecord(
            lease=hold.name,
            cluster_id=pool.credentials.cluster_id,
            pool=pool.credentials.pool,
            user=pool.credentials.user,
            pid=os.getpid(),
            socket="",
            text=lease_text(hold, view),
            servers=hold.server_names(),
            idle_timeout_s=hold.granted.idle_timeout_s,
            time_s=self._spec.time_s,
            time_left_s=hold.granted.time_left_s,
        )
        async with trio.open_nursery() as nursery:
            endpoint = _Endpoint(record, hold, self._over)
            await nursery.start(endpoint.keep)
            nursery.start_soon(self._watch_lease, hold)
            nursery.start_soon(self._watch_time, endpoint)
            _say(granted=asdict(endpoint.file.record))
            await self._over.wait()
            LOG.info("lease %s ends: %s", hold.name, self._why_over or endpoint.why_released)
            why = self._why_over or endpoint.why_released
            await endpoint.lost(f"lease {hold.name} is void: {why}")
            with trio.CancelScope(shield=True, deadline=trio.current_time() + RELEASE_S):
                await hold.release(why)
            endpoint.released.set()
            with trio.move_on_after(FAREWELL_S):
                await endpoint.drained()
            endpoint.end(why)
            nursery.cancel_scope.cancel()

    async def _watch_lease(self, hold: LeaseHandle) -> None:
        self._end(await hold.wait_lost())

    async def _watch_time(self, endpoint: "_Endpoint") -> None:
        time_s = self._spec.time_s
        if not time_s:
            return
        early_s = notice_s(time_s)
        await trio.sleep(time_s - early_s)
        text = f"it ends in {duration_text(early_s)}: {duration_text(time_s)} were asked for"
        await endpoint.notify(text)
        await trio.sleep(early_s)
        self._end(f"its time is over: {duration_text(time_s)} were asked for")


class _Endpoint:
    """The agent and the file by which programs find the holder; made again when they vanish."""

    def __init__(self, record: HeldRecord, hold: LeaseHandle, over: trio.Event) -> None:
        self._hold = hold
        self._lease = GrantedLease(hold)
        self._over = over
        self._nursery: trio.Nursery | None = None
        self.why_released = ""
        self.released = trio.Event()
        hold.on_notice = self._notice
        self._agents: list[Agent] = []  # former ones, too: programs may be connected to them
        self.file = self._make(record)

    def _make(self, record: HeldRecord) -> RecordFile:
        folder = holder_dir()
        held = HolderActions(lambda: asdict(self.file.record), self._release)
        agent = Agent(
            folder,
            lease=record.lease,
            open_session=self._lease.open_session,
            held=held,
            describe=self._lease.describe,
            check=self._check,
        )
        agent.path = folder / f"{record.lease}-{secrets.token_hex(3)}.sock"
        self._agents.append(agent)
        return RecordFile(folder, replace(record, socket=str(agent.path)))

    async def keep(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled."""
        started = False
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            while True:
                agent = self._agents[-1]
                await nursery.start(agent.serve)
                if not started:
                    started = True
                    task_status.started()
                while not self.file.vanished() and agent.path.exists():  # noqa: ASYNC110
                    await trio.sleep(FILES_CHECK_INTERVAL_S)
                LOG.info("the files of lease %s were removed; making them again", self._hold.name)
                self.file.close()
                self.file = self._make(self.file.record)

    async def lost(self, what: str) -> None:
        """Push the end of the lease to all connections."""
        for agent in self._agents:
            await agent.lost(what)

    async def notify(self, text: str) -> None:
        """Push a notice to all programs that use the lease."""
        for agent in self._agents:
            await agent.notify(text)

    async def drained(self) -> None:
        """Wait until all connections are closed."""
        for agent in self._agents:
            await agent.drained()

    def end(self, why: str) -> None:
        """Remove the socket, and write into the file why the lease has ended."""
        self._agents[-1].path.unlink(missing_ok=True)
        self.file.end(replace(self.file.record, ended=why))

    async def _release(self) -> None:
        self.why_released = "released"
        self._over.set()
        await self.released.wait()

    async def _check(self) -> str:
        why = await self._hold.check()
        return f"lease {self._hold.name} is void: {why}" if why else ""

    def _notice(self, text: str) -> None:
        LOG.info("lease %s: %s", self._hold.name, text)
        if self._nursery is not None:
            self._nursery.start_soon(self.notify, text)


if __name__ == "__main__":
    main()
