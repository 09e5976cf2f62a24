"""Pages of records: one user's view of all records, and the merging of pages."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gpupool.monitoring.accounting import Range, Sum, sums, total
from gpupool.pool.model.policy import UNIT
from gpupool.pool.model.state import LeaseRecord
from gpupool.pool.record_query import ClassSum, GroupSum, RecordPage, RecordQuery

MILLI = UNIT // 1000


def told(
    records: Iterable[LeaseRecord], query: RecordQuery, before: Iterable[LeaseRecord] = ()
) -> RecordPage:
    """Return the user's own records or sums, and sums of the others' by class.

    Everything is told when no user is named. Leases of the records ``before`` were counted already.
    """
    within = Range(query.since, query.until)
    others: dict[str, list[LeaseRecord]] = {}

    def own() -> Iterator[LeaseRecord]:
        for record in records:
            if query.user in ("", record.user):
                yield record
            elif not query.lease:
                others.setdefault(record.user_class, []).append(record)

    if query.by:
        rows, whole = sums(own(), query.by, within, before=before)
        page = RecordPage(
            groups=tuple(group_of(name, rows[name]) for name in sorted(rows)),
            whole=group_of("", whole),
        )
    else:
        page = RecordPage(records=tuple(own()))
    if not others:
        return page
    summed = tuple(_class_sum(name, others[name], within) for name in sorted(others))
    return replace(page, others=summed)


def group_of(key: str, row: Sum) -> GroupSum:
    """Return a sum as it travels."""
    return GroupSum(
        key, row.leases, str(row.unit_ms), str(row.byte_ms), row.wait_ms, row.wait_max_ms
    )


def sum_of(group: GroupSum) -> Sum:
    """Return a sum that has travelled."""
    return Sum(
        group.leases, int(group.unit_ms), int(group.byte_ms), group.wait_ms, group.wait_max_ms
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
    """Return an exporter's last page, completed by records that it has not imported yet.

    Args:
        page: of the exporter, or an empty one when it does not answer.
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
    summed = [each for each in recent if each.number <= page.upto and matches(each, query)]
    added = told(fresh, query, before=summed)
    return replace(
        page,
        records=(*page.records, *added.records),
        groups=(*page.groups, *added.groups),
        whole=page.whole.plus(added.whole),
        others=(*page.others, *added.others),
        upto=max(page.upto, newest),
        newest=max(page.newest, newest),
        missing=missing,
    )
