"""Identity of servers: the cluster CA, server certificates, and the TLS settings of connections.

TLS 1.3 only. A server's certificate is good for two names: ``control.gpupool``, which clients ask
for, and ``<server id>.server.gpupool``, which peers ask for and by which it proves itself to them.
While two CAs are trusted it has two certificates: these names are answered with the one of the
older CA, and names with ``newest`` in them with the one of the CA that signs.
All keys are ECDSA over P-256 (FIPS 186-5), certificates as in RFC 5280. The signer of every voter
(``ca_vault``) holds the CA's key, so that servers can join after the first server is lost.
"""

import hashlib
import ssl
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import trio
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpupool.pool.errors import AuthenticationError
from gpupool.pool.model.ids import ServerId
from gpupool.remoting.protocol.sealed_key import public_bytes, public_of
from gpupool.remoting.transport.client_tls import (
    CONTROL_NAME,
    NEWEST_CONTROL_NAME,
    NEWEST_SERVER_SUFFIX,
    SERVER_SUFFIX,
    client_context,
    harden,
)

CA_VALID = timedelta(days=3650)
SERVER_VALID = timedelta(days=365)
"""A server gets a new one in time (``certificate_renewal``); a stolen key ends with its year."""

CLOCK_SLACK = timedelta(days=1)
"""Certificates start in the past, since clocks of machines differ."""

CSR_SIZE_MAX = 2048


@dataclass(frozen=True, slots=True)
class Authority:
    """The cluster CA with its private key, which outside of a signer is sealed."""

    certificate_pem: bytes
    key_pem: bytes

    def __repr__(self) -> str:
        """Leave the key out, so that no log or traceback shows it."""
        return "Authority(...)"


@dataclass(frozen=True, slots=True)
class Identity:
    """Certificate and key of one server. The paths are files, because ``ssl`` reads only those."""

    server: ServerId
    cluster_id: str
    certificate_path: Path
    key_path: Path
    ca_pem: bytes


def server_name(server: ServerId) -> str:
    """Return the TLS name under which peers know ``server``."""
    return server + SERVER_SUFFIX


def newest_server_name(server: ServerId) -> str:
    """Return the TLS name of ``server`` for a peer that trusts the CA that signs."""
    return server + NEWEST_SERVER_SUFFIX


def fingerprint(certificate_pem: bytes) -> bytes:
    """Return the SHA-256 of a certificate's DER form.

    Raises:
        AuthenticationError: when it is no certificate.
    """
    try:
        with warnings.catch_warnings():
            # Of a serial number that no CA gives, the library only warns, on standard error.
            warnings.simplefilter("error")
            found = x509.load_pem_x509_certificate(certificate_pem)
        der = found.public_bytes(serialization.Encoding.DER)
    except (ValueError, Warning) as error:
        raise AuthenticationError("this is no certificate") from error
    return hashlib.sha256(der).digest()


# --- making certificates -------------------------------------------------------------------------


def create_ca(cluster_id: str, now: datetime, *, number: int = 1) -> Authority:
    """Return a new CA, which may sign servers and nothing below them: the ``number``-th."""
    key = ec.generate_private_key(ec.SECP256R1())
    words = [x509.NameAttribute(NameOID.COMMON_NAME, f"gpupool {cluster_id}")]
    if number > 1:
        words.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, str(number)))
    name = x509.Name(words)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SLACK)
        .not_valid_after(now + CA_VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key))


