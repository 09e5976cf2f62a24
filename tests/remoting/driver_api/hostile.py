"""Gives the worker's real code records that no shim sends; runs in a process with the fake driver.

    hostile.py SEED COUNT

Prints how each session ended, if it was in any other way than with a word about the client, and the
most memory that was used, in MiB.
"""

import ctypes
import random
import resource
import sys
import threading

from loopback import CountingBudget
from test_cuda_door import MEMORY, ScriptedStream, frame, record

from gpupool.remoting.devices.base import DeviceSpec
from gpupool.remoting.driver_api.executor.api import Api
from gpupool.remoting.driver_api.executor.client_state import Client
from gpupool.remoting.driver_api.executor.executor import handler_groups
from gpupool.remoting.driver_api.executor.modules.image_cache import Images
from gpupool.remoting.driver_api.executor.serve import Session, serve
from gpupool.remoting.driver_api.schema import table

EDGES = [0, 1, 2, 8, 64, 255, 4096, 65536, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 47]
LIMITS = [(1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1]
NUMBERS = range(64, 72)
"""Which sessions give to what they make, so that they find it again."""

SPEC = DeviceSpec(0, "GPU-0", "GPU", MEMORY, emulated=False, ordinal=0)


def word_counts() -> dict[int, tuple[int, bool]]:
    """Return of each record how many words it has, and whether somebody waits for it."""
    session, budget = Session(ScriptedStream(b"")), CountingBudget(MEMORY)
    client = Client(Api(), session, [SPEC], budget, lambda _text: None)
    counts: dict[int, tuple[int, bool]] = {}
    for area in handler_groups(client, Images.of_worker(), None):
        counts |= {op: (count, False) for op, (count, _) in area.async_calls.items()}
        counts |= {op: (count, True) for op, (count, _) in area.sync_calls.items()}
        counts |= dict.fromkeys(area.raw, (8, False))
    return counts


def frames(rng: random.Random, counts: dict[int, tuple[int, bool]]) -> bytes:
    """Return the frames of one session: mostly whole records, with words of all kinds."""
    found = frame(record(table.HELLO, 1, table.PROTOCOL, 13000, flags=1))
    for request in range(2, rng.randrange(3, 40)):
        op = rng.choice(sorted(counts))
        count, sync_calls = counts[op]
        words = [
            rng.choice((rng.choice(EDGES + LIMITS), rng.choice(NUMBERS))) for _ in range(count)
        ]
        words = [request, *words] if sync_calls else words
        bulk = bytes(rng.choice((0, 0, 0, 8, 64, 4096)))
        if bulk and words and rng.random() < 0.7:
            words[rng.randrange(len(words))] = len(bulk)
        body = bytearray(record(op, *words, flags=int(sync_calls)))
        if rng.random() < 0.03:
            body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        found += frame(bytes(body), bulk=bulk)
    return found


def main() -> None:
    ctypes.CDLL("libcuda.so.1").cuInit(0)
    threading.excepthook = lambda found: print("thread:", repr(found.exc_value))
    counts = word_counts()
    seed, count = map(int, sys.argv[1:])
    for at in range(seed, seed + count):
        stream, said = ScriptedStream(frames(random.Random(at), counts)), list[str]()
        try:
            serve(stream, [SPEC], CountingBudget(MEMORY), said.append)
        except Exception as error:  # noqa: BLE001 - all that is not said of the client
            print(f"{at}: {error!r}")
        assert stream.closed
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)


if __name__ == "__main__":
    main()
