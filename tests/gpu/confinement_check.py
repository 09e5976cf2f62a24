"""Launches and copies of confined workers beside others, in turns, on this machine's GPU; root.

    python tests/gpu/confinement_check.py [--starts 4] [--turns 4]

``gpupool join`` is started so many times of each kind, one after the other, because a GPU is
offered by one server at a time. The others have ``GPUPOOL_UNCONFINED`` with all properties.
Programs come over the Unix socket. Prints medians and their ratio, confined to unconfined; exits
with 1 if a program failed. What the servers say of their workers comes first.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from cuda_door_check import compile_program  # noqa: E402
from leasing import RealPool  # noqa: E402

from gpupool.remoting.driver_api import build  # noqa: E402

PROPERTIES = "network,landlock-network,folders,devices,shared-memory,system-calls,cgroup,priority"
LIMIT_S = 60.0


def measured(folder: Path, program: Path, kind: str, turns: int) -> list[dict[str, float]]:
    """Return the figures of each turn of one server of a kind.

    Raises:
        RuntimeError: when a program failed.
    """
    os.environ.pop("GPUPOOL_UNCONFINED", None)
    if kind == "unconfined":
        os.environ["GPUPOOL_UNCONFINED"] = PROPERTIES
    pool = RealPool(folder)
    try:
        print(*(f"{kind}: {line}" for line in pool.log.read_text().splitlines() if "by:" in line))
        found: list[dict[str, float]] = []
        for turn in range(turns):
            done = pool.run([str(program)], "-p", "0.5", limit=LIMIT_S, name=f"speed{turn}")
            if done.code:
                raise RuntimeError(done.output[-2000:])
            found.append({key: float(value) for key, value in done.results.items()})
        return found
    finally:
        pool.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--turns", type=int, default=4)
    options = parser.parse_args()
    build.ensure()
    found: dict[str, list[dict[str, float]]] = {"confined": [], "unconfined": []}
    with tempfile.TemporaryDirectory(prefix="gpupool-check-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        program = compile_program(HERE / "cuda_programs" / "speed.cu", folder, False)
        for start in range(options.starts):
            for kind, figures in found.items():
                try:
                    figures += measured(folder / f"{kind}{start}", program, kind, options.turns)
                except RuntimeError as error:
                    print(error)
                    return 1
    for key in found["confined"][0]:
        confined, other = ([turn[key] for turn in turns] for turns in found.values())
        low, high = statistics.median(confined), statistics.median(other)
        ratio = f"{low / high:.3f}" if high else "-"
        print(f"{key:20} confined {low:9.2f}, unconfined {high:9.2f}, ratio {ratio}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
