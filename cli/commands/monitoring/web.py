"""``gpupool web``: the pool in the browser, from any client."""

import html
import os
import socket
import sys
import time
import webbrowser
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click

from gpupool.cli.lib.options import pool_options
from gpupool.cli.lib.output import run_async
from gpupool.pool.errors import UnreachableError, UsageError
from gpupool.remoting.local.files import lent_folder
from gpupool.remoting.local.logins import connected
from gpupool.remoting.local.terminal import say

DEFAULT_PORT = 7471
FIRST_S = 10.0
READ_S = 10.0
"""How long a browser that has just been started may take to read its page."""

FOLDER_PREFIX = "gpupool-web-"
LEADS = """<!DOCTYPE html>
<meta charset="utf-8">
<title>gpupool</title>
<meta http-equiv="refresh" content="0; url={0}">
<p><a href="{0}">The pool</a></p>
"""


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
    r"""Show the pool in the browser: servers, GPUs, leases, queue, usage, health.

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
            with page_that_leads_to(address_there) as page:
                if _open(page):
                    time.sleep(READ_S)
        return
    listener = _listen(port)

    async def serve() -> None:
        import trio

        from gpupool.monitoring.web.gate import LocalGate
        from gpupool.monitoring.web.page_app import make_app
        from gpupool.monitoring.web.pool_source import PoolSource
        from gpupool.monitoring.web.serving import serve_page

        taken = listener.getsockname()[1]
        async with connected(credentials) as pool, trio.open_nursery() as nursery:
            source = PoolSource(pool)
            nursery.start_soon(source.follow, pool)
            with trio.move_on_after(FIRST_S) as waited:
                await source.first()
            if waited.cancelled_caught:
                raise UnreachableError("no server answers with a view of the pool")
            gate = LocalGate(source, taken)
            app = make_app(gate, readonly=readonly)
            await nursery.start(serve_page, app, listener)

            def address() -> str:
                return f"http://127.0.0.1:{taken}/#key={gate.new_key()}"

            first = address()
            say(f"gpupool: the pool is at {first}")
            with nullcontext() if no_browser else page_that_leads_to(first) as page:
                if page is not None:
                    nursery.start_soon(trio.to_thread.run_sync, _open, page)
                while sys.stdin.isatty():
                    await trio.lowlevel.wait_readable(sys.stdin.fileno())
                    if not os.read(sys.stdin.fileno(), 4096):
                        break
                    say(f"gpupool: good once, in another browser: {address()}")
                await trio.sleep_forever()

    run_async(serve)


@contextmanager
def page_that_leads_to(address: str) -> Generator[Path]:
    """Lend a page that leads to ``address``; only this user can read it, and it goes after.

    All users of a machine can read what a browser was started with, and its key is good for one.
    """
    with lent_folder(FOLDER_PREFIX) as folder:
        page = folder / "pool.html"
        descriptor = os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(LEADS.format(html.escape(address)))
        yield page


def _open(page: Path) -> bool:
    """Open the browser, and return whether one opens; else the printed address is enough."""
    try:
        is_open = webbrowser.open(page.as_uri())
    except (webbrowser.Error, OSError):
        is_open = False
    if not is_open:
        say("gpupool: no browser opens here; open the address yourself")
    return is_open


def _listen(port: int | None) -> socket.socket:
    from gpupool.monitoring.web.serving import loopback_socket

    try:
        return loopback_socket(DEFAULT_PORT if port is None else port)
    except OSError as error:
        if port is None:
            return loopback_socket(0)
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot listen on port {port}", why=why, hint="--port 0") from error
