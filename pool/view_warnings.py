"""The warnings of a view: problems of a pool as a whole, as the table and consensus show them."""

from collections.abc import Sequence

from gpupool.pool.model.state import PoolState, Server, ServerStatus
from gpupool.pool.ports import RaftHealth, Role
from gpupool.pool.transitions.authorities import NAME_COUNT_MAX, not_moved
from gpupool.pool.view import ALARM, LONG_AGO_S, NO_KEY, ONE_KEY, has_quorum, visible


def pool_warnings(
    state: PoolState, health: RaftHealth, violations: Sequence[str]
) -> tuple[str, ...]:
    """Return what is wrong with the pool, also the invariants that were found violated."""
    warnings = [f"the pool's table is wrong, which is a bug of gpupool: {v}" for v in violations]
    for server in health.diverged:
        name = state.servers[server].name if server in state.servers else server
        warnings.append(
            f"the table of server {name} differs from that of the others: stop it, check its "
            "memory and disk, and let it join anew (gpupool rejoin)"
        )
    if not has_quorum(health):
        age_s = health.majority_age_s
        contact = f" (last contact {age_s:.0f} s ago)" if age_s < LONG_AGO_S else ""
        warnings.append(
            "this server is not in touch with a majority of the voters: nothing is granted here, "
            f"and what it shows may be old{contact}"
        )
    for server, why in sorted(health.unfit.items()):
        if (known := state.servers.get(server)) is not None:
            text = f"{visible(known.name)} does not count as a voter: {visible(why)}"
            warnings.append(ALARM + text)
    for server, (teller, why) in sorted(health.refused_by.items()):
        if server in state.servers and server not in health.unfit:
            says = state.servers[teller].name if teller in state.servers else teller
            text = f"{visible(state.servers[server].name)} does not count as a voter: "
            warnings.append(f"{ALARM}{text}server {visible(says)} says: {visible(why)}")
    if health.alarm:
        warnings.append(f"{ALARM}{health.alarm}")
    warnings += _exchange_warnings(state)
    warnings += _key_warnings(state)
    warnings += _upgrade_warnings(state)
    if len(state.voters()) == 2:
        warnings.append(
            "with two servers the failure of either stops all grants; a third one cures that, "
            "and needs no GPU: gpupool join --witness"
        )
    if health.role is Role.REMOVED:
        warnings.append("this server was removed from the pool")
    return tuple(warnings)


def _exchange_warnings(state: PoolState) -> list[str]:
    """Return how far the exchange of the CA is, while two are trusted."""
    if len(state.authorities) < 2:
        return []
    behind = [visible(server.name) for server in not_moved(state)]
    if not behind:
        return [
            "two CAs are trusted, and every server has a certificate of the new one: "
            "gpupool ca retire ends the exchange"
        ]
    more = f" and {len(behind) - NAME_COUNT_MAX} more" if len(behind) > NAME_COUNT_MAX else ""
    names = ", ".join(behind[:NAME_COUNT_MAX]) + more
    return [f"two CAs are trusted, and these have no certificate of the new one yet: {names}"]


def _members_once_up(state: PoolState) -> list[Server]:
    """Return the servers of the pool that have ever been up: the others have said nothing."""
    return [
        server
        for server in state.servers.values()
        if server.status is not ServerStatus.JOINED and server.id not in state.removed
    ]


def _key_warnings(state: PoolState) -> list[str]:
    """Return a warning where nobody has the CA's key, or one of several servers alone."""
    servers = _members_once_up(state)
    holders = [visible(server.name) for server in servers if server.has_keys]
    if not servers or len(holders) > 1:
        return []
    exchanges = len(state.authorities) > 1
    what = "s of both CAs" if exchanges else " of the pool's CA"
    rotates = "" if exchanges else ". If it is lost for good, gpupool ca rotate makes another CA"
    if holders:
        gets = "the other voters ask for it as soon as they reach that server"
        text = f"{ONE_KEY}{what}, {holders[0]}: {gets}{rotates}"
        return [text] if sum(server.voter for server in servers) > 1 else []
    first = "" if exchanges else " gpupool ca rotate and"
    return [f"{NO_KEY}{what}: no server can join before{first} gpupool ca retire"]


def _upgrade_warnings(state: PoolState) -> list[str]:
    """Return which servers are not upgraded yet: version numbers of gpupool need not differ."""
    servers = _members_once_up(state)
    newest = max((server.formats for server in servers), default=0)
    old = [f"{visible(s.name)} (formats {s.formats})" for s in servers if s.formats < newest]
    if not old:
        return []
    more = f" and {len(old) - NAME_COUNT_MAX} more" if len(old) > NAME_COUNT_MAX else ""
    names = ", ".join(old[:NAME_COUNT_MAX]) + more
    return [f"these servers are not upgraded yet: {names}; the newest have formats {newest}"]
