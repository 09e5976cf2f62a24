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
from gpupool.remoting.driver_api.executor.api import OUT_OF_MEMORY, CudaError
from gpupool.remoting.driver_api.executor.sync_waiter import Download

NAMED = 1 << 63
"""In every name, and in no number of a client's function."""

PENDING_MAX = 1 << 18
"""Most launches with host functions uncalled or with their end not requested, plus their pieces. A
library expects at most 65,536 pieces, and each of its launches has one."""

ANNOUNCED_MAX = 1024
"""Executables that are to be made, each by a thread of the client."""

PAIRS_MAX = 4096
"""Of a host node and a copy before it, in one executable: a library refuses more."""

PAIRS_SUM_MAX = 1 << 18
"""The same of all executables."""

NAMES_MAX = PAIRS_SUM_MAX + PENDING_MAX


@dataclass(frozen=True, slots=True)
class Host:
    """A host node: the client's number of it, and the copies that come before it."""

    node: int
    copies: frozenset[int]


def _pairs_of(hosts: Sequence[Host]) -> int:
    return sum(len(host.copies) for host in hosts)


@dataclass(slots=True, eq=False)
class Launch:
    """A launch: its bytes, by copy, and the functions that it has called."""

    size: int
    downloads: list[tuple[int, Download]] = field(default_factory=list[tuple[int, Download]])
    called: int = 0
    """Their places, a bit each: many launches may wait, and few have called any."""
    launched: bool = False
    ended: bool = False
    replaced: Sequence[int] = ()
    """Names that only this launch and those before it call."""


@dataclass(slots=True)
class Known:
    """An executable graph."""

    hosts: Sequence[Host]
    names: dict[int, int] = field(default_factory=dict[int, int])  # in use, by place
    launches: deque[Launch] = field(default_factory=deque[Launch])  # with functions to call
    open: deque[Launch] = field(default_factory=deque[Launch])  # whose end was not asked for
    begun: int = 0
    """Launches, of all times."""
    gone: bool = False


@dataclass(slots=True)
class _Named:
    known: Known
    place: int
    number: int
    begun: int = 0
    """Launches of all times when the name came into use."""


