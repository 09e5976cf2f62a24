"""The devices of a lease that a process sees, by its CUDA_VISIBLE_DEVICES, for both doors.

The rules are those of ``gp_choose_visible``, by which the CUDA door's library chooses among the
devices that it is given (``remoting/driver_api/shim/base/visible.c``).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from gpupool.pool.errors import GpupoolError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import Partition
from gpupool.remoting.protocol.driver_variables import VISIBLE, visible_devices


def visible_servers(
    visible: str | None, partitions: Sequence[Partition], servers: Sequence[ServerId]
) -> tuple[ServerId, ...]:
    """Return the servers with devices visible to a process of the CUDA door; all, where unclear.

    Devices are numbered server after server.
    """
    gpus = _in_order(partitions, servers)
    # Parts of a GPU have names that CUDA does not tell by its devices' UUIDs.
    if visible is None or any(not p.gpu.startswith("GPU-") for p in gpus):
        return tuple(servers)
    chosen = visible_devices(visible, [p.gpu for p in gpus])
    if not chosen:
        return tuple(servers[:1])  # it sees none, and may still ask for the driver's version
    return tuple(s for s in servers if any(gpus[at].server == s for at in chosen))


def places_of(
    door: str, visible: str | None, partitions: Sequence[Partition], servers: Sequence[ServerId]
) -> dict[ServerId, dict[str, str]] | None:
    """Return the servers of a process, and the setting for each that chooses devices there.

    The CUDA door's library chooses by itself. For the array door the servers are in the order of
    the process's devices. None for a list that is an error, because it names a device twice.

    Raises:
        GpupoolError: when the devices of one server do not follow each other.
    """
    if door != "arrays" or visible is None:
        return {server: {} for server in visible_servers(visible, partitions, servers)}
    gpus = _in_order(partitions, servers)
    chosen = visible_devices(visible, [p.gpu for p in gpus])
    if chosen is None:
        return None
    places: dict[ServerId, list[int]] = {}
    for at in chosen:
        server = gpus[at].server
        if server in places and server != next(reversed(places)):
            raise GpupoolError(
                f"CUDA_VISIBLE_DEVICES={visible} is not possible here",
                why="it comes back to a server of the lease after a device of another one",
                hint="name the devices of one server after the other",
            )
        first = next(number for number, p in enumerate(gpus) if p.server == server)
        places.setdefault(server, []).append(at - first)
    counts = Counter(p.server for p in gpus)
    return {
        server: {} if found == [*range(counts[server])] else {VISIBLE: ",".join(map(str, found))}
        for server, found in places.items()
    }


def check_places(settings: Mapping[str, str], count: int, server: str) -> None:
    """Check that a session has as many devices as were chosen.

    Raises:
        GpupoolError: if not.
    """
    if VISIBLE in settings and len(settings[VISIBLE].split(",")) != count:
        raise GpupoolError(
            f"server {server} opened a session with all its devices",
            why="it is too old for CUDA_VISIBLE_DEVICES of the array door",
            hint="update it, or unset the variable",
        )


def _in_order(partitions: Sequence[Partition], servers: Sequence[ServerId]) -> list[Partition]:
    return [p for server in servers for p in partitions if p.server == server]
