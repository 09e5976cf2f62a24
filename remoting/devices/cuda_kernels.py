"""Kernels of a client on real GPUs: source is checked, then compiled by CuPy."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from gpupool.remoting.devices.sources import check_options, check_source


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

    def compile(self) -> None:
        """Do nothing: it is compiled."""


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
            "kernel.ElementwiseKernel": self.elementwise,
            "kernel.ReductionKernel": self.reduction,
            "kernel.RawKernel": self.raw,
            "kernel.RawModule": self.module,
            "kernel.module": lambda binary: _LoadedModule(self._cupy, binary),
            "kernel.function": lambda owner, name: owner.get_function(name),
            "kernel.launch": lambda kernel, *args, **kwargs: kernel(*args, **kwargs),
            "kernel.launch_raw": lambda kernel, grid, block, args, shared_mem=0: kernel(
                grid, block, args, shared_mem=shared_mem
            ),
            "kernel.compile": lambda kernel: kernel.compile(),
            "kernel.attributes": self.attributes,
            "kernel.global": self.pointed,
        }

    def elementwise(
        self,
        in_params: str,
        out_params: str,
        operation: str,
        name: str,
        *,
        reduce_dims: bool = True,
        preamble: str = "",
        options: Any = (),
        loop_prep: str = "",
        after_loop: str = "",
    ) -> Any:
        """Compile a kernel that runs once per element."""
        check_source(in_params, out_params, operation, name, preamble, loop_prep, after_loop)
        return self._cupy.ElementwiseKernel(
            in_params,
            out_params,
            operation,
            name,
            reduce_dims,
            preamble,
            options=check_options(options),
            loop_prep=loop_prep,
            after_loop=after_loop,
        )

    def reduction(
        self,
        in_params: str,
        out_params: str,
        map_expr: str,
        reduce_expr: str,
        post: str,
        identity: Any,
        name: str,
        reduce_type: Any,
        reduce_dims: bool,
        preamble: str,
        options: Any,
    ) -> Any:
        """Compile a kernel that reduces along axes."""
        texts = (in_params, out_params, map_expr, reduce_expr, post, name, preamble)
        check_source(*texts, identity or "", reduce_type or "")
        return self._cupy.ReductionKernel(
            in_params,
            out_params,
            map_expr,
            reduce_expr,
            post,
            identity,
            name,
            reduce_type,
            reduce_dims,
            preamble,
            check_options(options),
        )

    def raw(self, code: str, name: str, options: Any, complex_: bool, cooperative: bool) -> Any:
        """Compile CUDA C++ source with one kernel."""
        check_source(code, name)
        return self._cupy.RawKernel(
            code,
            name,
            check_options(options),
            translate_cucomplex=complex_,
            enable_cooperative_groups=cooperative,
        )

    def module(self, code: str, options: Any, complex_: bool, cooperative: bool, names: Any) -> Any:
        """Compile CUDA C++ source with several kernels."""
        check_source(code, *(names or ()))
        return self._cupy.RawModule(
            code=code,
            options=check_options(options),
            translate_cucomplex=complex_,
            enable_cooperative_groups=cooperative,
            name_expressions=names,
        )

    def attributes(self, kernel: Any) -> dict[str, int]:
        """Return the attributes of a compiled kernel."""
        return {key: int(value) for key, value in kernel.attributes.items()}

    def pointed(self, owner: Any, name: str) -> Any:
        """Return a global variable of a module as an array of one byte."""
        # CuPy does not know how large a global is, so no bound can be checked here; a kernel of
        # the same session could reach as far.
        return self._cupy.ndarray((1,), np.uint8, owner.get_global(name))
