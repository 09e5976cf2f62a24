"""Enrolment: a token becomes a user's credentials, or a server's certificate.

::

    credentials = await login("gpupool-...", version="0.1.0", client="ada@laptop")
    joined = await join_pool("gpupool-...", server=..., csr_pem=..., ...)

A new machine knows nothing of the pool but a pasted token. So its first contact trusts the one CA
whose fingerprint stands in the token.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import trio

from gpupool.pool.errors import GpupoolError, UnreachableError, UsageError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import TokenKind
from gpupool.remoting.client.credentials import Credentials
from gpupool.remoting.client.server_connections import CALL_TIMEOUT_S, ServerConnection
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.addresses import Address, parse_address
from gpupool.remoting.protocol.token_text import parse_token
from gpupool.remoting.transport.authority.ca_bundle import member_with
from gpupool.remoting.transport.dial import Dial, Greeting, dial_tls, first_contact, worst
from gpupool.remoting.transport.pki import fingerprint


async def login(
    token: str,
    *,
    version: str = "",
    client: str = "",
    at: Address | None = None,
    dial: Dial = dial_tls,
) -> Credentials:
    """Return the credentials of a pasted token, after a test connection, ``at`` first.

    Raises:
        UsageError: the token is a server's.
        AuthenticationError: the token is damaged, refused, or of another pool.
        UnreachableError: no address of the token answers.
    """
    text = parse_token(token)
    if text.kind is TokenKind.SERVER:
        raise UsageError(
            "this token lets a server join, and nobody log in",
            hint='on that server: "gpupool join --token"; "gpupool token create" makes one for you',
        )
    if at is not None:
        text = replace(text, addresses=(at, *text.addresses))
    greeting = Greeting(text.token, text.secret, version, client)
    connection, welcome, ca_pem = await first_contact(text, greeting, dial=dial)
    await connection.aclose()
    known = [parse_address(member.address) for member in welcome.members]
    return Credentials(
        cluster_id=welcome.cluster_id,
        pool=welcome.pool,
        user=welcome.user,
        token=text.token,
        secret=text.secret,
        ca_pem=ca_pem.decode(),
        addresses=tuple(dict.fromkeys((*known, *text.addresses))),
    )


async def ask_pool(
    token: str, *, version: str, cluster_id: str, dial: Dial = dial_tls
) -> tuple[tuple[ServerId, ...], bytes]:
    """Return the servers of a pool and the CAs that it trusts (PEM). The token is not spent.

    Raises:
        AuthenticationError: the token is damaged, refused, or of another pool.
        UnreachableError: no address of the token answers.
    """
    text = replace(parse_token(token), cluster_id=cluster_id)
    greeting = Greeting(text.token, text.secret, version, "a server that joins anew")
    connection, welcome, ca_pem = await first_contact(text, greeting, dial=dial)
    await connection.aclose()
    return tuple(member.server for member in welcome.members), ca_pem


@dataclass(frozen=True, slots=True)
class JoinedPool:
    """The answer to a new server that joins."""

    cluster_id: str
    pool: str
    certificate_pem: bytes
    ca_pem: bytes
    ca_key_pem: bytes  # empty unless it is a voter
    voter: bool
    members: tuple[m.Member, ...]

    def __repr__(self) -> str:
        """Leave the key out, so that no log or traceback shows it."""
        return f"JoinedPool({self.pool}, {len(self.members)} members)"


async def join_pool(
    token: str,
    *,
    server: ServerId,
    name: str,
    address: Address,
    witness: bool,
    csr_pem: bytes,
    version: str = "",
    cluster_id: str = "",
    dial: Dial = dial_tls,
) -> JoinedPool:
    """Enrol this machine as a server of the pool, through any voter that answers.

    Repeating it with the same token and server id, after a lost answer, is safe. With
    ``cluster_id`` it is admitted to that pool only.

    Raises:
        AuthenticationError: the token is damaged, used, refused, or of another pool.
        GpupoolError: no server can admit others now.
    """
    text = parse_token(token)
    greeting = Greeting(text.token, text.secret, version, f"server {name}"[:100])
    message = m.JoinPool(server, name, str(address), witness, csr_pem)
    tried: set[Address] = set()
    addresses = list(text.addresses)
    failures: list[GpupoolError] = []
    while addresses:
        target = addresses.pop(0)
        tried.add(target)
        try:
            at_target = replace(text, cluster_id=cluster_id or text.cluster_id, addresses=(target,))
            stream, welcome, ca_pem = await first_contact(at_target, greeting, dial=dial)
            known = [parse_address(member.address) for member in welcome.members if member.voter]
            addresses += [each for each in known if each not in tried and each not in addresses]
            answer = await _call_once(ServerConnection(stream, welcome, target), message)
        except GpupoolError as error:
            failures.append(error)
            continue
        if member_with(ca_pem, fingerprint(answer.ca_pem)) is None:
            raise UnreachableError("the server sent another CA than the token names")
        return JoinedPool(
            cluster_id=welcome.cluster_id,
            pool=welcome.pool,
            certificate_pem=answer.certificate_pem,
            ca_pem=ca_pem,
            ca_key_pem=answer.ca_key_pem,
            voter=answer.voter,
            members=answer.members,
        )
    raise worst(failures, tuple(tried))


A = TypeVar("A", bound=m.Answer)


def _pass_over(_connection: ServerConnection, _message: m.Message) -> None:
    """Take a push for a connection that makes one call."""


async def _call_once(connection: ServerConnection, message: m.CallFor[A]) -> A:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run, _pass_over)
        try:
            answer = await connection.call(message, timeout_s=CALL_TIMEOUT_S)
        except GpupoolError as error:
            answer = error
        nursery.cancel_scope.cancel()
    if isinstance(answer, GpupoolError):
        raise answer
    return answer
