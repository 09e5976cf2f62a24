"""Cut the network under a program behind the CUDA door; runs in a separate network namespace.

    unshare -rn python tests/remoting/driver_api/cut_network.py LIBRARY DRIVER PROGRAM...

The program waits for a kernel when it says so. What it prints from then on is printed, with the
seconds since the network was cut.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    library, driver, *program = sys.argv[1:]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    process = subprocess.Popen(
        [
            *(sys.executable, str(HERE / "loopback.py"), "--tcp", "--library", library),
            *("--driver", driver, "--bindings", str(HERE / "ctypes_bindings"), "--", *program),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "waiting\n"
        subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
        started = time.monotonic()
        said = process.stdout.readline()
        sys.stdout.write(said)
        sys.stderr.write(f"after {time.monotonic() - started:.2f} s\n")
    finally:
        # The worker has a kernel of a minute, and no network on which to hear of its client's end.
        os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
