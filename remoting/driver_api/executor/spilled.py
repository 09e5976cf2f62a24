"""Memory of this worker that its keeper keeps on a disk while its lease is suspended."""

import ctypes
import os
import threading

from gpupool.remoting.driver_api.build import LAUNCHER, library_dir


def serve(line: int) -> None:
    """Have a thread give memory back as the keeper says, without the interpreter's lock.

    Args:
        line: descriptor of the socket to the keeper, which is closed when that hangs up.
    """
    try:
        function = ctypes.CDLL(str(library_dir() / LAUNCHER)).gpupool_spilled_serve
    except (OSError, AttributeError):
        os.close(line)  # The keeper sees that this worker cannot do it.
        return

    def run() -> None:
        function(line)
        os.close(line)

    threading.Thread(target=run, name="spilled", daemon=True).start()
