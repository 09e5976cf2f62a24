"""The logins of this user, one for each pool, and the connection to the pool of the one in use.

``credentials.json`` is the first one, and the only one of most users. Further ones are in
``pools/NAME.json`` beside it, and the file ``current`` names the one in use if it is one of those.
"""

import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpupool.pool.errors import GpupoolError, StorageError, UsageError
from gpupool.pool.model.state import NAME_LENGTH_MAX
from gpupool.pool.values import duration_text
from gpupool.remoting.client.credentials import (
    Credentials,
    credentials_path,
    keep_former,
    load_credentials,
    save_credentials,
)
from gpupool.remoting.local.files import user_name
from gpupool.remoting.local.terminal import QUIET, say

if TYPE_CHECKING:
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
        """Begin; ``tell`` gets the reason of a wait. Without a limit, only GPUs are waited for."""
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
    """Print the current action if it takes long, unless this command is quiet."""
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
    """Return this client's name for people: user@host."""
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


FOLDER = "pools"
CURRENT = "current"


@dataclass(frozen=True, slots=True)
class Login:
    """One login of this user."""

    name: str
    path: Path
    pool: str
    user: str
    current: bool


def first_login(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file of the first login."""
    plain = {name: each for name, each in environment.items() if name != "GPUPOOL_CREDENTIALS"}
    return credentials_path(plain)


def named_login(name: str) -> Path:
    """Return the file of a login by its name."""
    return first_login().parent / FOLDER / f"{name}.json"


def login_in_use() -> Path | None:
    """Return the file of the login in use where it has a name; None for the first login."""
    try:
        name = (first_login().parent / CURRENT).read_text(encoding="utf-8")[:200].strip()
    except (OSError, UnicodeDecodeError):
        return None
    path = named_login(name)
    # One that was removed by hand is no reason to be without any login.
    return path if _is_name(name) and os.path.isfile(path) else None


def logins() -> list[Login]:
    """Return all logins that can be read, the first one first."""
    first, used = first_login(), login_in_use()
    found: list[Login] = []
    for path in (first, *sorted((first.parent / FOLDER).glob("*.json"))):
        try:
            known = load_credentials(path)
        except GpupoolError:
            continue
        name = known.pool if path == first else path.stem
        if any(each.name == name for each in found):
            found[0] = Login("default", *_fields(found[0]))
        found.append(Login(name, path, known.pool, known.user, path == (used or first)))
    return found


def _fields(login: Login) -> tuple[Path, str, str, bool]:
    return login.path, login.pool, login.user, login.current


def find_login(name: str) -> Login:
    """Return the login of that name, or of the pool of that name.

    Raises:
        UsageError: when there is none, or several are to pools of that name.
    """
    known = logins()
    for each in known:
        if each.name == name:
            return each
    of_pool = [each for each in known if each.pool == name]
    if len(of_pool) == 1:
        return of_pool[0]
    names = ", ".join(each.name for each in known) or "none"
    makes = f"gpupool login --name {name} makes one"
    raise UsageError(
        f"there is no login named {name}",
        why=f"your logins: {names}",
        hint=makes if _is_name(name) else '"gpupool use" shows them',
    )


def login_file(name: str | None = None, credentials: str | None = None) -> str:
    """Return the file of the login that a program uses, as the options of commands choose it.

    Args:
        name: of a login, as in ``gpupool use``.
        credentials: a file written by login, instead.

    Raises:
        UsageError: when there is no login of that name.
    """
    given = credentials or ("" if name else os.environ.get("GPUPOOL_CREDENTIALS"))
    if given:
        return os.path.abspath(given)
    if named := name or os.environ.get("GPUPOOL_POOL"):
        return str(find_login(named).path)
    return str(login_in_use() or first_login())


def use_login(login: Login) -> None:
    """Make a login the one in use.

    Raises:
        StorageError: when that cannot be written.
    """
    pointer = first_login().parent / CURRENT
    try:
        if login.path == first_login():
            pointer.unlink(missing_ok=True)
        else:
            beside = pointer.with_name(f".{CURRENT}-{os.getpid()}")
            beside.write_text(f"{login.path.stem}\n", encoding="utf-8")
            beside.replace(pointer)
    except OSError as error:
        raise StorageError(f"cannot write {pointer}", why=error.strerror or str(error)) from error


def file_beside(credentials: Credentials, path: Path) -> Path:
    """Return where a login goes that must not take the place of one to another pool at ``path``.

    That is ``path`` itself where it holds no login, or one to the same pool.
    """
    if _is_free(path, credentials):
        return path
    count = 1
    while True:
        name = credentials.pool if count == 1 else f"{credentials.pool}-{count}"
        known = path == first_login()
        candidate = named_login(name) if known else path.with_name(f"{path.stem}-{name}.json")
        if _is_free(candidate, credentials):
            return candidate
        count += 1


def _is_free(path: Path, credentials: Credentials) -> bool:
    if not os.path.lexists(path):
        return True  # or in a folder that is closed to us, to which nothing can be written either
    try:
        return load_credentials(path).cluster_id == credentials.cluster_id
    except GpupoolError:
        return False


def store_login(credentials: Credentials, path: Path) -> Path | None:
    """Write a login, and return where a former one to the same pool was put, if there was one.

    Raises:
        StorageError: when it cannot be written.
    """
    kept = keep_former(path, credentials.token)
    save_credentials(path, credentials)
    return kept


def check_login_name(name: str) -> str:
    """Return a name that a login may have.

    Raises:
        UsageError: when it may not.
    """
    if not _is_name(name):
        raise UsageError(f"{name!r} is no name for a login", hint="letters, digits, dots, dashes")
    return name


def _is_name(name: str) -> bool:
    letters = name.replace("-", "").replace(".", "").replace("_", "")
    fits = 0 < len(name) <= NAME_LENGTH_MAX and not name.startswith(".")
    return fits and letters.isascii() and letters.isalnum()
