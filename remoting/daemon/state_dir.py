"""A server's state directory: identity, keys, incarnation; locked by one process at a time.

``identity.json`` is written first with ``complete`` false and again at the end of a creation, so
that a start after a crash in between knows that nothing here was ever used.
"""

import errno
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from gpupool.monitoring.health.alert_settings import FILE as ALERTS
from gpupool.pool.errors import NoRoomError, StorageError, UsageError
from gpupool.pool.model.ids import Incarnation, ServerId
from gpupool.pool.model.state import Server
from gpupool.remoting.daemon.server_identity import Member, ServerIdentity, identity_of
from gpupool.remoting.local.files import replace_file
from gpupool.remoting.privileges.ownership import HELPER
from gpupool.remoting.privileges.signer_process import RECORD, SECRET
from gpupool.remoting.transport.authority.ca_bundle import certificates_of, issuer_of, keys_of
from gpupool.remoting.transport.pki import Authority, Identity

IDENTITY = "identity.json"
CA_CERTIFICATE = "ca.pem"
CA_KEY = "ca.key"
CA_NEXT = "ca-next.pem"
"""The next CA with its key: made, maybe not trusted yet, until it is the only one."""

CERTIFICATE = "server.pem"
NEXT_CERTIFICATE = "server-next.pem"
"""The certificate of the CA that signs with its key, while two CAs are trusted."""

KEY = "server.key"
"""Of a state directory of an older build; the key has since been in the certificate's file."""

KEY_BEGINS = b"-----BEGIN PRIVATE KEY-----"
INCARNATION = "incarnation"
LOCK = "lock"
CONSENSUS = "consensus"
FILE_SIZE_MAX = 1 << 20
SPACE_MIN = 64 << 20
"""Less free space than this, and the journal would soon stop the server."""


