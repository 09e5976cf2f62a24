"""Keys of a CA as a thief would look for them: in a process's memory, and in a state directory."""

import os
import re
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gpupool.pool.errors import AuthenticationError
from gpupool.remoting.privileges.former_ca import CERTIFICATE, KEY, SECRET
from gpupool.remoting.privileges.ownership import HELPER
from gpupool.remoting.protocol.sealed_key import is_sealed, unseal
from gpupool.remoting.transport.authority.ca_bundle import oldest_of
from gpupool.remoting.transport.pki import Authority


def scalar(key_pem: bytes) -> bytes:
    """Return the number that a key in the clear is."""
    key = load_pem_private_key(key_pem, password=None)
    assert isinstance(key, EllipticCurvePrivateKey)
    return key.private_numbers().private_value.to_bytes(32, "big")


def in_memory(pid: int, *wanted: bytes) -> list[bool]:
    """Return whether each of these byte strings is in the memory of a process."""
    found = [False for _ in wanted]
    maps = Path(f"/proc/{pid}/maps").read_text()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for begin, end in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw", maps, re.MULTILINE):
            start, size = int(begin, 16), int(end, 16) - int(begin, 16)
            try:
                data = os.pread(memory.fileno(), size, start)
            except OSError:
                continue
            found = [each or text in data for each, text in zip(found, wanted, strict=True)]
    return found


def open_key(folder: Path, key_pem: bytes) -> bytes:
    """Return a CA's key in the clear, by the signer's secret in a state directory."""
    if not is_sealed(key_pem):
        return key_pem
    for path in (folder / HELPER / SECRET, folder / SECRET):
        if path.exists():
            try:
                return unseal(key_pem, X25519PrivateKey.from_private_bytes(path.read_bytes())).pem()
            except AuthenticationError:
                continue
    raise AssertionError(f"no secret in {folder} opens the key")


def read_authority(folder: Path) -> Authority:
    """Return the CA of a state directory, its key in the clear."""
    certificate, key = ((folder / name).read_bytes() for name in (CERTIFICATE, KEY))
    return Authority(oldest_of(certificate), open_key(folder, key))
