"""One run: GPUs asked for, the program with its agent beside it, the GPUs given back."""

import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from gpupool.cli.agent import Agent, private_dir
from gpupool.cli.child import Ending, Supervisor, caught_signals, find_program
from gpupool.cli.connect import connected
from gpupool.cli.output import say
from gpupool.cli.program import DoorChoice, choose_door, program_environment
from gpupool.cli.requesting import Wanted
from gpupool.cli.values import size_text
from gpupool.cli.waiting import WaitingLine
from gpupool.pool.errors import ExitCode
from gpupool.pool.filters import short_model
from gpupool.pool.ids import GpuId, ServerId
from gpupool.pool.view import PoolView
from gpupool.remoting.client import LeaseHold, Pool

RELEASE_S = 2.0
"""Longest wait for the release to be confirmed; closing the connection ends the lease as well."""

ANNOUNCE_S = 0.5
"""The names of the GPUs are nice to have; the program does not wait longer for them."""

LOST_GRACE_S = 0.2
"""A program that fails because its lease is lost may be seen to end before the news of the loss."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What was asked for."""

    arguments: tuple[str, ...]
    wanted: Wanted
    door: str
    env: tuple[tuple[str, str], ...]
    quiet: bool
    verbose: int
    credentials: str | None


async def run_program(options: RunOptions) -> Ending:
    """Get GPUs, run the program, give the GPUs back; return how it ended.

    Raises:
        GpupoolError: for every failure of ours; then the program did not run, or its lease is lost.
    """
    environment = dict(os.environ) | dict(options.env)
    program = find_program(options.arguments[0], environment.get("PATH"))

    def note(text: str) -> None:
        if options.verbose:
            say(f"gpupool: {text}")

    def interrupt(_number: int) -> None:
        run.interrupt()

    supervisor = Supervisor(on_early=interrupt, decided=note)
    run = _Run(options, program, environment, supervisor, note)
    ending: Ending | None = None
    with caught_signals() as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.watch, signals)
            nursery.start_soon(run.choose_door)
            ending = await run.to_end()
            nursery.cancel_scope.cancel()
    return ending or Ending(0, supervisor.early)


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
        self._door = DoorChoice("", "")
        self._door_chosen = trio.Event()
        self._lost = ""
        self._connecting = trio.CancelScope()
        self._started: trio.CancelScope | None = None

    def interrupt(self) -> None:
        """Give up, before the program runs."""
        # Once there are connections they are needed to take back what the pool knows of us.
        (self._started or self._connecting).cancel()

    async def to_end(self) -> Ending | None:
        """Connect, wait for GPUs, run the program, release; None when interrupted before."""
        ending: Ending | None = None
        with self._connecting:
            async with connected(self._options.credentials) as pool:
                with trio.CancelScope() as self._started:
                    ending = await self._with_pool(pool)
        return ending

    async def _with_pool(self, pool: Pool) -> Ending:
        hold = await self._allocate(pool)
        hold.on_notice = lambda text: say(f"gpupool: lease {hold.name}: {text}")
        try:
            await self._door_chosen.wait()
            await self._announce(pool, hold)
            with private_dir() as folder:
                return await self._with_lease(hold, folder)
        finally:
            with trio.move_on_after(RELEASE_S, shield=True):
                await hold.release()

    async def _allocate(self, pool: Pool) -> LeaseHold:
        """Wait for GPUs, and say meanwhile what for."""
        line = WaitingLine(shown=not self._options.quiet)

        def news(text: str) -> None:
            line.update(text)
            self._note(text)

        async with trio.open_nursery() as drawing:
            drawing.start_soon(line.show)
            hold = await pool.allocate(
                self._options.wanted.request(program_text(self._options.arguments)),
                wait_s=self._options.wanted.wait_s,
                on_status=news,
            )
            drawing.cancel_scope.cancel()
        return hold

    def _note_choice(self, lines: tuple[str, ...]) -> None:
        for line in lines:
            self._note(line)

    async def choose_door(self) -> None:
        """Ask the program's own Python which door it needs, while the pool is being asked."""
        choose = partial(
            choose_door,
            self._options.door,
            self._program,
            self._options.arguments,
            self._environment,
        )
        self._door = await trio.to_thread.run_sync(choose, abandon_on_cancel=True)
        self._door_chosen.set()

    async def _with_lease(self, hold: LeaseHold, folder: Path) -> Ending:
        agent = Agent(folder, lease=hold.name, open_session=hold.open_session)
        agent.log = self._note
        environment = program_environment(
            self._environment,
            door=self._door.door,
            agent=str(agent.path),
            lease=hold.name,
            servers=hold.server_names(),
            extra=(("GPUPOOL_VERBOSE", "1"),) if self._options.verbose else (),
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(agent.serve)
            nursery.start_soon(self._watch_lease, hold, agent)
            ending = await self._supervisor.run(self._program, self._options.arguments, environment)
            if ending.failed and agent.opened and not self._lost:
                await trio.sleep(LOST_GRACE_S)
            nursery.cancel_scope.cancel()
        lost = self._lost or agent.broken
        if lost and ending.failed:
            say(f"gpupool: {lost}")
            return Ending(ExitCode.RUN_FAILED)
        return ending

    async def _watch_lease(self, hold: LeaseHold, agent: Agent) -> None:
        reason = await hold.wait_lost()
        self._lost = f"{reason}; lease {hold.name} is void"
        self._note(self._lost)
        await agent.lost(self._lost)

    async def _announce(self, pool: Pool, hold: LeaseHold) -> None:
        """Say what was granted, where somebody may read it."""
        if not self._loud and not self._options.verbose:
            return
        view: PoolView | None = None
        with trio.move_on_after(ANNOUNCE_S):
            view = await pool.view()
        say(f"gpupool: {lease_text(hold, view)}")
        door = self._door
        self._note(f"door: {door.door or 'none'}, because {door.why}")
        if self._loud and (door.warning or not door.door):
            say(f"gpupool: {door.warning or 'no door: ' + door.why}")


def program_text(arguments: tuple[str, ...]) -> str:
    """Return how people recognise a program: its name, and a script's rather than Python's."""
    words = [os.path.basename(arguments[0])]
    words += [os.path.basename(w) for w in arguments[1:] if not w.startswith("-")][:1]
    return " ".join(words)[:200]


def lease_text(hold: LeaseHold, view: PoolView | None) -> str:
    """Return what was granted, such as ``2 x H200 (70G) on server-a, lease 7f3a``."""
    models: dict[GpuId, str] = {}
    names: dict[ServerId, str] = {}
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
