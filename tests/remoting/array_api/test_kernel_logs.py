"""The compiler log of a real GPU: it comes to the call that asks, and only to that one."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import os
from typing import Any

import pytest

from gpupool.remoting.devices.cuda_kernels import kernel_operations
from gpupool.remoting.devices.sources import LOG_MAX

IN_MEMORY = "CUPY_CACHE_IN_MEMORY"
WARNING = "kern.cu(3): warning: j was declared but never referenced"


class Kept:
    """A kernel of which an earlier session has left the compiled code on the disk."""

    def __init__(self, said: str = WARNING) -> None:
        self.said = said
        self.read = 0

    def compile(self, log_stream: Any = None) -> None:
        """Compile as CuPy does: with a kept kernel it reads that, and has no log to write."""
        if os.environ.get(IN_MEMORY) != "1":
            self.read += 1
        elif log_stream is not None:
            log_stream.write(self.said)


def compiled(*args: Any) -> str:
    """Return the answer of a real GPU's operation."""
    return kernel_operations(None)["kernel.compile"](*args)


def test_the_log_comes_although_the_compiled_kernel_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(IN_MEMORY, raising=False)
    assert compiled(Kept(), True) == WARNING
    assert IN_MEMORY not in os.environ
    monkeypatch.setenv(IN_MEMORY, "0")
    assert compiled(Kept(), True) == WARNING
    assert os.environ[IN_MEMORY] == "0"


def test_without_a_log_the_kept_kernel_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(IN_MEMORY, raising=False)
    kernel = Kept()
    assert compiled(kernel) == ""
    assert kernel.read == 1


def test_a_long_log_is_cut_off() -> None:
    assert len(compiled(Kept("w" * (LOG_MAX + 7)), True)) < LOG_MAX + 100
    assert compiled(Kept("w" * (LOG_MAX + 7)), True).endswith(
        "(7 more characters of the log are left out)\n"
    )
