"""What the machine around the table tells its server: events, and when to hash the table."""

import pytest
from tests.pool.policy_kit import Pool

from gpupool.pool.model import commands as c
from gpupool.pool.model.commands import wrap
from gpupool.pool.model.ids import Milliseconds, TokenId
from gpupool.pool.model.state import Event, PoolState
from gpupool.pool.transitions import audit
from gpupool.pool.transitions.state_machine import PoolMachine


def test_each_event_is_told_once_from_the_first_one_on() -> None:
    machine = PoolMachine(PoolState())
    told: list[Event] = []
    machine.on_events = told.extend
    commands: list[c.Command] = [c.CreatePool("c", "lab", "tls"), c.Tick(), c.Tick()]
    for index, command in enumerate(commands, start=1):
        machine.apply(index, wrap(command, at_ms=1000, ttl_ms=0))
    assert [event.kind for event in told] == ["pool-created"]
    machine.apply(4, wrap(c.CreatePool("c", "lab", "tls"), at_ms=1000, ttl_ms=0))
    assert len(told) == 1, "a refused command has no event"


@pytest.mark.parametrize("kept", [2, 4, 5, 256])
def test_of_a_command_with_more_events_than_are_kept_those_that_are_kept_are_told(
    monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    pool = Pool()
    for _ in range(3):
        pool.grant("ada")
    monkeypatch.setattr(audit, "EVENT_COUNT_MAX", kept)
    told: list[tuple[Event, ...]] = []
    pool.machine.on_events = told.append
    assert pool.do(c.RevokeToken(TokenId("ada"), "root")).ok
    [events] = told
    kinds = ["ended", "ended", "ended", "token-revoked"]
    assert [event.kind for event in events] == kinds[-min(kept, 4) :]


@pytest.mark.parametrize(
    ("now", "era", "mark"),
    [
        (0, 0, 0),
        (59_999, 0, 0),
        (60_000, 0, 1),
        (119_999, 0, 1),
        (120_000, 0, 2),
        (6_000_000, 0, 100),
        (6_000_000, 1, (1 << 48) + 100),
        (0, 3, 3 << 48),
    ],
)
def test_all_servers_hash_the_table_once_in_a_minute_of_its_own_time(
    now: int, era: int, mark: int
) -> None:
    state = PoolState(now=Milliseconds(now), era=era)
    assert PoolMachine(state).hash_mark() == mark
