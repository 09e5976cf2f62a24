"""The objects that the parts of one ``RaftNode`` share, so that they need not know each other."""

from dataclasses import dataclass

from gpupool.consensus.core.freshness import LATE_S
from gpupool.consensus.core.raft_core import RaftCore
from gpupool.consensus.peer_frames import PeerFrames
from gpupool.consensus.protocol.raft_settings import ConsensusSettings
from gpupool.consensus.storage.store import Storage
from gpupool.pool.model.ids import ServerId


@dataclass(slots=True, kw_only=True)
class NodeContext:
    """One node's core, storage, peers and time; only the node itself moves ``now``."""

    server_id: ServerId
    settings: ConsensusSettings
    storage: Storage
    core: RaftCore
    frames: PeerFrames
    now: float
    servers: tuple[ServerId, ...] = ()
    """The other servers of the pool, with or without a vote, as far as this one was told."""

    def advance(self, now: float) -> None:
        """Take the time; it never goes back."""
        if now > self.now:
            late, self.now = now - self.now > LATE_S, now
            if late:
                with self.core.stepping(now):
                    self.core.doubt_messages()
