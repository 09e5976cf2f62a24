"""Readings of /proc, from files that a test writes and from this machine."""

import os
import time
from pathlib import Path

from gpupool.remoting.host.measuring.host_readings import TICKS_PER_S, HostReader

STAT = "cpu  {user} 0 100 {idle} 50 0 0 0 7 7\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
NET = """Inter-|   Receive                            |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo:     100       1    0    0    0     0          0         0      100       1    0
  eth0: 5000000      10    0    0    0     0          0         0  7000000      20    0
"""


def write_process(proc: Path, pid: int, user_s: float, resident_kb: int) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    ticks = int(user_s * TICKS_PER_S)
    numbers = f"S 1 1 1 0 -1 4194560 1 0 0 0 {ticks} {TICKS_PER_S} 0 0 20 0 1 0 5"
    (proc / str(pid) / "stat").write_text(f"{pid} (a) b ) {numbers}")
    (proc / str(pid) / "status").write_text(f"Name:\tx\nVmRSS:\t  {resident_kb} kB\n")


def fake_proc(folder: Path) -> Path:
    (folder / "net").mkdir(parents=True)
    (folder / "self" / "fd").mkdir(parents=True)
    for number in range(3):
        (folder / "self" / "fd" / str(number)).touch()
    (folder / "stat").write_text(STAT.format(user=100, idle=700))
    (folder / "meminfo").write_text("MemTotal: 2000 kB\nMemFree: 1 kB\nMemAvailable: 1500 kB\n")
    (folder / "net" / "dev").write_text(NET)
    return folder


def test_readings_are_those_of_the_files(tmp_path: Path) -> None:
    proc, sys = fake_proc(tmp_path / "proc"), tmp_path / "sys"
    (sys / "class/net/eth0").mkdir(parents=True)
    (sys / "class/net/eth0/speed").write_text("25000\n")
    write_process(proc, 7, 2.0, 100)
    write_process(proc, 8, 3.0, 50)
    reader = HostReader(tmp_path, "eth0", proc=proc, sys=sys)
    first = reader.read({"server": [7], "workers": [8, 9], "exporter": []})
    assert first.cpu_busy is None  # of which time?
    assert (first.memory_total, first.memory_available) == (2000 * 1024, 1500 * 1024)
    assert (first.network_in, first.network_out, first.network_speed) == (
        5_000_000,
        7_000_000,
        25000,
    )
    assert first.resident == {"server": 100 * 1024, "workers": 50 * 1024}
    assert first.cpu_s == {"server": 3.0, "workers": 4.0}
    assert first.descriptors == 3
    assert first.disk_total is not None
    assert first.disk_free is not None
    assert 0 < first.disk_free < first.disk_total
    (proc / "stat").write_text(STAT.format(user=130, idle=770))
    assert reader.read({}).cpu_busy == 0.3


def test_limits_of_the_servers_unit(tmp_path: Path) -> None:
    proc, sys = fake_proc(tmp_path / "proc"), tmp_path / "sys"
    (proc / "self" / "cgroup").write_text("0::/system.slice/gpupool.service\n")
    unit = sys / "fs/cgroup/system.slice/gpupool.service"
    unit.mkdir(parents=True)
    reader = HostReader(tmp_path, "eth0", proc=proc, sys=sys)
    for name, text in (("memory.max", "max"), ("memory.current", "9000"), ("pids.max", "max")):
        (unit / name).write_text(text + "\n")
    found = reader.read({})
    assert found.memory_limit is found.memory_charged is found.pids is found.pids_max is None
    assert not found.disk_read_only
    for name, text in (
        *(("memory.max", "20000"), ("memory.stat", "anon 4000\ninactive_file 3000")),
        *(("pids.max", "100"), ("pids.current", "42")),
    ):
        (unit / name).write_text(text + "\n")
    found = reader.read({})
    assert (found.memory_charged, found.memory_limit) == (6000, 20000)
    assert (found.pids, found.pids_max) == (42, 100)
    # The server has moved into a group below, so that its own hands controllers down to leases.
    (proc / "self" / "cgroup").write_text("0::/system.slice/gpupool.service/gpupool-server\n")
    below = unit / "gpupool-server"
    below.mkdir()
    for name in ("memory.max", "pids.max"):
        (below / name).write_text("max\n")
    assert reader.read({}).memory_limit == 20000
    assert reader.read({}).pids_max == 100


def test_time_of_processors_never_falls(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path / "proc")
    reader = HostReader(tmp_path, "", proc=proc)
    write_process(proc, 7, 4.0, 1)
    assert reader.read({"workers": [7]}).cpu_s == {"workers": 5.0}
    write_process(proc, 8, 1.0, 1)
    assert reader.read({"workers": [8]}).cpu_s == {"workers": 7.0}  # 7 has ended
    write_process(proc, 8, 0.5, 1)  # and another process is 8 now
    assert reader.read({"workers": [8]}).cpu_s == {"workers": 8.5}
    assert reader.read({}).cpu_s == {"workers": 8.5}


def test_what_is_not_there_is_not_known(tmp_path: Path) -> None:
    reader = HostReader(tmp_path / "gone", "eth0", proc=tmp_path / "proc", sys=tmp_path / "sys")
    found = reader.read({"server": [1]})
    assert found.cpu_busy is found.memory_total is found.network_in is found.disk_free is None
    assert found.network_speed is found.descriptors is None
    assert found.resident == found.cpu_s == {}


def test_this_machine_can_be_read_quickly(tmp_path: Path) -> None:
    reader = HostReader(tmp_path, "lo")
    began = time.process_time()
    found = reader.read({"server": [os.getpid()]})
    assert time.process_time() - began < 0.5
    assert found.memory_total is not None
    assert found.memory_total > found.resident["server"] > 1 << 20
    assert found.cpu_s["server"] > 0
    assert found.network_in is not None
    assert found.descriptors is not None
    assert found.descriptors_max is not None
    assert 3 <= found.descriptors <= found.descriptors_max
