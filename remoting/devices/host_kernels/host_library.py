"""A compiled kernel in this process: its functions, its variables, and launches of a grid."""

import ctypes
import mmap
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpupool.remoting.devices.host_kernels.kernel_errors import CUDARuntimeError
from gpupool.remoting.devices.host_kernels.kernel_source import THREADS_MAX
from gpupool.remoting.devices.host_kernels.strict_launch import StrictLaunch

# As in gpupool_grid.h.
_STACK = (128 << 10) + (64 << 10)
_MAP_NORESERVE, _MAP_FAILED = 0x4000, ctypes.c_void_p(-1).value
_SYMBOL_ENTRY, _SIZE_AT = 1, 16
"""RTLD_DL_SYMENT of dlfcn.h, and where Elf64_Sym of elf.h has a symbol's size."""


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("arguments", ctypes.c_void_p),
        ("stacks", ctypes.c_void_p),
        ("opened", ctypes.c_uint),
        ("status", ctypes.c_int),
        ("text", ctypes.c_char * 252),
    )


class _Stacks:
    """Addresses for the stacks of one block's threads, closed until a launch uses them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held during a launch: a worker has one thread that launches, a test's process may not."""
        self.opened = 0
        """How many launches have used; each begins with the first."""
        self._address = 0

    def address(self) -> int:
        """Return where they are."""
        if not self._address:
            libc = ctypes.CDLL(None, use_errno=True)
            libc.mmap.restype = ctypes.c_void_p
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            size = ctypes.c_size_t(THREADS_MAX * _STACK)
            found = libc.mmap(None, size, 0, flags, -1, ctypes.c_long(0))
            if found is None or found == _MAP_FAILED:
                raise MemoryError("no room for the stacks of a block's threads")
            self._address = found
        return self._address


_stacks = _Stacks()


class Library:
    """A shared library that was compiled from a kernel's source."""

    def __init__(self, path: Path) -> None:
        self._dll = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)

    def address(self, name: str) -> int:
        """Return the address of a function or variable; 0 if there is none."""
        try:
            return ctypes.addressof(ctypes.c_char.in_dll(self._dll, name))
        except (ValueError, UnicodeEncodeError):
            return 0

    def number(self, name: str) -> int:
        """Return an integer variable."""
        return ctypes.c_int.in_dll(self._dll, name).value

    def variable(self, name: str) -> np.ndarray[Any, Any] | None:
        """Return the memory of a variable as bytes; None if there is none."""
        address = self.address(name)
        if not address:
            return None
        found, symbol = (ctypes.c_void_p * 4)(), ctypes.c_void_p()  # Dl_info, and its symbol
        where = ctypes.c_void_p(address), found, ctypes.byref(symbol), _SYMBOL_ENTRY
        ctypes.CDLL(None).dladdr1(*where)
        size = ctypes.c_uint64.from_address(symbol.value + _SIZE_AT).value if symbol.value else 1
        memory: Any = (ctypes.c_uint8 * max(1, size)).from_address(address)
        memory.library = self  # as long as the memory is in use
        return np.ctypeslib.as_array(memory)

    def launch(
        self,
        entry: int,
        grid: Sequence[int],
        block: Sequence[int],
        pointers: Sequence[int],
        strict: StrictLaunch | None = None,
    ) -> None:
        """Run a grid of threads to its end.

        Args:
            entry: address of the function that one thread calls.
            grid: blocks in three dimensions.
            block: threads of a block in three dimensions.
            pointers: to the arguments' values.
            strict: the watcher of the launch, in strict mode.

        Raises:
            CUDARuntimeError: the kernel failed by its own check, or waits for ever.
        """
        with _stacks.lock:
            values = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
            where = ctypes.addressof(values), _stacks.address()
            launch = _Launch((*grid,), (*block,), *where, _stacks.opened)
            if strict is not None:
                strict.begin(self._dll, block, values)
            self._dll.gpupool_launch(ctypes.c_void_p(entry), ctypes.byref(launch))
            _stacks.opened = launch.opened
        if strict is not None:
            strict.end(launch.status)
        if launch.status:
            raise CUDARuntimeError(launch.status, launch.text.decode(errors="replace"))
