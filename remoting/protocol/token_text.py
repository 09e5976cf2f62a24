"""The token that people paste: ``gpupool-`` and base32 of everything that a first contact needs.

Inside are the first 4 bytes of the SHA-256 of what follows, so that a truncated or mistyped paste
is told from a wrong one, and then one of two forms. Base32 (RFC 4648) survives double-clicks and
change of case. The pool's table holds the SHA-256 of the secret only.

The short form, which is made now::

    1 byte     0x20 + the kind: 0 server, 1 user, 2 operator, 3 viewer; + 8 when packed
    16 bytes   the secret; the token's id is the beginning of SHA-256("gpupool token" + secret)
    16 bytes   the beginning of the SHA-256 of the CA certificate (DER)
    the rest   addresses, each behind a byte with its length; the usual port is left out

It names no pool: the CA's certificate does. Any server of the pool tells of the others, so one
address is enough while that server is up. A token names up to three, as many as leave it fewer than
120 characters. Addresses that are too long for that are packed: each after the first has a byte for
the length of its own text, and two for how many characters of the first address stand before and
behind it. Versions before this one do not read packed addresses, so others are not packed.

The long form, which stays good, is a canonical CBOR array, ``[version, cluster id, kind, token id,
secret, SHA-256 of the CA certificate (DER), addresses]``.
"""

import base64
import hashlib
from dataclasses import dataclass
from itertools import takewhile
from typing import cast

from gpupool.pool.errors import AuthenticationError, ExitCode, GpupoolError
from gpupool.pool.model.ids import Plain, TokenId
from gpupool.pool.model.state import TokenKind
from gpupool.remoting.protocol.addresses import PORT_DEFAULT, Address, parse_address
from gpupool.remoting.protocol.framing import dump, load

PREFIX = "gpupool-"
VERSION = 1
SECRET_SIZE = 32
CHECKSUM_SIZE = 4
SHORT_VERSION = 2
SHORT_SIZE = 16
"""Bytes of a secret, and of the CA's fingerprint, in the short form: nobody finds another one."""

_SHORT_KINDS = (TokenKind.SERVER, TokenKind.USER, TokenKind.OPERATOR, TokenKind.VIEWER)
TEXT_LENGTH_MAX = 4096
SHORT_ADDRESS_COUNT = 3
"""Addresses of a new token: two servers may be down."""

SHORT_ADDRESSES_SIZE = 32
"""Bytes of the addresses of a token with fewer than 120 characters."""

PACKED = 0x08
ADDRESS_COUNT_MAX = 16

_PASTE_HINT = 'copy the whole token again, as "gpupool token create" printed it'


class TokenTextError(AuthenticationError):
    """The pasted text is no token, or not a whole one: a mistake on the command line."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class TokenText:
    """The content of a token. Its holder can act as ``kind`` until it expires."""

    cluster_id: str  # empty in a short token
    kind: TokenKind
    token: TokenId
    secret: bytes
    ca_sha256: bytes
    addresses: tuple[Address, ...]

    @property
    def secret_hash(self) -> bytes:
        """Return the hash of the secret, which is all that the pool's table keeps."""
        return hash_secret(self.secret)

    def __repr__(self) -> str:
        """Leave the secret out, so that no log or traceback shows it."""
        return f"TokenText({self.kind.value} {self.token} of {self.cluster_id})"


def hash_secret(secret: bytes) -> bytes:
    """Return the SHA-256 of a secret. The secrets are random, so no slow hash is needed."""
    return hashlib.sha256(secret).digest()


def new_token(
    kind: TokenKind, secret: bytes, ca_sha256: bytes, addresses: tuple[Address, ...]
) -> TokenText:
    """Return a new token of the short form; its id comes from its secret of 16 random bytes."""
    count = min(SHORT_ADDRESS_COUNT, len(addresses))
    while count > 1 and len(_addresses_form(addresses[:count])[1]) > SHORT_ADDRESSES_SIZE:
        count -= 1
    chosen = addresses[: max(count, 1)]
    return TokenText("", kind, _id_of(secret), secret, ca_sha256[:SHORT_SIZE], chosen)


def _id_of(secret: bytes) -> TokenId:
    return TokenId(hashlib.sha256(b"gpupool token" + secret).hexdigest()[:12])


def format_token(token: TokenText) -> str:
    """Return ``token`` as people paste it."""
    body = _short_form(token) if len(token.secret) == SHORT_SIZE else _long_form(token)
    data = hashlib.sha256(body).digest()[:CHECKSUM_SIZE] + body
    return PREFIX + base64.b32encode(data).decode().rstrip("=").lower()


def _short_form(token: TokenText) -> bytes:
    packed, addresses = _addresses_form(token.addresses[:ADDRESS_COUNT_MAX])
    first = SHORT_VERSION << 4 | packed | _SHORT_KINDS.index(token.kind)
    return bytes([first]) + token.secret + token.ca_sha256 + addresses


