"""A CA's key outside of signers: sealed to one signer, in a special PEM.

A signer (``ca_vault``) has a pair of X25519 keys (RFC 7748). A key is sealed to the public one by
an ephemeral pair, HKDF-SHA256 (RFC 5869) and ChaCha20-Poly1305 (RFC 8439). The CA's public key
stands beside it in the clear, authenticated: its certificate can be told without opening it.
"""

import base64
import textwrap
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gpupool.pool.errors import AuthenticationError, RemoteProtocolError
from gpupool.pool.model import codec
from gpupool.remoting.protocol import framing

LABEL = b"GPUPOOL SEALED KEY"
_BEGINS, _ENDS = b"-----BEGIN " + LABEL + b"-----\n", b"-----END " + LABEL + b"-----\n"
_CONTEXT = b"gpupool sealed CA key 1"
_NONCE = bytes(12)  # each message has a key of its own
X25519_SIZE = 32


@dataclass(frozen=True, slots=True)
class _Sealed:
    """The content of the PEM."""

    public: bytes  # the CA's, as SubjectPublicKeyInfo in DER
    voucher: bytes  # likewise of the CA whose servers may have the key as well; or nothing
    ephemeral: bytes
    ciphertext: bytes


@dataclass(frozen=True, slots=True)
class OpenKey:
    """A CA's key, opened."""

    key: ec.EllipticCurvePrivateKey
    voucher: bytes = b""

    @property
    def public(self) -> bytes:
        """Return the public key."""
        return public_bytes(self.key.public_key())

    def pem(self) -> bytes:
        """Return the key in the clear."""
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def __repr__(self) -> str:
        """Leave the key out."""
        return "OpenKey(...)"


def public_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key as SubjectPublicKeyInfo in DER."""
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def is_sealed(key_pem: bytes) -> bool:
    """Return whether this is a sealed key."""
    return key_pem.startswith(_BEGINS.rstrip())


def public_of(key_pem: bytes) -> bytes:
    """Return the public key of a CA's key, sealed or not.

    Raises:
        AuthenticationError: when it is none.
    """
    return _parse(key_pem).public if is_sealed(key_pem) else open_plain(key_pem).public


def open_plain(key_pem: bytes, voucher: bytes = b"") -> OpenKey:
    """Return the key that an unsealed PEM holds.

    Raises:
        AuthenticationError: when it holds none of the right kind.
    """
    try:
        key = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise AuthenticationError("the CA's certificate or key is malformed") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise AuthenticationError("the CA's key is of the wrong kind")
    return OpenKey(key, voucher)


def seal(opened: OpenKey, recipient: bytes) -> bytes:
    """Return a key sealed to the X25519 public key of a signer.

    Raises:
        AuthenticationError: when that is none.
    """
    pair = X25519PrivateKey.generate()
    ephemeral = pair.public_key().public_bytes_raw()
    try:
        shared = pair.exchange(X25519PublicKey.from_public_bytes(recipient))
    except ValueError as error:
        raise AuthenticationError("a key cannot be sealed to this signer") from error
    scalar = opened.key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    aead = _cipher(shared, ephemeral, recipient)
    ciphertext = aead.encrypt(_NONCE, scalar, _bound(opened.public, opened.voucher))
    sealed = _Sealed(opened.public, opened.voucher, ephemeral, ciphertext)
    text = base64.b64encode(framing.dump(codec.encode(sealed))).decode()
    return _BEGINS + "\n".join(textwrap.wrap(text, 64)).encode() + b"\n" + _ENDS


def unseal(key_pem: bytes, secret: X25519PrivateKey) -> OpenKey:
    """Return the key that was sealed to the owner of ``secret``.

    Raises:
        AuthenticationError: when it is malformed, or another signer's.
    """
    sealed = _parse(key_pem)
    try:
        shared = secret.exchange(X25519PublicKey.from_public_bytes(sealed.ephemeral))
        aead = _cipher(shared, sealed.ephemeral, secret.public_key().public_bytes_raw())
        bound = _bound(sealed.public, sealed.voucher)
        key = serialization.load_der_private_key(
            aead.decrypt(_NONCE, sealed.ciphertext, bound), password=None
        )
    except (ValueError, TypeError, InvalidTag, UnsupportedAlgorithm) as error:
        raise AuthenticationError("the CA's key is sealed to another signer") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise AuthenticationError("the CA's key is of the wrong kind")
    opened = OpenKey(key, sealed.voucher)
    if opened.public != sealed.public:
        raise AuthenticationError("the CA's key is sealed under the name of another")
    return opened


def _parse(key_pem: bytes) -> _Sealed:
    body, end, _ = key_pem.removeprefix(_BEGINS).partition(_ENDS.rstrip())
    try:
        if not end:
            raise ValueError("it has no end")
        plain = framing.load(base64.b64decode(b"".join(body.split()), validate=True))
        return codec.decode(_Sealed, plain)
    except (ValueError, RemoteProtocolError, codec.CodecError) as error:
        raise AuthenticationError("the CA's certificate or key is malformed") from error


def _bound(public: bytes, voucher: bytes) -> bytes:
    return len(public).to_bytes(2, "big") + public + voucher


def _cipher(shared: bytes, ephemeral: bytes, recipient: bytes) -> ChaCha20Poly1305:
    derived = HKDF(hashes.SHA256(), 32, ephemeral + recipient, _CONTEXT).derive(shared)
    return ChaCha20Poly1305(derived)