@dataclass(slots=True)
class StateDir:
    """An open, locked state directory."""

    path: Path
    lock: int  # descriptor
    identity: ServerIdentity | None = None
    _closed: bool = field(default=False)

    @property
    def is_new(self) -> bool:
        """Return whether no server lives here yet."""
        return self.identity is None or not self.identity.complete

    def close(self) -> None:
        """Let the directory go."""
        if not self._closed:
            self._closed = True
            os.close(self.lock)

    def begin(self, identity: ServerIdentity) -> None:
        """Start to create a server here; remains of an interrupted creation are removed."""
        assert self.is_new
        self._write_identity(replace(identity, complete=False))
        shutil.rmtree(self.path / CONSENSUS, ignore_errors=True)
        self.write(INCARNATION, b"0\n")

    def begin_again(self, identity: ServerIdentity) -> None:
        """Start to create another server here, in the place of the one that lives here."""
        self._write_identity(replace(identity, complete=False))
        self.begin(identity)
        for name in (CA_KEY, CA_NEXT, NEXT_CERTIFICATE):
            (self.path / name).unlink(missing_ok=True)

    def forget_former(self) -> None:
        """Note that the member that this machine was before is out of the pool."""
        assert self.identity is not None
        self._write_identity(replace(self.identity, former=None))

    def finish(self, identity: ServerIdentity) -> None:
        """End the creation: from now on a start resumes this server."""
        self._write_identity(replace(identity, complete=True))

    def remember_listen(self, listen: str) -> None:
        """Keep the address that this server listens on, for starts that do not name one."""
        assert self.identity is not None
        if self.identity.listen != listen:
            self._write_identity(replace(self.identity, listen=listen))

    def remember_members(self, servers: Iterable[Server]) -> None:
        """Keep the addresses of the pool's servers, for a start without a token or an option.

        Without room on the disk they are kept with the next change.
        """
        assert self.identity is not None
        members = tuple(Member(each.id, each.address, each.name, each.names) for each in servers)
        if self.identity.members != members:
            with suppress(NoRoomError):
                self._write_identity(replace(self.identity, members=members))

    def keep_key(self, key_pem: bytes) -> None:
        """Keep the CA's key; without room for it, the next start asks the others for it."""
        with suppress(NoRoomError):
            self.write(CA_KEY, key_pem)

    def addresses_of(self, server: ServerId, known: Server | None) -> list[str]:
        """Return a server's addresses from the table, and from its stored member entry."""
        members = self.identity.members if self.identity is not None else ()
        kept = [text for each in members if each.server == server for text in each.addresses]
        return [*((known.address, *known.names) if known is not None else ()), *kept]

    def name_of(self, server: ServerId) -> str | None:
        """Return the name of a server, as it was kept."""
        members = self.identity.members if self.identity is not None else ()
        return next((each.name for each in members if each.server == server and each.name), None)

    def next_incarnation(self) -> Incarnation:
        """Count this start, and return the number; it is on disk before it is used.

        Raises:
            StorageError: when the counter is missing or damaged.
        """
        try:
            number = int((self.path / INCARNATION).read_bytes()[:20]) + 1
        except (OSError, ValueError) as error:
            raise StorageError(
                f"the state directory {self.path} is damaged",
                why=f"{INCARNATION} cannot be read",
                hint="let this server leave the pool, and join again with a new directory",
            ) from error
        self.write(INCARNATION, b"%d\n" % number)
        return Incarnation(number)

    def write(self, name: str, data: bytes) -> None:
        """Write one file for the owner's eyes only, whole or not at all, and synced.

        Raises:
            StorageError: when the disk is full or refuses.
        """
        try:
            replace_file(self.path / name, data)
        except OSError as error:
            raise _storage_error(f"cannot write {self.path / name}", error) from error

    def read(self, name: str) -> bytes:
        """Return the content of one file; empty when it is not there.

        Raises:
            StorageError: when it cannot be read.
        """
        try:
            with (self.path / name).open("rb") as file:
                return file.read(FILE_SIZE_MAX)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise _storage_error(f"cannot read {self.path / name}", error) from error

    def write_certificate(self, certificate_pem: bytes, key_pem: bytes) -> None:
        """Keep a certificate with its key, in one file: neither can be there without the other.

        Raises:
            StorageError: when the disk is full or refuses.
        """
        self.write(CERTIFICATE, certificate_pem + key_pem)
        (self.path / KEY).unlink(missing_ok=True)

    def keep_certificate(self, certificate_pem: bytes, key_pem: bytes) -> Identity:
        """Keep a renewed certificate, beside the older one while two CAs are trusted.

        Raises:
            StorageError: when the disk is full or refuses.
        """
        if len(certificates_of(self.read(CA_CERTIFICATE))) > 1:
            self.write(NEXT_CERTIFICATE, certificate_pem + key_pem)
            return self.tls_identity(NEXT_CERTIFICATE)
        self.write_certificate(certificate_pem, key_pem)
        return self.tls_identity(CERTIFICATE)

    def tls_identities(self) -> tuple[Identity, Identity | None]:
        """Return this server's identities: the usual one, and one of the newest of two CAs.

        Raises:
            StorageError: when a file is missing.
        """
        usual = self.tls_identity(CERTIFICATE)
        has_next = bool(self.read(NEXT_CERTIFICATE)) and len(certificates_of(usual.ca_pem)) > 1
        return usual, self.tls_identity(NEXT_CERTIFICATE) if has_next else None

    # --- the CA, as ``transport.authority.ca_store`` has it ------------------------------------

    def next_authority(self) -> Authority | None:
        """Return the CA that ``keep_next`` has kept last."""
        text = self.read(CA_NEXT)
        certificates, keys = certificates_of(text), keys_of(text)
        return Authority(certificates[0], keys[0]) if certificates and keys else None

    def keep_next(self, authority: Authority) -> None:
        """Keep a CA with its key, before it is trusted or afterwards."""
        self.write(CA_NEXT, authority.certificate_pem + authority.key_pem)

    def trust(self, ca_pem: bytes, key_pem: bytes) -> tuple[Identity, Identity | None]:
        """Trust these CAs, and no other; see ``CaStore``.

        A start after a crash in between finds files that fit: keys are told by their certificates,
        and the list of CAs is written last, so that all of this is done again.
        """
        alone = len(certificates_of(ca_pem)) == 1
        following = self.read(NEXT_CERTIFICATE)
        # A server that was away may come from the middle of one exchange into that of the next.
        is_over = issuer_of(self.read(CERTIFICATE), ca_pem) is None
        moves = is_over and issuer_of(following, ca_pem) is not None
        if moves:
            self.write_certificate(following, b"")
        if key_pem:
            self.write(CA_KEY, key_pem)
        elif alone:
            (self.path / CA_KEY).unlink(missing_ok=True)
        self.write(CA_CERTIFICATE, ca_pem)
        if alone or moves:
            (self.path / NEXT_CERTIFICATE).unlink(missing_ok=True)
        if alone:
            (self.path / CA_NEXT).unlink(missing_ok=True)
        return self.tls_identities()

    def tls_identity(self, name: str = CERTIFICATE) -> Identity:
        """Return this server's identity with the certificate in one file.

        Raises:
            StorageError: when a file is missing.
        """
        assert self.identity is not None
        ca = self.read(CA_CERTIFICATE)
        certificate = self.read(name)
        has_key = KEY_BEGINS in certificate
        if not ca or not certificate or not (has_key or self.read(KEY)):
            raise StorageError(
                f"the state directory {self.path} is damaged", why="a certificate or key is missing"
            )
        return Identity(
            server=self.identity.server,
            cluster_id=self.identity.cluster_id,
            certificate_path=self.path / name,
            key_path=self.path / (name if has_key else KEY),
            ca_pem=ca,
        )

    def _write_identity(self, identity: ServerIdentity) -> None:
        self.write(IDENTITY, json.dumps(identity.encoded(), indent=2).encode() + b"\n")
        self.identity = identity


