"""The checks of a client: its token, its version, the rights of its calls, the form of a request.

Handlers run after them, so that no handler needs a check that another one has as well. The table
of all rights stands in docs/results/security.md.
"""

import hmac

from gpupool.pool.errors import AuthenticationError, DeniedError, NoQuorumError, UsageError
from gpupool.pool.model.ids import Milliseconds, TokenId
from gpupool.pool.model.sizes import SHARE_MIN
from gpupool.pool.model.state import Request, Token, TokenKind
from gpupool.pool.scheduling.filters import well_formed
from gpupool.pool.transitions.leases import VIEWER_LOOKS
from gpupool.pool.values import IDLE_TIMEOUT_MIN_S
from gpupool.pool.view import visible
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.token_text import hash_secret, parse_token
from gpupool.remoting.server.service_context import NO_QUORUM_HINT, Client, ServiceContext

TEXT_LENGTH_MAX = 200
ASK_ANEW = 'an operator makes one with "gpupool token create"; give it to "gpupool login"'
SINCE_START = "it has not been in touch with a majority since"
SERVER_NAME_COUNT_MAX = 64
EXPIRY_SOON_MS = 14 * 86_400_000
"""A client is told of its token's end from so long before it on."""

SERVER_NAME_LENGTH_MAX = 64


def authenticate(context: ServiceContext, hello: m.Hello) -> Token:
    """Return the token that ``hello`` presents.

    Raises:
        AuthenticationError: when the token, or the client's version, is refused.
        NoQuorumError: when this server may not know the token yet.
    """
    server = context.state.servers.get(context.me.id)
    name = server.name if server is not None else context.me.id
    check_protocol(hello, name, context.me.software.version)
    return check_token(context, hello.token, hello.secret)


def check_text(context: ServiceContext, text: str) -> Token:
    """Return the token that is pasted as ``text``, if it is one of a person or a program.

    Raises:
        AuthenticationError: when it is refused.
        NoQuorumError: when this server may not know the token yet.
    """
    said = parse_token(text)
    token = check_token(context, said.token, said.secret)
    if token.kind is TokenKind.SERVER:
        raise AuthenticationError('a server token is good for "gpupool join" only')
    return token


def check_token(context: ServiceContext, token_id: TokenId, secret: bytes) -> Token:
    """Return the token that a stranger names, if he knows its secret.

    Raises:
        AuthenticationError: when it is refused.
        NoQuorumError: when this server may not know the token yet.
    """
    state = context.state
    if context.me.id in state.removed:
        raise AuthenticationError("this server is not a member of its pool any more")
    server = state.servers.get(context.me.id)
    token = state.tokens.get(token_id)
    known = token is not None and hmac.compare_digest(token.secret_hash, hash_secret(secret))
    if server is None or (not known and server.incarnation != context.me.incarnation):
        # This table may be old: a token that is not in it may have been created since.
        raise NoQuorumError(
            "this server has just started and does not know the pool's table yet",
            why="; ".join((SINCE_START, *context.silent_voters()[:3])),
            hint=NO_QUORUM_HINT,
        )
    # The refusal does not say whether the id or the secret is wrong.
    if token is None or not known:
        raise AuthenticationError(
            "the pool does not know this token", hint="log in again with a new token"
        )
    if why := token.refusal(context.now_ms()):
        raise AuthenticationError("the token is refused", why=why, hint=ASK_ANEW)
    return token


def welcome(context: ServiceContext, token: Token, members: tuple[m.Member, ...]) -> m.Welcome:
    """Return the answer to a client with a good token."""
    state = context.state
    soon = token.kind is not TokenKind.SERVER and (
        token.expires_at - context.now_ms() < EXPIRY_SOON_MS
    )
    return m.Welcome(
        protocol=m.PROTOCOL,
        version=context.me.software.version,
        server=context.me.id,
        server_name=state.servers[context.me.id].name,
        cluster_id=state.cluster_id,
        pool=state.name,
        user=token.user,
        kind=token.kind,
        members=members,
        ca_pem=context.exchanged_ca(),
        expires_at=token.expires_at if soon else Milliseconds(0),
    )


