"""The past in the table: events, administrative acts, and records of ended leases.

Events are for the live view. They come from leases, servers and operators alike, and the oldest are
dropped first. Acts are for the audit: they are numbered, and leases never push one out. Records of
ended leases are what all accounts are made from: when one server's part of a lease is freed,
``apply`` makes one numbered record of it.

The table keeps the latest ``ACT_COUNT_MAX`` acts and the latest ``RECORD_COUNT_MAX`` records. Every
server also writes each of both to a file of its own as it applies it (``record_files``), so that
the older ones are not lost. So a server that was away gets what it missed with a snapshot,
it knows a gap by the numbers, and what servers have written can be merged exactly.

Records begin with the first ``ServerUp`` that asks for them, and not with the program that applies
it: servers apply an old log from different snapshots, and would number differently.
"""

import json
from dataclasses import replace
from typing import cast

from gpupool.pool.model.codec import CodecError, decode, encode
from gpupool.pool.model.forgetting import (
    DIGEST_SIZE,
    FORGOTTEN_COUNT_MAX,
    FORGOTTEN_MS,
    SALT_SIZE,
    ForgetUser,
    Forgotten,
    meant,
    without_names,
)
from gpupool.pool.model.ids import Milliseconds, ServerId
from gpupool.pool.model.relocation import RelocationState
from gpupool.pool.model.results import RefusalKind, Result, Step, refuse
from gpupool.pool.model.state import (
    ACT_COUNT_MAX,
    EVENT_COUNT_MAX,
    RECORD_COUNT_MAX,
    Act,
    Event,
    Lease,
    LeaseRecord,
    Partition,
    PoolState,
    RecordedGpu,
    with_changes,
)
from gpupool.pool.model.suspension import Span
from gpupool.pool.policy.admission import Admission
from gpupool.pool.policy.rulebook import units_of

BY_LENGTH_MAX = 64
SUBJECT_LENGTH_MAX = 128
TEXT_LENGTH_MAX = 400
EVENT_SUBJECT_LENGTH_MAX = 200

THE_POOL = "the pool"
"""The author of acts that no user asked for."""


def emit_event(state: PoolState, kind: str, subject: str, text: str) -> PoolState:
    """Return ``state`` with one more event, the oldest dropped beyond the limit."""
    subject, text = subject[:EVENT_SUBJECT_LENGTH_MAX], text[:TEXT_LENGTH_MAX]
    event = Event(state.now, kind, subject, text)
    return with_changes(state, events=(*state.events[-EVENT_COUNT_MAX + 1 :], event))


def record(state: PoolState, kind: str, *, by: str, subject: str, text: str = "") -> PoolState:
    """Return ``state`` with one more act; beyond the bound the oldest is dropped.

    Handlers call it once for each change that an operator, or a server about itself, has made. A
    command that was proposed twice, and changes nothing the second time, is no act.
    """
    act = Act(
        number=state.act_count + 1,
        index=state.index,
        at=state.now,
        kind=kind,
        by=by[:BY_LENGTH_MAX] or THE_POOL,
        subject=subject[:SUBJECT_LENGTH_MAX],
        text=text[:TEXT_LENGTH_MAX],
    )
    acts = (*state.acts[-ACT_COUNT_MAX + 1 :], act)
    return with_changes(state, acts=acts, act_count=act.number)


def acts_since(state: PoolState, number: int) -> tuple[Act, ...]:
    """Return the acts in the table with a number larger than ``number``, oldest first."""
    count = min(max(0, state.act_count - number), len(state.acts))
    return state.acts[len(state.acts) - count :]


def begin_accounts(state: PoolState) -> PoolState:
    """Return ``state`` with records of every part that is freed from now on."""
    if state.accounts_since:
        return state
    return with_changes(state, accounts_since=Milliseconds(max(1, state.now)))


def with_request(state: PoolState, lease: Lease) -> Lease:
    """Return a lease that is being granted, with the request data for its records."""
    if not state.accounts_since:
        return lease
    terms, waiting = Admission(state).terms(lease.user), state.waiting.get(lease.request)
    return with_changes(
        lease,
        requested_at=waiting.since if waiting is not None else Milliseconds(0),
        user_class=terms.group,
        department=terms.department,
    )


def record_part(state: PoolState, lease: Lease, server: ServerId) -> PoolState:
    """Return ``state`` with a record of the part of ``lease`` that ``server`` frees now."""
    begin, goes = stay_since(lease, server), lease.relocation
    if not state.accounts_since or begin is None:
        return state
    requested = lease.requested_at if begin == lease.granted_at else begin
    known = state.servers.get(server)
    made = LeaseRecord(
        number=state.record_count + 1,
        lease=lease.id,
        server=server,
        server_name=known.name if known is not None else "",
        user=lease.user,
        user_class=lease.user_class,
        department=lease.department,
        client=lease.client,
        program=lease.program,
        gpus=_gpus(state, lease, server),
        # Setting the time back moves each instant by itself, and so may change their order.
        requested_at=min(requested or begin, begin),
        granted_at=begin,
        ended_at=max(lease.ended_at if lease.end_reason else state.now, begin),
        freed_at=state.now,
        reason=lease.end_reason
        or (goes.reason if goes else "")
        or "it was moved to another server",
        idle_timeout_ms=round(lease.idle_timeout_s * 1000),
        away=_since(lease.times_away(state.now), begin),
    )
    records = (*state.records[-RECORD_COUNT_MAX + 1 :], made)
    return with_changes(state, records=records, record_count=made.number)


