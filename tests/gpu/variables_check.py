"""CUDA's variables on the real driver: natively, and behind the CUDA door.

    python tests/gpu/variables_check.py [--jobs N]

Each case is a small program and what is set for it; both must print the same. The GPU is one of
architecture 9.0. The exit status is the number of cases that differ.
"""

import argparse
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "tests" / "remoting" / "driver_api"
sys.path[:0] = [str(Path(__file__).resolve().parent), str(DRIVER), str(ROOT / "src")]

from fatbins import LOADS, write_images  # noqa: E402
from leasing import Outcome, run  # noqa: E402

from gpupool.remoting.driver_api import build  # noqa: E402
from gpupool.remoting.protocol.driver_variables import ALLOWED  # noqa: E402

LIMIT_S = 90

SEES = """
import ctypes
from uuid import UUID
cuda = ctypes.CDLL("libcuda.so.1")
count, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
status = cuda.cuInit(0)
print(status, cuda.cuDeviceGetCount(ctypes.byref(count)))
for device in range(count.value):
    assert cuda.cuDeviceGetUuid_v2(uuid, device) == 0
    print(f"GPU-{UUID(bytes=bytes(uuid))}")
"""

LISTS = (
    *("", "-1", "0", " 0 ", "+0", "-0", "0x", "0gpu", "0,0", "0,-1,0", "0,1", "1,0", "0,", ",0"),
    *("U", "u", "S", " U", "U ", "U,U", "U,0", "0,U", "U,-1", "U,S", "GPU-", "GPU", "gpu-"),
    *("MIG-U", "NoDevFiles"),
)
"""U is the UUID of the GPU, u the same in capitals, S its beginning."""

COMPILING: tuple[dict[str, str], ...] = (
    *({}, {"CUDA_FORCE_PTX_JIT": "1"}, {"CUDA_FORCE_JIT": "1"}),
    {"CUDA_FORCE_JIT": "1", "CUDA_FORCE_PTX_JIT": "0"},
    *({"CUDA_DISABLE_PTX_JIT": "1"}, {"CUDA_DISABLE_JIT": "1"}),
    {"CUDA_DISABLE_PTX_JIT": "1", "CUDA_FORCE_PTX_JIT": "1"},
    {"CUDA_MODULE_LOADING": "EAGER"},
    {"CUDA_MODULE_LOADING": "EAGER", "CUDA_FORCE_PTX_JIT": "1"},
    {name: "1" for name in ALLOWED if "JIT" not in name},
)

Case = tuple[dict[str, str], str, list[str]]


def cases(uuid: str, folder: Path) -> list[Case]:
    """Return each case's variables, program and arguments."""
    found: list[Case] = []
    for text in LISTS:
        named = text if text in ("GPU", "GPU-", "gpu-", "NoDevFiles") else text.replace("U", uuid)
        named = named.replace("u", uuid.upper()) if text == "u" else named.replace("S", uuid[:10])
        found.append(({"CUDA_VISIBLE_DEVICES": named}, SEES, []))
    images = [str(path) for path in write_images(folder)]
    return found + [(dict(variables), LOADS, images) for variables in COMPILING]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    library = build.ensure().parent
    with tempfile.TemporaryDirectory(prefix="gpupool-check-") as made:
        folder = Path(made)
        first = run([sys.executable, "-c", SEES], LIMIT_S, folder / "first.log", dict(os.environ))
        uuid = first.output.split()[2]
        todo = cases(uuid, folder)

        def both(number: int) -> tuple[Outcome, Outcome]:
            variables, program, arguments = todo[number]
            words = [sys.executable, "-c", program, *arguments]
            door = [sys.executable, str(DRIVER / "loopback.py"), "--library", str(library)]
            door += ["--memory", str(1 << 30), "--devices", "1", "--", *words]
            env = dict(os.environ) | variables
            native = run(words, LIMIT_S, folder / f"{number}.native.log", env)
            return native, run(door, LIMIT_S, folder / f"{number}.remote.log", env)

        differ = 0
        with ThreadPoolExecutor(options.jobs) as threads:
            for case, (native, remote) in zip(
                todo, threads.map(both, range(len(todo))), strict=True
            ):
                same = native.output == remote.output and native.code == remote.code
                differ += not same
                print(f"{'same' if same else 'DIFFERENT'} {case[0]}: {native.output.split()}")
                if not same:
                    print("    remote: " + "\n    ".join(remote.output.splitlines()[-20:]))
    return differ


if __name__ == "__main__":
    sys.exit(main())
