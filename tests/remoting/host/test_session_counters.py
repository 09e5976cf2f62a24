"""A session's counters, and the host's use of them."""

import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from host_kit import MakeHost, until

from gpupool.pool.model.ids import GpuId
from gpupool.remoting.host.measuring.execution import Execution
from gpupool.remoting.host.measuring.session_meter import Totals
from gpupool.remoting.protocol.worker_messages import Report
from gpupool.remoting.transport.tally import Tally, tcp_path
from gpupool.remoting.worker.session_report import SessionReport


def test_the_kernel_tells_the_round_trip_of_a_tcp_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as ours:
            theirs, _ = listener.accept()
            with theirs:
                for _ in range(5):
                    ours.sendall(b"x")
                    theirs.sendall(theirs.recv(1))
                    ours.recv(1)
                path = tcp_path(ours)
            assert path is not None
            # A loopback's round trip, even on a machine that is full of work.
            assert 0 < path.rtt_us < 1_000_000
            assert 0 < path.rtt_var_us < 1_000_000
            assert path.retransmits == 0
        assert tcp_path(ours) is None  # it is closed
    near, far = socket.socketpair()
    with near, far:
        assert tcp_path(near) is None


def test_the_fields_lie_where_the_kernel_header_says() -> None:
    """The offsets of linux/tcp.h: 8 bytes of flags, then words of 4 bytes."""
    header = Path("/usr/include/linux/tcp.h")
    if not header.exists():
        pytest.skip("the kernel's headers are not installed")
    text = header.read_text()
    body = text[text.index("struct tcp_info {") :].partition("};")[0]
    words = [line.split()[1].rstrip(";") for line in body.splitlines() if "__u32\t" in line]
    at = {name: 8 + 4 * number for number, name in enumerate(words)}
    assert (at["tcpi_rtt"], at["tcpi_rttvar"], at["tcpi_total_retrans"]) == (68, 72, 100)


def test_tally_counts_what_runs_now_too() -> None:
    tally = Tally()
    assert tally.executed_us() is None
    tally.executed_ns = 0
    tally.begin()
    time.sleep(0.002)
    running = tally.executed_us()
    assert running is not None
    assert running >= 2000
    tally.end()
    done = tally.executed_us()
    assert done is not None
    assert done >= running
    assert tally.executed_us() == done


@pytest.mark.parametrize(
    ("reports", "at", "share"),
    [
        ([(1.0, 500_000)], 1.5, 0.5),
        ([(1.0, 500_000), (2.0, 750_000)], 2.0, 0.25),
        ([(1.0, 500_000), (2.0, 500_000)], 2.0, 0.0),
        ([(1.0, 500_000)], 3.0, 0.0),  # it has been silent
        ([(1.0, 0), (61.0, 400_000)], 61.0, 0.4),  # within its last second
        ([(1.0, 0), (2.0, 1_500_000)], 2.0, 1.0),  # the clocks of two processes
        ([(1.0, 900_000), (2.0, 800_000)], 2.0, 0.0),
    ],
)
def test_share_of_time_that_a_worker_executes(
    reports: list[tuple[float, int]], at: float, share: float
) -> None:
    execution = Execution()
    for now, executed_us in reports:
        execution.take(executed_us, now)
    assert execution.now(at) == pytest.approx(share)


async def test_waits_door_and_transport_reach_the_telemetry(make_host: MakeHost) -> None:
    kit = await make_host()
    lease = kit.lease()
    client, worker = await kit.connect(lease)
    assert await client.ask(b"t", b"30") == b""
    await until(lambda: worker.session.totals.waits > 0)
    gpus, (session,) = kit.host.telemetry()
    assert (session.door, session.transport, session.waits) == ("echo", "unix", 1)
    assert session.wait_us is not None
    assert session.wait_us >= 30_000
    assert session.rtt_us is session.rtt_var_us is session.retransmits is None
    assert 0.02 < session.busy[GpuId(worker.session.devices[0])] <= 1.0
    assert gpus[0].utilization == session.busy[gpus[0].gpu]
    assert session.idle_s is not None
    client.stream.close()
    await worker.ended.wait()
    gpus, (after,) = kit.host.telemetry()
    assert (after.waits, after.door, after.transport) == (1, "echo", "unix")
    assert after.busy == {}
    assert gpus[0].utilization == 0.0


def test_totals_that_are_copied_grow_by_themselves() -> None:
    first = Totals(calls=1, doors={"arrays"})
    second = first.copy()
    second.calls += 1
    second.doors.add("cuda")
    assert (first.calls, first.doors) == (1, {"arrays"})


def test_what_a_worker_reports_never_falls() -> None:
    """Its threads count bit by bit, and a host kills a worker with falling counters."""
    tally = Tally(waits=3, executed_ns=5_000_000)
    stream = SimpleNamespace(calls=7, bytes_in=8, bytes_out=9, tally=tally)
    peers = SimpleNamespace(bytes_in=100, bytes_out=0)
    sent: list[Report] = []
    near, far = socket.socketpair()
    with near, far:
        report = SessionReport(cast(Any, stream), near, cast(Any, peers), sent.append)
        report.send_last()
        peers.bytes_in, tally.executed_ns, stream.calls = 0, 4_000_000, 8
        report.send_last()
    assert (sent[0].bytes_in, sent[0].executed_us) == (108, 5000)
    assert (sent[1].calls, sent[1].bytes_in, sent[1].executed_us) == (8, 108, 5000)
    assert not sent[1].fault_after(sent[0])
    assert sent[0].fault_after(sent[1]) == "it sent counters that fell"
