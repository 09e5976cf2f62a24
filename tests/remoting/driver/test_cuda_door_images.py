"""Which part of a fat binary the server's driver loads, by the variables about compiling PTX."""

import sys
from pathlib import Path
from struct import pack, unpack_from

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.control import Control
from test_cuda_door import KERNELS, run

LOADS = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, module, found = (ctypes.c_void_p() for _ in range(3))
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
for name in sys.argv[1:]:
    status = cuda.cuModuleLoadData(ctypes.byref(module), open(name, "rb").read() + bytes(64))
    kernels = (b"carry_out", b"increment") if status == 0 else ()
    find = lambda kernel: cuda.cuModuleGetFunction(ctypes.byref(found), module, kernel)
    print(status or b" ".join(one for one in kernels if find(one) == 0).decode())
"""
BINARY, TEXT = "carry_out", "increment"
"""A kernel of each of the two parts."""

NO_BINARY, JIT_DISABLED = "209", "223"


def entries(fatbin: bytes) -> bytes:
    """Return what is in a fat binary."""
    return fatbin[unpack_from("<H", fatbin, 6)[0] :]


def fatbin(*parts: bytes) -> bytes:
    whole = b"".join(parts)
    return pack("<IHHQ", 0xBA55ED50, 1, 16, len(whole)) + whole


def binary(cubin: bytes, architecture: int) -> bytes:
    """Return an entry as nvcc makes it of a cubin that it does not compress."""
    cubin += bytes(-len(cubin) % 8)
    head = pack("<HHIQIIHHIIIQQQ", 2, 1, 64, len(cubin), 0, 0, 0, 0, architecture, 0, 0, 0, 0, 0)
    return head + cubin


@pytest.mark.parametrize(
    ("variables", "both", "of_binary", "of_text"),
    [
        ({}, BINARY, BINARY, TEXT),
        ({"CUDA_FORCE_PTX_JIT": "1"}, TEXT, NO_BINARY, TEXT),
        ({"CUDA_DISABLE_PTX_JIT": "1"}, BINARY, BINARY, JIT_DISABLED),
        pytest.param({"CUDA_FORCE_JIT": "1"}, TEXT, NO_BINARY, TEXT, marks=pytest.mark.slow),
        pytest.param(
            {"CUDA_FORCE_JIT": "1", "CUDA_FORCE_PTX_JIT": "0"},
            *(BINARY, BINARY, TEXT),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_variables_choose_between_binary_and_text(
    variables: dict[str, str],
    both: str,
    of_binary: str,
    of_text: str,
    library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The text is compressed, and of other kernels than the binary, so that one can tell."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    cubin = binary((KERNELS / "memory_kernels.sm_90.cubin").read_bytes(), 90)
    text = entries((KERNELS / "test_kernels.lz4.fatbin").read_bytes())
    images = {"both": fatbin(cubin, text), "binary": fatbin(cubin), "text": fatbin(text)}
    paths = [tmp_path / name for name in images]
    for path in paths:
        path.write_bytes(images[path.name])
    program = [sys.executable, "-c", LOADS, *map(str, paths)]
    with Control(tmp_path) as control:
        done = run(library, control, program)
    assert done.stdout.splitlines() == [both, of_binary, of_text], done.stderr
