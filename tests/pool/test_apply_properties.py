"""Random command sequences on the table: it never over-grants, and every replica agrees."""

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pool.policy_kit import whole_hash
from tests.pool.pool_strategies import commands, founding, staged, steps
from tests.properties import examples

from gpupool.pool.invariants import violations
from gpupool.pool.model import commands as c
from gpupool.pool.model.codec import decode
from gpupool.pool.model.commands import unwrap, wrap
from gpupool.pool.model.ids import Plain
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import PoolState
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.pool.transitions.authorities import not_moved

KINDS = {"", "busy", "never", "denied", "conflict", "closed", "expired", "invalid"}


def founded() -> PoolMachine:
    machine = PoolMachine(PoolState())
    for index, command in enumerate([*founding(), *staged], start=1):
        result = decode(Result, machine.apply(index, wrap(command, at_ms=1000, ttl_ms=0)))
        assert result.ok, (command, result)
    return machine


def check(before: PoolState, after: PoolState, command: c.Command, result: Result) -> None:
    assert violations(after) == []
    assert after.now >= before.now
    assert result.kind in KINDS
    assert result.ok is not bool(result.kind)
    for server in after.servers.values():
        for gpu in server.gpus.values():
            assert gpu.memory_granted >= 0
            assert gpu.memory_free >= 0
    # What was granted stays charged to the byte until its server frees it.
    for lease_id, lease in before.leases.items():
        kept = after.leases.get(lease_id)
        if kept is not None:
            # Of one that goes to another server, those of both are charged for a while.
            if kept.relocation is None and lease.relocation is None:
                assert kept.partitions == lease.partitions
            assert kept.request == lease.request
    # A new lease belongs to a grant, takes its index, and to no request that was closed.
    for lease_id in after.leases.keys() - before.leases.keys():
        assert isinstance(command, c.Grant)
        assert lease_id == after.index == result.lease
        assert command.request.id not in before.closed
        assert command.request.id not in before.by_request
    # CAs are exchanged one at a time, by the one that signed before; one dropped stays dropped.
    trusted, former = after.authorities, before.authorities
    assert trusted == former or isinstance(command, c.RotateCa | c.RetireCa)
    assert trusted == former or trusted == former[1:] or trusted[:-1] in (former, trusted[:1])
    if len(trusted) > len(former):
        assert isinstance(command, c.RotateCa)
        assert former[-1:] in ((), trusted[:1])
    elif len(trusted) < len(former):
        assert isinstance(command, c.RetireCa)
        assert command.force or not not_moved(before)
    # Nothing that is over comes back.
    for lease_id, lease in before.leases.items():
        if lease_id in after.leases and not lease.held:
            assert not after.leases[lease_id].held


@given(steps)
@settings(max_examples=examples(150), deadline=None)
def test_random_sequences_keep_the_books(
    sequence: list[tuple[c.Command, int, int]],
) -> None:
    machine = founded()
    now_ms = 2000
    log: list[Plain] = []
    for command, elapsed_ms, ttl_ms in sequence:
        now_ms += elapsed_ms
        plain = wrap(command, at_ms=now_ms, ttl_ms=ttl_ms)
        # Every command survives the way through the log as it is.
        stored: Plain = cbor2.loads(cbor2.dumps(plain))
        assert unwrap(stored).command == command
        log.append(stored)
        before = machine.state
        index = before.index + 1
        result = decode(Result, machine.apply(index, stored))
        check(before, machine.state, command, result)
    # A replica that replays the log, and one that starts from a snapshot in the middle, agree.
    replica = founded()
    middle = len(log) // 2
    for number, plain in enumerate(log):
        if number == middle:
            snapshot: Plain = cbor2.loads(cbor2.dumps(replica.snapshot()))
            replica = PoolMachine(PoolState())
            replica.restore(snapshot)
        replica.apply(replica.state.index + 1, plain)
    assert replica.state == machine.state
    assert whole_hash(replica.state) == whole_hash(machine.state), "equal, and not in bytes"
    assert list(replica.state.servers) == list(machine.state.servers)
    assert list(replica.state.closed) == list(machine.state.closed)


@pytest.mark.long
@given(steps, commands)
@settings(max_examples=examples(100), deadline=None)
def test_a_command_that_was_repeated_does_nothing_more(
    sequence: list[tuple[c.Command, int, int]], command: c.Command
) -> None:
    """The control plane relies on this when an outcome is not known: it proposes again."""
    machine = founded()
    for each, _, _ in sequence[:20]:
        machine.apply(machine.state.index + 1, wrap(each, at_ms=5000, ttl_ms=0))
    plain = wrap(command, at_ms=5000, ttl_ms=0)
    first = decode(Result, machine.apply(machine.state.index + 1, plain))
    once = machine.state
    second = decode(Result, machine.apply(once.index + 1, plain))
    twice = machine.state
    assert twice.leases == once.leases
    assert twice.servers == once.servers
    assert twice.tokens == once.tokens
    assert twice.waiting.keys() == once.waiting.keys()
    assert twice.closed.keys() == once.closed.keys()
    if isinstance(command, c.Grant) and first.ok:
        assert second == first


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.text() | st.binary()
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(PLAIN)
@settings(max_examples=examples(300), deadline=None)
def test_whatever_is_in_the_log_is_applied_without_an_exception(plain: Plain) -> None:
    machine = founded()
    before = machine.state
    result = decode(Result, machine.apply(before.index + 1, plain))
    assert not result.ok
    assert machine.state.index == before.index + 1
    assert machine.state.servers == before.servers


@given(commands, st.data())
@settings(max_examples=examples(300), deadline=None)
def test_damaged_commands_are_refused_or_harmless(command: c.Command, data: st.DataObject) -> None:
    machine = founded()
    plain = wrap(command, at_ms=5000, ttl_ms=0)
    assert isinstance(plain, dict)
    fields = plain["c"]
    assert isinstance(fields, dict)
    target = data.draw(st.sampled_from([plain, fields]))
    key = data.draw(st.sampled_from([*target, "extra"]))
    if data.draw(st.booleans()):
        target.pop(key, None)
    else:
        target[key] = data.draw(PLAIN)
    machine.apply(machine.state.index + 1, plain)
    assert violations(machine.state) == []


def test_on_apply_is_called_after_each_change() -> None:
    seen: list[int] = []
    machine = PoolMachine(PoolState())
    machine.on_apply = lambda: seen.append(machine.state.index)
    machine.apply(1, wrap(founding()[0], at_ms=1, ttl_ms=0))
    machine.apply(2, "nonsense")
    machine.restore(machine.snapshot())
    assert seen == [1, 2, 2]
