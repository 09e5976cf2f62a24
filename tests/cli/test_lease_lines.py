"""A server's log lines on leases, and on servers by their names."""

import json
import logging

import pytest
from tests.pool.policy_kit import Pool

from gpupool.pool.model import commands as c
from gpupool.pool.model.state import Event
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.remoting.daemon.record_files import LeaseLines
from gpupool.remoting.local import logs
from gpupool.remoting.local.logs import JsonFormatter, TextFormatter

LOG = logging.getLogger("gpupool.test")


class Kept(logging.Handler):
    """Keeps log records, despite other tests' settings above this logger."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_each_grant_and_each_end_has_a_line_with_fields(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Kept()
    monkeypatch.setattr(LOG, "handlers", [kept])
    caplog.set_level(logging.INFO, logger=LOG.name)
    pool = Pool()
    lines = LeaseLines(LOG, lambda: pool.state, since_ms=0)
    before = pool.state.events
    assert pool.do(pool.claim("ada", pool.request())).ok
    [lease] = pool.state.leases
    assert pool.do(c.EndLease(lease, "released", "ada")).ok
    lines.record([each for each in pool.state.events if each not in before])
    granted, ended = [json.loads(JsonFormatter().format(each)) for each in kept.records]
    assert (granted["event"], granted["user"], granted["gpus"]) == ("granted", "ada", 1)
    assert granted["message"].startswith(f"lease {granted['lease']} granted: 1 GPU on ")
    assert granted["servers"] == [s.name for s in pool.state.servers.values()][:1]
    assert (ended["event"], ended["reason"]) == ("ended", "released")
    assert ended["held_s"] >= 0
    kept.records.clear()
    later = LeaseLines(LOG, lambda: pool.state, since_ms=2**60)
    later.record(pool.state.events)  # the journal, applied again by a start
    assert not kept.records


def test_the_table_tells_of_the_events_of_each_command() -> None:
    pool, told = Pool(), list[Event]()
    machine = PoolMachine(pool.state, on_events=told.extend)
    machine.apply(machine.state.index + 1, c.wrap(c.Tick(), at_ms=pool.state.now, ttl_ms=10**9))
    assert told == []
    server = next(iter(machine.state.servers.values()))
    drain = c.DrainServer(server.id, "new fan", "root", bytes(16))
    machine.apply(machine.state.index + 1, c.wrap(drain, at_ms=pool.state.now, ttl_ms=10**9))
    assert [event.kind for event in told] == ["drained"]


def test_servers_have_names_in_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_names", [{"442030ef7d1f": "alpha"}.get])
    text = "no link to server %s; token %s stays"
    record = logging.LogRecord(
        "gpupool.x", logging.INFO, "", 0, text, ("442030ef7d1f", "0123456789ab"), None
    )
    wanted = "no link to server alpha; token 0123456789ab stays"
    assert TextFormatter().format(record).endswith(wanted)
    assert json.loads(JsonFormatter().format(record))["message"] == wanted
