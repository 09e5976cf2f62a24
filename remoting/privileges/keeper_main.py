"""A privileged helper that systemd starts when a server connects; descriptor 3 is its socket.

``packaging/gpupool-keeper@.service`` runs it by this name, which installed units have, with
``python -m``, as root and without a network. The server is then a unit of its own, which has no
privileges at any time.
"""

import logging
import os
import socket
import sys
import tempfile
from pathlib import Path

from gpupool.remoting.host.isolation.confinement import nccl_ports, wanted
from gpupool.remoting.host.worker_helper import HelperSettings
from gpupool.remoting.privileges import helper_process, kept_signer

DESCRIPTOR = 3
"""The first that a service manager passes (sd_listen_fds(3))."""


def main() -> None:
    """Serve one server until it hangs up."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    given = {
        name: os.environ[name].split(":")[0]
        for name in ("RUNTIME_DIRECTORY", "STATE_DIRECTORY")
        if os.environ.get(name)
    }
    if "RUNTIME_DIRECTORY" in given:
        tempfile.tempdir = given["RUNTIME_DIRECTORY"]
    state_dir = Path(given["STATE_DIRECTORY"]) if "STATE_DIRECTORY" in given else None
    settings = HelperSettings(
        base=None,
        state_dir=state_dir,
        confine=wanted(os.environ),
        ports=nccl_ports(os.environ),
    )
    os.set_inheritable(DESCRIPTOR, False)
    log = logging.getLogger("gpupool.host")
    with socket.socket(fileno=DESCRIPTOR) as server:
        kept_signer.start_if_wanted(server, state_dir, log.info)
        helper_process.serve(server, settings, log.info)


if __name__ == "__main__":
    main()