def check_protocol(hello: m.Hello, server: str, version: str) -> None:
    """Check that a client, or a server that wants to join, can be understood here.

    Args:
        hello: its first message.
        server: the name of this server.
        version: of gpupool on this server.

    Raises:
        AuthenticationError: when it speaks another version of the protocol.
    """
    if m.PROTOCOL_OLDEST <= hello.protocol <= m.PROTOCOL:
        return
    other = "; or update the servers first" if hello.protocol > m.PROTOCOL else ""
    raise AuthenticationError(
        f"gpupool {visible(hello.version[:20])} cannot talk to server {server}, "
        f"which has gpupool {version}",
        why=f"this server speaks version {m.PROTOCOL} of the protocol, not {hello.protocol}",
        hint=f"install gpupool {version} on this machine{other}",
    )


def check_rights(context: ServiceContext, client: Client, kind: type[m.Call]) -> None:
    """Refuse a call that the client's token is not good for.

    Rights that depend on the owner of a lease or request are checked by the call's handler, and by
    the table again.

    Raises:
        DeniedError: it takes a token of another kind.
        AuthenticationError: an operator's token has expired since the connection was opened.
    """
    rights = kind.declared.rights
    if client.kind is TokenKind.SERVER and rights is not m.Rights.SERVER:
        raise DeniedError('a server token is good for "gpupool join" only')
    if client.kind is not TokenKind.SERVER and rights is m.Rights.SERVER:
        raise DeniedError("joining takes a server token, not a user's")
    if client.kind is TokenKind.VIEWER and rights is not m.Rights.VIEWER:
        raise DeniedError(VIEWER_LOOKS)
    if rights is m.Rights.OPERATOR:
        if client.kind is not TokenKind.OPERATOR:
            raise DeniedError(
                f"{client.user} may not do this",
                why="it takes an operator's token",
                hint="ask an operator to do it",
            )
        check_unexpired(context, client)


def check_unexpired(context: ServiceContext, client: Client) -> None:
    """Refuse an operator if the token has expired since the connection was opened.

    The table itself refuses grants for such a token, and connections of a revoked one are
    closed; neither is so for an operator's commands.

    Raises:
        AuthenticationError: when it has.
    """
    token = context.state.tokens.get(client.token)
    why = token.refusal(context.now_ms()) if token else "it is not known any more"
    if why:
        raise AuthenticationError("the token is refused", why=why, hint=ASK_ANEW)


def check_request(request: Request) -> None:
    """Check a client's request.

    Raises:
        UsageError: when it makes no sense, or is larger than it may be.
    """
    if len(request.id) != 16:
        raise UsageError("a request id has 16 bytes")
    if not 0 < request.count <= 256:
        raise UsageError("between 1 and 256 GPUs can be asked for")
    by_fraction = 0.0 < request.fraction <= 1.0 and request.memory == 0
    by_memory = request.fraction == 0.0 and 0 < request.memory <= 2**50
    if not by_fraction and not by_memory:
        raise UsageError("ask for a fraction above 0 and up to 1 of each GPU, or for memory")
    if request.idle_timeout_s and not IDLE_TIMEOUT_MIN_S <= request.idle_timeout_s <= 2**31:
        raise UsageError(f"an idle timeout is at least {IDLE_TIMEOUT_MIN_S:g} s")
    if request.share != 0.0 and not SHARE_MIN <= request.share <= 1.0:
        raise UsageError(f"a share of a GPU's time is {SHARE_MIN:g} to 1")
    if len(request.servers) > SERVER_NAME_COUNT_MAX:
        hint = "--filter takes patterns, as 'server.name = gpu-*'"
        raise UsageError(f"a request names at most {SERVER_NAME_COUNT_MAX} servers", hint=hint)
    if max(map(len, request.servers), default=0) > SERVER_NAME_LENGTH_MAX:
        what = f"a server's name has at most {SERVER_NAME_LENGTH_MAX} characters"
        raise UsageError(what, hint='"gpupool status" lists them')
    if len(request.client) > TEXT_LENGTH_MAX or len(request.program) > TEXT_LENGTH_MAX:
        raise UsageError("the request's texts are too long")
    if not well_formed(request.filters):
        raise UsageError("the request's filters are malformed")
