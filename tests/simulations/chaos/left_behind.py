"""Checks of the files that a run on real processes has left behind.

The same rules are checked as under virtual time: from what the clients wrote about their leases,
and from the servers' journals.
"""

import json
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any, cast

from gpupool.consensus.core.library import COMMAND_TYPE
from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.storage.store import DIRECTORY, Storage
from gpupool.pool.invariants import violations
from gpupool.pool.model.commands import Grant, unwrap
from gpupool.pool.model.ids import GpuId, LeaseId, RequestId
from gpupool.pool.model.state import PoolState
from gpupool.pool.transitions.apply import PoolMachine
from gpupool.simulations.checkers.history import History

STAMP_S = 0.002
"""By which the pool's instants, in whole milliseconds, may differ from those of clients."""

FIRST_INDEX = 2
"""Of a whole log: a pool begins with a snapshot of nothing at 1."""


@dataclass(slots=True)
class LeftBehind:
    """All that was checked of one run."""

    entries: int = 0
    histories: int = 0
    granted: int = 0
    lost: int = 0


@dataclass(slots=True)
class Checks:
    """The checks of one run."""

    fail: Callable[[str], None]
    doubtful: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """From when to when (monotonic) the pool's time may have been wrong by seconds."""
    found: LeftBehind = field(default_factory=LeftBehind)
    _capacity: dict[GpuId, int] = field(default_factory=dict[GpuId, int])

    def run(self, state_dirs: Mapping[str, Path], clients: Path) -> LeftBehind:
        """Check the stopped servers' state directories, and the file that the clients wrote."""
        logs = {name: _read_log(path) for name, path in state_dirs.items()}
        longest = max(logs.values(), key=len)
        self.found.entries = len(longest)
        if min(longest, default=0) != FIRST_INDEX:
            self.fail(f"no log is whole: the longest begins at {min(longest, default=0)}")
            return self.found
        for name, log in logs.items():
            different = next((i for i in log if log[i] != longest.get(i)), None)
            # The last entries of a server that stopped early may never have been committed.
            if different is not None and different < max(log) - 2:
                self.fail(f"logs-agree: {name} has another entry at {different}")
        lines = _client_lines(clients)
        grants, history = self._replay(longest, Instants(lines))
        self._check_histories(grants, history, lines)
        return self.found

    def _replay(
        self, log: dict[int, bytes], instants: "Instants"
    ) -> tuple[dict[int, Grant], History]:
        """Apply the log; return the grants that were made, and a history of the operations."""
        machine = PoolMachine(PoolState())
        wall_to_monotonic_s = time.monotonic() - time.time()
        grants: dict[int, Grant] = {}
        history = History()
        for index in sorted(log):
            if log[index][:1] != COMMAND_TYPE:
                continue
            plain = closed_cbor.decode(log[index][1:])
            machine.apply(index, plain)
            if found := violations(machine.state):
                self.fail(f"table-sound: after {index}: {found[0]}")
            command = unwrap(plain).command
            if isinstance(command, Grant) and LeaseId(index) in machine.state.leases:
                grants[index] = command
            now = machine.state.now / 1000 + wall_to_monotonic_s
            since, until = now - STAMP_S, now + STAMP_S
            if any(begin <= now <= end for begin, end in self.doubtful):
                since, until = instants.around(index, since, until)
            history.stamp_s = (until - since) / 2
            history.pool_holds(machine.state.leases.values(), (since + until) / 2)
            # A server that became a new member later is gone from the last table.
            for server in machine.state.servers.values():
                for gpu in server.gpus.values():
                    self._capacity[gpu.id] = gpu.capacity
        history.capacity = self._capacity
        return grants, history

    def _check_histories(
        self, grants: dict[int, Grant], history: History, lines: list[dict[str, Any]]
    ) -> None:
        gpus: dict[LeaseId, tuple[GpuId, ...]] = {}
        for line in lines:
            if line["event"] == "granted":
                self.found.granted += 1
                lease = LeaseId(line["lease"])
                memory = {GpuId(gpu): int(size) for gpu, size in line["memory"].items()}
                gpus[lease] = tuple(memory)
                request = RequestId(bytes.fromhex(line["request"]))
                history.granted(request, lease, memory, line["called_at"], line["at"])
                known = grants.get(lease)
                sizes = {p.gpu: p.memory for p in known.partitions} if known else None
                if sizes != memory:
                    self.fail(f"acknowledged-stays: lease {lease} is {sizes} in the log")
            elif line["event"] == "over":
                self.found.lost += bool(line["lost"])
                lease = LeaseId(line["lease"])
                history.over(lease, gpus.pop(lease), line["called_at"], line["at"])
        for lease, held in gpus.items():
            history.over(lease, held, time.monotonic(), inf)
        for name, verdict in history.verdicts():
            self.found.histories += 1
            if verdict.linearizable is False:
                self.fail(f"linearizable: the history of {name} has no valid order")


class Instants:
    """The instants of entries by the clients' clock: a lease has the index of its grant."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        """Take the grants from the lines of the clients."""
        granted = sorted(
            (int(line["lease"]), float(line["called_at"]), float(line["at"]))
            for line in lines
            if line["event"] == "granted"
        )
        self._indexes = [lease for lease, _, _ in granted]
        self._called = list(accumulate((called for _, called, _ in granted), max))
        self._answered = list(accumulate((at for _, _, at in reversed(granted)), min))[::-1]

    def around(self, index: int, since: float, until: float) -> tuple[float, float]:
        """Return the span in which an entry was committed, independent of the pool's clock.

        It lies behind the call of each earlier grant, and before the answer to each later one.
        What no grant bounds is bounded by ``since`` or ``until``.
        """
        count = bisect_right(self._indexes, index)
        earliest = self._called[count - 1] if count else since
        first = bisect_left(self._indexes, index)
        latest = self._answered[first] if first < len(self._answered) else until
        return earliest, max(latest, earliest)


class _ReadOnlyDisk:
    """``consensus.disk.Disk`` over a copy in memory, so that reading changes nothing."""

    def __init__(self, folder: Path) -> None:
        self._files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    def names(self) -> list[str]:
        return sorted(self._files)

    def read(self, name: str) -> bytes:
        if name not in self._files:
            raise FileNotFoundError(name)
        return self._files[name]

    def append(self, name: str, data: bytes) -> None:
        self._files[name] += data

    def write(self, name: str, data: bytes) -> None:
        self._files[name] = data

    def overwrite(self, name: str, offset: int, data: bytes) -> None:
        content = self._files[name]
        self._files[name] = content[:offset] + data + content[offset + len(data) :]

    def sync(self, name: str) -> None:
        del name

    def rename(self, old: str, new: str) -> None:
        self._files[new] = self._files.pop(old)

    def remove(self, name: str) -> None:
        del self._files[name]

    def sync_directory(self) -> None:
        return

    def reserve(self, name: str, size: int) -> None:
        del name, size


def _read_log(state_dir: Path) -> dict[int, bytes]:
    """Return the entries of a stopped server's log, by index."""
    journal = Storage(_ReadOnlyDisk(state_dir / DIRECTORY), create=False).journal
    return {index: command for command, index, _term in journal.entries[1:]}


def _client_lines(path: Path) -> list[dict[str, Any]]:
    """Return the clients' lines in the order of time; a killed client may end in mid-line."""
    lines: list[dict[str, Any]] = []
    for text in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            lines.append(cast("dict[str, Any]", json.loads(text)))
    return sorted(lines, key=lambda line: line["at"])
