"""Whether a worker may compile and run its client's kernels on the processor.

On an emulated GPU a kernel is native code in the worker. The worker's confinement holds it as it
holds any code there, so nothing is compiled where the confinement lacks a part.
"""

import os
from collections.abc import Collection
from pathlib import Path

from gpupool.remoting.devices.host_kernels import host_compiler


def refusal(holds: Collection[str], *, cuda: bool, root: bool) -> str:
    """Return why a worker may not; nothing if it may.

    Args:
        holds: what confines it, as it claims.
        cuda: whether its server has real GPUs.
        root: whether it has root's uid, and is to keep it where it gets none of its own.
    """
    if cuda:
        return "its server has real GPUs as well"
    if "own-uid" not in holds and (root or "landlock" not in holds):
        return (
            "its server's workers have neither a user of their own nor Landlock (Linux 5.13) and "
            "an ordinary user, so that a kernel could read what is not its program's"
        )
    if "no-new-privileges" not in holds or "system-call-filter" not in holds:
        return "its server's workers have no filter of system calls"
    return ""


def decide(holds: Collection[str], *, cuda: bool) -> None:
    """Let this process compile, or keep it from that."""
    reason = refusal(holds, cuda=cuda, root=os.geteuid() == 0)
    if reason:
        host_compiler.refuse(reason)
    else:
        folder = os.environ.get("CUPY_CACHE_DIR")  # as the host has it for each worker
        host_compiler.permit(Path(folder) if folder else None)
