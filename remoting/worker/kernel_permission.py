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
    if "no-new-privileges" not in holds or "system-call-filter" not in holds:
        return "its server's workers have no filter of system calls"
    if "own-uid" in holds or (not root and {"own-signals", "few-system-calls"} <= set(holds)):
        return ""
    return (
        "its server's workers have its user, and nothing keeps them from its files and from ending "
        "it: start that server as root, or as an ordinary user on Linux 6.12 or newer with Landlock"
    )


def decide(holds: Collection[str], *, cuda: bool) -> None:
    """Let this process compile, or keep it from that."""
    reason = refusal(holds, cuda=cuda, root=os.geteuid() == 0)
    if reason:
        host_compiler.refuse(reason)
    else:
        folder = os.environ.get("CUPY_CACHE_DIR")  # as the host has it for each worker
        host_compiler.permit(Path(folder) if folder else None)
