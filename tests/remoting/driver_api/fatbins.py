"""Fat binaries made by nvcc: of code for a device, of text for its compiler, or both."""

from pathlib import Path
from struct import pack, unpack_from

KERNELS = Path(__file__).resolve().parent / "fake_cuda" / "kernels"
TEXT, BINARY = 1, 2
CODE_KERNEL, TEXT_KERNEL = "increment", "read_reference"
"""Of ``both``: a kernel that is there as code only, and one that is there as text only."""


def entries(name: str) -> dict[tuple[int, int], bytes]:
    """Return the entries of a fat binary, by kind and architecture."""
    whole = (KERNELS / name).read_bytes()
    found: dict[tuple[int, int], bytes] = {}
    (at,) = unpack_from("<H", whole, 6)
    while at < len(whole):
        kind, _, head, payload = unpack_from("<HHIQ", whole, at)
        (architecture,) = unpack_from("<I", whole, at + 28)
        found[kind, architecture] = whole[at : at + head + payload]
        at += head + payload
    return found


def fatbin(*parts: bytes) -> bytes:
    """Return a fat binary of such entries."""
    whole = b"".join(parts)
    return pack("<IHHQ", 0xBA55ED50, 1, 16, len(whole)) + whole


def write_images(folder: Path) -> list[Path]:
    """Write images for a device of architecture 9.0, and return where they are."""
    plain, compressed = entries("test_kernels.fatbin"), entries("test_kernels.lz4.fatbin")
    code, older, text = plain[BINARY, 90], plain[BINARY, 80], compressed[TEXT, 90]
    images = {
        "both": fatbin(code, entries("reference_kernels.fatbin")[TEXT, 52]),
        "code": fatbin(code, older),
        "text": fatbin(older, text),  # compressed, beside code that the device cannot run
        "cubin": (KERNELS / "test_kernels.sm_90.cubin").read_bytes(),
        "ptx": (KERNELS / "test_kernels.ptx").read_bytes(),
    }
    for name, image in images.items():
        (folder / name).write_bytes(image)
    return [folder / name for name in images]


LOADS = f"""
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, module, found = (ctypes.c_void_p() for _ in range(3))
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
for name in sys.argv[1:]:
    status = cuda.cuModuleLoadData(ctypes.byref(module), open(name, "rb").read() + bytes(64))
    kernels = ("{CODE_KERNEL}", "{TEXT_KERNEL}") if status == 0 else ()
    find = lambda one: cuda.cuModuleGetFunction(ctypes.byref(found), module, one.encode())
    print(status or " ".join(one for one in kernels if find(one) == 0))
"""
"""A program that prints the kernels found in each image, or the failed load's status."""
