"""The log of errors (cuLogs*), and where CUDA_LOG_FILE has it written."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.control import Control
from test_cuda_door import KERNELS, run

HEAD = r"\[\d\d:\d\d:\d\d\.\d{3}\]\[\d+\]\[CUDA\]\[E\] "
START = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, module, kernel, handle = (ctypes.c_void_p() for _ in range(4))
size, iterator, here = ctypes.c_size_t(), ctypes.c_uint(), ctypes.byref
text = ctypes.create_string_buffer(25600)
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(here(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuModuleLoad(here(module), sys.argv[1].encode()) == 0

def dumped(room, iterator=None):
    size.value = room
    status = cuda.cuLogsDumpToMemory(iterator, text, here(size), 0)
    assert size.value == len(text.value)
    return status, text.value.decode()
"""
ERRORS = (
    START
    + """
assert dumped(100) == (0, "")
assert cuda.cuLogsCurrent(here(iterator), 0) == 0
assert cuda.cuModuleGetFunction(here(kernel), module, b"nowhere") == 500
assert cuda.cuMulticastUnbind(0, 0, 0, 0) == 801
assert cuda.cuModuleGetFunction(here(kernel), module, b"out_of_bounds") == 0
parameters = (ctypes.c_void_p * 1)(ctypes.addressof(ctypes.c_uint64(0)))
launch = lambda deep: cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, deep, 0, None, parameters, None)
assert launch(128) == 1
status, lines = dumped(25600, here(iterator))
assert status == 0 and dumped(25600) == (0, lines) and dumped(25600, here(iterator)) == (0, "")
assert launch(1) == 0 and cuda.cuCtxSynchronize() == 700
print(lines + dumped(25600, here(iterator))[1], end="")
"""
)
ROLLING = (
    START
    + """
heard = []
kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
told = kind(lambda data, level, text, size: heard.append((data, level, len(text) - size)))
assert cuda.cuLogsRegisterCallback(told, ctypes.c_void_p(7), here(handle)) == 0
for _ in range(150):
    assert cuda.cuLogsDumpToMemory(None, None, here(size), 0) == 1
assert heard == [(7, 0, 0)] * 150
assert cuda.cuLogsUnregisterCallback(handle) == 0 and cuda.cuLogsUnregisterCallback(handle) == 1
status, lines = dumped(25600)
first, *rest = lines.splitlines()
assert status == 0 and "left out" in first and len(rest) == 100
status, lines = dumped(300)
assert status == 0 and "left out" in lines and 2 < len(lines.splitlines()) < 6
assert dumped(20) == (1, "")
assert cuda.cuLogsDumpToFile(None, sys.argv[2].encode(), 0) == 0
assert open(sys.argv[2]).read().splitlines()[1:] == rest and len(heard) == 150
print("results right")
"""
)


@pytest.mark.parametrize("place", ["file", pytest.param("stderr", marks=pytest.mark.slow)])
def test_errors_are_kept_and_written_where_the_program_says(
    place: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    monkeypatch.setenv("CUDA_LOG_FILE", str(path) if place == "file" else place)
    image = str(KERNELS / "test_kernels.sm_90.cubin")
    with Control(tmp_path) as control:
        done = run(library, control, [sys.executable, "-c", ERRORS, image])
    expected = [
        "CUDA_ERROR_NOT_FOUND: .* \\(500\\)",
        "cuMulticastUnbind is not supported by the CUDA door",
        "a block of \\(1,1,128\\) is beyond what the device has.*",
        "CUDA_ERROR_ILLEGAL_ADDRESS: .* \\(700\\)(, by an earlier asynchronous call)?",
    ]
    pattern = "".join(f"{HEAD}{line}\n" for line in expected)
    assert re.fullmatch(pattern, done.stdout), done.stdout + done.stderr
    assert (path.read_text() if place == "file" else done.stderr) == done.stdout


def test_the_log_keeps_a_hundred_messages_and_calls_back(library: Path, tmp_path: Path) -> None:
    image = str(KERNELS / "test_kernels.sm_90.cubin")
    words = [sys.executable, "-c", ROLLING, image, str(tmp_path / "log")]
    with Control(tmp_path) as control:
        done = run(library, control, words)
    assert done.stdout == "results right\n", done.stderr
