"""The cost of viewing a pool of N servers: to each server, its exporter and the viewer.

    python tests/benchmarks/views.py [--servers 100,1000] [--leases 10]

Every server has 8 emulated GPUs and some leases that compute. Sizes and processor time of one
second: of a server that sends the view or its measurements alone to one viewer (``gpupool top`` or
a page), of the viewer, and of the history. Nothing is sent: the network and TLS are not among the
figures.
"""

import argparse
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.monitoring.samples import ME, START_MS, health, measured, table

from gpupool.monitoring.frames import EXPORTER
from gpupool.monitoring.history.history_settings import HistorySettings
from gpupool.monitoring.history.history_store import FILE_NAME, HistoryStore
from gpupool.monitoring.history.time_slots import SlotMaker
from gpupool.monitoring.sample import Sample, Sampler
from gpupool.pool.model.ids import GpuId, LeaseId, Milliseconds, RequestId, ServerId
from gpupool.pool.model.state import PoolState
from gpupool.pool.model.tables import LeaseTable, PersistentMap
from gpupool.pool.view_building import build_view
from gpupool.remoting.client.subscription import viewers_of
from gpupool.remoting.protocol import messages as m
from gpupool.remoting.protocol.messages import to_frame as to_control_frame

GPUS = 8
SECONDS = 200


def pool(servers: int, leases: int) -> PoolState:
    """Return a pool of servers that are alike; the first one is ``samples.ME``."""
    one = table(gpus=GPUS, leases=leases)
    all_servers, all_leases = dict(one.servers.items()), list(one.leases.values())
    for number in range(1, servers):
        server = ServerId(f"{number:012x}")

        def named(gpu: GpuId, number: int = number) -> GpuId:
            return GpuId(f"GPU-{number:08d}{gpu[12:]}")

        first = one.servers[ME]
        gpus = {named(g): replace(each, id=named(g)) for g, each in first.gpus.items()}
        all_servers[server] = replace(
            first, id=server, name=f"gpu-{number}", voter=number < 7, gpus=gpus
        )
        for lease in one.leases.values():
            parts = tuple(
                replace(each, server=server, gpu=named(each.gpu)) for each in lease.partitions
            )
            held = dict.fromkeys((server,), lease.parts[ME])
            count = len(all_leases) + 1
            request = RequestId(count.to_bytes(16))
            lease_id = LeaseId(2 * count)
            all_leases.append(
                replace(lease, id=lease_id, request=request, partitions=parts, parts=held)
            )
    return replace(
        one,
        servers=PersistentMap(all_servers),
        leases=LeaseTable((each.id, each) for each in all_leases),
    )


def cpu_ms(act: Callable[[], object], times: int) -> float:
    """Return the processor time of one call."""
    act()
    before = time.process_time()
    for _ in range(times):
        act()
    return 1e3 * (time.process_time() - before) / times


def history(state: PoolState, seconds: int) -> tuple[float, float, float]:
    """Return the milliseconds a second of a server, and of its exporter, and the bytes of each."""
    sampler, slots, reader = Sampler(), SlotMaker(), EXPORTER.reader()
    frames, samples = list[bytes](), list[Sample]()
    begun = time.process_time()
    for second in range(seconds):
        at = START_MS + 1000 * second
        samples.append(sampler.sample(state, measured(state_of_one(state), at), health(), at))
        frames.append(EXPORTER.encode(samples[-1]))
    made = time.process_time() - begun
    with tempfile.TemporaryDirectory() as folder:
        store = HistoryStore(Path(folder) / FILE_NAME, HistorySettings())
        begun = time.process_time()
        for frame in frames:
            reader.feed(frame)
            for data in reader.frames():
                slot = slots.add(EXPORTER.decode(Sample, data))
                if slot is not None:
                    store.make_room()
                    store.add(slot, "gpu-1")
        kept = time.process_time() - begun
        store.close()
    size = sum(map(len, frames)) / len(frames)
    return 1e3 * made / seconds, 1e3 * kept / seconds, size


def state_of_one(state: PoolState) -> PoolState:
    """Return the table as the first server's sessions see it: with its own leases alone."""
    own = [each for each in state.leases.values() if ME in each.parts]
    return replace(state, leases=LeaseTable((each.id, each) for each in own))


class Sent:
    """A push: its size, and the processor time to encode and to read it."""

    def __init__(self, message: m.Push, times: int) -> None:
        frame = to_control_frame(0, message, size_max=1 << 30)
        self.size = len(frame)
        self.sent_ms = cpu_ms(lambda: to_control_frame(0, message, size_max=1 << 30), times)
        kind, body = frame[4], frame[5:]
        self.read_ms = cpu_ms(lambda: m.from_body(kind, body), times)
        tracemalloc.start()
        kept = [m.from_body(kind, body)]
        self.memory = tracemalloc.get_traced_memory()[0] * len(kept)
        tracemalloc.stop()

    def __str__(self) -> str:
        return (
            f"{self.size / 1e3:.1f} kB, encoded in {self.sent_ms:.2f} ms, read in"
            f" {self.read_ms:.2f} ms, {self.memory / 1e6:.2f} MB in memory"
        )


def measure(servers: int, leases: int) -> None:
    """Print the figures of one size."""
    state = pool(servers, leases)
    now = Milliseconds(START_MS + 5000)

    def view() -> m.Update:
        built = build_view(state, health(), ME, now)
        return m.Update(built, telemetry)

    telemetry = measured(state_of_one(state), now)
    times = max(3, 2000 // servers)
    made = cpu_ms(view, times)
    whole, lean = (Sent(each, times) for each in (view(), m.TelemetryUpdate(telemetry)))
    print(f"{servers} servers of {GPUS} GPUs and {leases} leases")
    print(f"  the view is made in {made:.2f} ms")
    print(f"  an update with the view: {whole}")
    print(f"  measurements alone: {lean}")
    viewers = min(viewers_of(servers), servers)
    for name, count in (("all servers", servers), (f"{viewers} servers", viewers)):
        rest = servers - count
        size = count * whole.size + rest * lean.size
        took = count * whole.read_ms + rest * lean.read_ms
        mean = (count * (made + whole.sent_ms) + rest * lean.sent_ms) / servers
        print(f"  a viewer who gets the view of {name}: {size / 1e6:.2f} MB a second,"
              f" {took:.0f} ms of its processor, {mean:.2f} ms of each server's")  # fmt: skip
    server, exporter, size = history(state, SECONDS)
    print(f"  history a second: server {server:.2f} ms, exporter {exporter:.2f} ms,"
          f" {size / 1e3:.1f} kB between them")  # fmt: skip


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", default="100,1000")
    parser.add_argument("--leases", type=int, default=10)
    options = parser.parse_args()
    for count in options.servers.split(","):
        measure(int(count), options.leases)


if __name__ == "__main__":
    main()
