"""One run: it asks for GPUs, runs the program beside its agent, and gives the GPUs back.

Stderr says why a request waits. A terminal has one line, which is updated in place. A file or a
pipe gets a line when the wait begins and one each minute after, so that the log of a batch job
shows what the job waits for.
"""

import logging
import math
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from gpupool.pool.errors import ExitCode, GpupoolError
from gpupool.pool.model.ids import EMULATED_PREFIX, GpuId, ServerId
from gpupool.pool.model.state import Request
from gpupool.pool.scheduling.filters import short_model
from gpupool.pool.values import duration_text, free_text, size_text
from gpupool.remoting.client.lease_handle import LeaseHandle
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.local.files import private_dir
from gpupool.remoting.local.logins import Patience, connected
from gpupool.remoting.local.terminal import say
from gpupool.remoting.program.agent import OPEN_TIMEOUT_S, Agent
from gpupool.remoting.program.child_process import (
    Ending,
    Supervisor,
    inherited_environment,
)
from gpupool.remoting.program.door_choice import (
    DoorChoice,
    choose_door,
    door_lines,
    find_program,
    is_binary,
    program_environment,
    with_tools,
)
from gpupool.remoting.program.lease_source import (
    RELEASE_S,
    GrantedLease,
    LazyLease,
    Wanted,
    held_record,
    unknown_text,
)
from gpupool.remoting.program.program_lease import ProgramLease

if TYPE_CHECKING:
    from gpupool.pool.view import PoolView

FIRST_AFTER_S = 0.3
"""A grant usually comes sooner than this, and then nothing is to be said."""

FIRST_LINE_AFTER_S = 1.0
"""The same where lines stay."""

ESTIMATE_AFTER_S = 0.5
"""A request that has waited for so long is worth a look at the limits of lease times."""

CTRL_C_WIDTH = 3
"""A terminal writes ^C behind the line, which must not go on below."""

REDRAW_S = 1.0
REPEAT_S = 60.0

Tell = Callable[[str], Awaitable[None]]


async def _say(text: str) -> None:
    await trio.lowlevel.checkpoint()
    say(f"gpupool: {text}")


class WaitingLine:
    """Shows the latest status of a request for as long as it waits."""

    def __init__(
        self, *, shown: bool, tell: Tell | None = None, first_after_s: float = FIRST_LINE_AFTER_S
    ) -> None:
        """Prepare; nothing is shown before ``show`` runs.

        Args:
            shown: False for a quiet command.
            tell: takes the lines instead of stderr; for a notebook, whose cell shows them.
            first_after_s: when the first line comes where lines stay.
        """
        self._shown = shown
        self._first_after_s = first_after_s
        self._in_place = tell is None and sys.stderr.isatty()
        self._tell = tell or _say
        self._text = ""
        self._free_at = math.inf
        self._drawn = ""
        self._changed = trio.Event()

    def update(self, text: str) -> None:
        """Take a new status; called as often as the client has one."""
        self._text = text
        self._changed.set()

    def free_in(self, by_s: float) -> None:
        """Take after how long GPUs are free at the latest; infinite if nobody knows."""
        self._free_at = trio.current_time() + by_s
        self._changed.set()

    async def show(self) -> None:
        """Draw until cancelled, then remove the line."""
        if not self._shown:
            return
        if not self._in_place:
            await self._repeat()
        started = trio.current_time()
        try:
            await trio.sleep(FIRST_AFTER_S)
            while True:
                self._changed = trio.Event()
                room = shutil.get_terminal_size().columns - len("gpupool: ") - CTRL_C_WIDTH
                self._draw(f"gpupool: {self._now(started, room)}")
                with trio.move_on_after(REDRAW_S):
                    await self._changed.wait()
                await trio.sleep(0.05)  # a burst of news is drawn once
        finally:
            self._draw("")

    async def _repeat(self) -> None:
        started = trio.current_time()
        await trio.sleep(self._first_after_s)
        while True:
            told = self._known()
            await self._tell(self._now(started))
            with trio.move_on_after(REPEAT_S):
                while self._known() <= told:
                    self._changed = trio.Event()
                    await self._changed.wait()

    def _known(self) -> set[str]:
        """Return the parts known now: a line that lacked one is followed by another."""
        known = {"what for": self._text != "", "until when": self._free_at < math.inf}
        return {what for what, is_known in known.items() if is_known}

    def _now(self, started: float, room: int = sys.maxsize) -> str:
        """Return the current line: times go on between two answers of the pool."""
        left_s, free = self._free_at - trio.current_time(), ""
        if 0 < left_s < math.inf:
            by = f"GPUs free in {duration_text(round(left_s))} at the latest"
            free = f"; {by if self._in_place else free_text(left_s)}"
        return waiting_text(self._text, trio.current_time() - started, free, room)

    def _draw(self, text: str) -> None:
        width = shutil.get_terminal_size().columns
        text = text[: max(0, width - 1)]
        if text != self._drawn:
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()
            self._drawn = text


