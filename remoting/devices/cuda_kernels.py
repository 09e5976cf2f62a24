"""Kernels of a client on real GPUs: source is checked, then compiled by CuPy."""

import functools
import importlib
import io
import operator
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import is_sequence
from gpupool.remoting.devices.sources import bounded_log, check_options, check_source

_IN_MEMORY = "CUPY_CACHE_IN_MEMORY"
"""While this is set, CuPy neither reads nor writes its directory of compiled kernels."""


class _LoadedModule:
    """A module that was loaded from the client's bytes: PTX or a cubin."""

    def __init__(self, cupy: Any, binary: bytes) -> None:
        self._module: Any = importlib.import_module("cupy.cuda.function").Module()
        self._module.load(binary)
        self._cupy = cupy

    def get_function(self, name: str) -> Any:
        return self._module.get_function(name)

    def get_global(self, name: str) -> Any:
        pointer = self._module.get_global_var(name)
        memory = self._cupy.cuda.UnownedMemory(pointer, 0, self._module)
        return self._cupy.cuda.MemoryPointer(memory, 0)

    def compile(self, log_stream: Any) -> None:
        """Do nothing: it is compiled."""


def _compile(kernel: Any, logged: Any = False) -> str:
    """Compile a kernel or a module; return the compiler's log, if requested.

    A kernel that another session has compiled is read from a directory, without the compiler. So
    a call that wants the log compiles in any case.
    """
    if not logged:
        kernel.compile()
        return ""
    log = io.StringIO()
    with _without_kept_kernels():
        kernel.compile(log_stream=log)
    return bounded_log(log.getvalue())


@contextmanager
def _without_kept_kernels() -> Generator[None]:
    before = os.environ.get(_IN_MEMORY)
    os.environ[_IN_MEMORY] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_IN_MEMORY, None)
        else:
            os.environ[_IN_MEMORY] = before


def _by_value(argument: Any) -> Any:
    """Return an argument; the bytes of a structure as CuPy takes one."""
    if isinstance(argument, bytes):
        return np.array(argument, np.dtype((np.void, len(argument))))
    return argument


_RAW = "options translate_cucomplex enable_cooperative_groups"
_PLACES = {
    "ElementwiseKernel": "in_params out_params operation name",
    "RawKernel": f"code name {_RAW}",
    "RawModule": f"code {_RAW} name_expressions",
    "ReductionKernel": """
        in_params out_params map_expr reduce_expr post_map_expr identity name reduce_type
        reduce_dims preamble options
    """,
}
"""By class, the parameters that a client gives by place: no other one, which may name a file."""

_ELEMENTWISE = frozenset(("after_loop", "loop_prep", "options", "preamble", "reduce_dims"))
"""Those of an `ElementwiseKernel` that it may give by name."""

_NO_SOURCE = frozenset((*_RAW.split(), "reduce_dims"))
"""Parameters without a text of the program, which would be compiled."""


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in an argument; raise TypeError for another value."""
    if is_sequence(value):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value
    elif value is not None:
        raise TypeError(f"a kernel is made of texts, and not of a {type(value).__name__}")


def kernel_operations(cupy: Any) -> dict[str, Callable[..., Any]]:
    """Return name to callable of the operations that make and launch kernels.

    Their arguments come from a client as they are. Every text goes through `check_source`, and
    every option through `check_options`, before CuPy sees it.
    """

    def pointed(owner: Any, name: str) -> Any:
        # CuPy does not know how large a global is, so no bound can be checked here; a kernel of
        # the same session could reach as far.
        return cupy.ndarray((1,), np.uint8, owner.get_global(name))

    return {
        **{f"kernel.{kind}": _maker(cupy, kind) for kind in _PLACES},
        "kernel.module": functools.partial(_LoadedModule, cupy),
        "kernel.function": _function,
        "kernel.launch": operator.call,
        "kernel.launch_raw": _launch_raw,
        "kernel.compile": _compile,
        "kernel.attributes": _attributes,
        "kernel.global": pointed,
        "cuda.cufft_version": lambda: cupy.cuda.cufft.getVersion(),
    }


def _maker(cupy: Any, name: str) -> Callable[..., Any]:
    """Return a function that makes a kernel or a module of a client's arguments."""
    names = _PLACES[name].split()

    def make(*args: Any, **kwargs: Any) -> Any:
        named = dict(zip(names, args, strict=True)) | kwargs
        if kwargs and (name != "ElementwiseKernel" or not _ELEMENTWISE.issuperset(kwargs)):
            raise TypeError(f"a {name} of a client has no parameters {sorted(kwargs)}")
        check_source(*_texts([named[key] for key in named.keys() - _NO_SOURCE]))
        options = {"options": check_options(named["options"])} if "options" in named else {}
        return getattr(cupy, name)(**named | options)

    return make


def _function(owner: Any, name: str) -> Any:
    return owner.get_function(name)


def _launch_raw(kernel: Any, grid: Any, block: Any, args: Any, shared_mem: Any = 0) -> None:
    kernel(grid, block, [_by_value(each) for each in args], shared_mem=shared_mem)


def _attributes(kernel: Any) -> dict[str, int]:
    return {key: int(value) for key, value in kernel.attributes.items()}
