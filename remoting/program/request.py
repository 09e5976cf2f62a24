"""The GPUs that a command asks for, and the request to the pool that asks for them."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from gpupool.pool.model.ids import RequestId
from gpupool.pool.model.state import Filter, Placement, Request
from gpupool.remoting.local.logins import client_name


@dataclass(frozen=True, slots=True)
class Wanted:
    """The GPUs that a command line asks for, and the longest wait for them."""

    count: int = 1
    fraction: float = 1.0  # of each GPU; 0 when ``memory`` is given
    memory: int = 0  # bytes on each GPU; 0 when ``fraction`` is given
    servers: tuple[str, ...] = ()
    filters: tuple[Filter, ...] = ()
    across: bool = False
    placement: Placement = Placement.PACK
    wait_s: float | None = None  # None: for as long as it takes
    idle_timeout_s: float = 0.0  # give it up when unused for so long; 0: no wish
    preemptible: bool = False  # it may be suspended for requests of higher priority
    share: float = 0.0  # of each GPU's time when others want theirs; 0: as of its memory

    def request(self, program: str) -> Request:
        """Return a new request for this, on behalf of ``program``."""
        return Request(
            id=RequestId(secrets.token_bytes(16)),
            count=self.count,
            fraction=self.fraction,
            memory=self.memory,
            servers=self.servers,
            across=self.across,
            filters=self.filters,
            placement=self.placement,
            client=client_name(),
            program=program,
            idle_timeout_s=self.idle_timeout_s,
            preemptible=self.preemptible,
            share=self.share,
        )


def unknown_text(names: Sequence[str]) -> str:
    """Return what to say of servers that were asked for and do not exist."""
    return f"the pool has no server named {', '.join(names)}"
