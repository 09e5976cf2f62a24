"""The key and certificate that a worker makes for itself: known by its hash, good for one session.

Workers never hold a key of the server or of the cluster's CA, so a worker that is taken over can
impersonate nobody.
"""

import datetime
import hashlib
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_NOT_BEFORE = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
"""Clients pin the hash and check no date, because a server's clock may be wrong."""


class WorkerContext(ssl.SSLContext):
    """The settings of this worker's TLS."""

    identity: tuple[bytes, bytes] = b"", b""
    """The certificate and the key in DER, for a door's own TLS."""


def worker_context(directory: Path) -> tuple[WorkerContext, bytes]:
    """Return a TLS 1.3 server context with a fresh key, and the SHA-256 of its certificate.

    ``ssl`` reads keys from files only, so the key lies in ``directory`` for a moment, unreadable
    to others; it must be a private directory.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpupool worker")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = directory / "worker.pem"
    path.touch(mode=0o600, exist_ok=False)
    try:
        path.write_bytes(pem)
        context = WorkerContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # One connection a key: nothing will ever be resumed.
        # The client knows which cipher costs the least, and OpenSSL would take the longest key.
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
        context.load_cert_chain(path)
    finally:
        path.unlink()
    der = certificate.public_bytes(serialization.Encoding.DER)
    secret = key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    context.identity = der, secret
    return context, hashlib.sha256(der).digest()
