"""The vault, held by a signing process: permitted operations with the CA's key, and their rules.

Everybody else has the key sealed (``sealed_key``) and calls the vault with it. It signs for servers
and their exporters, by names that it makes itself, makes CAs, and seals a key to another server's
vault. It never signs a CA but its own, and never gives a key in the clear.
"""

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID

from gpupool.pool.errors import AuthenticationError, RemoteProtocolError
from gpupool.pool.model import codec
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import Server
from gpupool.remoting.protocol import framing
from gpupool.remoting.protocol import signer_messages as m
from gpupool.remoting.protocol.addresses import parse_address
from gpupool.remoting.protocol.sealed_key import (
    X25519_SIZE,
    OpenKey,
    is_sealed,
    open_plain,
    public_bytes,
    seal,
    unseal,
)
from gpupool.remoting.transport.pki import (
    CSR_SIZE_MAX,
    SERVER_VALID,
    Authority,
    check_authority,
    create_ca,
    server_name,
    sign_leaf,
    sign_server,
)

WEB_VALID = timedelta(days=397)
"""The most that browsers take; a leaf never outlives its CA."""

OWN_DOMAIN = "gpupool"
_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*"
)


def web_names(server: Server) -> list[x509.GeneralName]:
    """Return the names and addresses of a server; never one of gpupool's own."""
    found: list[x509.GeneralName] = []
    for text in dict.fromkeys((parse_address(server.address).host.lower(), server.name.lower())):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(text)))
        except ValueError:
            if _NAME.fullmatch(text) and text.rpartition(".")[2] != OWN_DOMAIN:
                found.append(x509.DNSName(text))
    return found


def sign_web(authority: Authority, csr_pem: bytes, server: Server, now: datetime) -> bytes:
    """Return the certificate of the exporter of ``server``.

    Raises:
        AuthenticationError: when the request is malformed.
    """
    return sign_leaf(
        authority,
        csr_pem,
        common_name=f"the exporter of {server.name}"[:64],
        names=web_names(server),
        usages=[ExtendedKeyUsageOID.SERVER_AUTH],
        now=now,
        valid=WEB_VALID,
    )


SERVER_ID_SIZE_MAX = 64
_CONTEXT = b"gpupool request for the CA's key 1"

SIGNATURES_PER_S, SIGNATURE_BURST = 2.0, 256
"""A pool of some hundred servers may be started, or renewed, at once."""

EXPORTS_PER_S, EXPORT_BURST = 1 / 60, 32
CREATIONS_PER_S, CREATION_BURST = 1 / 600, 4


@dataclass(frozen=True, slots=True)
class KeyRequest:
    """A server's request for the CA's key, sealed to its own vault."""

    public: bytes  # of its vault
    certificate_pem: bytes  # of the server
    signature: bytes  # by the server's key, of the public key of its vault


class CaVaultPort(Protocol):
    """Executes operations with the CA's key."""

    @property
    def has_own_user(self) -> bool:
        """Return whether its secret is closed to the server's user."""
        ...

    def public(self) -> bytes:
        """Return the X25519 key to which keys for this vault are sealed."""
        ...

    def ask(self, asked: m.Request) -> tuple[bytes, ...]:
        """Carry out a request of ``signer_messages``, and return its results.

        Raises:
            AuthenticationError: when it refuses.
        """
        ...