def line_of_command(*, quiet: bool, verbose: int) -> WaitingLine:
    """Return the line of a command on stderr.

    With ``-v`` each status is a line of its own. Without a terminal this one comes each minute.
    """
    spoken = verbose and not sys.stderr.isatty()
    return WaitingLine(shown=not quiet, first_after_s=REPEAT_S if spoken else FIRST_LINE_AFTER_S)


def waiting_text(status: str, waited_s: float, free: str = "", room: int = sys.maxsize) -> str:
    """Return the reason for the wait, which is cut to the room, and its length from 2 s on."""
    text, waited = status or "asking the pool", ""
    if waited_s >= 2:
        long = waited_s >= 120
        waited = f", {duration_text(waited_s // 60 * 60) if long else f'{waited_s:.0f} s'}"
    room -= len(waited) + len(free)
    text = text if len(text) <= room else f"{text[: max(0, room - 3)]}..."
    return f"{text}{waited}{free}"


LOG = logging.getLogger("gpupool.run")

ANNOUNCE_S = 0.5
"""The names of the GPUs are nice to have; the program does not wait longer for them."""

CHECK_S = 2.0
"""A program that fails because its lease is lost may be seen to end before the news of the loss, so
the servers are asked. Longer than this the user does not wait for those that are silent."""

INTERRUPT_COUNT_MAX = 8

EMULATED_TEXT = (
    "will see no GPU: this lease has emulated ones, for programs that use cupy; CUDA programs, "
    "such as those of PyTorch, need real GPUs"
)

GIVING_WAY = ("suspending", "suspended", "resuming")
"""States of a lease in which the program's calls wait."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The program, the GPUs and the options of one ``gpupool run``."""

    arguments: tuple[str, ...]
    wanted: Wanted
    door: str
    env: tuple[tuple[str, str], ...]
    quiet: bool
    verbose: int
    credentials: str | None
    lease: str = ""  # of ``gpupool alloc``; then nothing is asked for
    lazy: bool = False  # ask at the program's first use of a GPU
    death_signal: int = signal.SIGTERM  # the program gets it when this process is killed


async def run_program(options: RunOptions) -> Ending:
    """Get GPUs, run the program, give the GPUs back; return how it ended.

    Raises:
        GpupoolError: for every failure of ours; then the program did not run, or its lease is lost.
    """
    environment = inherited_environment() | dict(options.env)
    program = find_program(options.arguments[0], with_tools(environment.get("PATH", os.defpath)))

    def note(text: str) -> None:
        LOG.info("%s", text)
        if options.verbose:
            say(f"gpupool: {text}")

    def interrupt(_number: int) -> None:
        run.interrupt()

    supervisor = Supervisor(
        on_early=interrupt,
        on_interrupt=lambda: run.interrupted(),
        decided=note,
        death_signal=options.death_signal,
    )
    run = _Run(options, program, environment, supervisor, note)
    ending: Ending | None = None
    with supervisor:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.watch)
            nursery.start_soon(run.choose_door)
            ending = await run.to_end()
            nursery.cancel_scope.cancel()
    return ending or Ending(0, supervisor.early)


