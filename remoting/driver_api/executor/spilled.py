"""Memory of this worker that its privileged helper keeps on a disk while its lease is suspended."""

import os
import threading

from gpupool.remoting.driver_api.executor import native_library


def serve(line: int) -> None:
    """Start a thread that gives memory back on the privileged helper's orders, without the GIL.

    Args:
        line: descriptor of the socket to the privileged helper, which is closed when that hangs up.
    """
    library = native_library.load()
    if library is None:
        os.close(line)  # The privileged helper sees that this worker cannot do it.
        return

    def run() -> None:
        library.spilled_serve(line)
        os.close(line)

    threading.Thread(target=run, name="spilled", daemon=True).start()
