"""The tree of the live view: users or clients, their leases and requests, the sessions of these.

Pure. A client is what a program's machine calls itself, as USER@HOST.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache, reduce
from itertools import accumulate

from rich.text import Text

from gpupool.cli.lib.columns import NOT_KNOWN, STATE_STYLES, AnyLease, Glyphs, gpus_text
from gpupool.cli.tui.keys import TREES
from gpupool.pool.model.ids import ServerId
from gpupool.pool.read_model.figures import Rate
from gpupool.pool.read_model.lazy_rows import LazyRows
from gpupool.pool.read_model.pool_snapshot import LeaseRow, PoolSnapshot
from gpupool.pool.values import duration_text, size_text
from gpupool.pool.view import LeaseView, visible

UNNAMED = "(unnamed)"


def tree_lines(snapshot: PoolSnapshot, glyphs: Glyphs, by: str = TREES[0]) -> Sequence[Text]:
    """Return the tree by a word of ``TREES``, sorted by memory, the most first.

    Lines are made when they are looked at: a pool may have thousands of leases.
    """
    by_client = by != TREES[0]
    rows, waiting = snapshot.all_leases, snapshot.view.waiting
    groups: dict[str, list[int]] = {}
    held: dict[str, int] = {}
    for at, source in enumerate((*snapshot.view.leases, *waiting)):
        name = source.client if by_client else source.user
        groups.setdefault(name, []).append(at)
        if isinstance(source, LeaseView):
            held[name] = held.get(name, 0) + source.memory
    order = sorted(groups, key=lambda each: (-held.get(each, 0), each))
    counts = [len(snapshot.sessions.get(lease.id, ())) for lease in snapshot.view.leases]
    counts += [0 for _ in waiting]

    @cache
    def starts_in(name: str) -> list[int]:
        """Return the line of each lease, from the group's own one on."""
        return list(accumulate((1 + counts[at] for at in groups[name]), initial=1))

    def lines_of(name: str) -> int:
        return 1 + len(groups[name]) + sum(counts[at] for at in groups[name])

    starts = list(accumulate(map(lines_of, order), initial=0))

    def make(line: int) -> Text:
        group = bisect_right(starts, line) - 1
        name, line = order[group], line - starts[group]
        mine = groups[name]
        if not line:
            return _group_line(name, [rows[at] for at in mine])
        number = bisect_right(starts_in(name), line) - 1
        row, last = rows[mine[number]], number == len(mine) - 1
        session = line - starts_in(name)[number] - 1
        if session < 0 or not isinstance(row, LeaseRow):
            return _lease_line(row, glyphs, last=last, named=by_client)
        return _session_line(row, session, glyphs, last=last)

    what, other = ("Clients", "user") if by_client else ("Users", "client")
    head = [
        Text.assemble((f" {what}: {len(groups)}", "bold"), (f"   t: by {other}", "dim")),
        Text(""),
    ]
    if not groups:
        head.append(Text(" nobody has or wants a lease", "dim"))
    return LazyRows(
        len(head) + starts[-1], lambda at: head[at] if at < len(head) else make(at - len(head))
    )


def _group_line(name: str, rows: Sequence[AnyLease]) -> Text:
    return Text.assemble(" ", (visible(name) or UNNAMED, "bold"), f"  {_sum(rows)}")


def _sum(rows: Sequence[AnyLease]) -> str:
    held = [row for row in rows if isinstance(row, LeaseRow)]
    memory = size_text(sum(row.memory for row in held))
    words = [f"{len(held)} lease{'' if len(held) == 1 else 's'}", f"{memory} held"]
    if waiting := len(rows) - len(held):
        words.append(f"{waiting} waiting")
    busy = [row.figures.busy for row in held]
    known = [each for each in busy if each is not None]
    if known:
        least = "" if len(known) == len(busy) else "at least "
        words.append(f"{least}{sum(known):.2f} GPUs busy")
    if rates := [row.rate for row in held if row.rate is not None]:
        total = reduce(Rate.plus, rates)
        words.append(_rate(total))
        if total.wire_s is not None:
            words.append(f"{total.wire_s:.2f} s/s on the wire")
    rtts = [row.figures.rtt_us for row in held]
    if farthest := max((each for each in rtts if each is not None), default=None):
        words.append(f"RTT {farthest / 1000:.2f} ms")
    return ", ".join(words)


def _branch(glyphs: Glyphs, *, last: bool) -> str:
    if glyphs.ascii:
        return "`-" if last else "|-"
    return "└─" if last else "├─"


def _lease_line(row: AnyLease, glyphs: Glyphs, *, last: bool, named: bool) -> Text:
    words = [
        row.source.user if named else "",
        gpus_text(row),
        f"{size_text(row.memory)}" if row.memory else "",
        duration_text(row.age_s),
    ]
    if row.figures.busy is not None:
        words.append(f"{row.figures.busy:.2f} GPUs busy")
    if row.rate is not None:
        words.append(_rate(row.rate))
    words += [row.source.program, row.reason]
    return Text.assemble(
        f"   {_branch(glyphs, last=last)} ",
        (row.id, "bold"),
        " ",
        (row.state, STATE_STYLES.get(row.state, "")),
        "  " + ", ".join(word for word in words if word),
    )


def _session_line(row: LeaseRow, at: int, glyphs: Glyphs, *, last: bool) -> Text:
    stem = " " if last else "|" if glyphs.ascii else "│"
    server, branch = [*row.sessions][at], _branch(glyphs, last=at == len(row.sessions) - 1)
    words = ", ".join(session_words(row, server))
    return Text(f"   {stem}  {branch} {row.snapshot.names.get(server, server)}  {words}")


def session_words(row: LeaseRow, server: ServerId) -> list[str]:
    """Return one server's data on a lease's sessions there."""
    session = row.sessions[server]
    kind = " over ".join(word for word in (session.door, session.transport) if word)
    number = f"{session.workers} session{'' if session.workers == 1 else 's'}"
    words = [f"{number} {kind}".rstrip()]
    rate = row.rate_on(server)
    if rate is not None:
        words.append(_rate(rate))
    if session.rtt_us is not None:
        words.append(f"RTT {session.rtt_us / 1000:.2f} ms")
    if session.busy:
        estimated = "~" if session.busy_estimated else ""
        words.append(f"{estimated}{sum(session.busy.values()):.2f} GPUs busy")
    used = NOT_KNOWN if session.memory_used is None else size_text(session.memory_used)
    words.append(f"memory {used} of {size_text(session.memory_reserved)} reserved")
    if session.idle_s is not None:
        words.append(f"idle {duration_text(session.idle_s)}")
    return words


def _rate(rate: Rate) -> str:
    up, down = size_text(int(rate.up_per_s)), size_text(int(rate.down_per_s))
    waits = "" if rate.waits_per_s is None else f", {rate.waits_per_s:.0f} waits/s"
    return f"up {up}/s down {down}/s{waits}"
