"""The greeting of a client: which token opens a connection, and the answer to it."""

import hmac

from gpupool.pool.errors import AuthenticationError, NoQuorumError
from gpupool.pool.model.state import Token
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.token_text import hash_secret
from gpupool.remoting.server.service_context import NO_QUORUM_HINT, ServiceContext
from gpupool.remoting.server.validation import check_protocol


def authenticate(context: ServiceContext, hello: m.Hello) -> Token:
    """Return the token that ``hello`` presents.

    Raises:
        AuthenticationError: when the token, or the client's version, is refused.
        NoQuorumError: when this server may not know the token yet.
    """
    state = context.state
    server = state.servers.get(context.self_id)
    name = server.name if server is not None else context.self_id
    check_protocol(hello, name, context.software.version)
    if context.self_id in state.removed:
        raise AuthenticationError("this server is not a member of its pool any more")
    token = state.tokens.get(hello.token)
    known = token is not None and hmac.compare_digest(token.secret_hash, hash_secret(hello.secret))
    if server is None or (not known and server.incarnation != context.incarnation):
        # This table may be old: a token that is not in it may have been created since.
        raise NoQuorumError(
            "this server has just started and does not know the pool's table yet",
            why="it has not been in touch with a majority since",
            hint=NO_QUORUM_HINT,
        )
    # The refusal does not say whether the id or the secret is wrong.
    if token is None or not known:
        raise AuthenticationError(
            "the pool does not know this token", hint="log in again with a new token"
        )
    if why := token.refusal(context.now_ms()):
        raise AuthenticationError("the token is refused", why=why, hint="ask for a new one")
    return token


def welcome(context: ServiceContext, token: Token, members: tuple[m.Member, ...]) -> m.Welcome:
    """Return the answer to a client whose token is good."""
    state = context.state
    return m.Welcome(
        protocol=m.PROTOCOL,
        version=context.software.version,
        server=context.self_id,
        server_name=state.servers[context.self_id].name,
        cluster_id=state.cluster_id,
        pool=state.name,
        user=token.user,
        kind=token.kind,
        members=members,
        ca_pem=context.exchanged_ca(),
    )
