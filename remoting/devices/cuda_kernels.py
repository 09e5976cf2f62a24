"""Kernels of a client on real GPUs: source is checked, then compiled by CuPy."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
import io
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

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
    if isinstance(value, (tuple, list)):
        items: Any = value
        for item in items:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value
    elif value is not None:
        raise TypeError(f"a kernel is made of texts, and not of a {type(value).__name__}")


class CudaKernels:
    """The operations that make and launch kernels.

    Their arguments come from a client as they are. Every text goes through `check_source`, and
    every option through `check_options`, before CuPy sees it.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def operations(self) -> dict[str, Callable[..., Any]]:
        """Return name to callable."""
        return {
            "kernel.ElementwiseKernel": self._made("ElementwiseKernel"),
            "kernel.ReductionKernel": self._made("ReductionKernel"),
            "kernel.RawKernel": self._made("RawKernel"),
            "kernel.RawModule": self._made("RawModule"),
            "kernel.module": lambda binary: _LoadedModule(self._cupy, binary),
            "kernel.function": lambda owner, name: owner.get_function(name),
            "kernel.launch": lambda kernel, *args, **kwargs: kernel(*args, **kwargs),
            "kernel.launch_raw": lambda kernel, grid, block, args, shared_mem=0: kernel(
                grid, block, [_by_value(each) for each in args], shared_mem=shared_mem
            ),
            "kernel.compile": _compile,
            "kernel.attributes": self.attributes,
            "kernel.global": self.pointed,
            "cuda.cufft_version": lambda: self._cupy.cuda.cufft.getVersion(),
        }

    def _made(self, kind: str) -> Callable[..., Any]:
        """Return a function that makes a kernel or a module of a client's arguments."""
        names = _PLACES[kind].split()

        def make(*args: Any, **kwargs: Any) -> Any:
            named = dict(zip(names, args, strict=True)) | kwargs
            if kwargs and (kind != "ElementwiseKernel" or not _ELEMENTWISE.issuperset(kwargs)):
                raise TypeError(f"a {kind} of a client has no parameters {sorted(kwargs)}")
            check_source(*_texts([named[key] for key in named.keys() - _NO_SOURCE]))
            options = {"options": check_options(named["options"])} if "options" in named else {}
            return getattr(self._cupy, kind)(**named | options)

        return make

    def attributes(self, kernel: Any) -> dict[str, int]:
        """Return the attributes of a compiled kernel."""
        return {key: int(value) for key, value in kernel.attributes.items()}

    def pointed(self, owner: Any, name: str) -> Any:
        """Return a global variable of a module as an array of one byte."""
        # CuPy does not know how large a global is, so no bound can be checked here; a kernel of
        # the same session could reach as far.
        return self._cupy.ndarray((1,), np.uint8, owner.get_global(name))
