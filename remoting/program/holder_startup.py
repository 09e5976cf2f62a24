"""The side of ``gpupool alloc``: starts a holder, waits with it, and leaves it to itself."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import cast

import trio

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.codec import encode
from gpupool.remoting.local.terminal import say
from gpupool.remoting.program.child_process import caught_signals
from gpupool.remoting.program.held_leases import HeldRecord, parse_record
from gpupool.remoting.program.json_lines import LineReader, error_of, line_of, object_of
from gpupool.remoting.program.lease_source import Wanted
from gpupool.remoting.program.program_run import WaitingLine
from gpupool.remoting.protocol.framing import dump

LINE_LENGTH_MAX = 1 << 20
ENDED = "the process that should hold the lease has ended"


async def start_holder(
    wanted: Wanted,
    *,
    time_s: float,
    credentials: str | None,
    log_file: str | None,
    shown: bool,
) -> HeldRecord:
    """Start a holder that gets a lease; return its record.

    Raises:
        GpupoolError: when there is no lease.
    """
    spec = holder_spec(wanted, time_s=time_s, credentials=credentials, log_file=log_file)
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "gpupool.remoting.program.holder"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",  # so that the holder keeps no other file system mounted
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    granted: list[HeldRecord] = []
    async with process.stdin, process.stdout:
        await process.stdin.send_all(spec)
        line = WaitingLine(shown=shown)

        def warn(text: str) -> None:
            if shown:
                say(f"gpupool: {text}")

        early: list[int] = []
        with caught_signals() as signals:
            async with trio.open_nursery() as nursery:

                async def give_up() -> None:
                    early.append(await anext(signals))
                    nursery.cancel_scope.cancel()

                nursery.start_soon(line.show)
                nursery.start_soon(give_up)
                granted.append(await _await_grant(process.stdout, line, warn))
                await process.stdin.send_all(b"taken\n")
                nursery.cancel_scope.cancel()
    if not granted:
        # Its end of the pipe is closed, so the holder takes its request back.
        with trio.move_on_after(5.0):
            await process.wait()
        raise _interruption(early[0] if early else 0)
    return granted[0]


def _interruption(number: int) -> BaseException:
    from gpupool.remoting.local.terminal import die_of

    if number:
        die_of(number)
    return GpupoolError("interrupted")


async def _await_grant(
    stream: trio.abc.ReceiveStream, line: WaitingLine, warn: Callable[[str], None]
) -> HeldRecord:
    lines = LineReader(stream, LINE_LENGTH_MAX)
    while (said := await lines.next()) is not None:
        body = object_of(said)
        if (record := granted(body)) is not None:
            return record
        if "status" in body:
            line.update(str(body["status"]))
        elif "free_in" in body:
            by_s = body["free_in"]
            line.free_in(by_s if isinstance(by_s, float | int) else math.inf)
        elif "warning" in body:
            warn(str(body["warning"]))
    raise GpupoolError(ENDED)


def granted(body: dict[str, object]) -> HeldRecord | None:
    """Return the record of the lease that a holder reports to have; None for other news.

    Raises:
        GpupoolError: when it reports that there is none.
    """
    if "failed" in body:
        raise error_of(cast("dict[str, object]", body["failed"]))
    return parse_record(json.dumps(body["granted"])) if "granted" in body else None


def holder_spec(
    wanted: Wanted,
    *,
    time_s: float,
    credentials: str | None,
    log_file: str | None,
    program: str = "alloc",
) -> bytes:
    """Return the line that tells a holder the lease to hold."""
    spec = {
        "request": dump(encode(wanted.request(program))).hex(),
        "wait_s": wanted.wait_s,
        "time_s": time_s,
        "credentials": credentials,
        "log_file": log_file,
    }
    return line_of(spec)
