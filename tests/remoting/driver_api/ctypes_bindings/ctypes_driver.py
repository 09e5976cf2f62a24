"""Calls of the CUDA driver by ctypes, for the stand-ins of CuPy and cuda.bindings beside this file.

They let the worker of the CUDA door run on the fake driver where neither package is installed;
the folder goes on the workers' PYTHONPATH alone.
"""

import ctypes
from typing import Any

LIBRARY = ctypes.CDLL("libcuda.so.1")
NEWEST_IS_ANOTHER = {"cuGraphInstantiate": "cuGraphInstantiateWithFlags"}
PLAIN = {"cuCtxSynchronize"}
"""Functions with a ``_v2`` of other parameters than the worker's call."""


class DriverError(Exception):
    """A call failed; ``status`` is its CUresult."""

    def __init__(self, status: int, name: str) -> None:
        super().__init__(f"{name} failed with {status}")
        self.status = status


def symbol(name: str) -> Any:
    """Return the newest function of a name, as cuda.h's macros choose it."""
    name = NEWEST_IS_ANOTHER.get(name, name)
    if name not in PLAIN and hasattr(LIBRARY, f"{name}_v2"):
        name += "_v2"
    return LIBRARY[name]


def argument(value: Any) -> Any:
    """Return an argument for ctypes: integers as 64 bits, so callees take the part they need."""
    if isinstance(value, bool | int):
        return ctypes.c_uint64(value & 0xFFFFFFFFFFFFFFFF)
    if isinstance(value, list):
        assert not value  # the worker passes only empty ones
        return ctypes.c_uint64(0)
    return ctypes.byref(value) if isinstance(value, ctypes.Structure) else value


def status_of(name: str, *arguments: Any) -> int:
    """Call a function and return its CUresult."""
    return int(symbol(name)(*map(argument, arguments)))


def call(name: str, *arguments: Any) -> None:
    """Call a function that must succeed.

    Raises:
        DriverError: when it does not.
    """
    status = status_of(name, *arguments)
    if status:
        raise DriverError(status, name)


def get(name: str, *arguments: Any) -> int:
    """Call a function that writes its 64-bit answer to the address in its first parameter."""
    answer = ctypes.c_uint64(0)
    call(name, ctypes.byref(answer), *arguments)
    return answer.value
