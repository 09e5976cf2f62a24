"""Measures commands about many rows: ``python -m tests.benchmarks.long_commands``.

One server has the table of a pool of 1,000 servers and 10,000 leases, and a backup has 1,000
tokens; three numbers in this order say others. It applies each command until it is done. The
longest application is the longest step of the loop, in processor time of its thread. For a removal
and a restart all leases are on one server.
"""

import gc
import json
import sys
import time
from collections.abc import Iterator
from hashlib import sha256

from tests.benchmarks.full_table import TOKEN, FullTable
from tests.benchmarks.scale import server_id

from gpupool.pool.model.codec import decode
from gpupool.pool.model.commands import (
    Command,
    RemoveServer,
    RestoreBackup,
    RevokeToken,
    ServerUp,
    SetClock,
    StagePart,
)
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import Incarnation, Milliseconds, TokenId
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import Token, TokenKind, with_changes
from gpupool.pool.model.tables import LeaseTable
from gpupool.pool.transitions import backup
from gpupool.pool.transitions.leases import goes_on

BY = "root"


def applied(table: FullTable, command: Command) -> tuple[int, float, float]:
    """Apply a command until it is done: how often, the longest and all applications in ms."""
    spent: list[float] = []
    again = True
    while again:
        began = time.thread_time()
        plain = table.apply(command)
        spent.append(1e3 * (time.thread_time() - began))
        result = decode(Result, plain)
        assert result.ok, result
        again = goes_on(table.state, command, result)
    return len(spent), max(spent), sum(spent)


def measure(servers: int, leases: int, tokens: int) -> Iterator[tuple[str, int, float, float]]:
    """Measure each command on a separate table, and one of a backup with so many tokens."""
    one = server_id(servers - 1)
    yield "revoke", *applied(_filled(servers, leases), RevokeToken(TOKEN, BY))
    yield "remove", *applied(_filled(servers, leases, on_one=True), RemoveServer(one, BY))
    table = _filled(servers, leases, on_one=True)
    gpus = tuple(table.state.servers[one].gpus.values())
    start = ServerUp(one, Incarnation(2), "a:1", "", "", "", gpus, accounts=True, formats=VERSION)
    yield "restart", *applied(table, start)
    for name, share in (("set-clock of a day in which all was granted", 1), ("set-clock", 100)):
        table = _filled(servers, leases)
        back = Milliseconds(table.state.now - leases // share)
        yield name, *applied(table, SetClock(back, table.state.era, BY))
    table = _of_the_accident(servers, leases, tokens)
    back = Milliseconds(table.state.now - leases)
    name = "set-clock of a day in which all began, and all leases have an end"
    yield name, *applied(table, SetClock(back, table.state.era, BY))
    table, parts = FullTable(servers), _packed(servers, tokens)
    for number, part in enumerate(parts):
        table.apply(StagePart(bytes(16), number, part))
    digest = sha256(b"".join(parts)).digest()
    yield "restore", *applied(table, RestoreBackup(bytes(16), len(parts), digest, BY))


def _filled(servers: int, leases: int, *, on_one: bool = False) -> FullTable:
    table = FullTable(servers, server_id(servers - 1) if on_one else None)
    for _ in range(leases):
        table.apply(table.grant_command())
    assert len(table.state.leases) == leases
    gc.collect()
    gc.freeze()
    return table


def _of_the_accident(servers: int, leases: int, tokens: int) -> FullTable:
    """Return a table in which servers, tokens and leases are of the time that is set back."""
    table = _filled(servers, leases)
    state, lately, far = table.state, Milliseconds(table.state.now - 1), Milliseconds(2**45)
    made = (
        Token(TokenId(f"{n:012x}"), TokenKind.USER, f"user{n}", bytes(32), lately, far)
        for n in range(tokens)
    )
    ended = {
        each.id: with_changes(each, ends_at=far - each.id * 7919 % 1000, notice_at=far - 1000)
        for each in state.leases.values()
    }
    changed = {each.id: with_changes(each, changed_at=lately) for each in state.servers.values()}
    table.machine.state = with_changes(
        state,
        tokens={token.id: token for token in made},
        leases=LeaseTable(ended),
        servers=state.servers.replacing(changed),
    )
    gc.collect()
    gc.freeze()
    return table


def _packed(servers: int, tokens: int) -> list[bytes]:
    """Return a backup of a pool without leases, in parts."""
    far, secret = Milliseconds(2**45), bytes(32)
    made = (
        Token(TokenId(f"{n:012x}"), TokenKind.USER, f"user{n}", secret, Milliseconds(1), far)
        for n in range(tokens)
    )
    state = with_changes(FullTable(servers).state, tokens={token.id: token for token in made})
    return backup.pack(backup.to_file(backup.make_backup(state)))


def main() -> None:
    """Measure ``SERVERS LEASES TOKENS`` of the command line; one JSON object a line."""
    given, usual = [int(each) for each in sys.argv[1:4]], [1000, 10_000, 1000]
    servers, leases, tokens = [*given, *usual[len(given) :]]
    for name, count, longest, total in measure(servers, leases, tokens):
        row = {"command": name, "applied": count, "longest_ms": longest, "all_ms": total}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
