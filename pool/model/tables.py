"""The table's maps of leases and of waiting requests, with the indexes that its readers need.

A map and its indexes change together, in one place, so an index is never older than its map. The
due rows are the first ones of a sorted set, which is never changed in place.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

from gpupool.pool.model.ids import LeaseId, RequestId, ServerId
from gpupool.pool.model.persistent_map import PersistentMap

T = TypeVar("T", bound=tuple[Any, ...])

CHUNK_SIZE = 64


class SortedSet(Generic[T]):
    """Tuples in order, in chunks: a change copies one chunk and the list of chunks."""

    __slots__ = ("_chunks",)

    def __init__(self, chunks: tuple[tuple[T, ...], ...] = ()) -> None:
        """Make a set of chunks that are in order; without any, an empty one."""
        self._chunks = chunks

    def __iter__(self) -> Iterator[T]:
        """Return the items in order."""
        for chunk in self._chunks:
            yield from chunk

    def including(self, item: T) -> "SortedSet[T]":
        """Return the set with an item that it does not have yet."""
        chunks = self._chunks
        if not chunks:
            return SortedSet(((item,),))
        place = self._place(item)
        chunk = list(chunks[place])
        insort(chunk, item)
        half = len(chunk) // 2
        parts = (tuple(chunk),)
        if len(chunk) > CHUNK_SIZE:
            parts = (tuple(chunk[:half]), tuple(chunk[half:]))
        return SortedSet((*chunks[:place], *parts, *chunks[place + 1 :]))

    def excluding(self, item: T) -> "SortedSet[T]":
        """Return the set without an item that it has."""
        chunks, place = self._chunks, self._place(item)
        rest = tuple(each for each in chunks[place] if each != item)
        parts = (rest,) if rest else ()
        return SortedSet((*chunks[:place], *parts, *chunks[place + 1 :]))

    def count_before(self, item: T) -> int:
        """Return the number of items that come before ``item``, which need not be in the set."""
        if not self._chunks:
            return 0
        place = self._place(item)
        count = sum(len(chunk) for chunk in self._chunks[:place])
        return count + bisect_left(self._chunks[place], item)

    def _place(self, item: T) -> int:
        """Return the number of the chunk in which ``item`` is or belongs."""
        return max(0, bisect_right(self._chunks, item, key=_first) - 1)


def sorted_set(items: Iterable[T]) -> SortedSet[T]:
    """Return the set of items in any order; its chunks have room for more."""
    known, size = sorted(items), CHUNK_SIZE // 2
    starts = range(0, len(known), size)
    return SortedSet(tuple(tuple(known[start : start + size]) for start in starts))


def _first(chunk: tuple[T, ...]) -> T:
    return chunk[0]


_FAR = 2**64


class LeaseRow(Protocol):
    """The fields of a lease that the indexes of leases need."""

    @property
    def id(self) -> LeaseId:
        """Return its id."""
        ...

    @property
    def parts(self) -> Mapping[ServerId, object]:
        """Return its servers."""
        ...

    @property
    def ends_at(self) -> int:
        """Return when it ends by the policy; 0: never."""
        ...

    @property
    def held(self) -> bool:
        """Return whether it has not ended."""
        ...

    @property
    def suspension(self) -> object | None:
        """Return its suspension, if it has one."""
        ...

    @property
    def relocation(self) -> object | None:
        """Return from where to where it goes, if it goes to another server."""
        ...


class WaitingRow(Protocol):
    """The fields of a waiting request that the indexes of waiting requests need."""

    @property
    def priority(self) -> int:
        """Return its priority: the higher goes first."""
        ...

    @property
    def since(self) -> int:
        """Return since when it waits."""
        ...

    @property
    def renewed(self) -> int:
        """Return when it was renewed."""
        ...


L = TypeVar("L", bound=LeaseRow)
W = TypeVar("W", bound=WaitingRow)


class LeaseTable(PersistentMap[LeaseId, L], Generic[L]):
    """Leases by id, by server, by the end that the policy sets, and those on their way.

    These are the ones with a suspension, and the ones that go to another server.
    """

    __slots__ = ("_at", "_ends", "_relocating", "_suspended")

    _at: PersistentMap[ServerId, PersistentMap[LeaseId, L]]
    _ends: SortedSet[tuple[int, LeaseId]]
    _relocating: PersistentMap[LeaseId, L]
    _suspended: PersistentMap[LeaseId, L]

    def __init__(self, content: Mapping[LeaseId, L] | Iterable[tuple[LeaseId, L]] = ()) -> None:
        """Make a table of ``content``, in its order."""
        super().__init__(content)
        at: dict[ServerId, dict[LeaseId, L]] = {}
        for lease in self.values():
            for server in lease.parts:
                at.setdefault(server, {})[lease.id] = lease
        self._at = PersistentMap({server: PersistentMap(each) for server, each in at.items()})
        self._suspended = PersistentMap(
            (lease.id, lease) for lease in self.values() if lease.suspension is not None
        )
        self._relocating = PersistentMap(
            (lease.id, lease) for lease in self.values() if lease.relocation is not None
        )
        self._ends = sorted_set((each.ends_at, each.id) for each in self.values() if _ends(each))

    def at(self, server: ServerId) -> PersistentMap[LeaseId, L]:
        """Return the leases that have a part at ``server``, freed parts included.

        It is the same object for as long as none of them changes.
        """
        return self._at.get(server, _NONE)

    def suspended(self) -> PersistentMap[LeaseId, L]:
        """Return the leases with a suspension, ended ones included."""
        return self._suspended

    def relocating(self) -> PersistentMap[LeaseId, L]:
        """Return the leases that go to another server, ended ones included."""
        return self._relocating

    def ended_by(self, now: int) -> list[L]:
        """Return the held leases that end by the policy at ``now`` or before, by id."""
        found: list[LeaseId] = []
        for ends_at, lease in self._ends:
            if ends_at > now:
                break
            found.append(lease)
        return [self[each] for each in sorted(found)]

    def set(self, key: LeaseId, value: L) -> Self:
        """Return the table with a lease set; it may have come to a server, or left one."""
        before = self.get(key)
        changed = super().set(key, value)
        at, ends = self._at, self._ends
        for server in value.parts:
            at = at.set(server, at.get(server, _NONE).set(key, value))
        if before is not None and before.parts is not value.parts:
            for server in before.parts.keys() - value.parts.keys():
                at = _without(at, server, key)
        was, is_ = before is not None and _ends(before), _ends(value)
        if before is not None and was and (not is_ or before.ends_at != value.ends_at):
            ends, was = ends.excluding((before.ends_at, key)), False
        if is_ and not was:
            ends = ends.including((value.ends_at, key))
        changed._at, changed._ends = at, ends
        apart = self._suspended
        keeps = value.suspension is not None
        changed._suspended = apart.set(key, value) if keeps else apart.without(key)
        leaving = self._relocating
        goes = value.relocation is not None
        changed._relocating = leaving.set(key, value) if goes else leaving.without(key)
        return changed

    def without(self, key: LeaseId) -> Self:
        """Return the table without a lease."""
        before = self.get(key)
        changed = super().without(key)
        changed._suspended = self._suspended.without(key)
        changed._relocating = self._relocating.without(key)
        if before is None:
            return changed
        at, ends = self._at, self._ends
        for server in before.parts:
            at = _without(at, server, key)
        if _ends(before):
            ends = ends.excluding((before.ends_at, key))
        changed._at, changed._ends = at, ends
        return changed


_NONE: PersistentMap[LeaseId, Any] = PersistentMap()


def _without(
    at: PersistentMap[ServerId, PersistentMap[LeaseId, L]], server: ServerId, key: LeaseId
) -> PersistentMap[ServerId, PersistentMap[LeaseId, L]]:
    """Return the leases by server without one of them."""
    rest = at[server].without(key)
    return at.set(server, rest) if rest else at.without(server)


def _ends(lease: LeaseRow) -> bool:
    return bool(lease.ends_at) and lease.held


class WaitingTable(PersistentMap[RequestId, W], Generic[W]):
    """Waiting requests, in their turn, with a bound that tells at once that none has lapsed."""

    __slots__ = ("_renewed_min", "_turns")

    _renewed_min: int  # no entry was renewed before
    _turns: SortedSet[tuple[int, int, RequestId]]

    def __init__(self, content: Mapping[RequestId, W] | Iterable[tuple[RequestId, W]] = ()) -> None:
        """Make a table of ``content``, in its order."""
        super().__init__(content)
        self._renewed_min = min((entry.renewed for entry in self.values()), default=_FAR)
        self._turns = sorted_set(_turn(key, entry) for key, entry in self.items())

    def renewed_before(self, limit: int) -> list[W]:
        """Return the entries that were not renewed since ``limit``, in their order."""
        if self._renewed_min >= limit:
            return []
        self._renewed_min = min((entry.renewed for entry in self.values()), default=_FAR)
        return [entry for entry in self.values() if entry.renewed < limit]

    def in_turn(self, limit: int) -> Iterator[W]:
        """Return the entries that have waited since ``limit`` or longer.

        Those of the highest priority come first, among them those that have waited longest.
        """
        for _, since, key in self._turns:
            if since <= limit:
                yield self[key]

    def count_before(self, turn: tuple[int, int, RequestId]) -> int:
        """Return how many entries have their turn before ``turn``."""
        return self._turns.count_before(turn)

    def set(self, key: RequestId, value: W) -> Self:
        """Return the table with an entry set."""
        before = self.get(key)
        changed = super().set(key, value)
        changed._renewed_min = min(self._renewed_min, value.renewed)
        turns, turn = self._turns, _turn(key, value)
        if before is None or _turn(key, before) != turn:
            turns = turns if before is None else turns.excluding(_turn(key, before))
            turns = turns.including(turn)
        changed._turns = turns
        return changed

    def without(self, key: RequestId) -> Self:
        """Return the table without an entry."""
        before = self.get(key)
        changed = super().without(key)
        if before is not None:
            changed._renewed_min = self._renewed_min
            changed._turns = self._turns.excluding(_turn(key, before))
        return changed


def _turn(key: RequestId, entry: WaitingRow) -> tuple[int, int, RequestId]:
    return -entry.priority, entry.since, key
