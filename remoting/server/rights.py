"""Who may make which call, as far as the token decides; docs/security.md has the whole table."""

from gpupool.pool.errors import AuthenticationError, DeniedError
from gpupool.pool.model.state import TokenKind
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.server.service_context import Client, ServiceContext


def check_rights(context: ServiceContext, client: Client, kind: type[m.Call]) -> None:
    """Refuse a call that the client's token is not good for.

    Rights that depend on the owner of a lease or request are checked by the call's handler, and by
    the table again.

    Raises:
        DeniedError: it takes a token of another kind.
        AuthenticationError: an operator's token has expired since the connection was opened.
    """
    rights = m.CALL_DECLARATIONS[kind].rights
    if client.kind is TokenKind.SERVER and rights is not m.Rights.SERVER:
        raise DeniedError("a server token is good for `gpupool join` only")
    if client.kind is not TokenKind.SERVER and rights is m.Rights.SERVER:
        raise DeniedError("joining takes a server token, not a user's")
    if rights is m.Rights.OPERATOR:
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
    why = token.refusal(context.now_ms()) if token else "it is not known any more"
    if why:
        raise AuthenticationError("the token is refused", why=why, hint="ask for a new one")
