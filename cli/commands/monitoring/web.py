"""``gpupool web``: the pool in the browser, from any client."""

import os
import socket
import sys
import webbrowser

import click

from gpupool.cli.lib.common_options import pool_options
from gpupool.cli.lib.connect import connected, run_async
from gpupool.cli.lib.output import say
from gpupool.pool.errors import UnreachableError, UsageError

DEFAULT_PORT = 7471
FIRST_S = 10.0


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=None,
    help=f"Listen there; by default {DEFAULT_PORT}, or a free one if that is taken.",
)
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.option("--web-readonly", "readonly", is_flag=True, help="Without all that changes the pool.")
@click.option(
    "--on", "server", metavar="SERVER", help="Print an address of that server's own page."
)
@pool_options
def command(
    credentials: str | None,
    port: int | None,
    no_browser: bool,
    readonly: bool,
    server: str | None,
) -> None:
    r"""Show the pool in the browser: servers, GPUs, leases, who waits, usage, health.

    The page is served on this machine's loopback alone, to who opens the printed address; its key
    is good once. Enter prints an address for another browser, Ctrl-C ends it.

    \b
    From a machine without a browser:
      ssh -L 7471:127.0.0.1:7471 THAT_MACHINE gpupool web --no-browser
    """
    if server is not None:
        from gpupool.cli.lib.web_invitation import invitation

        address_there = run_async(lambda: invitation(credentials, server))
        say(f"gpupool: good once, within a minute: {address_there}")
        if not no_browser:
            _open(address_there)
        return
    listener = _listen(port)

    async def serve() -> None:
        import trio

        from gpupool.monitoring.web.gate import LocalGate
        from gpupool.monitoring.web.page_app import make_app
        from gpupool.monitoring.web.pool_source import ClientSource
        from gpupool.monitoring.web.serving import serve_page

        taken = listener.getsockname()[1]
        async with connected(credentials) as pool, trio.open_nursery() as nursery:
            source = ClientSource(pool)
            nursery.start_soon(source.run)
            with trio.move_on_after(FIRST_S) as waited:
                await source.first()
            if waited.cancelled_caught:
                raise UnreachableError("no server says what it knows of the pool")
            gate = LocalGate(source, taken)
            app = make_app(gate, readonly=readonly)
            await nursery.start(serve_page, app, listener)

            def address() -> str:
                return f"http://127.0.0.1:{taken}/#key={gate.new_key()}"

            first = address()
            say(f"gpupool: the pool is at {first}")
            if not no_browser:
                nursery.start_soon(trio.to_thread.run_sync, _open, first)
            while sys.stdin.isatty():
                await trio.lowlevel.wait_readable(sys.stdin.fileno())
                if not os.read(sys.stdin.fileno(), 4096):
                    break
                say(f"gpupool: good once, in another browser: {address()}")
            await trio.sleep_forever()

    run_async(serve)


def _open(address: str) -> None:
    """Open the browser; where there is none, the printed address is enough."""
    try:
        webbrowser.open(address)
    except (webbrowser.Error, OSError):
        say("gpupool: no browser opens here; open the address yourself")


def _listen(port: int | None) -> socket.socket:
    from gpupool.monitoring.web.serving import loopback_socket

    try:
        return loopback_socket(DEFAULT_PORT if port is None else port)
    except OSError as error:
        if port is None:
            return loopback_socket(0)
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot listen on port {port}", why=why, hint="--port 0") from error
