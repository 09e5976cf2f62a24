"""Servers whose gpupool is not that of most: in the middle of an upgrade, or left behind. Pure."""

from collections import Counter
from collections.abc import Mapping

from gpupool.pool.model.ids import ServerId
from gpupool.pool.telemetry import Telemetry
from gpupool.pool.view import PoolView


def other_versions(view: PoolView, said: Mapping[ServerId, Telemetry]) -> dict[ServerId, str]:
    """Return the servers that have another gpupool than most, and what is to be said of it.

    Some speak another version of the links, so that the servers in touch with the one that
    answered cannot understand them.
    """
    found: dict[ServerId, str] = {}
    counts = Counter(server.version for server in view.servers if server.version)
    own = next((s.version for s in view.servers if s.id == view.answered_by), "")
    usual = max(counts, key=lambda version: (counts[version], version == own), default="")
    for server in view.servers:
        if server.version not in ("", usual):
            found[server.id] = f"other version: {server.version}, most have {usual}"
    linked = {view.answered_by, *view.raft.connected}
    for measured in (said[each] for each in linked if each in said):
        consensus = measured.consensus
        for peer in consensus.link_versions.keys() - linked if consensus is not None else ():
            found[peer] = "other version, which the others do not understand"
    return found
