"""The lock on a physical GPU: of all gpupool servers on a machine, one holds it.

The table keeps two servers of one pool from offering the same GPU. Two pools know nothing of each
other, so a server also claims each GPU from the machine: a Unix socket whose abstract name is the
GPU's UUID. The kernel gives the name to one process at a time, and takes it back when that
process has ended. The name holds in one network namespace. Nothing is sent through the socket.
"""

import errno
import socket
import sys

from gpupool.pool.model.ids import GpuId

PREFIX = "gpupool-gpu-"
TAKEN = "another gpupool server on this machine offers it"


class DeviceLocks:
    """The claims of this process; they end with it, or with ``close``."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self._prefix = prefix
        self._held: dict[GpuId, socket.socket] = {}

    def refusal(self, gpu: GpuId) -> str:
        """Claim ``gpu`` unless that is done already; return why it is not ours, or nothing."""
        if gpu in self._held or not sys.platform.startswith("linux"):
            return ""
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0{self._prefix}{gpu}")
        except OSError as error:
            claim.close()
            if error.errno == errno.EADDRINUSE:
                return TAKEN
            return f"it cannot be claimed from this machine: {error.strerror}"
        self._held[gpu] = claim
        return ""

    def close(self) -> None:
        """Give all claims back."""
        while self._held:
            self._held.popitem()[1].close()
