"""CUDA_VISIBLE_DEVICES of programs of the array door, as the driver reads it."""

import json
import sys
from typing import Any

import pytest

# Each value in a process of its own, which sets it before its first use of a GPU.
PROGRAM = """
import json, os, sys
import cupy

def seen():
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        available = cupy.cuda.is_available() if error.status == 100 else None
        return str(error).partition(":")[0], available
    found = [cupy.cuda.Device(at).pci_bus_id[-4:-2] for at in range(count)]
    for at in range(count):
        with cupy.cuda.Device(at):
            array = cupy.ones(4)
            assert float(array.sum()) == 4.0 and array.device.id == at
    return found, True

for value in sys.argv[1:]:
    reader, writer = os.pipe()
    if not os.fork():
        if value != "unset":
            os.environ["CUDA_VISIBLE_DEVICES"] = value
        os.write(writer, json.dumps(seen()).encode())
        os._exit(0)
    os.close(writer)
    print(os.read(reader, 4096).decode())
    os.wait()
"""
NONE = ["cudaErrorNoDevice", False]
SEEN = {
    "unset": [["00", "01"], True],
    "0": [["00"], True],
    "1": [["01"], True],
    "1,0": [["01", "00"], True],
    "0,1": [["00", "01"], True],
    " 1 , 0": [["01", "00"], True],
    "1,-1,0": [["01"], True],
    "1x": [["01"], True],
    **dict.fromkeys(("", "-1", "5", "abc", "GPU-", ",1", "NoDevFiles"), NONE),
    "1,1": ["cudaErrorInvalidDevice", None],
}


@pytest.mark.parametrize("held", [False, True])
def test_the_array_door_heeds_it(live_pool: Any, *, held: bool) -> None:
    ask = ["-n", "2", "-p", "0.2"]
    if held:
        ask = ["--lease", live_pool.run("alloc", *ask, "--quiet").stdout.strip()]
    program = [sys.executable, "-c", PROGRAM, *SEEN]
    done = live_pool.run("run", "-q", *ask, "--", *program)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert dict(zip(SEEN, found, strict=True)) == SEEN
    if held:
        assert live_pool.run("release", ask[1]).returncode == 0
    one = live_pool.run(
        "run", "-q", "-n", "2", "-p", "0.2", "--", *program[:3], "unset",
        env={"CUDA_VISIBLE_DEVICES": "1"},
    )  # fmt: skip
    assert json.loads(one.stdout) == SEEN["1"]
