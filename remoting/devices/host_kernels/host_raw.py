"""Modules and kernels of CUDA C++ on an emulated GPU: `RawModule` and `RawKernel`."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import UnsupportedError, address_of, is_ndarray, is_sequence
from gpupool.remoting.devices.host_kernels import (
    host_compiler,
    kernel_source,
    strict_launch,
    strict_source,
)
from gpupool.remoting.devices.host_kernels.kernel_errors import CUDADriverError
from gpupool.remoting.devices.host_kernels.kernel_source import SHARED_MAX, THREADS_MAX
from gpupool.remoting.devices.sources import check_options, check_source
from gpupool.remoting.devices.strict.strict_memory import StrictMode

Array = np.ndarray[Any, Any]

GRID_MAX = (2**31 - 1, 65535, 65535)
BLOCK_MAX = (1024, 1024, 64)
ARGUMENT_SIZE = 16
"""Bytes of the largest argument that is no array: a complex number."""

_NUMBERS = (int, float, complex, np.generic)
STRUCTURE_MAX = 4096

_TRANSLATE = "#define GPUPOOL_TRANSLATE_CUCOMPLEX\n#include <cuComplex.h>\n"

NOT_FOUND = "CUDA_ERROR_NOT_FOUND: named symbol not found"
INVALID = "CUDA_ERROR_INVALID_VALUE: invalid argument"


class HostModule:
    """The functions of one source; compiled when one of them is first needed."""

    def __init__(
        self,
        code: Any,
        options: Any,
        translate: Any,
        cooperative: Any,
        names: Any,
        strict: StrictMode | None = None,
    ) -> None:
        if cooperative:
            raise UnsupportedError(
                "a cooperative launch needs a real GPU: this device is emulated, and runs a grid's "
                "blocks one after another"
            )
        self._names = texts_of("name expressions", names or ())
        code = _text("the source", code)
        check_source(code, *self._names)
        if len(set(self._names)) != len(self._names):
            raise ValueError("a name expression stands twice")
        self._options = [*check_options(texts_of("options", options))]
        self.strict = strict
        if strict is not None:
            self._options.append(strict_source.OPTION)
        if translate:
            code = f'{_TRANSLATE}#line 1 "{kernel_source.FILE}"\n{code}'
        self._source = kernel_source.unit(code)
        self._compiled: host_compiler.Compiled | None = None

    def compile(self) -> host_compiler.Compiled:
        """Return the library, which is compiled at the first call."""
        if self._compiled is None:
            self._compiled = host_compiler.compiled(self._source, self._options, self._names)
        return self._compiled

    def log(self) -> str:
        """Compile, and return the compiler's log."""
        return self.compile().log

    def get_function(self, name: str) -> "HostKernel":
        """Return a kernel by its name, or by one of the module's name expressions; compile."""
        kernel = HostKernel(self, name)
        self.entry(kernel.name)
        return kernel

    def entry(self, name: str) -> tuple[int, int]:
        """Return the address of a kernel's entry, and how many parameters it has.

        Raises:
            CUDADriverError: the module has no such kernel, or has it by another name.
        """
        made = self.compile()
        # The compiler gives functions of C++ other names, but for those in extern "C".
        known = name in made.names and (name in self._names or made.library.address(name))
        if not known:
            raise CUDADriverError(NOT_FOUND)
        entry = kernel_source.ENTRY.format(made.names.index(name))
        return made.library.address(entry), self.number(kernel_source.COUNT, name)

    def number(self, variable: str, name: str) -> int:
        """Return the number that a library has for a kernel, in the variable of its place."""
        made = self.compile()
        return made.library.number(variable.format(made.names.index(name)))

    def get_global(self, name: str) -> Array:
        """Return the memory of a variable."""
        found = self.compile().library.variable(_text("the name", name))
        if found is None:
            raise CUDADriverError(NOT_FOUND)
        return found


