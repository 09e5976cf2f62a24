"""Pages of records: what one user is told of everybody's, and how pages are put together."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpupool.monitoring.accounting import Range, total
from gpupool.pool.model.policy import UNIT
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.record_query import ClassSum, RecordPage, RecordQuery

MILLI = UNIT // 1000


def told(records: Iterable[LeaseRecord], query: RecordQuery) -> RecordPage:
    """Return the user's own records, and sums of the others'; everything when nobody is named."""
    if not query.user:
        return RecordPage(records=tuple(records))
    own: list[LeaseRecord] = []
    others: dict[str, list[LeaseRecord]] = {}
    for record in records:
        if record.user == query.user:
            own.append(record)
        elif not query.lease:
            others.setdefault(record.user_class, []).append(record)
    within = Range(query.since, query.until)
    return RecordPage(
        records=tuple(own),
        others=tuple(_class_sum(name, others[name], within) for name in sorted(others)),
    )


def _class_sum(name: str, records: Sequence[LeaseRecord], within: Range) -> ClassSum:
    found = total(records, within)
    return ClassSum(name, len(records), found.unit_ms // MILLI, found.byte_ms >> 30)


def matches(record: LeaseRecord, query: RecordQuery) -> bool:
    """Return whether a query asks for a record."""
    return (
        record.number > query.after
        and (not query.through or record.number <= query.through)
        and record.freed_at > query.since
        and record.granted_at < query.until
        and query.lease in (0, record.lease)
    )


def with_recent(
    page: RecordPage, recent: Sequence[LeaseRecord], newest: int, query: RecordQuery
) -> RecordPage:
    """Return the last page of an observer with what it has not imported yet.

    Args:
        page: of the observer, or an empty one when it does not answer.
        recent: the records in the table, by number.
        newest: the number of the last record of the table.
        query: what was asked for.
    """
    if page.more:
        return replace(page, newest=max(page.newest, newest))
    fresh = [each for each in recent if each.number > page.upto and matches(each, query)]
    missing = page.missing
    if recent and recent[0].number > page.newest + 1:
        missing = (*missing, (page.newest + 1, recent[0].number - 1))
    if not query.count:
        return replace(page, newest=max(page.newest, newest), missing=missing)
    added = told(fresh, query)
    return replace(
        page,
        records=(*page.records, *added.records),
        others=(*page.others, *added.others),
        upto=max(page.upto, newest),
        newest=max(page.newest, newest),
        missing=missing,
    )
