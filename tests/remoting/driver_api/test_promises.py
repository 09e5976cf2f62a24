"""A program may do everything that CUDA tells it: attributes of devices, and flags of calls.

``programs/promises.py`` walks the enumerations of cuda.h. An H200's driver (580.159.04, 2026-11-29)
has answered in ``testdata/cuda-promises.txt``; the door must answer the same, but for what is named
here.
"""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_cuda.control import Control
from generate import INCLUDE
from test_cuda_door import HERE, KERNELS, ROOT, run

from gpupool.remoting.driver_api.executor.api import (
    ATTRIBUTES_END,
    FILE_DESCRIPTORS,
    HIDDEN_ATTRIBUTES,
    POOL_HANDLES,
)

PROGRAM = HERE / "programs" / "promises.py"
IMAGE = str(KERNELS / "test_kernels.sm_90.cubin")
NATIVE = ROOT / "tests" / "testdata" / "cuda-promises.txt"

ENUMS = {
    # Of cuda.h of CUDA 13.5, with the last value of each. Programs see those of 13.0.
    "CUstream_flags": 1, "CUevent_flags": 4, "CUmemLocationType": 6, "CUmemAllocationHandleType": 8,
    "CUmem_advise": 6, "CUmem_range_attribute": 8, "CUpointer_attribute": 22, "CUfunc_cache": 3,
    "CUstreamCaptureMode": 2, "CUgraphInstantiate_flags": 8,
    "CUoccupancy_flags": 1, "CUmemAttach_flags": 4, "CUctx_flags": 128,
}  # fmt: skip

OFFERED = {
    # Attributes that promise a capability, and the program, or the test, that uses it here.
    15: "streams", 19: "mapped", 31: "ordered", 41: "virtual", 78: "own_streams", 83: "managed",
    90: "holders", 92: "values", 93: "values", 94: "values", 95: "legacy", 96: "legacy",
    98: "values", 99: "registered", 102: "virtual", 103: "sharing", 113: "registered",
    115: "pools", 119: "sharing", 120: "everything", 122: "values", 123: "values", 125: "sharing",
    127: "tensors", 129: "references", 136: "values", 137: "values", 141: "host_virtual",
    145: "host_virtual",
}  # fmt: skip

FIGURES = {
    # Limits, sizes, rates and names, which promise no call.
    *range(1, 15), 16, 17, *range(20, 31), *range(32, 41), *range(42, 78), *range(79, 83), 84,
    85, 87, 97, 106, 108, 109, 111, 126, 133, 134, 139, 140,
}  # fmt: skip

DIFFERENT = {
    # What the door answers otherwise than the H200, and the attribute or the page that says so.
    r"cuPointerGetAttribute \('\w+', 5\)": "tokens for RDMA: attribute 116 is 0",
    r"cuMem(Pool)?Create \(1, 8\)": "fabric handles: attribute 128 is 0",
    r"cuMemPoolCreate \([234], 0\)": "pools of the host's memory: attributes 142 and 144 are 0",
    r"cuMemCreate \(4, 0\)": "the nearest node is taken, which that machine had none of",
    r"cuCtxGetLimit \d+": "the driver's own answer, of the driver without a GPU here",
    r"cuCtxSetCacheConfig 4": "the driver's own answer",
    r"cuTensorMapEncodeTiled .*": "the driver's own answer, of the driver without a GPU here",
    # Only the driver knows the kernel's own cluster, by which it judges the preferred one.
    r"cuLaunchKernelEx 11": "912, and behind the door by a later call",
    r"cuGraphKernelNodeSetAttribute 11": "1, and behind the door by a later call",
}

REFUSED = {
    # Of what the machine was lent for too short a time to record: the header says that it is wrong.
    **{
        f"cu{kind}SetAttribute {attribute}": 1
        for kind in ("Func", "Kernel")
        for attribute in (*range(8), 16)
    },
    "cuGraphKernelNodeSetAttribute (13, 1)": 801,  # kernels would change the graph
}


def answers(text: str) -> dict[str, int]:
    """Return the status of each line by its question."""
    rows = (line.rpartition(" ") for line in text.splitlines())
    return {asked: int(status) for asked, _, status in rows if asked}


@pytest.fixture(scope="module")
def found(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Return the program's findings behind the door."""
    with Control(tmp_path_factory.mktemp("control")) as control:
        done = run(library, control, [sys.executable, str(PROGRAM), IMAGE])
    assert done.stdout.endswith("walked\n"), done.stderr
    assert "earlier asynchronous call" not in done.stderr  # all is refused where it is asked for
    return answers(done.stdout.removesuffix("walked\n"))


def test_each_attribute_is_a_figure_or_shown_or_denied() -> None:
    groups = (FIGURES, OFFERED.keys(), HIDDEN_ATTRIBUTES.keys())
    for number in range(1, ATTRIBUTES_END):
        assert sum(number in group for group in groups) == 1, number
    shown = {each.stem for each in (HERE / "programs").glob("*.[cp]*")}
    shown.add("streams")  # test_fake_cuda_streams.py and others
    assert {*OFFERED.values()} <= shown


def test_attributes_that_are_denied(found: dict[str, int]) -> None:
    for number, value in HIDDEN_ATTRIBUTES.items():
        assert found[f"attribute {number}"] == value, number
    assert found[f"attribute {POOL_HANDLES}"] == FILE_DESCRIPTORS
    assert all(found[f"attribute {number}"] == -1001 for number in range(ATTRIBUTES_END, 163))


def test_flags_are_taken_and_refused_as_by_an_h200(found: dict[str, int]) -> None:
    native = answers(NATIVE.read_text())
    wrong = {
        asked: (status, found[asked])
        for asked, status in native.items()
        if not asked.startswith("attribute")
        and found[asked] != status
        and not any(re.fullmatch(pattern, asked) for pattern in DIFFERENT)
    }
    assert wrong == {}
    others = {asked: status for asked, status in found.items() if asked not in native}
    assert {asked: status for asked, status in others.items() if status} == REFUSED


@pytest.mark.slow
def test_the_enumerations_are_those_of_the_header() -> None:
    """A newer CUDA has more, and then the program does not walk all of it."""
    header = INCLUDE / "cuda.h"
    if not header.exists():
        pytest.skip("make wheels brings CUDA's headers")
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    for name, last in ENUMS.items():
        body = re.search(rf"typedef enum \w*\s*{{([^}}]*)}}\s*{name}\s*;", text)
        assert body is not None, name
        values = [int(value, 0) for value in re.findall(r"=\s*(0x[0-9a-f]+|\d+)\b", body[1])]
        assert max(v for v in values if v < 1 << 24) == last, name