def create_key_and_csr(server: ServerId) -> tuple[bytes, bytes]:
    """Return a new private key and a certificate request for it, both as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, server)])
    csr = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return _key_pem(key), csr.public_bytes(serialization.Encoding.PEM)


def sign_server(
    authority: Authority,
    csr_pem: bytes,
    server: ServerId,
    now: datetime,
    *,
    valid: timedelta | None = None,
) -> bytes:
    """Return a certificate for ``server``; of the request only the public key is taken.

    It is good for ``valid``, ``SERVER_VALID`` unless told, and no longer than the CA.

    Raises:
        AuthenticationError: when the request is malformed, of the wrong kind of key, or not
            signed with the key that it names.
    """
    texts = (CONTROL_NAME, server_name(server), NEWEST_CONTROL_NAME, newest_server_name(server))
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return sign_leaf(
        authority,
        csr_pem,
        common_name=server,
        names=[x509.DNSName(each) for each in texts],
        usages=usages,
        now=now,
        valid=valid or SERVER_VALID,
    )


def sign_leaf(
    authority: Authority,
    csr_pem: bytes,
    *,
    common_name: str,
    names: Iterable[x509.GeneralName],
    usages: Iterable[x509.ObjectIdentifier],
    now: datetime,
    valid: timedelta,
) -> bytes:
    """Return a certificate for the public key of a request, and nothing else of it.

    Raises:
        AuthenticationError: as ``sign_server``.
    """
    key = _requested_key(csr_pem)
    ca = x509.load_pem_x509_certificate(authority.certificate_pem)
    ca_key = serialization.load_pem_private_key(authority.key_pem, password=None)
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise AuthenticationError("the CA's key is of the wrong kind")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .issuer_name(ca.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SLACK)
        .not_valid_after(min(now + valid, ca.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def _requested_key(csr_pem: bytes) -> ec.EllipticCurvePublicKey:
    if len(csr_pem) > CSR_SIZE_MAX:
        raise AuthenticationError("the certificate request is too long")
    try:
        csr = x509.load_pem_x509_csr(csr_pem)
        key = csr.public_key()
        signed = csr.is_signature_valid
    except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise AuthenticationError("the certificate request is malformed") from error
    if not signed or not isinstance(key, ec.EllipticCurvePublicKey):
        raise AuthenticationError("the certificate request is not signed with a P-256 key")
    if not isinstance(key.curve, ec.SECP256R1):
        raise AuthenticationError("the certificate request is not for a P-256 key")
    return key


@dataclass(frozen=True, slots=True)
class Validity:
    """The time for which a certificate is good, in milliseconds since the Unix epoch."""

    issued_ms: int
    ends_ms: int


def validity_of(certificate_pem: bytes) -> Validity:
    """Return when a certificate that was made here was issued, and when it ends.

    Raises:
        AuthenticationError: when it is no certificate.
    """
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
    except ValueError as error:
        raise AuthenticationError("this is no certificate") from error
    issued = certificate.not_valid_before_utc + CLOCK_SLACK
    return Validity(
        int(issued.timestamp() * 1000), int(certificate.not_valid_after_utc.timestamp() * 1000)
    )


def check_server_certificate(
    certificate_pem: bytes, key_pem: bytes, server: ServerId, ca_pem: bytes, now_ms: int
) -> None:
    """Check that a certificate is the CA's, for this server and this key, and has not ended.

    Raises:
        AuthenticationError: when it is not so.
    """
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        key = serialization.load_pem_private_key(key_pem, password=None)
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca_pem))
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (
        ValueError,
        TypeError,
        UnsupportedAlgorithm,
        InvalidSignature,
        x509.ExtensionNotFound,
    ) as error:
        raise AuthenticationError("this is no certificate of the pool's CA") from error
    if certificate.public_key() != key.public_key():
        raise AuthenticationError("the certificate is for another key")
    if server_name(server) not in names.get_values_for_type(x509.DNSName):
        raise AuthenticationError("the certificate is another server's")
    if validity_of(certificate_pem).ends_ms <= now_ms:
        raise AuthenticationError("the certificate has ended")


def check_authority(authority: Authority) -> None:
    """Check that a CA's key, which may be sealed, belongs to its certificate.

    Raises:
        AuthenticationError: when it does not, or either is malformed.
    """
    try:
        public_key = x509.load_pem_x509_certificate(authority.certificate_pem).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise AuthenticationError("the CA's certificate or key is malformed") from error
    if not isinstance(public_key, ec.EllipticCurvePublicKey):
        raise AuthenticationError("the CA's key is of the wrong kind")
    if public_bytes(public_key) != public_of(authority.key_pem):
        raise AuthenticationError("the CA's key does not belong to its certificate")


def cluster_id_of(authority: Authority) -> str:
    """Return the id of the pool that a CA was made for.

    Raises:
        AuthenticationError: when it is not the CA of a pool, or its key is another one's.
    """
    check_authority(authority)
    return pool_of(authority.certificate_pem)


def pool_of(ca_pem: bytes) -> str:
    """Return the id of the pool that a CA's certificate names.

    Raises:
        AuthenticationError: when it is not the CA of a pool.
    """
    try:
        subject = x509.load_pem_x509_certificate(ca_pem).subject
    except ValueError as error:
        raise AuthenticationError("the CA's certificate is malformed") from error
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    words = str(names[0].value).split(" ") if names else []
    if len(words) != 2 or words[0] != "gpupool" or not words[1]:
        raise AuthenticationError("this is not the CA of a pool")
    return words[1]


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _key_usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


# --- settings of TLS -----------------------------------------------------------------------------


def control_context(identity: Identity) -> ssl.SSLContext:
    """Return a server's context for clients, which prove themselves with tokens."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    harden(context)
    context.load_cert_chain(identity.certificate_path, identity.key_path)
    context.num_tickets = 0  # of sessions, which are never resumed
    return context