class HostKernel:
    """One function of a module, which a grid of threads runs."""

    def __init__(self, module: HostModule, name: Any) -> None:
        self.module = module
        self.name = _text("the name", name)

    def log(self) -> str:
        """Compile the module, if it is not; return the compiler's log."""
        self.module.entry(self.name)
        return self.module.log()

    def __call__(self, grid: Any, block: Any, arguments: Any, shared_mem: Any = 0) -> None:
        """Run a grid of threads to its end.

        Raises:
            CUDADriverError: the module has no such kernel, or a GPU has no such grid.
            CUDARuntimeError: the kernel failed.
        """
        entry, count = self.module.entry(self.name)
        blocks, threads = _dims(grid, GRID_MAX), _dims(block, BLOCK_MAX)
        bound = self.module.number(kernel_source.BOUND, self.name)
        too_many = threads[0] * threads[1] * threads[2] > bound
        if too_many or type(shared_mem) is not int or not 0 <= shared_mem <= SHARED_MAX:
            raise CUDADriverError(INVALID)
        values = list(arguments) if is_sequence(arguments) else [arguments]
        if len(values) < count:  # what is too much no kernel sees, as on a GPU
            raise TypeError(
                f"kernel {self.name!r} has {count} parameters, and was given {len(values)}"
            )
        kept = [_in_memory(value) for value in values[:count]]
        pointers = [ctypes.addressof(each) for each in kept]
        mode, watch = self.module.strict, None
        if mode is not None:
            static = self.module.number(strict_source.SHARED_NAME, self.name)
            strict_launch.need_shared(self.name, static, shared_mem)
            watch = strict_launch.StrictLaunch(mode, self.name, shared=shared_mem)
        self.module.compile().library.launch(entry, blocks, threads, pointers, watch)


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise TypeError(f"{what} is no text")
    return value


def texts_of(what: str, values: Any) -> list[str]:
    """Return texts that a client has sent, if they are texts."""
    if not is_sequence(values):
        raise TypeError(f"{what} are no list of texts")
    return [_text(what, value) for value in values]


def _dims(value: Any, most: Sequence[int]) -> tuple[int, int, int]:
    """Return a size in three dimensions, which a GPU may have."""
    items = tuple(value) if is_sequence(value) else (value,)
    items += (1,) * (3 - len(items))
    if len(items) != 3 or not all(type(item) is int for item in items):
        raise CUDADriverError(INVALID)
    if not all(0 < item <= limit for item, limit in zip(items, most, strict=True)):
        raise CUDADriverError(INVALID)
    return items[0], items[1], items[2]


def _in_memory(value: Any) -> Any:
    """Return the memory of an argument: an array's address, or a number's bytes as CuPy has them.

    A kernel that takes a smaller type reads the lower bytes, as on a GPU.
    """
    if is_ndarray(value):
        return ctypes.c_void_p(address_of(value))
    if value is None:
        return ctypes.c_void_p(0)
    if isinstance(value, bytes):
        if len(value) > STRUCTURE_MAX:
            raise ValueError(f"a structure of {len(value):,} bytes")
        return ctypes.create_string_buffer(value, max(ARGUMENT_SIZE, len(value)))
    # A Python integer is one of 64 bits, without a sign if it needs them all.
    number = np.asarray(value) if issubclass(type(value), _NUMBERS) else None
    if number is None or number.dtype.hasobject:
        raise TypeError(f"Unsupported type {type(value)}")
    if number.nbytes > ARGUMENT_SIZE:
        raise TypeError(f"Unsupported dtype {number.dtype}")
    return ctypes.create_string_buffer(number.tobytes(), ARGUMENT_SIZE)


def loaded(_binary: Any) -> Any:
    """Refuse a module that was compiled for a GPU."""
    raise UnsupportedError(
        "PTX and cubins are code of a GPU, and this device is emulated: use the module's source"
    )


def attributes(kernel: Any) -> dict[str, int]:
    """Return CUDA's attributes of a function, as far as an emulated GPU has them."""
    kernel.module.entry(kernel.name)
    return {
        "max_threads_per_block": THREADS_MAX,
        "shared_size_bytes": 0,
        "const_size_bytes": 0,
        "local_size_bytes": 0,
        "num_regs": 32,
        "ptx_version": 90,
        "binary_version": 90,
        "cache_mode_ca": 0,
        "max_dynamic_shared_size_bytes": SHARED_MAX,
        "preferred_shared_memory_carveout": -1,
    }
