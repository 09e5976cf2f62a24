"""Privilege separation of ``gpupool join``: a server that root starts is root no more.

Before any socket is opened, a second process is forked off: the privileged helper, which keeps
root's privileges for what workers need of them (``remoting.privileges.helper_process``). This
process becomes an unprivileged user, to whom the state directory is given, and is the server.
Started by an ordinary user it is what it was, and needs no privileged helper.

The signer, the process that alone can open the CA's key, starts before the server listens.
"""

import contextlib
import fcntl
import logging
import os
import pwd
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpupool.pool.errors import GpupoolError
from gpupool.remoting.daemon.join_options import JoinOptions
from gpupool.remoting.daemon.login_writer import LoginWriter, SaveLogin, save_login
from gpupool.remoting.daemon.state_dir import (
    LOCK,
    has_room,
    may_be_new,
    open_state_dir,
    refuse_other_folder,
    remembered_listen,
)
from gpupool.remoting.daemon.systemd import await_room
from gpupool.remoting.host import spawn
from gpupool.remoting.host.isolation.confinement import nccl_ports, wanted
from gpupool.remoting.host.isolation.users import UID_BASE, UID_COUNT
from gpupool.remoting.host.measuring.nvml import PynvmlNvml
from gpupool.remoting.host.worker_helper import HelperSettings
from gpupool.remoting.local.files import user_name
from gpupool.remoting.privileges import (
    former_ca,
    helper_process,
    ownership,
    signer_process,
    unprivileged,
)
from gpupool.remoting.privileges.forked import ForkedProcess, fork
from gpupool.remoting.privileges.former_ca import FormerCa
from gpupool.remoting.privileges.kept_signer import ask_for_signer
from gpupool.remoting.privileges.remote_helper import RemoteHelper
from gpupool.remoting.privileges.remote_vault import RemoteVault
from gpupool.remoting.privileges.signer_process import RECORD, SECRET, SignerFolders
from gpupool.remoting.privileges.unprivileged import User
from gpupool.remoting.protocol.addresses import parse_listen
from gpupool.remoting.worker import sandbox

STDERR = 2


def fork_signer(
    folders: SignerFolders,
    log: logging.Logger,
    *,
    has_own_user: bool = False,
) -> RemoteVault:
    """Fork the signer off, and wait until it has sealed the keys in the clear.

    Must be called while the process has one thread.

    Args:
        folders: what it reads and writes; they stay the caller's.
        log: takes what it says.
        has_own_user: whether the server is to become another one than the signer's.

    Raises:
        GpupoolError: when it does not start.
    """

    def serve(sock: socket.socket) -> None:
        os.setsid()  # Ctrl-C is for the server.
        former = folders.former.descriptors if folders.former else ()
        _close_others({sock.fileno(), folders.own, folders.state, *former})
        try:
            signer_process.serve(sock, folders, log.info)
        except OSError as error:
            log.error("the signer has ended: %s", error)
            raise

    return RemoteVault(*fork(socket.SOCK_SEQPACKET, serve), has_own_user=has_own_user)


def _close_others(needed: set[int]) -> None:
    """Close the server's descriptors: its lock on the state directory would outlive it."""
    for name in os.listdir("/dev/fd"):
        if (number := int(name)) > STDERR and number not in needed:
            with contextlib.suppress(OSError):  # of the listing itself
                os.close(number)


VARIABLE = "GPUPOOL_KEEPER"
"""Path of a privileged helper's socket, for a server that has no privileges at any time."""

USER_NAME = "gpupool"
UID = UID_BASE - 1
"""Uid of a server where there is no user of that name."""


@dataclass(frozen=True, slots=True)
class Separated:
    """A server's options, and the processes with the privileges that it gave up."""

    #: The state directory has no links in it: those may lie where only root reaches them.
    options: JoinOptions
    helper: RemoteHelper | None = None
    login_writer: LoginWriter | None = None  # for the creator of a pool
    vault: RemoteVault | None = None  # has the CA's key
    unused: Path | None = None  # a state directory that goes if no server has come to live there

    def signer(self) -> RemoteVault:
        """Return the process that has the CA's key."""
        if self.vault is None:
            raise GpupoolError("this server has no signer")
        return self.vault

    def has_signer(self) -> bool:
        """Say whether the process that has the CA's key has not ended."""
        return self.vault is not None and self.vault.is_there()

    @property
    def save_login(self) -> SaveLogin:
        """The writer for the login of a pool's creator."""
        return save_login if self.login_writer is None else self.login_writer.save

    def end(self) -> None:
        """Let these processes end, and wait until they have."""
        for process in (self.login_writer, self.helper, self.vault):
            if process is not None:
                process.end()
        if self.unused is not None:
            ownership.remove_unused(self.unused, LOCK, SECRET, RECORD)


