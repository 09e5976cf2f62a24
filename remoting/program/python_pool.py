"""The pool for Python programs: ``gpupool.Pool``."""

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TypeVar, Unpack

import trio

from gpupool.pool.errors import first_error
from gpupool.pool.view import PoolView
from gpupool.remoting.local.logins import connected, login_file
from gpupool.remoting.program.python_lease import Lease, PoolLeaseOptions, lease

T = TypeVar("T")


class Pool:
    """The pool that this user is logged in to, or the one that is named."""

    def __init__(self, name: str | None = None, *, credentials: str | None = None) -> None:
        """Choose a login; nothing is connected yet.

        Args:
            name: of a login, as in ``gpupool use``.
            credentials: a file written by login, instead.

        Raises:
            UsageError: when there is no login of that name.
        """
        self.credentials = login_file(name, credentials)

    def status(self) -> PoolView:
        """Return the pool as a server sees it now: servers, GPUs, leases, requests that wait.

        Raises:
            GpupoolError: when no server answers.
        """
        return _in_thread(self.status_async)

    async def status_async(self) -> PoolView:
        """Return the same under trio."""
        async with connected(self.credentials) as pool:
            return await pool.view()

    def lease(
        self, n: int = 1, **options: Unpack[PoolLeaseOptions]
    ) -> AbstractContextManager[Lease]:
        """Take a lease of this pool; the arguments are those of ``gpupool.lease``."""
        return lease(n, credentials=self.credentials, **options)


def _in_thread(ask: Callable[[], Awaitable[T]]) -> T:
    """Run ``ask`` under trio in a separate thread: a notebook's thread has a loop already."""
    with ThreadPoolExecutor(1, "gpupool") as threads:
        future = threads.submit(trio.run, ask)
    error = future.exception()
    if error is not None:
        raise first_error(error)
    return future.result()