def peer_server_context(identity: Identity) -> ssl.SSLContext:
    """Return a server's context for dialling peers: each shows a certificate of our CA."""
    context = control_context(identity)
    context.load_verify_locations(cadata=identity.ca_pem.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def peer_client_context(identity: Identity) -> ssl.SSLContext:
    """Return a server's context for dialling a peer."""
    context = client_context(identity.ca_pem)
    context.load_cert_chain(identity.certificate_path, identity.key_path)
    return context


_Make = Callable[[Identity], ssl.SSLContext]


class TlsContexts:
    """The TLS settings of one server, which a new certificate replaces while the server runs.

    Each connection takes the context of its moment. Those that are up keep theirs. While two CAs
    are trusted there may be a second identity, of the one that signs; without it the first serves.
    """

    def __init__(self, identity: Identity, newest: Identity | None = None) -> None:
        """Make none yet: each is made when a connection first needs it."""
        self._identity, self._newest = identity, newest
        self._made: dict[tuple[_Make, bool], ssl.SSLContext] = {}
        self.files = trio.Lock()
        """Held by a task that changes the files of this server's certificates."""

    @property
    def identity(self) -> Identity:
        """The current certificate and key of this server."""
        return self._identity

    @property
    def newest(self) -> Identity:
        """The certificate and key for others that know the signing CA."""
        return self._newest or self._identity

    def control(self, *, newest: bool = False) -> ssl.SSLContext:
        """Return the context for clients."""
        return self._context(control_context, newest=newest)

    def peer_server(self, *, newest: bool = False) -> ssl.SSLContext:
        """Return the context for peers that dial."""
        return self._context(peer_server_context, newest=newest)

    def peer_client(self, *, newest: bool = False) -> ssl.SSLContext:
        """Return the context for dialling a peer."""
        return self._context(peer_client_context, newest=newest)

    def replace(self, identity: Identity, newest: Identity | None = None) -> None:
        """Use other certificates from now on.

        Raises:
            OSError: when one cannot be used; the former ones stay.
        """
        kinds = (control_context, peer_server_context, peer_client_context)
        made = {(make, False): make(identity) for make in kinds}
        if newest is not None:
            made |= {(make, True): make(newest) for make in kinds}
        self._identity, self._newest, self._made = identity, newest, made

    def _context(self, make: _Make, *, newest: bool) -> ssl.SSLContext:
        key = make, newest and self._newest is not None
        if key not in self._made:
            self._made[key] = make(self.newest if newest else self._identity)
        return self._made[key]
