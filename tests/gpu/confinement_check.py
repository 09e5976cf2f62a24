"""Programs in confined workers beside others, in turns, on this machine's GPUs; root.

    python tests/gpu/confinement_check.py [--starts 4] [--turns 4]
        [--workloads resnet_train,compiled,jax_jit,cupy_kernels] [--gpus 2]

Launches and copies are timed by ``speed.cu``. With ``--workloads``, a step of each is timed
(``workloads.py`` has them; ``compiled`` runs kernels of Triton), in milliseconds. With ``--gpus
2``, all-reduces of NCCL between both GPUs of the server are timed, in GB/s.
``gpupool join`` is started so many times of each kind, one after the other, because a GPU is
offered by one server at a time. The others have ``GPUPOOL_UNCONFINED`` with all properties.
Programs come over the Unix socket. Prints medians and their ratio, confined to unconfined; exits
with 1 if a program failed. What the servers say of their workers comes first.
"""

import argparse
import os
import re
import statistics
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from cuda_door_check import compile_program  # noqa: E402
from leasing import RealPool  # noqa: E402

from gpupool.remoting.driver_api import build  # noqa: E402

PROPERTIES = (
    "network,landlock-network,folders,devices,shared-memory,system-calls,cgroup,priority,"
    "held-connections,lease-addresses,few-calls"
)
LIMIT_S = 150.0
PROGRAMS = HERE / "cuda_programs"

Figures = dict[str, list[float]]


def measured(
    folder: Path, speed: Path, kind: str, turns: int, workloads: list[str], gpus: int
) -> Figures:
    """Return the figures of one server of a kind.

    Raises:
        RuntimeError: when a program failed.
    """
    found: Figures = {}

    def run(name: str, *words: str, count: int = 1) -> None:
        shape = ("-n", str(count), "-p", "0.5")
        done = pool.run([*words], *shape, limit=LIMIT_S, name=name)
        if done.code:
            raise RuntimeError(done.output[-2000:])
        rows = list(done.results.items())
        rows += re.findall(r"^FIGURE (.+) (\S+) GB/s$", done.output, re.MULTILINE)
        for key, value in rows:
            if value not in ("True", "False"):
                found.setdefault(key, []).append(float(value))

    os.environ.pop("GPUPOOL_UNCONFINED", None)
    if kind == "unconfined":
        os.environ["GPUPOOL_UNCONFINED"] = PROPERTIES
    pool = RealPool(folder)
    try:
        print(*(f"{kind}: {line}" for line in pool.log.read_text().splitlines() if "by:" in line))
        for turn in range(turns):
            run(f"speed{turn}", str(speed))
        if workloads:
            run("paces", sys.executable, str(PROGRAMS / "paces.py"), *workloads)
        if gpus > 1:
            run("nccl", sys.executable, str(PROGRAMS / "torch_nccl.py"), "reduce", count=gpus)
        return found
    finally:
        pool.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--workloads", default="", metavar="NAMES")
    parser.add_argument("--gpus", type=int, default=1, choices=(1, 2))
    options = parser.parse_args()
    workloads = [name for name in options.workloads.split(",") if name]
    build.ensure()
    found: dict[str, Figures] = {"confined": {}, "unconfined": {}}
    with tempfile.TemporaryDirectory(prefix="gpupool-check-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        speed = compile_program(PROGRAMS / "speed.cu", folder, False)
        for start in range(options.starts):
            for kind in found if start % 2 == 0 else reversed(found):
                try:
                    place = folder / f"{kind}{start}"
                    each = measured(place, speed, kind, options.turns, workloads, options.gpus)
                except RuntimeError as error:
                    print(error)
                    return 1
                for key, values in each.items():
                    found[kind].setdefault(key, []).extend(values)
                    print(f"{kind} {key}: {values}", flush=True)
    for key, confined in found["confined"].items():
        low, high = statistics.median(confined), statistics.median(found["unconfined"][key])
        ratio = f"{low / high:.3f}" if high else "-"
        print(f"{key:20} confined {low:9.2f}, unconfined {high:9.2f}, ratio {ratio}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
