"""The order in which a worker confines itself, before it knows of any lease.

Some of it needs privileges, and one thread: so it comes before the first import that starts others.
``sandbox``, ``namespaces`` and ``syscall_filter`` have the means.
"""

import contextlib
import os
from pathlib import Path

from gpupool.remoting.protocol import worker_messages
from gpupool.remoting.worker import namespaces, sandbox, syscall_filter


def confine_self(
    start: worker_messages.Start, confine: worker_messages.Confine, *, own_uid: bool
) -> list[str]:
    """Apply all restrictions possible before the lease is known; return those in force."""
    holds: list[str] = []
    sandbox.set_oom_score(sandbox.OOM_SCORE_OF_WORKERS)
    if "priority" in confine.properties and sandbox.lower_priority():
        holds.append("low-priority")
    sandbox.keep_descendants()
    if sandbox.forbid_new_privileges():
        holds.append("no-new-privileges")
    is_root = os.geteuid() == 0
    # First what needs privileges, and all of it before the first thread: NumPy's BLAS starts some
    # when it is imported.
    no_network = is_root and "network" in confine.properties and namespaces.own_network()
    if no_network:
        holds.append("no-network")
    devices: tuple[str, ...] | None = None
    # A user's that is nobody else's has files there that are nobody else's.
    own_directories = (start.directory, *(("/dev/shm",) if own_uid else ()))  # noqa: S108
    if "devices" in confine.properties:
        devices = (*namespaces.STANDARD_DEVICES, *confine.devices)
        staging = Path(start.directory) / "dev"
        if is_root and namespaces.private_devices(confine.devices, staging):
            holds.append("private-devices")
            devices, own_directories = (), (start.directory, "/dev")
    if is_root and "folders" in confine.properties:
        needed = namespaces.needed_paths((start.directory, *start.readable))
        if namespaces.hide_folders(needed):
            holds.append("private-folders")
    if start.landlock:
        tcp = "landlock-network" in confine.properties
        # Within a lease's own network such sockets are CUDA's, and reach nobody else.
        holds += sandbox.restrict_files(
            start.readable,
            own_directories,
            devices,
            network=tcp,
            ports=confine.ports,
            abstract=tcp and not no_network,
            private=start.unreadable,
            cuda=start.cuda,
        )
        if "landlock" in holds and devices:
            holds.append("listed-devices")
    sandbox.limit_resources(own_uid=own_uid)
    if own_uid:
        holds.append("own-uid")  # once it is assigned: whose it is depends on the lease
    elif is_root:
        with contextlib.suppress(OSError):  # Some containers forbid it.
            os.setgroups([])
        if sandbox.drop_capabilities():
            holds.append("few-capabilities")  # of this thread, and so of those that it starts
    if "system-calls" in confine.properties and syscall_filter.available():
        holds.append("system-call-filter")  # once it is assigned: it needs privileges before
        if "few-calls" in confine.properties and not start.cuda:
            holds.append("few-system-calls")
        if "lease-addresses" in confine.properties and syscall_filter.can_ask():
            holds.append("lease-addresses")
    return holds
