"""Mutually authenticated TLS between servers: dialling a peer, and identifying the other end."""

import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import trio

from gpupool.pool.errors import GpupoolError, UsageError
from gpupool.pool.model.ids import ServerId
from gpupool.remoting.protocol.addresses import Address, parse_address
from gpupool.remoting.transport.address_book import AddressBook
from gpupool.remoting.transport.authority.ca_bundle import newest_of, number_of
from gpupool.remoting.transport.client_tls import client_context, server_of
from gpupool.remoting.transport.connections import GONE, OTHER_CA, explain, tune
from gpupool.remoting.transport.dial import dial_tls
from gpupool.remoting.transport.link_stream import LinkStream
from gpupool.remoting.transport.pki import TlsContexts, newest_server_name, server_name

PEER_TIMEOUT_S = 10.0
DIAL_TIMEOUT_S = 3.0
MEET_EVERY_S = 10.0

Dial = Callable[[ServerId, Address], Awaitable[trio.abc.Stream]]

_TURNS = ((False, False), (True, True), (True, False), (False, True))


class TlsDialler:
    """Opens a mutually authenticated TLS connection to a peer.

    In a pool that has exchanged its CA, a server that was away may know the older CA alone, and one
    that missed the end of the exchange, and perhaps the beginning of the next, shows certificates
    of which not all are good any more. So the attempts try each certificate with each.
    """

    def __init__(self, contexts: TlsContexts) -> None:
        self._contexts = contexts
        self._attempts: dict[tuple[ServerId, Address], int] = {}

    async def who(self, address: Address) -> ServerId | None:
        """Return the server of the pool that answers there, as its certificate proves it."""
        with suppress(*GONE, GpupoolError):
            context = client_context(self._contexts.identity.ca_pem)
            stream = await dial_tls(address, context)
            await trio.aclose_forcefully(stream)
            return server_of(stream.getpeercert()) if isinstance(stream, trio.SSLStream) else None
        return None

    async def __call__(self, peer: ServerId, address: Address) -> trio.abc.Stream:
        """Return a handshaken connection to ``peer``."""
        shows_newest, newest = self._turn(peer, address)
        tcp = await trio.open_tcp_stream(address.host, address.port)
        self._attempts[peer, address] = self._attempts.get((peer, address), 0) + 1
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

    def _turn(self, peer: ServerId, address: Address) -> tuple[bool, bool]:
        """Return whether to show the newest certificate, and whether to ask for it."""
        if number_of(newest_of(self._contexts.identity.ca_pem)) == 1:
            return False, False
        return _TURNS[self._attempts.get((peer, address), 0) % len(_TURNS)]


class Finder:
    """Dials servers at the addresses of a book, and notes there the servers that it meets."""

    def __init__(
        self,
        book: AddressBook,
        dial: Dial,
        who: Callable[[Address], Awaitable[ServerId | None]] | None,
        log: logging.Logger,
    ) -> None:
        self.book = book
        self.failures = DialFailures(log)
        self._dial = dial
        self.who = who
        self.away: dict[ServerId, int] = {}
        """How often in a row a linked server was not met at its address."""

    async def dial(
        self, peer: ServerId, peer_count: int
    ) -> tuple[trio.abc.Stream | None, ServerId | None]:
        """Return a connection with ``peer``, or else the server found at its address."""
        text = self.book.address(peer)
        if text is None:
            return None, None
        try:
            with trio.fail_after(DIAL_TIMEOUT_S):
                stream = await self._dial(peer, parse_address(text))
        except (*GONE, GpupoolError) as error:
            self.book.failed(peer)
            self.failures.note(peer, text, explain(error), peer_count)
            is_nobody = isinstance(error, OSError | trio.TooSlowError | UsageError)
            return None, None if is_nobody else await self.look(text)
        self.failures.forget(peer)
        self.book.met(peer, text)
        return stream, None

    async def look(self, place: str) -> ServerId | None:
        """Return the other server of the pool that is at a place, if one is."""
        found: ServerId | None = None
        if self.who is not None:
            with trio.move_on_after(DIAL_TIMEOUT_S):
                found = await self.who(parse_address(place))
        if found is None or found == self.book.server:
            return None
        self.book.met(found, place)
        return found

    async def meet(
        self, linked: Callable[[], Iterable[ServerId]], address_of: Callable[[ServerId], str | None]
    ) -> None:
        """Dial each linked server at its address once, and again while it is not met there.

        A server that dialled this one may advertise an address that nobody can reach.
        """
        met: dict[ServerId, str] = {}
        while True:
            await trio.sleep(MEET_EVERY_S)
            peers = {peer: address_of(peer) for peer in linked()}
            for peer in self.away.keys() - peers.keys():
                del self.away[peer]
            for peer, place in peers.items():
                if place is None or met.get(peer) == place or self.who is None:
                    continue
                found: ServerId | None = None
                with trio.move_on_after(DIAL_TIMEOUT_S):
                    found = await self.who(parse_address(place))
                if found == peer:
                    met[peer] = place
                    self.away.pop(peer, None)
                    continue
                self.away[peer] = self.away.get(peer, 0) + 1


class DialFailures:
    """Logs the reasons of failed dials, each once, and the conclusion from most of them."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._failures: dict[tuple[ServerId, str], tuple[str, int]] = {}
        """By peer and address: why, and how often in a row."""
        self._has_advised = False

    def note(self, peer: ServerId, address: str, failure: str, peer_count: int) -> None:
        """Take note that one of so many peers could not be dialled."""
        known, times = self._failures.get((peer, address), ("", 0))
        if known != failure:
            times = 0
            self._log.info("no link to server %s at %s: %s", peer, address, failure)
        self._failures[peer, address] = failure, times + 1
        # One alone may be the one that was shut out. Most of them are the pool. Each is asked for
        # both of its certificates before that is said.
        others = {
            of
            for (of, _), (why, times) in self._failures.items()
            if why == OTHER_CA and times >= len(_TURNS)
        }
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
        for known in [each for each in self._failures if each[0] == peer]:
            if self._failures.pop(known)[0] == OTHER_CA:
                self._has_advised = False


def proven_peer(stream: LinkStream) -> ServerId | None:
    """Return the server id proven by the other end of a handshaken, mutual TLS connection."""
    return server_of(stream.getpeercert())
