"""The calls by number, and the protocol number that both ends must share."""

import zlib

from gpupool.remoting.driver_api.schema.calls import BASE_CALLS
from gpupool.remoting.driver_api.schema.calls import CALLS as ROWS
from gpupool.remoting.driver_api.schema.records import BASE_RECORDS, LAYOUTS, NUMBERS

FIRST_CALL = 256
"""Numbers of calls start here; those of records are below."""

_BASE = LAYOUTS, tuple(NUMBERS)[:BASE_RECORDS], dict([*ROWS.items()][:BASE_CALLS])
PROTOCOL = zlib.crc32(repr(_BASE).encode())
"""Another number means other records; of both ends, it must be the same."""


def call(symbol: str, row: str) -> tuple[str, str, bool]:
    """Return a call's name in CUDA's bindings, its parameters as they travel, whether it waits."""
    how, *words = row.split()
    sent = ("v" if word == "a" else word for word in words if word not in (">", "z"))
    return symbol.partition("_v")[0], " ".join(sent), how == "sync"


CALLS = {FIRST_CALL + at: call(*item) for at, item in enumerate(ROWS.items())}
"""Function, parameters as annotated, whether the client waits for a reply."""

NAMES = {number: name for name, number in NUMBERS.items()} | {
    number: name for number, (name, _, _) in CALLS.items()
}
"""Of records and calls, by their numbers."""
