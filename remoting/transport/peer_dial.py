"""Mutually authenticated TLS between servers: how one dials another, and who the other end is."""

import logging
import ssl

import trio

from gpupool.pool.model.ids import ServerId
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.transport.authority.ca_bundle import newest_of, number_of
from gpupool.remoting.transport.client_tls import server_of
from gpupool.remoting.transport.failures import OTHER_CA
from gpupool.remoting.transport.link_stream import LinkStream
from gpupool.remoting.transport.pki import TlsContexts, newest_server_name, server_name
from gpupool.remoting.transport.socket_options import tune

PEER_TIMEOUT_S = 10.0

_TURNS = ((False, False), (True, True), (True, False), (False, True))


class TlsDialler:
    """Opens a mutually authenticated TLS connection to a peer.

    In a pool that has exchanged its CA, a server that was away may know the older CA alone, and one
    that missed the end of the exchange, and perhaps the beginning of the next, shows certificates
    of which not all are good any more. So the attempts try each certificate with each.
    """

    def __init__(self, contexts: TlsContexts) -> None:
        self._contexts = contexts
        self._attempts: dict[ServerId, int] = {}

    async def __call__(self, peer: ServerId, address: Address) -> trio.abc.Stream:
        """Return a handshaken connection to ``peer``."""
        shows_newest, newest = self._turn(peer)
        tcp = await trio.open_tcp_stream(address.host, address.port)
        self._attempts[peer] = self._attempts.get(peer, 0) + 1
        tune(tcp.socket, timeout_s=PEER_TIMEOUT_S)
        context: ssl.SSLContext = self._contexts.peer_client(newest=shows_newest)
        name = newest_server_name(peer) if newest else server_name(peer)
        stream = LinkStream.dialled(tcp, context, name)
        try:
            await stream.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream

    def _turn(self, peer: ServerId) -> tuple[bool, bool]:
        """Return whether to show the newest certificate, and whether to ask for it."""
        if number_of(newest_of(self._contexts.identity.ca_pem)) == 1:
            return False, False
        return _TURNS[self._attempts.get(peer, 0) % len(_TURNS)]


class DialFailures:
    """Logs why peers cannot be dialled, each reason once, and what most failures together say."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._failures: dict[ServerId, tuple[str, int]] = {}  # why, and how often in a row
        self._has_advised = False

    def note(self, peer: ServerId, address: str, failure: str, peer_count: int) -> None:
        """Take note that one of so many peers could not be dialled."""
        known, times = self._failures.get(peer, ("", 0))
        if known != failure:
            times = 0
            self._log.info("no link to server %s at %s: %s", peer, address, failure)
        self._failures[peer] = failure, times + 1
        # One alone may be the one that was shut out. Most of them are the pool. Each is asked for
        # both of its certificates before that is said.
        others = [
            f for f, times in self._failures.values() if f == OTHER_CA and times >= len(_TURNS)
        ]
        if 2 * len(others) > peer_count and not self._has_advised:
            self._has_advised = True
            self._log.warning(
                "%d of %d other servers show certificates of a CA that this server does not trust: "
                "if the pool exchanged its CA while this server was away, stop this server, and "
                "let it join anew (gpupool rejoin)",
                *(len(others), peer_count),
            )

    def forget(self, peer: ServerId) -> None:
        """Take note that a peer was dialled, or is none any more."""
        if self._failures.pop(peer, ("", 0))[0] == OTHER_CA:
            self._has_advised = False


def proven_peer(stream: LinkStream) -> ServerId | None:
    """Return which server the other end of a handshaken, mutual TLS connection has proven to be."""
    return server_of(stream.getpeercert())
