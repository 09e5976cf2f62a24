"""Where servers may be asked for: addresses are hints, and prove nothing.

A server that is dialled proves its id by TLS, wherever it was met. So a wrong address costs one
attempt, and the book has several of a server, of which each failure tries the next::

    the attempt that met it last        first
    the server itself, over its link    by its incarnation: a later one takes an earlier one's place
    another server, over its link       what the first has said to that one, with its incarnation
    the table, or the state directory   as the pool knew it last
    any server that says that it moved  the address that it left: another may have taken it

A server tells each new link all that servers have said of themselves, and all links what is new.
It passes on nothing that it was told of others: gossip goes in no circle. Pure.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, cast

from gpupool.pool.errors import RemoteProtocolError, UsageError
from gpupool.pool.model.ids import Plain, ServerId
from gpupool.remoting.protocol.addresses import parse_address
from gpupool.remoting.protocol.framing import dump, load

ADDRESSES_MAX = 4
"""Addresses that a server says of itself."""

PLACES_MAX = 12
"""Addresses that are tried for one server, beside those that others have left."""

LEFT_MAX = 8
"""Addresses that servers have left."""

TOLD_MAX = 1024
"""Servers in one frame, or in the book."""

BODY_SIZE_MAX = 1 << 20

Said = tuple[int, tuple[str, ...]]
"""An incarnation of a server, and its addresses."""

_MET: int = 1 << 62  # in the place of an incarnation: the server has proven to be there


class AddressBook:
    """The addresses that one server knows of the others, and its own."""

    def __init__(
        self, server: ServerId, own: Said, listed: Callable[[ServerId], Sequence[str]]
    ) -> None:
        """Begin with this server's own addresses, and with ``listed`` for other servers."""
        self.server = server
        self._listed = listed
        self._said: dict[ServerId, dict[ServerId, Said]] = {server: {server: own}}  # by the teller
        self._news: set[ServerId] = set()
        self._left: list[str] = []
        self._failures: dict[ServerId, int] = {}

    def address(self, peer: ServerId) -> str | None:
        """Return where to dial ``peer`` next; None when no address is known."""
        places = self.places(peer)
        return places[self._failures.get(peer, 0) % len(places)] if places else None

    def places(self, peer: ServerId) -> list[str]:
        """Return all addresses at which ``peer`` may be, the likeliest first."""
        by_teller, listed = self._said.get(peer, {}), self._listed(peer)
        newest = sorted(by_teller, key=lambda each: (-by_teller[each][0], each != peer, each))
        told = [text for teller in newest for text in by_teller[teller][1]]
        told = list(dict.fromkeys(told))[: PLACES_MAX - len(listed)]
        return list(dict.fromkeys((*told, *listed, *self._left)))

    def failed(self, peer: ServerId) -> None:
        """Note that ``peer`` was not met at its ``address``."""
        self._failures[peer] = self._failures.get(peer, 0) + 1

    def met(self, peer: ServerId, address: str) -> None:
        """Note that ``peer`` has proven to be at this address."""
        self._note(peer, self.server, (_MET, (address,)))

    # --- what servers tell each other ------------------------------------------------------------

    def whole(self) -> bytes:
        """Return all known addresses for a new link; empty when there are none."""
        return self._body(self._said)

    def news(self) -> bytes:
        """Return the addresses for all links new since the last call; empty without any."""
        news, self._news = sorted(self._news), set()
        return self._body(news)

    def heard(self, teller: ServerId, body: bytes, known: Collection[ServerId]) -> list[ServerId]:
        """Take the gossip of ``teller``; return the servers with new addresses in it.

        Raises:
            RemoteProtocolError: it is malformed.
        """
        found: list[ServerId] = []
        for server, said in _read(body):
            by_teller = self._said.get(server, {})
            is_late = teller in by_teller and said[0] < by_teller[teller][0]
            if server == self.server or is_late or by_teller.get(teller) == said:
                continue
            if server != teller and server not in known:
                continue
            if server == teller:
                left = [each for each in self._listed(server) if each not in said[1]]
                self._left = list(dict.fromkeys((*self._left, *left)))[-LEFT_MAX:]
            self._note(server, teller, said)
            found.append(server)
            if server == teller:
                self._news.add(server)
        return found

    def _note(self, server: ServerId, teller: ServerId, said: Said) -> None:
        self._failures.pop(server, None)
        by_teller = self._said.setdefault(server, {})
        by_teller[teller] = said
        for book in (by_teller, self._said):
            if len(book) > TOLD_MAX:  # of servers that are in the pool no more
                del book[next(each for each in book if each not in (self.server, server, teller))]

    def _body(self, servers: Iterable[ServerId]) -> bytes:
        said = {server: self._said.get(server, {}).get(server, (0, ())) for server in servers}
        told: list[Plain] = [[each, n, list(texts)] for each, (n, texts) in said.items() if texts]
        return dump(told[:TOLD_MAX]) if told else b""


def _read(body: bytes) -> list[tuple[ServerId, Said]]:
    plain = load(body) if len(body) <= BODY_SIZE_MAX else None
    try:
        if not isinstance(plain, list) or len(plain) > TOLD_MAX:
            raise ValueError("it is no list of servers, or too long")
        return [_read_one(each) for each in cast("list[Any]", plain)]
    except (ValueError, TypeError, UsageError) as error:
        raise RemoteProtocolError("malformed addresses from a peer", why=str(error)) from error


def _read_one(plain: Any) -> tuple[ServerId, Said]:
    server, incarnation, addresses = plain
    if not isinstance(server, str) or type(incarnation) is not int or not 0 <= incarnation < _MET:
        raise ValueError("a server is no text, or its incarnation no number")
    if not isinstance(addresses, list) or len(cast("list[Any]", addresses)) > ADDRESSES_MAX:
        raise ValueError("a server has too many addresses")
    texts = cast("list[Any]", addresses)
    if not all(isinstance(each, str) for each in texts):
        raise ValueError("an address is no text")
    return ServerId(server), (incarnation, tuple(str(parse_address(each)) for each in texts))
