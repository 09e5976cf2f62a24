"""Bytes that a graph's copies bring to the client before one of its host functions may read them.

An executable graph calls such functions by names of its own, because several executables of a graph
share the client's numbers. Launches of one executable run one after the other, so the first launch
whose function has not been called is the one that calls it.
"""

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.driver_api.executor.sync_waiter import Download

NAMED = 1 << 63
"""In every name, and in no number of a client's function."""

PENDING_MAX = 1 << 18
"""Pieces of launches whose functions have not all been called, all together."""

ANNOUNCED_MAX = 1024
"""Executables that are to be made, each by a thread of the client."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host node: the client's number of it, and the copies that come before it."""

    node: int
    copies: frozenset[int]


@dataclass(slots=True)
class Launch:
    """A launch: its bytes, by copy, and the functions that it has not called, by their place."""

    size: int
    downloads: list[tuple[int, Download]] = field(default_factory=list[tuple[int, Download]])
    uncalled: set[int] = field(default_factory=set[int])
    launched: bool = False


@dataclass(slots=True)
class Known:
    """An executable graph."""

    hosts: Sequence[Host]
    names: dict[int, int] = field(default_factory=dict[int, int])  # in use, by place
    other: set[int] = field(default_factory=set[int])  # not yet in use, or by launches under way
    launches: deque[Launch] = field(default_factory=deque[Launch])  # with functions to call
    open: deque[Launch] = field(default_factory=deque[Launch])  # whose end was not asked for
    gone: bool = False


@dataclass(frozen=True, slots=True)
class _Named:
    known: Known
    place: int
    number: int


class EarlyPieces:
    """The executable graphs of a client with such bytes; one thread makes, another calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._announced: dict[int, Sequence[Host]] = {}
        self._known: dict[int, Known] = {}
        self._names: dict[int, _Named] = {}
        self._last = 0
        self._pending = 0

    # --- executables ------------------------------------------------------------------------------

    def announce(self, executable: int, pairs: Iterable[tuple[int, int]]) -> None:
        """Take note of host nodes, each with a copy before it, for when a graph is made or updated.

        Raises:
            ProtocolError: when many that were announced were not taken.
        """
        copies: dict[int, set[int]] = {}
        for node, copy in pairs:
            copies.setdefault(node, set()).add(copy)
        if len(self._announced) >= ANNOUNCED_MAX:
            raise RemoteProtocolError("host nodes of a graph that nobody makes")
        self._announced[executable] = [Host(node, frozenset(of)) for node, of in copies.items()]

    def announced(self, executable: int) -> Sequence[Host]:
        """Return what was announced for an executable, which is forgotten."""
        return self._announced.pop(executable, ())

    def keep(self, executable: int, hosts: Sequence[Host]) -> None:
        """Look after an executable from now on."""
        with self._lock:
            self._known[executable] = Known(hosts)

    def forget(self, executable: int) -> None:
        """Look after an executable only until the launches under way have called its functions."""
        with self._lock:
            known = self._known.pop(executable, None)
            if known is not None:
                known.gone = True
                self._end(known)

    def _end(self, known: Known) -> None:
        if known.gone and not known.launches:
            for name in (*known.names.values(), *known.other):
                del self._names[name]

    # --- names ------------------------------------------------------------------------------------

    def place(self, executable: int, node: int) -> int:
        """Return the place of a host node in an executable; -1: no copy comes before it."""
        known = self._known.get(executable)
        nodes = [host.node for host in known.hosts] if known else []
        return nodes.index(node) if node in nodes else -1

    def name(self, executable: int, place: int, number: int) -> int:
        """Return a new name for a function of an executable, known until the next ``use``."""
        with self._lock:
            known = self._known[executable]
            self._last += 1
            name = NAMED | self._last
            self._names[name] = _Named(known, place, number)
            known.other.add(name)
        return name

    def use(self, executable: int, names: Mapping[int, int]) -> None:
        """Have launches from now on call functions by these names, by place."""
        with self._lock:
            known = self._known[executable]
            known.other.update(known.names[place] for place in names if place in known.names)
            known.other.difference_update(names.values())
            known.names.update(names)
            if not known.launches:
                for name in known.other:
                    del self._names[name]
                known.other.clear()

    # --- launches ---------------------------------------------------------------------------------

    def begin(self, executable: int, size: int) -> Launch:
        """Return the next launch of an executable, for ``size`` pieces.

        Raises:
            KeyError: when no host node of it comes behind a copy.
            ProtocolError: when too many are under way.
        """
        with self._lock:
            known = self._known[executable]
            if self._pending + size > PENDING_MAX:
                raise RemoteProtocolError("too many launches of graphs with host functions")
            self._pending += size
            launch = Launch(size, uncalled=set(range(len(known.hosts))))
            known.launches.append(launch)
            known.open.append(launch)
        return launch

    def launched(self, executable: int) -> None:
        """Note that the next launch was made."""
        known = self._known.get(executable)
        launch = next((one for one in known.open if not one.launched), None) if known else None
        if launch is not None:
            launch.launched = True

    def end(self, executable: int) -> Sequence[Download]:
        """Return all bytes of the oldest launch of which nobody has asked that; some may be sent.

        Its functions are called, unless it failed.
        """
        with self._lock:
            known = self._known.get(executable)
            if known is None or not known.open:
                return ()
            launch = known.open.popleft()
            if not launch.launched and launch in known.launches:
                self._over(known, launch)
        return [download for _, download in launch.downloads]

    def _over(self, known: Known, launch: Launch) -> None:
        known.launches.remove(launch)
        self._pending -= launch.size

    def turn(self, name: int) -> tuple[int, Sequence[Download]]:
        """Return the number of the function that is called so, and the bytes that it may read."""
        with self._lock:
            named = self._names.get(name)
            if named is None:
                return name, ()
            known, place = named.known, named.place
            launch = next((one for one in known.launches if place in one.uncalled), None)
            if launch is None:
                return named.number, ()
            copies = known.hosts[place].copies
            launch.uncalled.remove(place)
            if not launch.uncalled:
                self._over(known, launch)
                self._end(known)
        return named.number, [one for copy, one in launch.downloads if copy in copies]