def stay_since(lease: Lease, server: ServerId) -> Milliseconds | None:
    """Return since when a lease has been on a server: its grant, or its move to it.

    A server keeps memory for a lease that is yet to come, or never came: in a pool of a former
    version that is no stay.
    """
    found = lease.relocation
    if found is not None and server == found.source:
        return found.source_since
    if found is not None and found.billed:
        return found.since
    if found is not None and found.state is not RelocationState.GONE:
        return None
    return lease.here_since or lease.granted_at


def _since(away: tuple[Span, ...], begin: Milliseconds) -> tuple[Span, ...]:
    """Return the times, or parts of them, that came after an instant."""
    return tuple((max(first, begin), last) for first, last in away if last > begin)


def _gpus(state: PoolState, lease: Lease, server: ServerId) -> tuple[RecordedGpu, ...]:
    """Return the GPUs of a part. Their shares add up to the units of the grant."""
    known = state.servers.get(server)
    found: list[RecordedGpu] = []
    left = lease.units.get(server, 0)
    parts = [part for part in lease.partitions if part.server == server]
    for number, part in enumerate(parts, start=1):
        gpu = known.gpus.get(part.gpu) if known is not None else None
        # A GPU whose capacity was reported anew since the grant counts as it did then.
        units = left if number == len(parts) else min(left, _share(state, part))
        left -= units
        found.append(RecordedGpu(part.gpu, gpu.name if gpu else "", part.memory, units))
    return tuple(found)


def _share(state: PoolState, part: Partition) -> int:
    server = state.servers.get(part.server)
    gpu = server.gpus.get(part.gpu) if server is not None else None
    return units_of(part, gpu) if gpu is not None else 0


def records_since(state: PoolState, number: int) -> tuple[LeaseRecord, ...]:
    """Return the records in the table with a number larger than ``number``, oldest first."""
    count = min(max(0, state.record_count - number), len(state.records))
    return state.records[len(state.records) - count :]


def forget_user(state: PoolState, command: ForgetUser) -> Step:
    """Replace a user by a pseudonym in the accounts, unless the user has leases or waits."""
    if (len(command.salt), len(command.digest)) != (SALT_SIZE, DIGEST_SIZE):
        return state, refuse(RefusalKind.INVALID, "malformed hash of a name")
    if any(each.salt == command.salt for each in state.forgotten):
        return state, Result(ok=True, why="it was done already")
    order = Forgotten(command.salt, command.digest, state.record_count, state.now)
    present = {each.user for each in state.leases.values()}
    present |= {each.user for each in state.waiting.values()}
    if any(meant((order,), user) for user in present):
        return state, refuse(RefusalKind.CONFLICT, "that user has leases or waits for GPUs")
    kept = tuple(each for each in state.forgotten if each.at > state.now - FORGOTTEN_MS)
    state = with_changes(
        state,
        forgotten=(*kept, order)[-FORGOTTEN_COUNT_MAX:],
        records=tuple(under_pseudonym(each, (order,)) for each in state.records),
    )
    return record(
        state, "user-forgotten", by=command.by, subject=order.pseudonym, text="in the accounts"
    ), Result(ok=True)


def under_pseudonym(made: LeaseRecord, forgotten: tuple[Forgotten, ...]) -> LeaseRecord:
    """Return a record after the orders to forget users are carried out."""
    orders = [order for order in forgotten if made.number <= order.number]
    if made.reason and (reason := without_names(made.reason, orders)) != made.reason:
        made = replace(made, reason=reason)
    for order in meant(orders, made.user):
        return replace(made, user=order.pseudonym, client="")
    return made


LINES_FILE = "leases.jsonl"
"""Written by the server, read by its exporter. Renamed files have ``.1`` to ``.7`` behind it."""

LINES_SCHEMA = 1


def line_of(made: LeaseRecord) -> str:
    """Return one record as a line of JSON with its end, the form of ``leases.jsonl``."""
    fields = encode(made)
    assert isinstance(fields, dict)
    return json.dumps({"schema": LINES_SCHEMA, **fields}, separators=(",", ":")) + "\n"


def record_of(line: str) -> LeaseRecord:
    """Return the record that a line holds.

    Raises:
        ValueError: when it holds none.
    """
    try:
        fields = json.loads(line)
    except RecursionError as error:
        raise ValueError("a line that nests too deep") from error
    if not isinstance(fields, dict):
        raise ValueError("a line without fields")
    named = cast("dict[str, object]", fields)
    if named.pop("schema", None) != LINES_SCHEMA:
        raise ValueError("a line of another schema")
    try:
        return decode(LeaseRecord, named, unknown_fields=True)
    except CodecError as error:
        raise ValueError(str(error)) from None