def separate(options: JoinOptions, log: logging.Logger) -> Separated:
    """Give up root's privileges, if this process has them; return the privileged processes.

    Must be called while the process has one thread. Without a privileged helper, which is logged,
    the server starts its workers itself, with the privileges that it has.

    Raises:
        GpupoolError: when there is no server; then no new state directory is left.
    """
    with former_ca.opened(options.ca):
        pass  # one that is not there is refused before anything is made
    refuse_other_folder(options.state_dir)
    is_new = not options.state_dir.exists()
    await_room(lambda: has_room(options.state_dir), log.error)
    sandbox.set_oom_score(
        sandbox.OOM_SCORE_OF_SERVERS
    )  # and of its privileged helper and its signer
    try:
        if given := os.environ.get(VARIABLE):
            return _with_signer(options, _connect(given), log)
        if sys.platform != "linux" or os.geteuid() != 0:
            return _with_signer(options, None, log)
        try:
            return _separate(options, log)
        except _CannotError as error:
            log.warning("this server keeps the privileges of root: %s", error)
            return _with_signer(options, None, log)
    except GpupoolError:
        if is_new:
            ownership.remove_unused(options.state_dir, LOCK, SECRET, RECORD)
        raise


def _connect(path: str) -> socket.socket:
    """Connect to the privileged helper that the service manager starts."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        raise GpupoolError(
            "this server has no privileged helper",
            why=f"{path}: {error.strerror}",
            hint=f"start gpupool-keeper.socket, or leave out {VARIABLE}",
        ) from error
    unprivileged.hide()
    return sock


def _with_signer(
    options: JoinOptions, helper: socket.socket | None, log: logging.Logger
) -> Separated:
    """Start a signer: the privileged helper does, else it has the user of this server."""
    unused = None if options.state_dir.exists() else options.state_dir
    state = open_state_dir(options.state_dir)
    folder = os.open(state.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with former_ca.opened(options.ca) as former:
            vault = _signer(folder, former, helper, log)
    finally:
        os.close(folder)
        state.close()
    kept = None if helper is None else RemoteHelper(helper)
    return Separated(options, kept, vault=vault, unused=unused)


def _signer(
    state: int, former: FormerCa | None, helper: socket.socket | None, log: logging.Logger
) -> RemoteVault:
    if helper is not None:
        try:
            return ask_for_signer(helper, state, former)
        except GpupoolError as error:
            log.warning("the signer of the CA's key has this server's user: %s", error)
    own = os.dup(state)
    try:
        return fork_signer(SignerFolders(own, state, former), log)
    finally:
        os.close(own)


class _CannotError(Exception):
    """The privileges cannot be given up here."""


def _separate(options: JoinOptions, log: logging.Logger) -> Separated:
    readable = _installation()
    is_new = not options.state_dir.exists()
    state = _open_state(options.state_dir)
    try:
        user = _user(state)
        _check(user)
        place = Path(os.readlink(f"/proc/self/fd/{state}"))
        _wake_gpus(options)
        part = _prepare(state, user, log)
        unused = place if is_new else None
        login_writer = LoginWriter() if may_be_new(place) and not options.token else None
        with former_ca.opened(options.ca) as former:
            folders = SignerFolders(part, state, former)
            signer = fork_signer(folders, log, has_own_user=True)
        others = [signer] if login_writer is None else [signer, login_writer]
        helper = _fork_helper(part, _runtime_dirs(user), unused, others, log)
    except OSError as error:
        raise _CannotError(f"{error.filename or 'its files'}: {error.strerror or error}") from error
    finally:
        os.close(state)
    if not unprivileged.bring_within_reach(readable, [place, _runtime_dir()]):
        Separated(options, helper, login_writer, signer).end()
        closed = [str(path) for path in (*readable, place) if spawn.closed_above(path)]
        raise _CannotError(f"no other user reaches {closed[0]}, and it cannot be mounted")
    os.environ.setdefault("LOGNAME", user_name())  # whose pool it is, if it makes one
    try:
        unprivileged.become(user, low_ports=_wants_low_port(options))
    except OSError as error:
        raise GpupoolError("this server cannot give up root's rights", why=str(error)) from error
    writable = [place, _runtime_dir()]
    if options.suspend_spill is not None and options.suspend_spill.is_dir():
        writable.append(options.suspend_spill)
    if not unprivileged.restrict_files(readable, writable):
        log.info("this server is not confined to its files: the kernel has no Landlock")
    return Separated(replace(options, state_dir=place), helper, login_writer, signer)


def _installation() -> list[Path]:
    try:
        spawn.out_of_reach(spawn.installation_paths(), spawn.installation_files())
    except PermissionError as error:
        raise _CannotError(
            f"{error} cannot be read by other users; install gpupool where all may read it"
        ) from error
    return [path.resolve() for path in spawn.installation_paths()]


def _open_state(path: Path) -> int:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _CannotError(f"{path}: {error.strerror}") from error


def _user(state: int) -> User:
    """Return the owner of the state directory, if that is not root, else the user of our name."""
    status = os.fstat(state)
    is_workers = UID_BASE <= status.st_uid < UID_BASE + UID_COUNT
    if status.st_uid != 0 and not is_workers:
        uid, gid = status.st_uid, status.st_gid
    else:
        try:
            entry = pwd.getpwnam(USER_NAME)
            uid, gid = entry.pw_uid, entry.pw_gid
        except KeyError:
            uid, gid = UID, UID
    return User(uid, gid, spawn.device_groups())


def _check(user: User) -> None:
    if not unprivileged.may_change_user():
        raise _CannotError("it may not change its user, which takes CAP_SETUID and CAP_CHOWN")
    for kind, number in (("uid", user.uid), ("gid", user.gid)):
        if not spawn.covers(Path(f"/proc/self/{kind}_map").read_text(), number, 1):
            raise _CannotError(f"this container has no user {number}")


def _wake_gpus(options: JoinOptions) -> None:
    """Let the driver make its device nodes, as only root can, by a process that ends."""
    if options.witness or options.emulate is not None:
        return
    ForkedProcess(*fork(socket.SOCK_STREAM, lambda _socket: PynvmlNvml().open())).end()


def _prepare(state: int, user: User, log: logging.Logger) -> int:
    """Give the state directory to ``user``; return a descriptor of the helper's part of it."""
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=state)
    try:
        # A server that runs with it has the lock; then this one will not start.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part = ownership.own_part(state)
            left = ownership.hand_over(state, user.uid, user.gid)
            if left:
                log.warning("not given to user %d: %s", user.uid, ", ".join(sorted(left)[:8]))
            return part
        return ownership.own_part(state)
    finally:
        os.close(lock)


