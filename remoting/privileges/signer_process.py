"""The signer's process: it alone can open the CA's key, and serves ``signer_messages``.

``gpupool join`` forks it off before it opens a socket. It makes or reads its secret, and seals what
an older build has left in the clear and the CA of a former pool (``former_ca``). Then it gives up
what it does not need: other users' files, sockets, programs. It ends when the server closes the
socket.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from gpupool.pool.errors import AuthenticationError, GpupoolError, RemoteProtocolError, StorageError
from gpupool.pool.model.ids import ServerId
from gpupool.remoting.privileges import former_ca, ownership, unprivileged
from gpupool.remoting.privileges.former_ca import FormerCa
from gpupool.remoting.protocol import signer_messages as m
from gpupool.remoting.protocol.sealed_key import public_of, unseal
from gpupool.remoting.transport.authority.ca_bundle import certificates_of, keys_of
from gpupool.remoting.transport.authority.ca_vault import CaVault
from gpupool.remoting.worker import sandbox, syscall_filter

SECRET, RECORD = "signer.key", "signer-record.jsonl"
KEY_FILES = ("ca.key", "ca-next.pem")
"""The files of a state directory that hold CA keys; sealed, they are the server's to keep."""

RECORD_SIZE_MAX = 4 << 20
_FILE_SIZE_MAX = 1 << 20
_SECRET_SIZE = 32
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SignerFolders:
    """Descriptors of two folders, which may be one, and of a former pool's CA."""

    own: int  # where the secret and the record lie
    state: int  # the server's state directory
    former: FormerCa | None = None


def serve(sock: socket.socket, folders: SignerFolders, say: Say) -> None:
    """Carry out calls until the server has gone. Must be called with one thread.

    Raises:
        OSError: when its files cannot be read or written.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    vault = CaVault(
        _secret(folders.own),
        time.monotonic,
        given=_given(folders.own),
        record=_recorder(folders, say),
    )
    _seal_files(folders.state, vault, say)
    try:
        greeting: m.Answer = m.Made((vault.public(), *_former(folders.former, vault)))
    except AuthenticationError as error:
        sock.sendall(m.SIGNER.encode(m.Refused(error.what)))
        return
    os.close(folders.state)
    _confine(folders.own)
    sock.sendall(m.SIGNER.encode(greeting))
    while packet := sock.recv(m.SIGNER.size_max + 1):
        try:
            answer: m.Answer = m.Made(vault.ask(m.SIGNER.decode(m.Request, packet)[1]))
        except RemoteProtocolError as error:
            say(f"the server broke the protocol of its signer: {error}")
            return
        except GpupoolError as error:
            answer = m.Refused(error.what)
        except Exception:  # noqa: BLE001 - a traceback could show a key
            answer = m.Refused("the signer cannot do that")
        sock.sendall(m.SIGNER.encode(answer))


def _former(former: FormerCa | None, vault: CaVault) -> tuple[bytes, ...]:
    """Return the certificate of a former CA and its key, sealed; nothing if there is none."""
    if former is None:
        return ()
    authority = former_ca.sealed(former, vault)
    former.close()
    return authority.certificate_pem, authority.key_pem


# --- its files ----------------------------------------------------------------------------------


def _confine(own: int) -> None:
    "x".encode("idna")  # loads what reads an address, while modules can be loaded
    sandbox.drop_capabilities()
    unprivileged.hide()
    place = Path(os.readlink(f"/proc/self/fd/{own}"))
    sandbox.restrict_files((), (str(place),), ())
    if syscall_filter.available():
        syscall_filter.install()


def _read(folder: int, name: str) -> tuple[bytes, os.stat_result | None]:
    """Return a plain file with one name, and its stat result; no link is followed."""
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except FileNotFoundError:
        return b"", None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise OSError(f"{name} is no plain file")
        return file.read(max(_FILE_SIZE_MAX, RECORD_SIZE_MAX)), status


def _replace(folder: int, name: str, data: bytes, status: os.stat_result | None) -> None:
    aside = f".{name}-{secrets.token_hex(8)}"
    descriptor = os.open(aside, _MAKE, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if status is not None and status.st_uid != os.geteuid():
                os.fchown(descriptor, status.st_uid, status.st_gid)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside, dir_fd=folder)
        raise
    os.fsync(folder)


def _secret(own: int) -> X25519PrivateKey:
    data, status = _read(own, SECRET)
    if status is None:
        aside = f".{SECRET}-{secrets.token_hex(8)}"
        _replace(own, aside, X25519PrivateKey.generate().private_bytes_raw(), None)
        # Never in the place of another: what is sealed to that would be lost.
        with contextlib.suppress(FileExistsError):
            os.link(aside, SECRET, src_dir_fd=own, dst_dir_fd=own)
        os.unlink(aside, dir_fd=own)
        data, _ = _read(own, SECRET)
    if len(data) != _SECRET_SIZE:
        raise OSError(f"{SECRET} is damaged")
    return X25519PrivateKey.from_private_bytes(data)


def _seal_files(state: int, vault: CaVault, say: Say) -> None:
    """Seal the keys that an older build has left in the clear, or another signer of this server.

    Where this server is started as root and then not, or the other way round, the secret is
    another. A key that cannot be opened is put aside: a voter then asks another one for it.
    """
    voucher = b""
    for name in KEY_FILES:
        data, status = _read(state, name)
        for key in keys_of(data)[:1]:
            try:
                kept = _keep(state, vault, key, voucher)
                voucher = public_of(key)
            except AuthenticationError as error:
                say(f"{name} is put aside: {error}")
                os.rename(name, f"{name}.aside", src_dir_fd=state, dst_dir_fd=state)
                continue
            if kept != key:
                _replace(state, name, b"".join(certificates_of(data)) + kept, status)


def _keep(state: int, vault: CaVault, key: bytes, voucher: bytes) -> bytes:
    try:
        return vault.keep(key, voucher)
    except AuthenticationError:
        for place in (SECRET, f"{ownership.HELPER}/{SECRET}"):
            with contextlib.suppress(OSError, ValueError, AuthenticationError):
                secret = X25519PrivateKey.from_private_bytes(_read(state, place)[0])
                opened = unseal(key, secret)
                return vault.keep(opened.pem(), opened.voucher)
        raise


def _given(own: int) -> dict[str, bytes]:
    """Return to which key of each server the CA's key was given, by the record."""
    found: dict[str, bytes] = {}
    for line in _read(own, RECORD)[0].splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            entry = json.loads(line)
            if entry["vault"]:
                found[str(entry["server"])] = bytes.fromhex(entry["vault"])
    return found


def _recorder(folders: SignerFolders, say: Say) -> Callable[[str, ServerId, bytes], None]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(RECORD, flags, 0o600, dir_fd=folders.own)

    def record(what: str, server: ServerId, public: bytes) -> None:
        if os.fstat(file).st_size > RECORD_SIZE_MAX:
            raise StorageError("the signer's record is full")
        entry = {"at": int(time.time()), "what": what, "server": server, "vault": public.hex()}
        os.write(file, json.dumps(entry).encode() + b"\n")
        os.fsync(file)
        say(f"the signer {what}" + (f" to server {server}" if server else ""))

    return record
