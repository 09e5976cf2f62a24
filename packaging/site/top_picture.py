"""Draw docs/images/top.svg anew: the live view of a pool of emulated GPUs at work.

    python packaging/site/top_picture.py [--seconds 300] [FILE]

It starts three servers and some programs on this machine, waits until the lines have something to
show, and ends them. It needs the installed package and two cores.
"""

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.emulated_pool import EmulatedPool  # noqa: E402

# Computes for a share of each second, which goes up and down.
PROGRAM = """
import math, sys, time
import cupy as cp
low, high, period = map(float, sys.argv[1:4])
a = cp.ones((512, 512))
begun = time.monotonic()
while True:
    turn = time.monotonic()
    share = low + (high - low) * (1 + math.sin((turn - begun) * 6.28 / period)) / 2
    while time.monotonic() - turn < share * 0.5:
        for _ in range(8):
            b = a @ a
        b.sum().item()
    time.sleep(max(0.0, 0.5 * (1 - share)))
"""
FAULTS = """
[[at]]
temperature = {temperature}
power = {power}
power_limit = 700
sm_activity = {activity}
"""
PROGRAMS = (
    ("ada", "2", "0.5", "train.py", "0.2 0.7 90"),
    ("bob", "1", "1", "sample.py", "0.0 0.3 50"),
    ("eve", "1", "0.25", "notebook.py", "0.0 0.1 120"),
)


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", default=str(ROOT / "docs" / "images" / "top.svg"))
    parser.add_argument("--seconds", type=float, default=300.0)
    arguments = parser.parse_args()
    faults = {
        number: FAULTS.format(temperature=50 + 6 * number, power=280 + 70 * number, activity=0.5)
        for number in (1, 2, 3)
    }
    with EmulatedPool(3, faults=faults) as pool:
        for user, count, share, name, numbers in PROGRAMS:
            path = pool.folder / name
            path.write_text(PROGRAM)
            path.chmod(0o644)
            pool.spawn(
                *("run", "-n", count, "-p", share, "--door", "arrays", "--server", "gpu-1"),
                *("--", "python"),
                *(str(path), *numbers.split()),
                env=pool.login(user),
            )
        pool.run("drain", "gpu-3", "--gpu", "3", "--reason", "new fan")
        time.sleep(arguments.seconds)
        pool.run("top", "--export-svg", arguments.file)
        sys.stdout.write((pool.folder / "programs.log").read_text())


if __name__ == "__main__":
    main()