def _addresses_form(addresses: tuple[Address, ...]) -> tuple[int, bytes]:
    """Return the addresses as bytes, behind ``PACKED`` if they are too long otherwise."""
    texts = [str(each).removesuffix(f":{PORT_DEFAULT}").encode() for each in addresses]
    plain = b"".join(bytes([len(text)]) + text for text in texts)
    packed = plain[: 1 + len(texts[0])] if texts else b""
    for text in texts[1:]:
        head = _alike(texts[0], text)
        tail = _alike(texts[0][head:][::-1], text[head:][::-1])
        own = text[head : len(text) - tail]
        packed += bytes([len(own), head, tail]) + own
    if len(plain) <= SHORT_ADDRESSES_SIZE or len(plain) <= len(packed):
        return 0, plain
    return PACKED, packed


def _alike(one: bytes, other: bytes) -> int:
    """Return how many bytes both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _long_form(token: TokenText) -> bytes:
    fields: list[Plain] = [
        VERSION,
        token.cluster_id,
        token.kind.value,
        token.token,
        token.secret,
        token.ca_sha256,
        [str(address) for address in token.addresses[:ADDRESS_COUNT_MAX]],
    ]
    return dump(fields)


def parse_token(text: str) -> TokenText:
    """Return the content of the pasted ``text``.

    Raises:
        TokenTextError: when it is no token, is damaged, or is of another version.
    """
    text = "".join(text.split())
    if not text.lower().startswith(PREFIX) or len(text) > TEXT_LENGTH_MAX:
        raise TokenTextError(
            "this is not a gpupool token", why=f"tokens begin with {PREFIX}", hint=_PASTE_HINT
        )
    code = text[len(PREFIX) :].upper()
    try:
        data = base64.b32decode(code + "=" * (-len(code) % 8))
    except ValueError as error:  # not base32, or not even ASCII
        raise TokenTextError("the token is damaged", hint=_PASTE_HINT) from error
    checksum, body = data[:CHECKSUM_SIZE], data[CHECKSUM_SIZE:]
    if hashlib.sha256(body).digest()[:CHECKSUM_SIZE] != checksum:
        raise TokenTextError(
            "the token is damaged", why="it is truncated or mistyped", hint=_PASTE_HINT
        )
    try:
        if body and body[0] >> 4 == SHORT_VERSION:
            return _from_short(body)
        return _from_plain(load(body))
    except (GpupoolError, ValueError) as error:
        raise TokenTextError("the token is malformed", why=str(error)[:200]) from error


def _from_short(body: bytes) -> TokenText:
    kind, packed, rest = body[0] & 0x07, body[0] & PACKED, body[1:]
    if kind >= len(_SHORT_KINDS):
        raise ValueError("it is of another version of gpupool")
    secret, ca_sha256 = rest[:SHORT_SIZE], rest[SHORT_SIZE : 2 * SHORT_SIZE]
    rest = rest[2 * SHORT_SIZE :]
    texts: list[bytes] = []
    while rest:
        begin = 3 if packed and texts else 1
        sizes, rest = rest[:begin], rest[begin:]
        if len(sizes) < begin or len(rest) < sizes[0] or len(texts) >= ADDRESS_COUNT_MAX:
            raise ValueError("no addresses, or too many")
        own, rest = rest[: sizes[0]], rest[sizes[0] :]
        if begin > 1:
            first, head, tail = texts[0], sizes[1], sizes[2]
            if head + tail > len(first):
                raise ValueError("an address has more of the first one than there is")
            own = first[:head] + own + first[len(first) - tail :]
        texts.append(own)
    if not texts:
        raise ValueError("no addresses, or too many")
    addresses = tuple(parse_address(text.decode()) for text in texts)
    return TokenText("", _SHORT_KINDS[kind], _id_of(secret), secret, ca_sha256, addresses)


def _from_plain(plain: Plain) -> TokenText:
    if not isinstance(plain, list) or not plain or plain[0] != VERSION:
        raise ValueError("it is of another version of gpupool")
    if len(plain) != 7:
        raise ValueError("fields are missing")
    _, cluster_id, kind, token, secret, ca_sha256, addresses = plain
    if not isinstance(cluster_id, str) or not isinstance(token, str):
        raise ValueError("names are no text")
    if not isinstance(secret, bytes) or len(secret) != SECRET_SIZE:
        raise ValueError("the secret is not 32 bytes long")
    if not isinstance(ca_sha256, bytes) or len(ca_sha256) != 32:
        raise ValueError("the fingerprint is not 32 bytes long")
    if not isinstance(addresses, list) or not 0 < len(addresses) <= ADDRESS_COUNT_MAX:
        raise ValueError("no addresses, or too many")
    if not all(isinstance(address, str) for address in addresses):
        raise ValueError("addresses are no text")
    return TokenText(
        cluster_id=cluster_id,
        kind=TokenKind(kind),
        token=TokenId(token),
        secret=secret,
        ca_sha256=ca_sha256,
        addresses=tuple(parse_address(text) for text in cast("list[str]", addresses)),
    )
