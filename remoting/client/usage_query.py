"""Asks all servers of a pool for the records of ended leases, and puts their answers together.

Every server has the records of the whole pool, unless it was away for long, so one that answers is
enough. All are asked what they have; the one with the most is read page by page, and what it lacks
is taken from the others. What nobody has is known by its numbers. A server that does not answer is
named, never left out in silence.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from gpupool.pool.errors import GpupoolError, UnreachableError
from gpupool.pool.model.ids import LeaseId, ServerId
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.record_query import ClassSum, GroupSum, RecordPage, RecordQuery, Runs, common
from gpupool.remoting.client.all_servers import ask_all
from gpupool.remoting.client.server_connections import Connections, ServerConnection
from gpupool.remoting.protocol import messages as m

DEADLINE_S = 2.0
"""For both tries of a server together: a report must not wait for one that is dead."""

TRIES = 2
PATIENCE_S = 0.3
"""After a refused connection, as of a machine on which no server runs."""

DIGITS_MAX = 40
"""Of a sum: the bytes of all GPUs of a pool for a century have 31."""

PAGE_TIMEOUT_S = 3.0
SUM_TIMEOUT_S = 32.0
"""For sums of years."""


@dataclass(slots=True)
class UsageAnswer:
    """The combined answer of all servers."""

    records: list[LeaseRecord] = field(default_factory=list[LeaseRecord])
    groups: dict[str, GroupSum] = field(default_factory=dict[str, GroupSum])
    whole: GroupSum = GroupSum("")
    others: tuple[ClassSum, ...] = ()
    missing: Runs = ()
    """Numbers of records that no answering server has."""
    answered: dict[ServerId, RecordPage] = field(default_factory=dict[ServerId, RecordPage])
    silent: dict[ServerId, str] = field(default_factory=dict[ServerId, str])
    """Servers that did not answer, and why."""


async def ask_usage(connections: Connections, query: RecordQuery) -> UsageAnswer:
    """Return the records that ``query`` asks for, of all servers that answer in time.

    Raises:
        GpupoolError: when no server answers, or the last one that has them is lost meanwhile.
    """
    found, silent = await ask_all(connections, partial(_what_it_has, connections))
    answer = UsageAnswer(answered=found, silent=silent)
    if not answer.answered:
        raise nobody(connections, answer.silent)
    await _read(connections, query, answer)
    return answer


def nobody(connections: Connections, silent: Mapping[ServerId, str]) -> GpupoolError:
    """Return why no server answers: those that are connected have not, or none is."""
    if not connections.by_server or not silent:
        return connections.failure()
    hint = '"gpupool health" tells of its exporter, which keeps this'
    return UnreachableError("no server answers this", why=next(iter(silent.values())), hint=hint)


async def _what_it_has(connections: Connections, server: ServerId) -> RecordPage:
    deadline = trio.current_time() + DEADLINE_S
    for left in reversed(range(TRIES)):
        try:
            remaining_s = max(0.01, deadline - trio.current_time())
            connection = await connections.reach(server, remaining_s, patience_s=PATIENCE_S)
            # A server waits for its exporter before it says that there is no answer of it.
            timeout_s = max(0.01, deadline - trio.current_time())
            return await _page(connection, RecordQuery(count=0), timeout_s)
        except GpupoolError:
            if not left or trio.current_time() >= deadline:
                raise
    raise AssertionError  # the last try returns or raises


async def _page(connection: ServerConnection, query: RecordQuery, timeout_s: float) -> RecordPage:
    answer = await connection.call(m.GetUsage(query), timeout_s=timeout_s)
    if not all(_is_sum(group) for group in (*answer.page.groups, answer.page.whole)):
        raise UnreachableError(f"server {connection.name} makes no sense", why="a malformed sum")
    return answer.page


def _is_sum(group: GroupSum) -> bool:
    digits = (group.unit_ms, group.byte_ms)
    return all(0 < len(each) <= DIGITS_MAX and each.isascii() and each.isdigit() for each in digits)


async def _read(connections: Connections, query: RecordQuery, answer: UsageAnswer) -> None:
    """Read the pages of the server with the most records, and the missing ones from others."""
    count = {server: page.newest - _size(page.missing) for server, page in answer.answered.items()}
    best = sorted(count, key=lambda server: -count[server])
    newest = query.through or max(page.newest for page in answer.answered.values())
    collected = _Collected()
    left: Runs = ((query.after + 1, newest),) if newest > query.after else ()
    failure: GpupoolError | None = None
    for server in best:
        if not left:
            break
        has = answer.answered[server]
        lacks = (*has.missing, *(((has.newest + 1, newest),) if has.newest < newest else ()))
        try:
            for first, last in left:
                if common(((first, last),), lacks) == ((first, last),):
                    continue
                await _read_run(connections, server, query, (first, last), collected)
        except GpupoolError as error:
            failure = error
            answer.silent[server] = str(error)
            left = _after(left, collected.upto)
            continue
        left = common(left, lacks)
    if failure is not None and left and not collected.upto:
        raise failure
    answer.records = sorted(collected.records.values(), key=lambda record: record.number)
    answer.groups, answer.whole = collected.groups, collected.whole
    answer.others = tuple(collected.others[name] for name in sorted(collected.others))
    answer.missing = left
    for server in answer.silent:
        answer.answered.pop(server, None)


class _Collected:
    """The records read so far, each once."""

    def __init__(self) -> None:
        self.records: dict[tuple[LeaseId, ServerId, int], LeaseRecord] = {}
        self.groups: dict[str, GroupSum] = {}
        self.whole = GroupSum("")
        self.others: dict[str, ClassSum] = {}
        self.upto = 0
        """Of the run that is being read: up to which number it was."""

    def add(self, page: RecordPage) -> None:
        """Take a page; pages have no number in common."""
        for record in page.records:
            self.records.setdefault((record.lease, record.server, record.number), record)
        for group in page.groups:
            before = self.groups.get(group.key)
            self.groups[group.key] = group if before is None else before.plus(group)
        self.whole = self.whole.plus(page.whole)
        for each in page.others:
            known = self.others.get(each.user_class, ClassSum(each.user_class, 0, 0, 0))
            self.others[each.user_class] = ClassSum(
                each.user_class,
                known.parts + each.parts,
                known.milli_gpu_ms + each.milli_gpu_ms,
                known.gib_ms + each.gib_ms,
            )
        self.upto = max(self.upto, page.upto)


async def _read_run(
    connections: Connections,
    server: ServerId,
    query: RecordQuery,
    run: tuple[int, ...],
    collected: _Collected,
) -> None:
    first, last = run
    connection = await connections.reach(server, PAGE_TIMEOUT_S)
    after, more = first - 1, True
    while more and after < last:
        wanted = replace(query, after=after, through=last)
        page = await _page(connection, wanted, SUM_TIMEOUT_S if query.by else PAGE_TIMEOUT_S)
        if page.more and page.upto <= after:
            # It would be asked for the same page for ever.
            why = "a page that leads no further"
            raise UnreachableError(f"server {connection.name} makes no sense", why=why)
        collected.add(replace(page, upto=min(page.upto, last)))
        after, more = page.upto, page.more


def _after(runs: Runs, number: int) -> Runs:
    return tuple((max(first, number + 1), last) for first, last in runs if last > number)


def _size(runs: Iterable[tuple[int, ...]]) -> int:
    return sum(last - first + 1 for first, last in runs)
