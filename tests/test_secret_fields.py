"""Objects that hold secrets leave them out of their ``repr``, so that no log or traceback has them.

The fields are found by their names and types, in all dataclasses of the package.
"""

import dataclasses
import importlib
import pkgutil
import re
import typing
from collections.abc import Iterator
from typing import Any, cast

import gpupool
from gpupool.pool.model.ids import TokenId

WORDS = "cookie|credentials?|keys?|passphrase|password|private|secrets?|tickets?|tokens?"
SECRET = re.compile(rf"(?:^|_)(?:{WORDS})(?:_pem|_text)?$")
TEXTS = (str, bytes)
VALUE = "SECRET-VALUE"

SHOWN = {
    # Names of rows, columns and rules.
    "gpupool.pool.history_query.HistorySeries.key": "the name of a series",
    "gpupool.pool.history_query.SampleSum.key": "the name of a group",
    "gpupool.pool.record_query.GroupSum.key": "the name of a group",
    "gpupool.pool.model.policy.Rule.key": "the name of a rule",
    "gpupool.pool.model.state.Filter.key": "the name of what is filtered",
    "gpupool.cli.tui.keys.Key.keys": "keys of a keyboard",
    "gpupool.monitoring.history.series.Table.keys": "names of columns",
    # Paths.
    "gpupool.remoting.program.holder.HolderSpec.credentials": "the path of a file",
    "gpupool.remoting.program.program_run.RunOptions.credentials": "the path of a file",
    "gpupool.remoting.program.python_lease.Lease.credentials": "the path of a file",
    "gpupool.monitoring.health.alert_settings.AlertSettings.credentials": "the path of a file",
    # Names of memory that workers of one lease and uid have in common; no other process hears them.
    "gpupool.remoting.driver_api.executor.memory.ipc_tokens.Found.token": "of one lease",
    "gpupool.remoting.driver_api.executor.memory.mapped.Common.token": "of one lease",
    "gpupool.remoting.driver_api.executor.memory.memory_pools.Pool.token": "of one lease",
    "gpupool.remoting.driver_api.executor.memory.virtual_memory.Physical.token": "of one lease",
    # Simulated clients have nothing to hide, and a transcript may need it.
    "gpupool.simulations.cluster.client_connections.Credentials.secret": "simulated",
    "gpupool.simulations.cluster.clients._Lease.ticket": "simulated",
    "gpupool.simulations.kernel.ca_files.CaFiles.keys": "simulated",
}
"""Fields that are named like secrets and are none, each with the reason."""


class Other(str):
    """The value of another field, of any kind: an enumeration's member has a value, for one."""

    __slots__ = ()

    def __getattr__(self, name: str) -> "Other":
        return self


def modules() -> Iterator[Any]:
    """Yield every module of the package, but those that begin a program when imported."""
    # Some modules of commands import each other, and the command line is what begins that.
    importlib.import_module("gpupool.cli.commands.run")
    for info in pkgutil.walk_packages(gpupool.__path__, "gpupool."):
        if "dropin" not in info.name and not info.name.endswith("__main__"):
            yield importlib.import_module(info.name)


def dataclasses_of_the_package() -> Iterator[Any]:
    for module in modules():
        for each in cast("dict[str, object]", vars(module)).values():
            mine = getattr(each, "__module__", "") == module.__name__
            if isinstance(each, type) and dataclasses.is_dataclass(each) and mine:
                yield each


def holds_text(kind: Any) -> bool:
    """Return whether a type is of texts or bytes, or holds some; ids of tokens are public."""
    if kind is TokenId:
        return False
    if isinstance(kind, str):  # the name of a type that is imported for checks alone
        return re.search(r"\b(?:str|bytes)\b", kind) is not None
    while isinstance(kind, typing.NewType):
        kind = kind.__supertype__
    return kind in TEXTS or any(holds_text(each) for each in typing.get_args(kind))


def secrets_of(kind: Any) -> list[str]:
    """Return the fields of a dataclass that are secrets by their names and types."""
    fields = dataclasses.fields(kind)
    return [f.name for f in fields if SECRET.search(f.name) and holds_text(f.type)]


def shown_by(kind: Any, name: str) -> str:
    """Return the ``repr`` of an object with ``VALUE`` in one field, and a text in all others."""
    value = object.__new__(kind)
    for field in dataclasses.fields(kind):
        object.__setattr__(value, field.name, VALUE if field.name == name else Other())
    return repr(value)


def test_no_object_shows_a_secret() -> None:
    found = {
        f"{kind.__module__}.{kind.__qualname__}.{name}": shown_by(kind, name)
        for kind in dataclasses_of_the_package()
        for name in secrets_of(kind)
    }
    shown = {place for place, text in found.items() if VALUE in text}
    assert shown - SHOWN.keys() == set()
    assert SHOWN.keys() - shown == set(), "exceptions that are none"
    assert {place.rpartition(".")[2] for place in found} >= {"secret", "ticket", "token", "key_pem"}
    assert len(found) - len(SHOWN) >= 15


def test_a_field_that_is_a_secret_is_found_and_seen() -> None:
    @dataclasses.dataclass
    class Open:
        session_ticket: bytes
        token: TokenId
        key_count: int
        keys: tuple[bytes, ...]
        password: str | None = dataclasses.field(repr=False)

    assert secrets_of(Open) == ["session_ticket", "keys", "password"]
    assert VALUE in shown_by(Open, "keys")
    assert VALUE not in shown_by(Open, "password")
