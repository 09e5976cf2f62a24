"""The messages that open, keep and close a connection, and the answers that many calls share."""

from dataclasses import dataclass, field

from gpupool.pool import errors
from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.codec import OPTIONAL
from gpupool.pool.model.ids import Milliseconds, ServerId, TokenId
from gpupool.pool.model.state import TokenKind
from gpupool.remoting.protocol.message_family import Rights, message
from gpupool.remoting.protocol.messages.declaration import Answer, CallFor, Opening, Push

#: A server serves clients that speak ``PROTOCOL_OLDEST`` up to ``PROTOCOL``.
#:
#: Servers are updated before clients. So openings, answers and pushes may get fields, with
#: defaults, and pushes new kinds, under the same number: an older reader passes over them. Calls
#: are read strictly. A new call, a new field of one, and a change that an older client would
#: misread make ``PROTOCOL`` grow; a call that older clients could not make any more makes
#: ``PROTOCOL_OLDEST`` grow too.
PROTOCOL = 9
PROTOCOL_OLDEST = 2


@message(1)
class Hello(Opening):
    """First message of a client, over a connection with a verified server."""

    protocol: int
    version: str
    token: TokenId
    secret: bytes = field(repr=False)
    client: str  # user@host, for people


@message(2)
class FetchCa(Opening):
    """First and only message of a client that knows no more of the CA than its SHA-256."""

    protocol: int


@message(129)
class CaCertificate(Answer):
    """The certificate of the cluster CA. A client trusts it only if it knows its SHA-256.

    While two are trusted the older one comes first: its certificate is what a client is shown that
    asks for ``control.gpupool``.
    """

    pem: bytes


@dataclass(frozen=True, slots=True)
class Member:
    """Where a server is reached."""

    server: ServerId
    name: str
    address: str  # host:port
    voter: bool
    names: tuple[str, ...] = field(default=(), metadata=OPTIONAL)  # more, by DNS names


@message(128)
class Welcome(Answer):
    """The server knows the token."""

    protocol: int
    version: str
    server: ServerId
    server_name: str
    cluster_id: str
    pool: str
    user: str
    kind: TokenKind
    members: tuple[Member, ...]
    ca_pem: bytes = field(default=b"", metadata=OPTIONAL)
    """The CAs that are trusted, the one that signs last; empty when there was never another one."""
    expires_at: Milliseconds = field(default=Milliseconds(0), metadata=OPTIONAL)
    """When the token expires, if that is soon; 0 if it is not."""


@message(130, lines=True)
class Refused(Answer):
    """An error of ``pool.errors``, by its code."""

    code: str
    what: str
    why: str = ""
    hint: str = ""


@message(131, lines=True)
class Done(Answer):
    """The call has succeeded; ``note`` may add that nothing had to change."""

    note: str = ""


@message(23, rights=Rights.VIEWER)
class Ping(CallFor[Done]):
    """Say that you are there."""


@message(196, lines=True)
class Dismissed(Push):
    """The server is about to close this connection, and why."""

    reason: Refused


@message(194)
class Members(Push):
    """The membership has changed, or the CAs that are trusted."""

    members: tuple[Member, ...]
    ca_pem: bytes = field(default=b"", metadata=OPTIONAL)
    """As in ``Welcome``."""


# Of a code, the most general error, which stands first.
_ERRORS: dict[str, type[GpupoolError]] = {}
for _kind in vars(errors).values():
    if isinstance(_kind, type) and issubclass(_kind, GpupoolError):
        _ERRORS.setdefault(_kind.code, _kind)
# Both ends must be able to say so; which end broke the rules is seen from the other side.
_ERRORS[errors.ProtocolError.code] = errors.LocalProtocolError


def refused(error: GpupoolError) -> Refused:
    """Return the message that carries ``error`` to the other side."""
    return Refused(error.code, error.what[:200], error.why[:500], error.hint[:200])


def to_error(message: Refused) -> GpupoolError:
    """Return the error that ``message`` carries."""
    kind = _ERRORS.get(message.code, GpupoolError)
    return kind(message.what, why=message.why, hint=message.hint)
