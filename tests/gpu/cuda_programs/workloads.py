"""Workloads of PyTorch, JAX and CuPy, one round at a time, for ``tests/benchmarks``.

Reads lines from its standard input: ``make NAME`` prepares a workload and answers ``READY value``,
where value is a result that must be the same everywhere; ``play NAME STEPS`` runs steps and answers
``MS milliseconds`` of one. What fails answers ``FAILED why``. Weights and data are random, and the
same in each process, so nothing is fetched.
"""

import gc
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from workloads_arrays import ARRAYS
from workloads_calls import CALLS
from workloads_kit import Made
from workloads_models import MODELS

WARM = 4
"""Steps before the first round."""
WARM_S = 3.0
"""Seconds for the warm-up steps: slow workloads do fewer of them."""


def seeded(name: str) -> Made:
    """Make a workload from the same numbers everywhere."""
    if name in ARRAYS:
        return ARRAYS[name]()
    import torch

    torch.manual_seed(0)
    return (MODELS | CALLS)[name]()


def forget(made: dict[str, Made]) -> None:
    """Free the last workload's memory, so that many processes fit into one GPU."""
    made.clear()
    gc.collect()
    if "torch" in sys.modules:
        import torch

        torch.cuda.empty_cache()


def commands() -> Iterator[list[str]]:
    for line in sys.stdin:
        if line.split():
            yield line.split()


def number(value: Any) -> float:
    """Return a step's result as a number; also of a PyTorch tensor with a gradient."""
    return float(value.detach() if hasattr(value, "detach") else value)


def answer(words: list[str], made: dict[str, Made]) -> str:
    name = words[1]
    if words[0] == "make":
        forget(made)
        made[name] = seeded(name)
        step, settle = made[name]
        value = number(step())
        start = time.perf_counter()
        for _ in range(WARM):
            if time.perf_counter() - start < WARM_S:
                step()
        settle()
        return f"READY {value:.6g}"
    step, settle = made[name]
    settle()
    start = time.perf_counter()
    for _ in range(int(words[2])):
        step()
    settle()
    return f"MS {(time.perf_counter() - start) / int(words[2]) * 1e3:.5f}"


def main() -> None:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    made: dict[str, Made] = {}
    for words in commands():
        try:
            said = answer(words, made)
        except Exception as error:  # noqa: BLE001
            said = f"FAILED {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        output.write(said + "\n")
        output.flush()


if __name__ == "__main__":
    main()
