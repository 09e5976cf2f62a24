"""The connection to the pool that this user is logged in to."""

import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpupool.pool.errors import GpupoolError
from gpupool.pool.values import duration_text
from gpupool.remoting.local.paths import user_name
from gpupool.remoting.local.terminal import QUIET, say

if TYPE_CHECKING:
    from gpupool.remoting.client.credentials import Credentials
    from gpupool.remoting.client.pool_client import Pool
    from gpupool.remoting.protocol.addresses import Address

SLOW_S = 2.0
"""A command that waits longer for a server says so, because it would seem to hang."""


def credentials_file(given: str | None) -> Path:
    """Return the credentials file: as given, else the user's own."""
    from gpupool.remoting.client.credentials import credentials_path

    return Path(given) if given else credentials_path(os.environ)


def stored_credentials(given: str | None) -> "Credentials":
    """Return the credentials of this user.

    Raises:
        AuthenticationError: when this user is not logged in.
    """
    from gpupool.remoting.client.credentials import load_credentials

    return load_credentials(credentials_file(given))


class Patience:
    """A time to wait for GPUs, of which servers that do not answer yet may use up a part."""

    def __init__(self, wait_s: float | None, tell: Callable[[str], None]) -> None:
        """Begin; ``tell`` gets what is waited for. Without a limit, only GPUs are waited for."""
        self._wait_s = wait_s
        self._tell = tell
        self._began = time.monotonic()
        self._has_waited = False

    @property
    def for_servers_s(self) -> float:
        """Return how long to wait for servers."""
        return self._wait_s or 0.0

    def waits(self, text: str) -> None:
        """Note that servers are waited for."""
        self._has_waited = True
        self._tell(text)

    def left_s(self) -> float | None:
        """Return how long to wait for GPUs from now on; None: for ever."""
        if self._wait_s is None or not self._has_waited:
            return self._wait_s
        return max(0.0, self._wait_s - (time.monotonic() - self._began))


@contextmanager
def said_if_slow(what: str) -> Generator[None]:
    """Say what is being done if it takes long, unless this command is quiet."""
    timer = threading.Timer(SLOW_S, say, (f"gpupool: {what} ...",))
    timer.daemon = True
    if not QUIET.get():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@asynccontextmanager
async def connected(given: str | None, patience: Patience | None = None) -> "AsyncGenerator[Pool]":
    """Connect to the pool that this user is logged in to; wait for servers with ``patience``."""
    from gpupool import __version__
    from gpupool.remoting.client.pool_client import connect_pool

    credentials = stored_credentials(given)
    connecting = connect_pool(
        credentials,
        version=__version__,
        client=client_name(),
        patience_s=patience.for_servers_s if patience is not None else 0.0,
        on_wait=patience.waits if patience is not None else lambda _text: None,
    )
    async with AsyncExitStack() as stack:
        with said_if_slow(f"asking {', '.join(map(str, credentials.addresses))}"):
            pool = await stack.enter_async_context(connecting)
        try:
            _say_expiry(pool)
            yield pool
        finally:
            # A command that fails has reached a server, too, and knows its CAs.
            _remember_pool(given, credentials, pool.addresses(), pool.ca_pem())


def _say_expiry(pool: "Pool") -> None:
    """Say once that the token expires soon, unless this command is quiet."""
    left_s = pool.expires_at() / 1000 - time.time()
    if not pool.expires_at() or QUIET.get():
        return
    who = "" if pool.is_operator() else "; an operator renews it"
    renew = f"gpupool token renew {pool.credentials.token}"
    say(f"gpupool: your token expires in {duration_text(left_s)}{who}: {renew}")


def client_name() -> str:
    """Return who we are, for people: user@host."""
    return f"{user_name()}@{os.uname().nodename}"


def _remember_pool(
    given: str | None, credentials: "Credentials", addresses: "tuple[Address, ...]", ca_pem: str
) -> None:
    """Keep the addresses and the CAs that there are now; the first ones may be gone one day."""
    from gpupool.remoting.client.credentials import load_credentials, save_credentials

    if set(addresses) == set(credentials.addresses) and ca_pem == credentials.ca_pem:
        return
    # A read-only home, or a file that was removed meanwhile, is no reason to fail a command.
    with suppress(GpupoolError):
        path = credentials_file(given)
        # A long run must not bring back a login that was replaced while it ran.
        if load_credentials(path) == credentials:
            save_credentials(path, credentials.at(addresses).trusting(ca_pem))
