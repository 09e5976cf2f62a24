"""An address of a server's own web page that lets one browser in, got over HTTPS by a token."""

import http.client
import json
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import cast

import trio

from gpupool.pool.errors import AuthenticationError, UnknownNameError, UnreachableError
from gpupool.pool.view import visible
from gpupool.remoting.client.credentials import Credentials
from gpupool.remoting.local.logins import connected
from gpupool.remoting.protocol.addresses import Address, parse_address
from gpupool.remoting.protocol.token_text import SHORT_SIZE, TokenText, format_token

TIMEOUT_S = 10.0
STARTING_S, AGAIN_S = 30.0, 0.2
"""How long a page is asked again that hangs up: by a server that has just started."""

ANSWER_MAX = 64 * 1024


async def invitation(credentials: str | None, server: str) -> str:
    """Return the address, with a key in its fragment that is good once.

    Raises:
        UsageError: when the pool has no such server.
        UnreachableError, AuthenticationError: when its page lets nobody in.
    """
    async with connected(credentials) as pool:
        view = await pool.view()
        found = next((each for each in view.servers if server in (each.name, each.id)), None)
        if found is None:
            names = ", ".join(visible(each.name) for each in view.servers)
            raise UnknownNameError(
                f"the pool has no server named {server}", hint=f"it has {names}"[:300]
            )
        address = parse_address(found.address)
        text = token_text(pool.credentials, pool.ca_pem(), address)
        ask = partial(ask_key, address, text, pool.ca_pem())
        key = await patiently(partial(trio.to_thread.run_sync, ask, abandon_on_cancel=True))
    return f"https://{address}/#key={key}"


async def patiently(ask: Callable[[], Awaitable[str]]) -> str:
    """Return the answer, asking again while a server has just started: its exporter comes later.

    Raises:
        UnreachableError, AuthenticationError: as ``ask``.
    """
    end = trio.current_time() + STARTING_S
    while True:
        try:
            return await ask()
        except UnreachableError as error:
            if not isinstance(error.__cause__, ConnectionError) or trio.current_time() >= end:
                raise
        await trio.sleep(AGAIN_S)


def ask_key(address: Address, text: str, ca_pem: str) -> str:
    """Return a key for the page at ``address``; the token goes to a server of the pool alone.

    Raises:
        UnreachableError: when it does not answer as a page does.
        AuthenticationError: when it refuses.
    """
    # A certificate of the site's own is no proof that a server of this pool has the token's ear.
    context = ssl.create_default_context(cadata=ca_pem)
    connection = http.client.HTTPSConnection(
        address.host, address.port, timeout=TIMEOUT_S, context=context
    )
    try:
        headers = {"authorization": f"Bearer {text}", "x-gpupool": ""}
        connection.request("POST", "/api/v1/invitation", body=b"{}", headers=headers)
        answer = connection.getresponse()
        told: object = json.loads(answer.read(ANSWER_MAX))
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = str(error) or type(error).__name__
        raise UnreachableError(f"the web page at {address} does not answer", why=why) from error
    finally:
        connection.close()
    plain = cast("dict[str, object]", told) if isinstance(told, dict) else {}
    key, refusal = plain.get("key"), plain.get("error")
    if isinstance(key, str) and key.replace("-", "").replace("_", "").isalnum():
        return key
    words = cast("dict[str, object]", refusal) if isinstance(refusal, dict) else {}
    why = visible(str(words.get("what", f"status {answer.status}")))[:200]
    raise AuthenticationError(f"the web page at {address} gives no key", why=why)


def token_text(credentials: Credentials, ca_pem: str, address: Address) -> str:
    """Return the token of stored credentials as text again; its kind is the server's to know."""
    from gpupool.pool.model.state import TokenKind
    from gpupool.remoting.transport.authority.ca_bundle import newest_of
    from gpupool.remoting.transport.pki import fingerprint

    ca_sha256 = fingerprint(newest_of(ca_pem.encode()))
    made = TokenText(
        credentials.cluster_id,
        TokenKind.USER,
        credentials.token,
        credentials.secret,
        ca_sha256[:SHORT_SIZE] if len(credentials.secret) == SHORT_SIZE else ca_sha256,
        (address,),
    )
    return format_token(made)
