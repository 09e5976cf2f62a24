"""Who may make which call, as far as the token decides; docs/security.md has the whole table."""

from gpupool.pool.errors import AuthenticationError, DeniedError
from gpupool.pool.model.state import TokenKind
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.server.service_context import Client, ServiceContext

_OPERATORS_CALLS = frozenset(
    {
        m.CreateToken,
        m.RevokeToken,
        m.ListTokens,
        m.RemoveServer,
        m.DrainServer,
        m.LabelServer,
        m.PutPolicy,
        m.GetBackup,
        m.PutPart,
        m.RestoreBackup,
    }
)


def check_rights(context: ServiceContext, client: Client, message: m.Message) -> None:
    """Refuse a call that the client's token is not good for.

    Raises:
        DeniedError: it takes a token of another kind.
        AuthenticationError: an operator's token has expired since the connection was opened.
    """
    if client.kind is TokenKind.SERVER and not isinstance(message, m.JoinPool):
        raise DeniedError("a server token is good for `gpupool join` only")
    if client.kind is not TokenKind.SERVER and isinstance(message, m.JoinPool):
        raise DeniedError("joining takes a server token, not a user's")
    if type(message) in _OPERATORS_CALLS:
        if client.kind is not TokenKind.OPERATOR:
            raise DeniedError(f"{client.user} may not do this", why="it takes an operator's token")
        check_unexpired(context, client)


def check_unexpired(context: ServiceContext, client: Client) -> None:
    """Refuse an operator whose token has expired since the connection was opened.

    The table itself refuses grants for such a token, and connections of a revoked one are
    closed; neither is so for an operator's commands.

    Raises:
        AuthenticationError: when it has.
    """
    token = context.state.tokens.get(client.token)
    why = token.refusal(context.clock.wall_ms()) if token else "it is not known any more"
    if why:
        raise AuthenticationError("the token is refused", why=why, hint="ask for a new one")
