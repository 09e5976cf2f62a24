"""What a server asks its signer for: the whole list, and the answers.

A signer is the process that alone can open the CA's key (``remoting.privileges.signer_process``).
One message is one packet of a ``SOCK_SEQPACKET`` socket: its kind, then CBOR. The signer decodes as
strictly as if a stranger had sent it, because one that has taken over the server may have.
"""

from dataclasses import dataclass, field
from typing import Any, cast

from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model import codec
from gpupool.pool.model.bounds import Blob, Int, Line, Name, Number
from gpupool.remoting.protocol import framing

PACKET_SIZE_MAX = 32 * 1024


@dataclass(frozen=True, slots=True)
class AskPublic:
    """Name the X25519 key to which keys are sealed."""


@dataclass(frozen=True, slots=True)
class KeepKey:
    """Seal a key that an older build has given in the clear."""

    key_pem: Blob = field(repr=False)


@dataclass(frozen=True, slots=True)
class CreateCa:
    """Make a CA."""

    cluster_id: Name
    now_ms: Int
    number: Number
    former: Blob  # the certificate of the CA before it, or nothing


@dataclass(frozen=True, slots=True)
class SignServer:
    """Sign a server's certificate."""

    ca_pem: Blob
    key_pem: Blob = field(repr=False)  # sealed, as always
    server: Name
    csr_pem: Blob
    now_ms: Int
    valid_ms: Int


@dataclass(frozen=True, slots=True)
class SignWeb:
    """Sign the certificate of a server's observer."""

    ca_pem: Blob
    key_pem: Blob = field(repr=False)
    server: Name
    name: Name
    address: Name
    csr_pem: Blob
    now_ms: Int


@dataclass(frozen=True, slots=True)
class GiveKeys:
    """Seal keys to another server's signer."""

    keys: tuple[Blob, ...] = field(repr=False)
    server: Name
    request: Blob


@dataclass(frozen=True, slots=True)
class Made:
    """The answer: what was made."""

    parts: tuple[Blob, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer: it was not done."""

    what: Line


Request = AskPublic | KeepKey | CreateCa | SignServer | SignWeb | GiveKeys
Answer = Made | Refused

# The position is the kind. Both ends are always of the same build.
_REQUESTS: tuple[type[Any], ...] = (AskPublic, KeepKey, CreateCa, SignServer, SignWeb, GiveKeys)
_ANSWERS: tuple[type[Any], ...] = (Made, Refused)
_KIND_OF = {kind: number for kinds in (_REQUESTS, _ANSWERS) for number, kind in enumerate(kinds)}


def encode(message: Request | Answer) -> bytes:
    """Return the packet that carries ``message``.

    Raises:
        RemoteProtocolError: when it is too large.
    """
    packet = bytes([_KIND_OF[type(message)]]) + framing.dump(codec.encode(message))
    if len(packet) > PACKET_SIZE_MAX:
        raise RemoteProtocolError("oversize packet", why=f"{len(packet)} bytes")
    return packet


def decode_request(packet: bytes) -> Request:
    """Return what is asked for.

    Raises:
        RemoteProtocolError: when it makes no sense.
    """
    return cast(Request, _decode(_REQUESTS, packet))


def decode_answer(packet: bytes) -> Answer:
    """Return an answer.

    Raises:
        RemoteProtocolError: when it makes no sense.
    """
    return cast(Answer, _decode(_ANSWERS, packet))


def _decode(kinds: tuple[type[Any], ...], packet: bytes) -> object:
    if not 1 < len(packet) <= PACKET_SIZE_MAX or packet[0] >= len(kinds):
        raise RemoteProtocolError("malformed packet", why=f"{len(packet)} bytes")
    try:
        return codec.decode(kinds[packet[0]], framing.load(packet[1:]))
    except codec.CodecError as error:
        raise RemoteProtocolError("malformed call", why=str(error)) from error
