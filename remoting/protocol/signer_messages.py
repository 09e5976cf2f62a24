"""A server's requests to its signer: the complete list, and the answers.

A signer is the process that alone can open the CA's key (``remoting.privileges.signer_process``).
One message is one packet of a ``SOCK_SEQPACKET`` socket: its kind, then CBOR. The signer decodes as
strictly as if a stranger had sent it, because one that has taken over the server may have.
"""

from dataclasses import field

from gpupool.pool.model.bounds import Blob, Int, Line, Name, Number, ServerKey
from gpupool.remoting.protocol.message_family import Asks, Message, PacketFamily, message

# Both ends are always of the same build.
SIGNER = PacketFamily("signer", size_max=32 * 1024)


class Answer(Message, family=SIGNER):
    """An answer of the signer."""

    __slots__ = ()


@message(0)
class Made(Answer):
    """The answer: the results."""

    parts: tuple[Blob, ...]


@message(1)
class Refused(Answer):
    """The answer: it was not done."""

    what: Line


class Request(Asks[Made], family=SIGNER):
    """A message from the server."""

    __slots__ = ()


@message(1)
class KeepKey(Request):
    """Seal a key that an older build has given in the clear."""

    key_pem: Blob = field(repr=False)


@message(2)
class CreateCa(Request):
    """Make a CA."""

    cluster_id: Name
    now_ms: Int
    number: Number
    former: Blob  # the certificate of the CA before it, or nothing


@message(3)
class SignServer(Request):
    """Sign a server's certificate."""

    ca_pem: Blob
    key_pem: Blob = field(repr=False)  # sealed, as always
    server: ServerKey
    csr_pem: Blob
    now_ms: Int
    valid_ms: Int


@message(4)
class SignWeb(Request):
    """Sign the certificate of a server's exporter."""

    ca_pem: Blob
    key_pem: Blob = field(repr=False)
    server: ServerKey
    name: Name
    address: Name
    csr_pem: Blob
    now_ms: Int


@message(5)
class GiveKeys(Request):
    """Seal keys to another server's signer."""

    keys: tuple[Blob, ...] = field(repr=False)
    server: ServerKey
    request: Blob