class EarlyPieces:
    """The executable graphs of a client with such bytes; one thread makes, another calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._announced: dict[int, Sequence[Host]] = {}
        self._known: dict[int, Known] = {}
        self._names: dict[int, _Named] = {}
        self._last = 0
        self._pending = 0
        self._pairs = 0

    # --- executables ------------------------------------------------------------------------------

    def announce(self, executable: int, pairs: Iterable[tuple[int, int]]) -> None:
        """Take note of host nodes, each with a copy before it, for when a graph is made or updated.

        Raises:
            CudaError: when there are too many of them, together with those of all executables.
            ProtocolError: when many that were announced were not taken, or no library has as many.
        """
        copies: dict[int, set[int]] = {}
        for at, (node, copy) in enumerate(pairs):
            if at == PAIRS_MAX:
                raise RemoteProtocolError("too many copies before the host nodes of a graph")
            copies.setdefault(node, set()).add(copy)
        if len(self._announced) >= ANNOUNCED_MAX:
            raise RemoteProtocolError("host nodes of a graph that nobody makes")
        self.announced(executable)
        hosts = [Host(node, frozenset(of)) for node, of in copies.items()]
        with self._lock:
            self._count(hosts)
        self._announced[executable] = hosts

    def _count(self, hosts: Sequence[Host]) -> None:
        size = _pairs_of(hosts)
        if self._pairs + size > PAIRS_SUM_MAX:
            raise CudaError(OUT_OF_MEMORY, "cuGraphInstantiate")
        self._pairs += size

    def announced(self, executable: int) -> Sequence[Host]:
        """Remove and return the announced host nodes of an executable graph."""
        hosts = self._announced.pop(executable, ())
        with self._lock:
            self._pairs -= _pairs_of(hosts)
        return hosts

    def keep(self, executable: int, hosts: Sequence[Host]) -> None:
        """Look after an executable from now on.

        Raises:
            CudaError: when there are too many hosts.
            ProtocolError: when there is such an executable.
        """
        with self._lock:
            if executable in self._known:
                raise RemoteProtocolError("a handle that cannot be made", why=f"x {executable}")
            self._count(hosts)
            self._known[executable] = Known(hosts)

    def forget(self, executable: int) -> None:
        """Look after an executable only until the launches under way have called its functions."""
        with self._lock:
            known = self._known.pop(executable, None)
            if known is None:
                return
            while known.open:
                self._end(known, known.open.popleft())
            self._replace(known, list(known.names.values()))
            known.gone = True
            self._let_go(known)

    def _let_go(self, known: Known) -> None:
        if known.gone and not known.launches:
            self._pairs -= _pairs_of(known.hosts)

    # --- names ------------------------------------------------------------------------------------

    def place(self, executable: int, node: int) -> int:
        """Return the place of a host node in an executable; -1: no copy comes before it."""
        known = self._known.get(executable)
        nodes = [host.node for host in known.hosts] if known else []
        return nodes.index(node) if node in nodes else -1

    def name(self, executable: int, place: int, number: int) -> int:
        """Return a new name for a function of an executable, to be used or dropped.

        Raises:
            CudaError: when there are too many.
        """
        with self._lock:
            known = self._known[executable]
            if len(self._names) >= NAMES_MAX:
                raise CudaError(OUT_OF_MEMORY, "cuGraphExecHostNodeSetParams")
            self._last += 1
            name = NAMED | self._last
            self._names[name] = _Named(known, place, number)
        return name

    def drop(self, names: Iterable[int]) -> None:
        """Forget names that nothing was made to call."""
        with self._lock:
            for name in names:
                self._names.pop(name, None)

    def use(self, executable: int, names: Mapping[int, int]) -> None:
        """Set the function names, by place, that launches call from now on."""
        with self._lock:
            known = self._known[executable]
            self._replace(known, [known.names[place] for place in names if place in known.names])
            known.names.update(names)
            for name in names.values():
                self._names[name].begun = known.begun

    def _replace(self, known: Known, names: Sequence[int]) -> None:
        """Forget names once the launches that may call them are over."""
        called = [name for name in names if self._names[name].begun < known.begun]
        for name in set(names).difference(called):  # no launch has begun since they came into use
            del self._names[name]
        self._leave(known.launches[-1] if known.launches else None, called)

    def _leave(self, launch: Launch | None, names: Sequence[int]) -> None:
        if launch is not None:
            launch.replaced = (*launch.replaced, *names)
            return
        for name in names:
            del self._names[name]

    # --- launches ---------------------------------------------------------------------------------

    def begin(self, executable: int, size: int) -> Launch:
        """Return the next launch of an executable, for ``size`` pieces.

        Raises:
            KeyError: when no host node of it comes behind a copy.
            ProtocolError: when too many are under way.
        """
        with self._lock:
            known = self._known[executable]
            if self._pending + size + 1 > PENDING_MAX:
                raise RemoteProtocolError("too many launches of graphs with host functions")
            self._pending += size + 1
            launch = Launch(size)
            known.begun += 1
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

        One that was not made has no bytes, and calls no functions.
        """
        with self._lock:
            known = self._known.get(executable)
            if known is None or not known.open:
                return ()
            launch = known.open.popleft()
            self._end(known, launch)
        return [download for _, download in launch.downloads] if launch.launched else ()

    def _end(self, known: Known, launch: Launch) -> None:
        launch.ended = True
        if launch not in known.launches:
            self._pending -= launch.size + 1
        elif not launch.launched:
            self._over(known, launch)

    def _over(self, known: Known, launch: Launch) -> None:
        """Forget a launch that calls no more functions, and the names that it alone may call."""
        at = known.launches.index(launch)
        self._leave(known.launches[at - 1] if at else None, launch.replaced)
        del known.launches[at]
        if launch.ended:
            self._pending -= launch.size + 1
        self._let_go(known)

    def turn(self, name: int) -> tuple[int, Sequence[Download]]:
        """Return the number of the function that is called so, and the bytes that it may read."""
        with self._lock:
            named = self._names.get(name)
            if named is None:
                return name, ()
            known, bit = named.known, 1 << named.place
            launch = next((one for one in known.launches if not one.called & bit), None)
            if launch is None:
                return named.number, ()
            copies = known.hosts[named.place].copies
            launch.called |= bit
            if launch.called == (1 << len(known.hosts)) - 1:
                self._over(known, launch)
        return named.number, [one for copy, one in launch.downloads if copy in copies]
