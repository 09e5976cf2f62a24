"""Automatic drains of GPUs: the signs that a server sees, their onsets, and its proposals.

The table bounds such drains (``transitions.gpu_drains``); a server proposes what would be applied.

The table compares the onset of a sign, which one server noted, with the time of an undrain, which
another one stamped. The two may know different times. So no drain is stamped before its onset: once
it is applied, the table's time has reached the onset, and no undrain that follows has an earlier
time (seeds 710287 and 710587).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpupool.pool.model.commands import DrainGpu
from gpupool.pool.model.ids import GpuId, Milliseconds, ServerId
from gpupool.pool.model.state import PoolState
from gpupool.pool.transitions.gpu_drains import (
    AUTOMATIC,
    automatic_count,
    automatic_max,
    holds_back,
)

SIGN_NAMES = ("thermal", "repeated-xid", "ecc", "remapped-rows", "pcie", "nvlink", "self-test")
"""The signs for which a server drains a GPU by itself, when it is told to."""

Signs = Mapping[tuple[GpuId, str], str]
"""The present signs that drain a GPU, as text, by the GPU and the name of the sign."""

TEXT_LENGTH_MAX = 150


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign of a failing GPU; ``onset`` is 0 when it may have come before the server looked."""

    gpu: GpuId
    name: str
    text: str
    onset: Milliseconds


class SignWatch:
    """Remembers since when each sign has been there, by the pool's time.

    What is there at the first look may have been there before. So may all after the pool's time was
    set, because onsets of another era cannot be compared with an order. No onset is in the future:
    as this server sees it, the pool's time goes back a little when a voter's clock does (seed
    1134). A drain would wait until the time came to such an onset.
    """

    def __init__(self) -> None:
        self._onsets: dict[tuple[GpuId, str], Milliseconds] = {}
        self._era: int | None = None

    def look(self, signs: Signs, now_ms: Milliseconds, era: int) -> tuple[Sign, ...]:
        """Take the signs that are there now, and return them with their onsets."""
        fresh = now_ms if era == self._era else Milliseconds(0)
        known = self._onsets if era == self._era else {}
        self._era = era
        self._onsets = {key: min(known.get(key, fresh), fresh) for key in signs}
        return tuple(
            Sign(gpu, name, signs[gpu, name], onset) for (gpu, name), onset in self._onsets.items()
        )


def plan_drains(state: PoolState, self_id: ServerId, signs: Sequence[Sign]) -> tuple[DrainGpu, ...]:
    """Return the drains that a server should propose for its signs, as the table allows."""
    server = state.servers.get(self_id)
    if server is None or not signs:
        return ()
    left = automatic_max(state) - automatic_count(state)
    plan: dict[GpuId, DrainGpu] = {}
    for sign in signs:
        if sign.gpu not in server.gpus or sign.gpu in plan or len(plan) >= left:
            continue
        if holds_back(server, sign.gpu, sign.onset) is None:
            reason = f"{AUTOMATIC}{sign.name}: {sign.text[:TEXT_LENGTH_MAX]}"
            plan[sign.gpu] = DrainGpu(
                server.id, sign.gpu, reason, server.name, sign=sign.name, onset=sign.onset
            )
    return tuple(plan.values())
