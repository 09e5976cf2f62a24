"""Figures of the array door on this machine, beside NumPy or CuPy and beside plain sockets.

    python tests/benchmarks/arrays.py [--gpu] [--json] [--calls 2000] [--rounds 7] [--mib 64]
        [--delay-us 300] [--csv FILE]

The worker is another process, with one emulated device or, with ``--gpu``, the first real one; so
is the other end of each plain socket. What is compared alternates within one run, and of each
figure the best of all rounds is shown: other programs can only make a machine slower.

"Worker" is what the worker's executor takes for a call, with that of NumPy or CuPy in it. "Alone"
is what NumPy or CuPy takes for it in the same process, in turns with the worker's.
The mean client cost is over ``MIX``: the proportions in which the stencil, k-means, filter and
network training programs of ``examples/`` and of the design's notes call operations, rounded.

Copies in reused memory (``set``, ``get(out=)``) are compared with a plain socket that receives into
one buffer again and again; copies into new memory (``asarray``, ``get()``) with one that receives
into a new array each time, where the kernel must first find and clear every page.

A chain of four operations on large arrays is computed as it is and by ``fuse``. With ``--delay-us``
all is measured over TCP once more, and our proxy (``peer.c``) adds so much to each round trip, of
the plain sockets too.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable
from typing import Any

import array_ends as ends
import numpy as np
from array_ends import COPIES, ENDS, MIB, TRANSPORTS, Other, Plain, process, worker
from results import Results, add_options

CHAIN_GPU, CHAIN_EMULATED = 1 << 24, 1 << 16
"""Elements of the arrays of a chain."""

MIX = {
    "a + b": 22,
    "a * 2.0": 14,
    "a += b": 6,
    "sqrt(a)": 6,
    "a[1:-1, 2:]": 18,
    "a[1]": 6,
    "a.T": 6,
    "a.reshape(4, 64)": 4,
    "a.sum()": 4,
    "a.max(axis=0)": 3,
    "a @ b": 8,
    "where(c, a, b)": 3,
}
"""Calls of each operation in a hundred."""


def operations(xp: Any) -> dict[str, Callable[[], Any]]:
    """Return the calls that are measured."""
    a, b = xp.ones((16, 16), np.float32), xp.ones((16, 16), np.float32)
    c = a > 0
    return {
        "a + b": lambda: a + b,
        "a * 2.0": lambda: a * 2.0,
        "a += b": lambda: a.__iadd__(b),
        "sqrt(a)": lambda: xp.sqrt(a),
        "a[1:-1, 2:]": lambda: a[1:-1, 2:],
        "a[1]": lambda: a[1],
        "a.T": lambda: a.T,
        "a.reshape(4, 64)": lambda: a.reshape(4, 64),
        "a.sum()": lambda: a.sum(),
        "a.max(axis=0)": lambda: a.max(axis=0),
        "a @ b": lambda: a @ b,
        "where(c, a, b)": lambda: xp.where(c, a, b),
        "a[1:-1] = b[1:-1]": lambda: a.__setitem__(slice(1, -1), b[1:-1]),
        "astype(float64)": lambda: a.astype(np.float64),
        "zeros((16, 16))": lambda: xp.zeros((16, 16)),
    }


# --- figures --------------------------------------------------------------------------------------


def costs(
    xp: Any, options: Any, finish: Callable[[], None], other: Other | None = None
) -> dict[str, dict[str, float]]:
    """Return for each operation the us of CPU, of wall time and, waited for, of wall time.

    And of the worker, if there is one: the best mean of the calls of one round. "Alone" is that of
    its own NumPy or CuPy in the same process, in turns.
    """
    found: dict[str, dict[str, float]] = {}
    for name, operation in operations(xp).items():
        best = {"cpu": 1e9, "pipelined": 1e9, "waited": 1e9, "worker": 1e9, "alone": 1e9}
        few = max(1, options.calls // 20)
        for _ in range(options.rounds):
            operation()
            finish()
            if other is not None:
                other.worker_us()
            began, cpu = time.perf_counter(), time.process_time()
            for _ in range(options.calls):
                operation()
            cpu = time.process_time() - cpu
            finish()
            wall = time.perf_counter() - began
            if other is not None:
                best["worker"] = min(best["worker"], other.worker_us() or 1e9)
                best["alone"] = min(best["alone"], other.alone_us(name))
            began = time.perf_counter()
            for _ in range(few):
                operation()
                finish()
            alone = time.perf_counter() - began
            best["cpu"] = min(best["cpu"], cpu / options.calls * 1e6)
            best["pipelined"] = min(best["pipelined"], wall / options.calls * 1e6)
            best["waited"] = min(best["waited"], alone / few * 1e6)
        found[name] = best
    return found


def mean(figures: dict[str, dict[str, float]], kind: str) -> float:
    """Return a mean over `MIX`: of the client's cost, for example."""
    return sum(figures[name][kind] * share for name, share in MIX.items()) / sum(MIX.values())


