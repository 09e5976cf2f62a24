"""From a command to the pool and back: credentials, a connection, one error out of a group."""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from gpupool.pool.errors import GpupoolError

if TYPE_CHECKING:
    from gpupool.remoting.client import Pool
    from gpupool.remoting.credentials import Credentials

T = TypeVar("T")


def run_async(main: Callable[[], Awaitable[T]]) -> T:
    """Run ``main`` under trio; a group of errors becomes the one that the user can act on."""
    import trio

    try:
        return trio.run(main)
    except BaseExceptionGroup as group:
        error = first_error(group)
        if isinstance(error, GpupoolError | KeyboardInterrupt | SystemExit):
            raise error from group
        raise


def first_error(group: BaseException) -> BaseException:
    """Return what a group of errors is about: a bug before an interrupt before one of ours."""
    if not isinstance(group, BaseExceptionGroup):
        return group
    group = cast("BaseExceptionGroup[BaseException]", group)
    leaves = [first_error(each) for each in group.exceptions]

    def weight(error: BaseException) -> int:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            return 1
        return 2 if isinstance(error, GpupoolError) else 0

    return min(leaves, key=weight)


def credentials_file(given: str | None) -> Path:
    """Return the credentials file: as given, else the user's own."""
    from gpupool.remoting.credentials import credentials_path

    return Path(given) if given else credentials_path(os.environ)


def stored_credentials(given: str | None) -> "Credentials":
    """Return the credentials of this user.

    Raises:
        AuthenticationError: when nobody is logged in here.
    """
    from gpupool.remoting.credentials import load_credentials

    return load_credentials(credentials_file(given))


@asynccontextmanager
async def connected(given: str | None) -> "AsyncGenerator[Pool]":
    """Connect to the pool that this user is logged in to."""
    from gpupool.remoting.client import connect_pool

    async with connect_pool(stored_credentials(given)) as pool:
        yield pool
