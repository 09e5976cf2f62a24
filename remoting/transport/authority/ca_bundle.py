"""The CAs that are trusted together: one, or two while one is exchanged for the other.

A bundle is their certificates in PEM, one behind the other, the one that signs last. A file or
a field that was made for one certificate holds two in the same way, and older programs that read
it trust both.
"""

import ssl
from collections.abc import Iterable
from hashlib import sha256

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpupool.pool.errors import AuthenticationError
from gpupool.remoting.protocol.sealed_key import LABEL, public_bytes, public_of

_BEGINS, _ENDS = b"-----BEGIN ", b"-----END "
FINGERPRINT_SIZE_MIN = 16
_CERTIFICATE, _KEY = b"CERTIFICATE", b"PRIVATE KEY"


def certificates_of(bundle: bytes) -> tuple[bytes, ...]:
    """Return each certificate of a bundle, in PEM."""
    return _blocks(bundle, _CERTIFICATE)


def keys_of(text: bytes) -> tuple[bytes, ...]:
    """Return each private key in ``text``, in PEM: sealed ones, and those of older builds."""
    return _blocks(text, LABEL) + _blocks(text, _KEY)


def _blocks(text: bytes, kind: bytes) -> tuple[bytes, ...]:
    begins, ends = _BEGINS + kind + b"-----", _ENDS + kind + b"-----"
    found: list[bytes] = []
    for part in text.split(begins)[1:]:
        body, end, _ = part.partition(ends)
        if end:
            found.append(begins + body + end + b"\n")
    return tuple(found)


def der_of(certificate_pem: bytes) -> bytes:
    """Return a certificate in DER.

    Raises:
        AuthenticationError: when it is none.
    """
    return _load(certificate_pem).public_bytes(serialization.Encoding.DER)


def bundle_of(certificates: Iterable[bytes]) -> bytes:
    """Return the bundle of certificates in DER."""
    return b"".join(ssl.DER_cert_to_PEM_cert(each).encode() for each in certificates)


def ders_of(bundle: bytes) -> tuple[bytes, ...]:
    """Return the certificates of a bundle in DER.

    Raises:
        AuthenticationError: when one is malformed.
    """
    return tuple(der_of(each) for each in certificates_of(bundle))


def oldest_of(bundle: bytes) -> bytes:
    """Return the certificate of a bundle that has been trusted for longest, in PEM."""
    return (certificates_of(bundle) or (bundle,))[0]


def newest_of(bundle: bytes) -> bytes:
    """Return the certificate of a bundle that signs, in PEM."""
    return (certificates_of(bundle) or (bundle,))[-1]


def member_with(bundle: bytes, fingerprint: bytes) -> bytes | None:
    """Return the certificate of a bundle with this SHA-256, in PEM; 16 bytes of it are enough."""
    if len(fingerprint) < FINGERPRINT_SIZE_MIN:
        return None
    for each in certificates_of(bundle):
        if sha256(der_of(each)).digest()[: len(fingerprint)] == fingerprint:
            return each
    return None


def number_of(certificate_pem: bytes) -> int:
    """Return how many CAs the pool had with this one: 1 for the first.

    Raises:
        AuthenticationError: when it is no certificate of a pool's CA.
    """
    units = _load(certificate_pem).subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    try:
        return int(str(units[0].value)) if units else 1
    except ValueError as error:
        raise AuthenticationError("this is no CA of a pool") from error


def numbers_of(bundle: bytes) -> tuple[int, ...]:
    """Return the numbers of a bundle's certificates, as ``authorities.moves_on`` takes them."""
    return tuple(number_of(each) for each in certificates_of(bundle))


def issuer_of(certificate: bytes, bundle: bytes) -> bytes | None:
    """Return the certificate of a bundle that has signed one, in PEM or in DER; None: no one."""
    try:
        if certificate.startswith(_BEGINS):
            found = x509.load_pem_x509_certificate(certificate)
        else:
            found = x509.load_der_x509_certificate(certificate)
    except ValueError:
        return None
    for each in certificates_of(bundle):
        try:
            found.verify_directly_issued_by(_load(each))
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            continue
        return each
    return None


def belongs(key_pem: bytes, certificate_pem: bytes) -> bool:
    """Return whether a private key, which may be sealed, is that of a certificate."""
    try:
        public = public_of(key_pem)
    except AuthenticationError:
        return False
    key = _load(certificate_pem).public_key()
    return isinstance(key, ec.EllipticCurvePublicKey) and public_bytes(key) == public


def shows_one_of(stream: object, bundle: bytes) -> bool:
    """Return whether a connection is not TLS, or its other end has shown a bundle's certificate."""
    find = getattr(stream, "getpeercert", None)
    if find is None:
        return True
    try:
        shown: object = find(True)
    except ValueError:
        return False  # OpenSSL tells nothing of a connection that has just failed
    return isinstance(shown, bytes) and issuer_of(shown, bundle) is not None


def _load(certificate_pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate_pem)
    except ValueError as error:
        raise AuthenticationError("this is no certificate") from error
