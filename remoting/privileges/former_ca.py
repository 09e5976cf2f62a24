"""The CA of a former pool, which ``gpupool join --ca`` names: the signer alone reads its key.

The server opens the files and hands them over as descriptors. So it needs no key in its memory, and
a signer with more rights than the server reads nothing that the server could not.
"""

import contextlib
import os
import stat
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from gpupool.pool.errors import AuthenticationError, StorageError
from gpupool.remoting.privileges import ownership
from gpupool.remoting.protocol.sealed_key import OpenKey, is_sealed, open_plain, unseal
from gpupool.remoting.transport.authority.ca_bundle import oldest_of
from gpupool.remoting.transport.authority.ca_vault import CaVault
from gpupool.remoting.transport.pki import Authority, cluster_id_of

CERTIFICATE, KEY, SECRET = "ca.pem", "ca.key", "signer.key"
FILE_COUNT_MAX = 4
_FILE_SIZE_MAX = 1 << 20
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # nobody waits for the writer of a pipe


@dataclass(frozen=True, slots=True)
class FormerCa:
    """Descriptors of its files."""

    certificate: int
    key: int
    secrets: tuple[int, ...] = ()  # of the signers that it may be sealed to

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return all of them, in the order of the fields."""
        return self.certificate, self.key, *self.secrets

    def close(self) -> None:
        """Close them."""
        for each in self.descriptors:
            os.close(each)


@contextlib.contextmanager
def opened(folder: Path | None) -> Generator[FormerCa | None]:
    """Open the files of a former pool's CA, and read none of them; None: there is no such pool.

    Raises:
        StorageError: when one is missing, or may not be read.
    """
    if folder is None:
        yield None
        return
    former = _open(folder)
    try:
        yield former
    finally:
        former.close()


def _open(folder: Path) -> FormerCa:
    found: list[int] = []
    try:
        for name in (CERTIFICATE, KEY):
            found.append(os.open(folder / name, _OPEN))  # noqa: PERF401 - those before are closed
        for path in (folder / ownership.HELPER / SECRET, folder / SECRET):
            with contextlib.suppress(FileNotFoundError):
                found.append(os.open(path, _OPEN))
    except OSError as error:
        for each in found:
            os.close(each)
        raise StorageError(
            f"cannot read the CA in {folder}",
            why=f"{error.filename}: {(error.strerror or str(error)).lower()}",
            hint=f"it must hold {CERTIFICATE}, {KEY} and {SECRET} of a former server",
        ) from error
    return FormerCa(found[0], found[1], tuple(found[2:]))


def sealed(former: FormerCa, vault: CaVault) -> Authority:
    """Return the CA with its key sealed to ``vault``.

    Raises:
        AuthenticationError: when it is no CA of a pool, or sealed to a signer that is not there.
        OSError: when a file cannot be read.
    """
    certificate, key, *secrets = (_read(each) for each in former.descriptors)
    authority = Authority(oldest_of(certificate), vault.keep(_opened_key(key, secrets).pem()))
    cluster_id_of(authority)
    return authority


def _opened_key(key_pem: bytes, secrets: list[bytes]) -> OpenKey:
    if not is_sealed(key_pem):
        return open_plain(key_pem)
    for each in secrets:
        with contextlib.suppress(ValueError, AuthenticationError):
            return unseal(key_pem, X25519PrivateKey.from_private_bytes(each))
    if not secrets:
        raise AuthenticationError(f"the CA's key is sealed, and there is no {SECRET} beside it")
    raise AuthenticationError("the CA's key is sealed to another signer")


def _read(descriptor: int) -> bytes:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise AuthenticationError("a file of the former CA is no plain file")
    return os.pread(descriptor, _FILE_SIZE_MAX, 0)
