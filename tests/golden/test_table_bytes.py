"""Commands, their results, the table and backups have the bytes that commit 70ed747 gave them."""

import dataclasses
import json
import typing
from collections.abc import Mapping
from typing import Any

from tests.golden import table_samples as samples
from tests.golden.recorded import check, read
from tests.golden.samples import full

from gpupool.consensus.protocol import closed_cbor
from gpupool.pool.model import commands
from gpupool.pool.model.codec import decode
from gpupool.pool.model.results import Result
from gpupool.pool.model.state import PoolState
from gpupool.pool.transitions import backup, policy_versions
from gpupool.pool.transitions.apply import PoolMachine

FILE = samples.FILE
SOON = "table where a request goes first soon"
RECORDING = ("table with records",)
"""Tables of pools with servers that record leases; older servers did not."""


def test_every_command_and_table_has_its_recorded_bytes() -> None:
    check(FILE, samples.everything())


def test_recorded_commands_are_read_as_what_was_proposed() -> None:
    recorded = read(FILE)
    for name, (at_ms, ttl_ms, command) in samples.command_samples().items():
        envelope = commands.unwrap(closed_cbor.decode(recorded[name]))
        assert envelope.command == command, name
        assert envelope.at == at_ms
        assert envelope.expires == (at_ms + ttl_ms if ttl_ms else 0)
    assert commands.unwrap(closed_cbor.decode(recorded["tick in an era"])).era == 3
    for name, result in samples.results().items():
        assert decode(Result, closed_cbor.decode(recorded[name])) == result


def test_no_command_is_without_a_name_and_a_sample() -> None:
    union = set(commands.Command.__args__)
    assert union == set(commands.KINDS.values()) == set(commands.NAMES)
    recorded = read(FILE)
    full_ones = {name.split()[1] for name in recorded if name.startswith("command ")}
    assert full_ones == set(commands.KINDS)
    scripts = ("pool ", "heir ", "suspensions ", "accounts ", "moves ", "relocations ", "keys ")
    run = {name.split()[2] for name in recorded if name.startswith(scripts)}
    assert run == set(commands.KINDS), "the script has every command"


def test_recorded_tables_are_read_as_what_was_kept() -> None:
    recorded = read(FILE)
    sample = decode(PoolState, closed_cbor.decode(recorded["table of samples"]))
    assert sample == full(PoolState, "table")
    in_an_era = decode(PoolState, closed_cbor.decode(recorded["table of samples in an era"]))
    assert in_an_era == samples.in_an_era()
    for script in samples.scripts():
        machine = PoolMachine(PoolState())
        machine.restore(script.machine.snapshot())
        assert machine.state == script.state
    for name, data in recorded.items():
        if name.startswith("table "):
            machine = PoolMachine(PoolState())
            machine.restore(closed_cbor.decode(data))
            assert closed_cbor.encode(machine.snapshot()) == data, name


def test_the_script_uses_every_field_of_the_table() -> None:
    """Samples follow from types. That rules fill a field alike is seen only where one does."""
    seen: dict[str, bool] = {}
    recorded = read(FILE)
    for name in (
        "table in use",
        "table later",
        "table restored",
        "table clock set",
        "table of two CAs",
        "table with a drained GPU",
        "table of a server with alerts",
        "table of a token for several",
        "table of a server that says its formats",
        "table with silences",
        "table with a lease that is being suspended",
        "table with a suspended lease",
        "table with a lease that waits to be resumed",
        "table with a lease that was not suspended",
        "table with a record of a lease that was suspended",
        "table with a forgotten user",
        "table with a lease that gives way",
        "table with shares of time",
        "table with a lease that is about to be moved",
        "table with a lease that goes on elsewhere",
        "table with a lease that was moved",
        "table with a token whose leases are being ended",
        "table with a server whose former leases are being ended",
        "table with a lease that has gone to another server",
        "table with a lease that stays on its server",
        "table with a lease whose move was given up late",
        "table whose time was set, with leases that are not moved",
        "table with a server that has the keys of both CAs",
        "table with a server that has a name",
        SOON,
        *RECORDING,
    ):
        _note_fields(decode(PoolState, closed_cbor.decode(recorded[name])), seen)
    unused = [place for place, is_used in seen.items() if not is_used]
    assert len(seen) > 100
    assert not unused, f"never set: {', '.join(unused)}"


def _note_fields(value: object, seen: dict[str, bool]) -> None:
    """Note for each field whether it was ever set to something else than its default."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            each = getattr(value, field.name)
            place = f"{type(value).__name__}.{field.name}"
            is_used = each not in (None, 0, "", b"", (), {}) and each != field.default
            seen[place] = seen.get(place, False) or is_used
            _note_fields(each, seen)
    elif isinstance(value, Mapping):
        for each in typing.cast("Mapping[Any, object]", value).values():
            _note_fields(each, seen)
    elif isinstance(value, tuple):
        for each in typing.cast("tuple[object, ...]", value):
            _note_fields(each, seen)


def test_recorded_documents_are_read_as_what_was_packed() -> None:
    recorded = read(FILE)
    assert policy_versions.unpack_text(recorded["packed policy text"]) == samples.POLICY
    assert policy_versions.unpack_draft(recorded["packed policy draft"]) == samples.draft()
    made = backup.from_file(recorded["backup"])
    assert backup.to_file(made) == recorded["backup"]
    assert backup.unpack(recorded["packed backup"]) == made
    assert {"policy", "tokens", "acts"} <= json.loads(recorded["backup"].split(b"\n")[1]).keys()
    assert made.policies
    assert made.labels
