"""Folders where programs meet NVIDIA's MPS, the daemon that shares GPUs between processes.

Any user of a machine may make the driver's own one, in ``/tmp``, before the daemon does. So its
owner is asked for, and that of the daemon's socket in it. Its mode says nothing: the daemon lets
everybody write there, whatever the umask (driver 580, 2026-11-26).
"""

import os
import stat

DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108
"""Where the driver meets the daemon when ``VARIABLE`` names no other folder."""

VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
"""Variable by which an operator names another folder; the only condition is that it is no link."""

_SOCKET = "control"


def default_folder() -> tuple[str, ...]:
    """Return the driver's own folder if root or this process's user has made it, or nothing."""
    try:
        found = os.lstat(DIRECTORY)
    except OSError:
        return ()
    return (DIRECTORY,) if stat.S_ISDIR(found.st_mode) and _is_trusted(found) else ()


def named_folder() -> tuple[str, ...]:
    """Return the folder that the operator has named, or nothing."""
    named = os.environ.get(VARIABLE, "")
    return (named,) if named and not os.path.islink(os.path.normpath(named)) else ()


def is_used() -> bool:
    """Return whether the daemon is set up on this machine."""
    if named_folder():
        return True
    try:
        sockets = [os.lstat(os.path.join(folder, _SOCKET)) for folder in default_folder()]
    except OSError:
        return False
    return any(_is_trusted(found) for found in sockets)


def _is_trusted(found: os.stat_result) -> bool:
    return found.st_uid in {0, os.geteuid()}