def make_request(public: bytes, certificate_pem: bytes, key_pem: bytes) -> bytes:
    """Return a ``KeyRequest`` of the server with this certificate and key."""
    key = serialization.load_pem_private_key(key_pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise AuthenticationError("the server's key is of the wrong kind")
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    signature = key.sign(_CONTEXT + public, ec.ECDSA(hashes.SHA256()))
    return framing.dump(codec.encode(KeyRequest(public, pem, signature)))


class _Bucket:
    """A bound on how often something happens."""

    def __init__(self, what: str, per_s: float, burst: int, now: Callable[[], float]) -> None:
        self._what, self._per_s, self._burst, self._now = what, per_s, burst, now
        self._left, self._at = float(burst), now()

    def take(self) -> None:
        now = self._now()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            raise AuthenticationError(f"the signer {self._what} no more for a while")
        self._left -= 1


class CaVault:
    """See the module; ``CaVaultPort`` describes the methods."""

    has_own_user = False

    def __init__(
        self,
        secret: X25519PrivateKey,
        now: Callable[[], float],
        *,
        given: Mapping[str, bytes] | None = None,
        record: Callable[[str, ServerId, bytes], None] = lambda _what, _server, _public: None,
    ) -> None:
        """Start with past calls of ``record``: to which public key of a server keys were given."""
        self._secret = secret
        self._given = dict(given or {})
        self._record = record
        self._signatures = _Bucket("signs", SIGNATURES_PER_S, SIGNATURE_BURST, now)
        self._exports = _Bucket("gives keys", EXPORTS_PER_S, EXPORT_BURST, now)
        self._creations = _Bucket("makes CAs", CREATIONS_PER_S, CREATION_BURST, now)

    @classmethod
    def of_this_process(cls, now: Callable[[], float]) -> "CaVault":
        """Return a vault with a new pair of keys, which nobody keeps."""
        return cls(X25519PrivateKey.generate(), now)

    def public(self) -> bytes:  # noqa: D102
        return self._secret.public_key().public_bytes_raw()

    def ask(self, asked: m.Request) -> tuple[bytes, ...]:  # noqa: D102
        match asked:
            case m.KeepKey(key_pem):
                return (self.keep(key_pem),)
            case m.CreateCa():
                return self._create(asked)
            case m.SignServer():
                return (self._sign_server(asked),)
            case m.SignWeb():
                return (self._sign_web(asked),)
            case m.GiveKeys(keys, server, request):
                return (self._give(keys, server, request),)
            case _:
                raise AuthenticationError("the signer cannot do that")

    def keep(self, key_pem: bytes, voucher: bytes = b"") -> bytes:
        """Return a key sealed to this vault, which an older build has given in the clear."""
        if is_sealed(key_pem):
            self._open(key_pem)
            return key_pem
        return seal(open_plain(key_pem, voucher), self.public())

    def _create(self, asked: m.CreateCa) -> tuple[bytes, bytes]:
        self._creations.take()
        voucher = _public_of_certificate(asked.former) if asked.former else b""
        made = create_ca(asked.cluster_id, _moment(asked.now_ms), number=asked.number)
        self._record("made a CA", ServerId(""), b"")
        return made.certificate_pem, self.keep(made.key_pem, voucher)

    def _sign_server(self, asked: m.SignServer) -> bytes:
        server = asked.server
        if not server or len(server) > SERVER_ID_SIZE_MAX or not server.isascii() or "." in server:
            raise AuthenticationError("this is no server's id")
        self._signatures.take()
        valid = min(timedelta(milliseconds=max(0, asked.valid_ms)), SERVER_VALID)
        opened = self._opened(asked)
        return sign_server(opened, asked.csr_pem, server, _moment(asked.now_ms), valid=valid)

    def _sign_web(self, asked: m.SignWeb) -> bytes:
        self._signatures.take()
        server = Server(asked.server, asked.name, asked.address, voter=False)
        return sign_web(self._opened(asked), asked.csr_pem, server, _moment(asked.now_ms))

    def _give(self, keys: Sequence[bytes], server: ServerId, request: bytes) -> bytes:
        asked = _read_request(request)
        opened = [self._open(each) for each in keys]
        try:
            certificate = x509.load_pem_x509_certificate(asked.certificate_pem)
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            theirs = certificate.public_key()
            if not isinstance(theirs, ec.EllipticCurvePublicKey):
                raise ValueError("it is of the wrong kind")
            theirs.verify(asked.signature, _CONTEXT + asked.public, ec.ECDSA(hashes.SHA256()))
        except (ValueError, InvalidSignature, x509.ExtensionNotFound) as error:
            raise AuthenticationError("the request for the CA's key is malformed") from error
        if server_name(server) not in names.value.get_values_for_type(x509.DNSName):
            raise AuthenticationError("the request for the CA's key is another server's")
        may = [each for each in opened if _vouches(each, certificate)]
        if not may:
            raise AuthenticationError("the request for the CA's key is no server's of this CA")
        if self._given.setdefault(server, asked.public) != asked.public:
            raise AuthenticationError("the CA's key was given to another vault of this server")
        self._exports.take()
        self._record("gave the CA's key", server, asked.public)
        return b"".join(seal(each, asked.public) for each in may)

    def _open(self, key_pem: bytes) -> OpenKey:
        return unseal(key_pem, self._secret) if is_sealed(key_pem) else open_plain(key_pem)

    def _opened(self, asked: m.SignServer | m.SignWeb) -> Authority:
        check_authority(Authority(asked.ca_pem, asked.key_pem))
        return Authority(asked.ca_pem, self._open(asked.key_pem).pem())


def _vouches(opened: OpenKey, certificate: x509.Certificate) -> bool:
    """Return whether a key's CA, or the CA that vouches for it, has signed a certificate."""
    for public in (opened.public, opened.voucher):
        try:
            key = serialization.load_der_public_key(public) if public else None
            if isinstance(key, ec.EllipticCurvePublicKey) and public_bytes(key) == public:
                signed, signature = certificate.tbs_certificate_bytes, certificate.signature
                key.verify(signature, signed, ec.ECDSA(hashes.SHA256()))
                return True
        except (ValueError, InvalidSignature):
            continue
    return False


def _public_of_certificate(certificate_pem: bytes) -> bytes:
    try:
        key = x509.load_pem_x509_certificate(certificate_pem).public_key()
    except ValueError as error:
        raise AuthenticationError("this is no certificate") from error
    return public_bytes(key) if isinstance(key, ec.EllipticCurvePublicKey) else b""


def _read_request(request: bytes) -> KeyRequest:
    if len(request) > 2 * CSR_SIZE_MAX:
        raise AuthenticationError("the request for the CA's key is too long")
    try:
        asked = codec.decode(KeyRequest, framing.load(request))
    except (RemoteProtocolError, codec.CodecError) as error:
        raise AuthenticationError("the request for the CA's key is malformed") from error
    if len(asked.public) != X25519_SIZE:
        raise AuthenticationError("the request for the CA's key is malformed")
    return asked


def _moment(now_ms: int) -> datetime:
    try:
        return datetime.fromtimestamp(now_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise AuthenticationError("this is no time") from error