def _runtime_dirs(user: User) -> Path | None:
    """Return the helper's folder for workers' directories; make the server's folder in it."""
    given = os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    if not given:
        return None  # a folder where everybody may write
    ours = Path(given) / f"server-{user.uid}"
    ours.mkdir(exist_ok=True)
    ours.chmod(0o711)
    os.chown(ours, user.uid, user.gid, follow_symlinks=False)
    os.environ["RUNTIME_DIRECTORY"] = str(ours)
    return Path(given)


def _runtime_dir() -> Path:
    return Path(os.environ.get("RUNTIME_DIRECTORY", "") or tempfile.gettempdir())


def _fork_helper(
    part: int,
    base: Path | None,
    unused: Path | None,
    others: Sequence[ForkedProcess],
    log: logging.Logger,
) -> RemoteHelper:
    """Start the privileged helper's process.

    Args:
        part: descriptor of its part of the state directory.
        base: where workers' directories are made; None: where everybody may write.
        unused: the state directory, if it is to go when no server has come to live there.
        others: the other processes of this server.
        log: takes what it says.
    """
    settings = HelperSettings(
        base=None,
        state_dir=Path(f"/proc/self/fd/{part}"),
        confine=wanted(os.environ),
        ports=nccl_ports(os.environ),
        siblings=frozenset({os.getpid(), *(other.pid for other in others)}),
    )

    def serve(sock: socket.socket) -> None:
        os.setsid()  # Ctrl-C is for the server.
        if base is not None:
            tempfile.tempdir = str(base)
        for other in others:
            other.hang_up()
        try:
            helper_process.serve(sock, settings, logging.getLogger("gpupool.host").info)
            if unused is not None:
                ownership.remove_unused(unused, LOCK)
        except GpupoolError as error:
            log.error("the privileged helper has ended: %s", error)
            raise

    helper = RemoteHelper(*fork(socket.SOCK_SEQPACKET, serve))
    os.close(part)
    return helper


def _wants_low_port(options: JoinOptions) -> bool:
    remembered = remembered_listen(options.state_dir)
    listen = options.listen or (parse_listen(remembered) if remembered else None)
    return listen is not None and 0 < listen.port < 1024
