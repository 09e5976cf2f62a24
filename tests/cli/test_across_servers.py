"""One lease over several real servers: programs that use all of it, and the loss of one server."""

import signal
import sys
import time
from typing import Any

import pytest

COPIES = """
import cupy as cp, numpy as np
from cupy._door.transport import link, receiver
passed = [0]
send_some, begin_bulk = link.Link.send_some, receiver.Receiver._begin_bulk
def counted_send(self, buffers):
    sent = send_some(self, buffers)
    passed[0] += self.sent[-1] if sent else 0
    return sent
def counted_bulk(self, reply, body, bulk, after):
    passed[0] += bulk
    return begin_bulk(self, reply, body, bulk, after)
link.Link.send_some, receiver.Receiver._begin_bulk = counted_send, counted_bulk

count = cp.cuda.runtime.getDeviceCount()
servers = [s.name for s in cp._door.pool.devices()]
arrays = []
for device in range(count):
    with cp.cuda.Device(device):
        arrays.append(cp.arange(1 << 20, dtype=cp.float64) + device)
# Around the ring, from every device to the next, until each array is back.
for turn in range(count):
    for device in range(count):
        with cp.cuda.Device((device + turn + 1) % count):
            arrays[device] = cp.asarray(arrays[device]) + 1
sums = [float(array.sum()) for device, array in enumerate(arrays) if array.device.use()]
n = 1 << 20
assert sums == [n * (n - 1) / 2 + n * (device + count) for device in range(count)], sums
print(count, len(set(servers)), passed[0] < n)
"""

HOLD = """
import cupy as cp, time
arrays = []
for device in range(cp.cuda.runtime.getDeviceCount()):
    with cp.cuda.Device(device):
        arrays.append(cp.ones(1 << 16))
print('holding', flush=True)
try:
    while True:
        for device in range(len(arrays)):
            with cp.cuda.Device(device):
                copy = cp.asarray(arrays[device - 1])
                float(copy.sum())
except cp.cuda.runtime.CUDARuntimeError as error:
    print(error.status, flush=True)
began = time.monotonic()
for device, array in enumerate(arrays):
    try:
        while True:
            with cp.cuda.Device(device):
                array.get()
    except RuntimeError as error:
        print(device, f'{time.monotonic() - began:.3f}', error)
raise SystemExit(7)
"""


def has_no_lease(pool: dict[str, Any]) -> bool:
    return pool["leases"] == []


@pytest.mark.parametrize("count", [6, pytest.param(4, marks=pytest.mark.slow)])
def test_a_program_uses_gpus_of_several_servers(live_pool: Any, count: int) -> None:
    done = live_pool.run("run", "-n", f"{count}", "--across", "--", sys.executable, "-c", COPIES)
    assert done.returncode == 0, done.stderr + live_pool.logs()
    assert done.stdout == f"{count} {count // 2} True\n"
    live_pool.wait_until(has_no_lease)


@pytest.mark.long
def test_kill_9_of_one_server_of_a_lease(live_pool: Any) -> None:
    """The program gets a device error on every device within seconds, and 125."""
    program = live_pool.spawn("run", "-n", "6", "--across", "--", sys.executable, "-c", HOLD)
    assert program.stdout is not None
    assert program.stdout.readline() == "holding\n"
    time.sleep(0.3)
    leader = live_pool.view()["raft"]["leader"]
    victim = next(s for name, s in live_pool.servers.items() if name != leader)
    victim.end(signal.SIGKILL)
    output, errors = program.communicate(timeout=10)
    assert program.returncode == 125, (output, errors)
    assert output, errors
    status, *lost = output.splitlines()
    assert status == "46"
    assert [line.split()[0] for line in lost] == [*"012345"]
    said = f"lost server {victim.name}: "
    assert len({line.split(" ", 2)[2] for line in lost}) == 1, lost
    assert said in lost[0]
    assert lost[0].endswith("; the arrays of this session are gone")
    # What was granted by the others is free again, and the server comes back.
    victim.start()
    live_pool.wait_until(live_pool.is_whole, within_s=30)
    live_pool.wait_until(has_no_lease)
