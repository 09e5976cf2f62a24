"""The messages by which a server joins the pool."""

from dataclasses import field

from gpupool.pool.model.ids import ServerId
from gpupool.remoting.protocol.message_family import Rights, message
from gpupool.remoting.protocol.messages.declaration import Answer, CallFor
from gpupool.remoting.protocol.messages.hello_messages import Member


@message(138)
class Joined(Answer):
    """What a new server needs: its certificate, the CA, and as a voter the CA's key."""

    certificate_pem: bytes
    ca_pem: bytes
    ca_key_pem: bytes = field(repr=False)
    voter: bool
    members: tuple[Member, ...]


@message(64, rights=Rights.SERVER)
class JoinPool(CallFor[Joined]):
    """Admit a server, on a connection that a server token opened."""

    server: ServerId
    name: str
    address: str
    witness: bool
    csr_pem: bytes