def read_one(xp: Any, options: Any) -> float:
    """Return the microseconds of ``float(a[0])``, best of all rounds."""
    a = xp.ones(4)
    best = 1e9
    few = max(1, options.calls // 4)
    for _ in range(options.rounds):
        began = time.perf_counter()
        for _ in range(few):
            float(a[0])
        best = min(best, (time.perf_counter() - began) / few * 1e6)
    return best


def chains(xp: Any, options: Any, finish: Callable[[], None]) -> dict[str, float]:
    """Return the us of a chain of four operations as it is and, where there is one, by `fuse`.

    And of the first three calls together, of which one waits for a kernel to be compiled, and in
    how many thousandths of the elements the two differ.
    """
    size = CHAIN_GPU if options.gpu else CHAIN_EMULATED
    x = xp.asarray(np.random.default_rng(1).random(size, np.float32))
    y = x + 2.0

    def chain(x: Any, y: Any) -> Any:
        return xp.sqrt(x * y + 1.5) / y

    found: dict[str, float] = {}
    few = max(2, options.calls // 100)
    for name in ("as it is", "fused"):
        if name == "fused" and xp is np:
            continue
        function = chain if name == "as it is" else xp.fuse(chain)
        best, began = 1e9, time.perf_counter()
        if name == "fused":
            function(x, y)
            function(x, y)
            made = function(x, y)
            finish()
            found["the first three"] = (time.perf_counter() - began) * 1e6
            found["differ, 1/1000"] = 1000 * float((made != chain(x, y)).sum()) / size
        for _ in range(options.rounds):
            for _ in range(3):
                function(x, y)
            finish()
            began = time.perf_counter()
            for _ in range(few):
                function(x, y)
            finish()
            best = min(best, (time.perf_counter() - began) / few * 1e6)
        found[name] = best
    return found


def native(options: Any) -> dict[str, Any]:
    """Return the figures of the real CuPy, or of NumPy."""
    if not options.gpu:
        calls = costs(np, options, lambda: None)
        return {
            "numpy": calls["a + b"]["cpu"],
            "calls": calls,
            "float(a[0])": read_one(np, options),
            "chains": chains(np, options, lambda: None),
        }
    cp: Any = importlib.import_module("cupy")
    assert "dropin" not in cp.__file__
    found: dict[str, Any] = {
        "numpy": costs(np, options, lambda: None)["a + b"]["cpu"],
        "calls": costs(cp, options, cp.cuda.Device().synchronize),
        "float(a[0])": read_one(cp, options),
        "chains": chains(cp, options, cp.cuda.Device().synchronize),
    }
    host = np.ones(options.mib * MIB, np.uint8)
    found["bulk"] = {
        name: rate(host, min(values)) for name, values in door_copies(cp, host, options, None)
    }
    return found


def rate(host: np.ndarray[Any, Any], took_s: float) -> float:
    """Return GB/s of `COPIES` copies."""
    return COPIES * host.nbytes / took_s / 1e9


def door_copies(
    cp: Any, host: np.ndarray[Any, Any], options: Any, plain: Plain | None
) -> list[tuple[str, list[float]]]:
    """Return the seconds of each round of copies, by the door and by a plain socket in turns."""
    array = cp.asarray(host)
    out = np.ones_like(host)
    copies: dict[str, Callable[[], Any]] = {
        "set": lambda: array.set(host),
        "asarray": lambda: cp.asarray(host),
        "get(out=)": lambda: array.get(out=out),
        "get()": lambda: array.get(),
    }
    took: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, copy in copies.items():
            copy()
            cp.cuda.Device().synchronize()
            began = time.perf_counter()
            for _ in range(COPIES):
                copy()
            cp.cuda.Device().synchronize()
            took.setdefault(name, []).append(time.perf_counter() - began)
        if plain is not None:
            for new in (False, True):
                words = "new memory" if new else "reused memory"
                took.setdefault(f"plain up, {words}", []).append(plain.up(host, new=new))
                took.setdefault(f"plain down, {words}", []).append(plain.down(out, new=new))
    return list(took.items())


def over(transport: str, options: Any, figures: dict[str, Any], delay_us: int = 0) -> None:
    """Measure latency, chains and copies over one transport, and calls over the first."""
    delay = f"--delay-us={delay_us}"
    with (
        worker(transport, delay_us, gpu=options.gpu) as (cp, other),
        process(ENDS, "--plain", transport, delay) as end,
    ):
        plain = Plain(transport, end.said)
        finish = cp.cuda.Device().synchronize
        if transport == TRANSPORTS[0]:
            figures["calls"] = costs(cp, options, finish, other)
            figures["mean client cost, us"] = mean(figures["calls"], "cpu")
            for kind in ("worker", "alone"):
                figures[f"mean {kind}, us"] = mean(figures["calls"], kind)
        if delay_us:
            transport = f"tcp, {delay_us} us added: "
        figures["chains"][transport] = chains(cp, options, finish)
        few = max(1, options.calls // 4)
        figures["latency"][transport] = {
            "float(a[0]), us": read_one(cp, options),
            "plain 64 bytes and back, us": min(plain.ping(few) for _ in range(options.rounds)),
        }
        host = np.ones(options.mib * MIB, np.uint8)
        figures["bulk"][transport] = {
            name: rate(host, min(values)) for name, values in door_copies(cp, host, options, plain)
        }
        plain.end.close()


COMPARED = {
    "set": "plain up, reused memory",
    "asarray": "plain up, new memory",
    "get(out=)": "plain down, reused memory",
    "get()": "plain down, new memory",
}
"""Each copy, and the copies of a plain socket that it is compared with."""


def record(figures: dict[str, Any], results: Results) -> None:
    """Add the measurements to the results."""
    own = figures["native"]
    for name, found in figures["calls"].items():
        alone = own["calls"][name]["pipelined"]
        results.add(name, "client CPU", found["cpu"], "us")
        results.add(name, "pipelined", found["pipelined"], "us", native=alone)
        results.add(name, "worker", found["worker"], "us", native=found["alone"])
    results.add("mean over the mix", "client CPU", figures["mean client cost, us"], "us")
    worker_us, alone_us = figures["mean worker, us"], figures["mean alone, us"]
    results.add("mean over the mix", "worker", worker_us, "us", native=alone_us)
    for transport, found in figures["latency"].items():
        wait, native_us = found["float(a[0]), us"], own["float(a[0])"]
        results.add(f"float(a[0]), {transport}", "best", wait, "us", native=native_us)
    for transport, found in figures["chains"].items():
        for name in ("as it is", "fused"):
            alone = own["chains"].get(name)
            results.add(f"chain {name}, {transport}", "best", found[name], "us", native=alone)
    for transport, found in figures["bulk"].items():
        for name, against in COMPARED.items():
            case = f"{name}, {transport}, beside a plain socket"
            results.add(case, "best", found[name], "GB/s", native=found[against])


def show(figures: dict[str, Any]) -> None:
    """Print the measurements."""
    own = figures["native"]
    columns = ("client CPU", "worker", "alone", "pipelined", "waited for", "native")
    print(f"{'us per call':20}" + "".join(f"{each:>12}" for each in columns))
    for name, found in figures["calls"].items():
        alone = own["calls"][name]["pipelined"]
        print(
            f"{name:20}{found['cpu']:12.2f}{found['worker']:12.2f}{found['alone']:12.2f}"
            f"{found['pipelined']:12.2f}{found['waited']:12.1f}{alone:12.2f}"
        )
    print(
        f"mean client CPU over the mix: {figures['mean client cost, us']:.2f} us a call; "
        f"a + b by NumPy: {own['numpy']:.2f} us\n"
        f"mean of the worker over the mix: {figures['mean worker, us']:.2f} us a call; "
        f"alone: {figures['mean alone, us']:.2f} us\n"
    )
    for transport, found in figures["latency"].items():
        wait, ping = found["float(a[0]), us"], found["plain 64 bytes and back, us"]
        print(
            f"{transport:6}float(a[0]) {wait:6.1f} us; a plain socket's round trip {ping:5.1f}; "
            f"native {own['float(a[0])']:5.1f}; added {wait - ping - own['float(a[0])']:5.1f}"
        )
    for transport, found in figures["chains"].items():
        each = ", ".join(f"{name} {took:.1f}" for name, took in found.items())
        alone = ", ".join(f"{name} {took:.1f}" for name, took in own["chains"].items())
        print(f"{transport:6}a chain of four operations, us: {each}; native {alone}")
    print()
    for transport, found in figures["bulk"].items():
        for name, against in COMPARED.items():
            print(
                f"{transport:6}{name:10}{found[name]:6.2f} GB/s; {against:26}"
                f"{found[against]:6.2f} GB/s ({found[name] / found[against]:.0%})"
                + (f"; native {own['bulk'][name]:.2f}" if "bulk" in own else "")
            )


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--delay-us", type=int, default=0)
    parser.add_argument(
        "--cores", default="", help="two, with a comma: this process's, the other's"
    )
    add_options(parser)
    options = parser.parse_args()
    if options.cores:
        mine, ends.others_core = map(int, options.cores.split(","))
        os.sched_setaffinity(0, [mine])
    if options.native:
        print(json.dumps(native(options)))
        return
    figures: dict[str, Any] = {"schema": 1, "gpu": options.gpu}
    figures |= {"latency": {}, "chains": {}, "bulk": {}}
    words = [f"--{name}={getattr(options, name)}" for name in ("calls", "rounds", "mib")]
    with process(__file__, "--native", *words, *(["--gpu"] if options.gpu else [])) as other:
        figures["native"] = json.loads(other.said)
    for transport in TRANSPORTS:
        over(transport, options, figures)
    if options.delay_us:
        over("tcp", options, figures, options.delay_us)
    record(figures, Results.of("arrays.py", options))
    if options.json:
        print(json.dumps(figures, indent=1))
    else:
        show(figures)


if __name__ == "__main__":
    main()