async def dry_run_of(options: RunOptions, tell: Callable[[str], None]) -> int:
    """Tell the expected result of a run; return the exit code of ``describe_run``."""
    from gpupool.remoting.program.dry_run import describe_run

    environment = dict(os.environ) | dict(options.env)
    program = find_program(options.arguments[0], with_tools(environment.get("PATH", os.defpath)))
    choose = partial(choose_door, options.door, program, options.arguments, environment)
    named = program_text(options.arguments)
    return await describe_run(options.wanted, named, choose, options.credentials, tell)


class _Run:
    """One run, from the request to the release."""

    def __init__(
        self,
        options: RunOptions,
        program: str,
        environment: dict[str, str],
        supervisor: Supervisor,
        note: Callable[[str], None],
    ) -> None:
        self._options = options
        self._program = program
        self._environment = environment
        self._supervisor = supervisor
        self._note = note
        self._loud = not options.quiet and sys.stderr.isatty()
        # A notebook's server keeps our stderr for itself; what the kernel prints is in the cell.
        self._in_notebook = options.lazy and "JPY_PARENT_PID" in environment
        self._agent: Agent | None = None
        self._door = DoorChoice("", "")
        self._door_chosen = trio.Event()
        self._lost = ""
        self._emulated_said = False
        self._patience = self._be_patient()
        self._connecting = trio.CancelScope()
        self._started: trio.CancelScope | None = None
        self._given_up = False  # by the user, so that it is not lost
        self._interrupts, self._interrupted = trio.open_memory_channel[None](INTERRUPT_COUNT_MAX)

    def interrupted(self) -> None:
        """Note a Ctrl-C while the program runs."""
        with suppress(trio.WouldBlock):
            self._interrupts.send_nowait(None)

    def interrupt(self) -> None:
        """Give up, before the program runs."""
        # Connections that exist are needed to withdraw the request from the pool.
        (self._started or self._connecting).cancel()

    async def to_end(self) -> Ending | None:
        """Connect, wait for GPUs, run the program, release; None when interrupted before."""
        ending: Ending | None = None
        with self._connecting:
            if self._options.lease:
                ending = await self._on_held_lease()
            elif self._options.lazy:
                ending = await self._on_lazy_lease()
            else:
                async with connected(self._options.credentials, self._be_patient()) as pool:
                    with trio.CancelScope() as self._started:
                        ending = await self._on_own_lease(pool)
        return ending

    def _be_patient(self) -> Patience:
        """Return the time to wait, from now on: for servers, and then for GPUs."""

        def tell(text: str) -> None:
            if not self._options.quiet:
                say(f"gpupool: {text}")

        self._patience = Patience(self._options.wanted.wait_s, tell)
        return self._patience

    async def _on_own_lease(self, pool: Pool) -> Ending:
        hold = await self._allocate(pool)
        try:
            await self._door_chosen.wait()
            await self._announce(pool, hold)
            emulated = all(p.gpu.startswith(EMULATED_PREFIX) for p in hold.partitions)
            # Of a binary it is not known whether it uses CUDA; it is told when it does.
            if emulated and self._door.door == "cuda" and not is_binary(self._program):
                self._say_emulated()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_interrupts, pool, hold)
                ending = await self._with_lease(GrantedLease(hold))
                nursery.cancel_scope.cancel()
            return ending
        finally:
            with trio.move_on_after(RELEASE_S, shield=True):
                await hold.release()

    async def _watch_interrupts(self, pool: Pool, hold: LeaseHandle) -> None:
        """Let a second Ctrl-C end a suspended lease: a program within a call hears of no signal."""
        asked = False
        async for _ in self._interrupted:
            with trio.move_on_after(CHECK_S), suppress(GpupoolError):
                states = {each.id: each.state for each in (await pool.view()).leases}
                if states.get(hold.lease) not in GIVING_WAY:
                    asked = False
                elif asked:
                    self._given_up = True
                    await hold.release("its user interrupted it while it was suspended")
                else:
                    asked = True
                    say(
                        f"gpupool: lease {hold.name} is suspended, so the program's calls wait;"
                        " press Ctrl-C once more to end the lease"
                    )

    async def _on_held_lease(self) -> Ending:
        from gpupool.remoting.program.holder_client import HeldLease

        record = await held_record(self._options.lease, self._options.credentials)
        async with HeldLease(record) as lease:
            lease.on_notice = partial(self._notice, lease.name)
            await self._door_chosen.wait()
            if self._loud or self._options.verbose:
                say(f"gpupool: {record.text}, held by process {record.pid}")
            self._say_door()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lease.listen)
                ending = await self._with_lease(lease)
                nursery.cancel_scope.cancel()
        return ending

    async def _on_lazy_lease(self) -> Ending:
        lease = LazyLease(self._options.credentials, self._allocate, self._taken, self._be_patient)
        await self._door_chosen.wait()
        self._say_door()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lease.run)
            ending = await self._with_lease(lease)
            lease.close()
        return ending

    async def _taken(self, pool: Pool, hold: LeaseHandle) -> None:
        self._lost = ""
        await self._announce(pool, hold, with_door=False)

    def _notice(self, lease: str, text: str) -> None:
        LOG.info("lease %s: %s", lease, text)
        if not self._options.quiet:
            say(f"gpupool: lease {lease}: {text}")

    async def _allocate(self, pool: Pool) -> LeaseHandle:
        """Wait for GPUs, and tell the reason of the wait meanwhile."""
        servers = self._options.wanted.servers
        unknown = pool.unknown_servers(servers)
        if unknown and unknown != servers and not self._options.quiet:
            say(f"gpupool: {unknown_text(unknown)}")
        line = self._waiting_line()
        request = self._options.wanted.request(program_text(self._options.arguments))

        def news(text: str) -> None:
            line.update(text)
            self._note(text)

        async with trio.open_nursery() as drawing:
            drawing.start_soon(line.show)
            drawing.start_soon(self._estimate, pool, request, line)
            hold = await pool.allocate(
                request,
                wait_s=self._patience.left_s(),
                on_status=news,
                on_choice=self._note_choice,
            )
            drawing.cancel_scope.cancel()
        return hold

    async def _estimate(self, pool: Pool, request: Request, line: WaitingLine) -> None:
        """Show the time until GPUs are free in the line, if lease limits or the policy tell it."""
        await trio.sleep(ESTIMATE_AFTER_S)
        from gpupool.remoting.program.dry_run import follow_start

        await follow_start(pool, request, line.free_in)

    def _waiting_line(self) -> WaitingLine:
        agent = self._agent
        if self._in_notebook and agent is not None:
            return WaitingLine(shown=True, tell=agent.tell_waiting)
        return line_of_command(quiet=self._options.quiet, verbose=self._options.verbose)

    def _note_choice(self, lines: tuple[str, ...]) -> None:
        for line in lines:
            self._note(line)

    async def choose_door(self) -> None:
        """Ask the program's own Python for the door it needs, while the pool is being asked."""
        choose = partial(
            choose_door,
            self._options.door,
            self._program,
            self._options.arguments,
            self._environment,
        )
        self._door = await trio.to_thread.run_sync(choose, abandon_on_cancel=True)
        self._door_chosen.set()

    async def _with_lease(self, lease: ProgramLease) -> Ending:
        with private_dir() as folder:
            return await self._with_agent(lease, folder)

    async def _with_agent(self, lease: ProgramLease, folder: Path) -> Ending:
        lazy = self._options.lazy
        agent = Agent(
            folder,
            lease=lease.name,
            open_session=lease.open_session,
            open_timeout_s=float("inf") if lazy else OPEN_TIMEOUT_S,
            describe=lease.describe,
            check=lease.check,
        )
        agent.log, agent.on_emulated = self._note, self._say_emulated
        lease.follow(agent.followers.bring)
        self._agent = agent
        environment = program_environment(
            self._environment,
            door=self._door.door,
            agent=str(agent.path),
            lease=lease.name,
            servers=lease.server_names(),
            extra=(("GPUPOOL_VERBOSE", str(self._options.verbose)),)
            if self._options.verbose
            else (),
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(agent.serve)
            nursery.start_soon(self._watch_lease, lease, agent)
            ending = await self._supervisor.run(self._program, self._options.arguments, environment)
            if ending.failed and agent.opened and not self._lost:
                with trio.move_on_after(CHECK_S):
                    why = await lease.check()
                    self._lost = self._lost or why
            nursery.cancel_scope.cancel()
        lost = "" if self._given_up else self._lost or agent.broken
        if lost and ending.failed:
            say(f"gpupool: {lost}")
            return Ending(ExitCode.RUN_FAILED)
        # The end of a lazy lease is nothing special: its notice was, and the next use takes one.
        if lost and not self._options.lazy and not self._options.quiet:
            say(f"gpupool: {lost}; the program ended with 0 all the same")
        return ending

    async def _watch_lease(self, lease: ProgramLease, agent: Agent) -> None:
        while True:
            self._lost = await lease.wait_lost()
            self._note(self._lost)
            await agent.lost(self._lost, final=not self._options.lazy)
            if not self._options.lazy:
                return

    async def _announce(self, pool: Pool, hold: LeaseHandle, *, with_door: bool = True) -> None:
        """Print the grant if stderr is read by a person, and follow the lease's notices."""
        hold.on_notice = partial(self._notice, hold.name)
        LOG.info("lease %s on %s", hold.name, ", ".join(hold.server_names()))
        if not self._loud and not self._options.verbose:
            if with_door:
                self._say_door()
            return
        view: PoolView | None = None
        with trio.move_on_after(ANNOUNCE_S):
            view = await pool.view()
        ends = ends_text(hold.granted.idle_timeout_s, hold.granted.time_left_s)
        say(f"gpupool: {lease_text(hold, view)}{ends}")
        if with_door:
            self._say_door()

    def _say_emulated(self) -> None:
        if not self._emulated_said:
            self._emulated_said = True
            say(f"gpupool: {os.path.basename(self._program)} {EMULATED_TEXT}")

    def _say_door(self) -> None:
        door = self._door
        self._note(f"door: {door.door or 'none'}, because {door.why}")
        for line in door_lines(door, self._program, quiet=self._options.quiet):
            say(f"gpupool: {line}")


def program_text(arguments: tuple[str, ...]) -> str:
    """Return how people recognise a program: its name, and a script's rather than Python's."""
    words = [os.path.basename(arguments[0])]
    for word in arguments[1:]:
        if word == "-c":
            break  # code, of which no part is a name
        if not word.startswith("-"):
            words.append(os.path.basename(word))
            break
    return " ".join(words)[:200]


def lease_text(hold: LeaseHandle, view: "PoolView | None") -> str:
    """Return the grant in words, such as ``2 x H200 (70G) on server-a, lease 7f3a``."""
    models: dict[GpuId, str] = {}
    names: dict[ServerId, str] = dict(zip(hold.servers, hold.server_names(), strict=True))
    for server in view.servers if view is not None else ():
        names[server.id] = server.name
        models |= {gpu.id: short_model(gpu.name) for gpu in server.gpus}
    groups = Counter(
        (models.get(p.gpu, "GPU"), p.memory, names.get(p.server, p.server)) for p in hold.partitions
    )
    parts = [
        f"{count} x {model} ({size_text(memory)}) on {server}"
        for (model, memory, server), count in groups.items()
    ]
    return f"{', '.join(parts)}, lease {hold.name}"


def ends_text(idle_timeout_s: float, time_left_s: float, time_s: float = 0.0) -> str:
    """Return when a lease ends by itself, such as ``, ends when unused for 30m``.

    Args:
        idle_timeout_s: its idle timeout; 0 for none.
        time_left_s: from now, by the pool's policy; 0 for no limit.
        time_s: from now, because that was asked for; 0 for no limit.
    """
    from gpupool.pool.policy.lease_ends import effective_timeout_s

    limit_s = effective_timeout_s(time_left_s, time_s)
    ends = [f"when unused for {duration_text(idle_timeout_s)}"] if idle_timeout_s else []
    ends += [f"in {duration_text(round(limit_s))} at the latest"] if limit_s else []
    return f", ends {', and '.join(ends)}" if ends else ""
