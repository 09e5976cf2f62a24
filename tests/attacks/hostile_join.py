"""``gpupool join`` with one more door, by which a user runs code in a worker.

It stands for a bug in a door, in CuPy or in the driver. The attacks need such code: no door of
gpupool lets them in.
"""

import sys

from gpupool.remoting.host import worker_helper

worker_helper.DOORS["hostile"] = "echo_door:serve"  # of tests/remoting/host

from gpupool.cli.main import main  # noqa: E402 - other modules copy the table when they load

if __name__ == "__main__":
    sys.exit(main())