_BEFORE_IDENTITY = frozenset(
    (
        *(LOCK, HELPER, SECRET, RECORD, ALERTS, f".{IDENTITY}.new"),
        *("lost+found", ".snapshot"),  # of file systems
        *(".cache", ".config", ".local", ".nv"),  # the packages' user has it for a home
    )
)
"""Names permitted in a state directory before a server lives there."""

_LEFT_OVER = (f"{HELPER}-", f".{SECRET}-", f".{RECORD}-")
"""Prefixes of files that a first start puts aside, and leaves if it is killed."""


def refuse_other_folder(path: Path) -> None:
    """Raise if a folder is neither a server's nor empty; nothing may have been changed in it.

    A server gives its state directory to another user, and closes it to all others.

    Raises:
        StorageError: it holds something else.
    """
    try:
        names = set(os.listdir(path))
        helper = os.lstat(path / HELPER) if HELPER in names else None
    except OSError:
        return  # that is said when it is opened
    if {IDENTITY, CONSENSUS} & names:
        return
    others = {each for each in names - _BEFORE_IDENTITY if not each.startswith(_LEFT_OVER)}
    if helper is not None and (helper.st_uid not in (0, os.geteuid()) or helper.st_mode & 0o077):
        others.add(HELPER)
    if others:
        listed = ", ".join(sorted(others)[:4]) + (", and more" if len(others) > 4 else "")
        raise StorageError(
            f"{path} is not the state directory of a server",
            why=f"it holds {listed}",
            hint="name a server's with --state-dir, or for a new server an empty or a new folder",
        )


def has_room(path: Path) -> bool:
    """Return whether a server may start with this directory, as far as its disk goes."""
    with suppress(OSError):  # It may be yet to be made.
        free = os.statvfs(path)
        return free.f_bavail * free.f_frsize >= SPACE_MIN
    return True


def open_state_dir(path: Path) -> StateDir:
    """Make or open a state directory, for this process alone.

    Raises:
        StorageError: when it cannot be made or used, is in use, or holds something else.
    """
    refuse_other_folder(path)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        if stat.S_IMODE(status.st_mode) & 0o077:
            path.chmod(0o700)  # keys lie here
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _storage_error(f"cannot use the state directory {path}", error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not has_room(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        state = StateDir(path, lock)
        state.identity = _read_identity(state)
    except BlockingIOError as error:
        os.close(lock)
        raise StorageError(
            f"the state directory {path} is in use",
            why="another gpupool join runs with it",
            hint="give every server a separate --state-dir",
        ) from error
    except OSError as error:
        os.close(lock)
        raise _storage_error(f"cannot use the state directory {path}", error) from error
    except BaseException:
        os.close(lock)
        raise
    return state


def open_stopped(path: Path, reason: str) -> StateDir:
    """Open the state directory of a server that must not run meanwhile, for the ``reason``.

    Raises:
        UsageError: when no server lives there.
        StorageError: when that server runs, or the directory cannot be used.
    """
    nobody = UsageError(f"no server lives in {path}", hint="--state-dir says where it lives")
    if not path.is_dir():
        raise nobody
    try:
        state = open_state_dir(path)
    except StorageError as error:
        if isinstance(error.__cause__, BlockingIOError):
            hint = f"stop it first: {reason}"
            raise StorageError(f"the server in {path} runs", hint=hint) from error
        raise
    if state.is_new:
        state.close()
        raise nobody
    return state


def remembered_listen(path: Path) -> str:
    """Return the last listen address of this directory's server; empty when unknown."""
    found = _peek(path).get("listen")
    return found if isinstance(found, str) else ""


def may_be_new(path: Path) -> bool:
    """Return whether no server seems to live in this directory yet; it need not exist."""
    return _peek(path).get("complete") is not True


def _peek(path: Path) -> Mapping[str, object]:
    """Read the identity before the directory is opened, which makes it.

    Whatever is wrong with the directory is said when it is opened.
    """
    try:
        found: object = json.loads((path / IDENTITY).read_bytes()[:FILE_SIZE_MAX])
    except (OSError, ValueError):
        return {}
    return cast("Mapping[str, object]", found) if isinstance(found, dict) else {}


def _read_identity(state: StateDir) -> ServerIdentity | None:
    data = state.read(IDENTITY)
    if not data:
        if (state.path / CONSENSUS).exists():
            raise StorageError(
                f"the state directory {state.path} is damaged",
                why=f"there is a journal but no {IDENTITY}",
                hint="restore it, or start with an empty directory and a new token",
            )
        return None
    try:
        return identity_of(json.loads(data))
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"the state directory {state.path} is damaged",
            why=f"{IDENTITY} makes no sense: {error}",
            hint="let this server leave the pool, and join again with a new directory",
        ) from error


def _storage_error(what: str, error: OSError) -> StorageError:
    why = (error.strerror or str(error)).lower()
    hint = ""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "give a folder of your own with --state-dir"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = f"free at least {SPACE_MIN >> 20} MiB there, or give another --state-dir"
    elif error.errno in (errno.EEXIST, errno.ENOTDIR):
        hint = "it must be a folder"
    kind = NoRoomError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
    return kind(what, why=why, hint=hint)
