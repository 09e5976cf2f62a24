"""No user, no token and no network takes all that a server has for many.

Users have bounds: how many of one thing a user may have at a server, and how many of them by one
token. The bound of a user counts all of their tokens together: one who has several tokens gets no
more. The bound of a token is lower, so a token that leaks, or a program that asks without end,
leaves room for the user's other tokens.

Networks, of which a server knows no user yet, have turns: each has the next one in its order,
however many wait in it. Networks that have had no turn stand apart, and have three of four while
both kinds wait. So the first one of a network is served soon, and endless new networks starve
nobody.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

from gpupool.pool.model.ids import TokenId


class Holder(NamedTuple):
    """The user and the token by which one thing is held."""

    user: str
    token: TokenId


@dataclass(frozen=True, slots=True)
class UserBound:
    """The most of one thing for a user, and for one token."""

    user: int
    token: int

    def reached(self, holder: Holder, held: Iterable[Holder]) -> str:
        """Return a text about the bound that ``holder`` has reached with ``held``, or nothing."""
        tokens = [each.token for each in held if each.user == holder.user]
        return self.reached_by(holder, len(tokens), tokens.count(holder.token))

    def reached_by(self, holder: Holder, of_user: int, of_token: int) -> str:
        """Return the same from the counts of the user and of the token."""
        if of_user >= self.user:
            return f"{holder.user} has {of_user}"
        if of_token >= self.token:
            return f"token {holder.token} of {holder.user} has {of_token}"
        return ""


FIRST_IN_ROW_MAX = 3
"""Networks that have their first turn one after the other, while others wait for another turn."""

SERVED_COUNT_MAX = 4096
"""Networks that have had a turn and are remembered while others wait."""

Item = TypeVar("Item", bound=Hashable)


class NetworkTurns(Generic[Item]):
    """A round-robin queue: one item of each network in turn, in the order of arrival.

    The caller bounds how many wait.
    """

    def __init__(self) -> None:
        self.size = 0
        self._first: OrderedDict[str, dict[Item, None]] = OrderedDict()
        self._again: OrderedDict[str, dict[Item, None]] = OrderedDict()
        self._served: OrderedDict[str, None] = OrderedDict()
        self._in_row = 0  # networks that had their first turn since another one had one

    def add(self, network: str, item: Item) -> None:
        """Let one wait; it stands here once, at the end of its network."""
        self.remove(network, item)
        line = self._again if network in self._served else self._first
        line.setdefault(network, {})[item] = None
        self.size += 1

    def remove(self, network: str, item: Item) -> bool:
        """Remove one, and return whether it has waited."""
        for line in (self._first, self._again):
            items = line.get(network, {})
            if item in items:
                del items[item]
                self.size -= 1
                if not items:
                    del line[network]
                return True
        return False

    def count(self, network: str) -> int:
        """Return how many of a network wait."""
        return len(self._first.get(network, {})) + len(self._again.get(network, {}))

    def pop(self) -> Item:
        """Remove and return the next item; the queue is not empty."""
        is_first = bool(self._first) and not (self._again and self._in_row >= FIRST_IN_ROW_MAX)
        self._in_row = self._in_row + 1 if is_first else 0
        line = self._first if is_first else self._again
        network, items = line.popitem(last=False)
        item = next(iter(items))
        del items[item]
        self.size -= 1
        self._served[network] = None
        self._served.move_to_end(network)
        if len(self._served) > SERVED_COUNT_MAX:
            self._served.popitem(last=False)
        if items:
            self._again.setdefault(network, {}).update(items)
        if not self.size:
            self._served.clear()
        return item


@lru_cache(maxsize=1024)
def network_of(address: str) -> str:
    """Return the network by which connections are counted: an IPv4 address, an IPv6 /64."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
