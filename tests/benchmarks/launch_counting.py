"""The share of a worker's time that measuring its launches costs.

    python tests/benchmarks/launch_counting.py [--launches 200000] [--csv FILE]

A launch has no counter of its own. What is executed for the figures of a session is an addition for
each batch of records that the worker issues, and a report each second, which a thread of the
worker makes, encodes and sends; one in ten asks the kernel about the connection. Each part is
timed by itself, by processor time. How many launches there are in a second and in a batch is
counted behind the real library and wire, with the worker's code above the driver without a GPU.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from results import Results, add_options

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "tests" / "remoting" / "driver_api"
sys.path[:0] = [str(ROOT), str(DRIVER)]

from fake_cuda.build import build as build_driver  # noqa: E402
from fake_cuda.control import Control, process_environment  # noqa: E402

from gpupool.remoting.driver_api import build  # noqa: E402
from gpupool.remoting.protocol.worker_messages import Report  # noqa: E402
from gpupool.remoting.transport.session_stream import PlainStream  # noqa: E402
from gpupool.remoting.transport.tally import tcp_path  # noqa: E402
from gpupool.remoting.worker.peer_links import Links  # noqa: E402
from gpupool.remoting.worker.session_report import PATH_EVERY, SessionReport  # noqa: E402
from gpupool.remoting.worker.worker_channel import WorkerChannel  # noqa: E402

ROUNDS = 5


def launched(folder: Path, count: int) -> tuple[float, int]:
    """Return the seconds of so many launches, and the batches in which the worker got them."""
    library, driver = build.ensure().parent, build_driver()
    program, counts = folder / "launches", folder / "counts"
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-I", str(DRIVER / "programs")]
    command += [str(Path(__file__).with_name("launches.c")), "-o", str(program)]
    subprocess.run([*command, str(library / build.LIBRARY)], check=True)
    image = DRIVER / "fake_cuda" / "kernels" / "test_kernels.sm_90.cubin"
    with Control(folder) as control:
        values = control.environment(driver)
        values.pop("FAKE_CUDA_RECORD", None)  # a file of all launches
        del values["LD_LIBRARY_PATH"]
        command = [sys.executable, str(DRIVER / "loopback.py"), "--library", str(library)]
        command += ["--driver", str(driver.parent), "--bindings", str(DRIVER / "ctypes_bindings")]
        command += ["--count", str(counts), "--", str(program), str(image), str(count)]
        done = subprocess.run(
            command, env=process_environment(values), capture_output=True, text=True, check=True
        )
    return float(done.stdout), int(json.loads(counts.read_text())["received"])


def processor_us(work: Callable[[], object], count: int) -> float:
    """Return the processor time of ``work`` in microseconds: the median of some rounds."""
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(count):
            work()
        times.append((time.thread_time() - began) / count)
    return 1e6 * statistics.median(times)


def report_us() -> tuple[float, float]:
    """Return the time of a report, and of a look at the kernel's figures of the connection."""
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sock,
    ):
        stream = PlainStream(sock)

        def read() -> None:
            while theirs.recv(1 << 16):
                pass

        threading.Thread(target=read, daemon=True).start()
        channel = WorkerChannel(ours)
        report = SessionReport(stream, sock, Links(_no_dial, lambda _numbers: None), channel.send)
        last, pause = report.totals(), threading.Event()

        def one() -> None:
            nonlocal last
            pause.wait(0.001)  # to wake up costs as well
            stream.calls += 1
            totals: Report = report.totals()
            if totals != last:
                channel.send(totals)
                last = totals

        found = processor_us(one, 300), processor_us(lambda: tcp_path(sock), 2000)
        ours.shutdown(socket.SHUT_RDWR)
    return found


def _no_dial(_server: str) -> socket.socket:
    raise OSError


def addition_us() -> float:
    """Return the time to add to the count of calls, of one batch."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = PlainStream(ours)

        def add() -> None:
            stream.calls += 7

        return processor_us(add, 100_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=200_000)
    add_options(parser)
    options = parser.parse_args()
    results = Results.of("launch_counting", options)
    with tempfile.TemporaryDirectory() as folder:
        seconds, batches = launched(Path(folder), options.launches)
    report, path = report_us()
    addition = addition_us()
    each_second = report + path / PATH_EVERY
    share = each_second / 1e6 + addition / 1e6 * batches / seconds
    rows = [
        ("launches a second", options.launches / seconds, "/s", ""),
        ("launches in a batch", options.launches / batches, "", ""),
        ("addition for a batch", addition, "us", ""),
        ("report each second", report, "us", ""),
        ("kernel's figures, each ten seconds", path, "us", ""),
        ("share of a worker's time", 100 * share, "%", "0.1"),
    ]
    for metric, value, unit, budget in rows:
        print(f"{metric:36} {value:12.4f} {unit:3} {f'(at most {budget})' if budget else ''}")
        results.add("driver without a GPU", metric, value, unit, budget=budget)


if __name__ == "__main__":
    main()
