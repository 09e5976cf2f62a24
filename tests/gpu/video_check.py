"""Check that libraries that look for video hardware, as nvJPEG does, run behind the CUDA door.

    python tests/gpu/video_check.py [--bare]

nvJPEG loads libnvcuvid, and NVIDIA's own waits for ever where there is no GPU. Needs a real GPU and
nvJPEG, of the toolkit or of a wheel. The exit status is the number of failures.
"""

import argparse
import importlib.util
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "src")]

from leasing import RealPool, run  # noqa: E402

LIMIT_S = 40
PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
jpeg, handle = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()
print("RESULT created", jpeg.nvjpegCreateSimple(ctypes.byref(handle)))
print("RESULT destroyed", jpeg.nvjpegDestroy(handle))
"""


def nvjpeg() -> Path | None:
    """Return the newest nvJPEG that there is."""
    folders = [*Path("/usr/local").glob("cuda*/lib64"), *Path("/usr/lib").glob("*-linux-gnu")]
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        folders += Path(place).glob("*/lib")
    found = [path for folder in folders for path in folder.glob("libnvjpeg.so.*")]
    return max(found, key=lambda path: path.name, default=None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bare", action="store_true", help="hide the GPU and driver, as root")
    options = parser.parse_args()
    library = nvjpeg()
    if library is None:
        print("skip: there is no nvJPEG here")
        return 0
    words = [sys.executable, "-c", PROGRAM, str(library)]
    with tempfile.TemporaryDirectory(prefix="gpupool-video-") as made:
        pool = RealPool(Path(made), bare=options.bare)
        try:
            native = run(words, LIMIT_S, Path(made) / "native.log", pool.env)
            remote = pool.run(words, "-p", "0.25", limit=LIMIT_S, name="remote")
        finally:
            pool.stop()
    good = remote.code == 0 and native.results == remote.results
    print(
        f"{'pass' if good else 'FAIL'} {library}: {native.results} {native.seconds:.1f} s natively"
    )
    print(f"    {remote.results} {remote.seconds:.1f} s behind the door")
    if not good:
        print(native.output[-1000:], remote.output[-2000:], sep="\n")
    return not good


if __name__ == "__main__":
    sys.exit(main())
