"""The operations of kernels on an emulated GPU, by the names that clients call."""

# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from typing import Any

from gpupool.remoting.devices.host_kernels import host_raw
from gpupool.remoting.devices.host_kernels.host_raw import HostKernel, HostModule
from gpupool.remoting.devices.host_kernels.host_typed import ElementwiseKernel, ReductionKernel

Typed = ElementwiseKernel | ReductionKernel


def host_kernel_operations(backend: Any) -> dict[str, Callable[..., Any]]:
    """Return name to callable; arguments come from a client as they are."""

    def elementwise(*args: Any, **kwargs: Any) -> Any:
        return ElementwiseKernel(backend, *args, **kwargs)

    def reduction(*args: Any) -> Any:
        return ReductionKernel(backend, *args)

    def module(code: Any, options: Any, translate: Any, cooperative: Any, names: Any) -> HostModule:
        return HostModule(code, options, translate, cooperative, names, backend.strict)

    def raw(code: Any, name: Any, *how: Any) -> HostKernel:
        return HostKernel(module(code, *how, names=()), name)

    return {
        "kernel.ElementwiseKernel": elementwise,
        "kernel.ReductionKernel": reduction,
        "kernel.RawKernel": raw,
        "kernel.RawModule": module,
        "kernel.module": host_raw.loaded,
        "kernel.function": lambda owner, name: _is(HostModule, owner).get_function(name),
        "kernel.launch": lambda kernel, *args, **kwargs: _is(Typed, kernel)(*args, **kwargs),
        "kernel.launch_raw": lambda kernel, grid, block, args, shared_mem=0: _is(
            HostKernel, kernel
        )(grid, block, args, shared_mem),
        "kernel.compile": lambda kernel, _logged=False: _is(HostKernel | HostModule, kernel).log(),
        "kernel.attributes": lambda kernel: host_raw.attributes(_is(HostKernel, kernel)),
        "cuda.cufft_version": lambda: 11303,  # that of CUDA 12.8
        "kernel.global": lambda owner, name: _is(HostModule, owner).get_global(name),
    }


def _is(kind: Any, value: Any) -> Any:
    """Return an object that a client names as a kernel, if it is one."""
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} is no kernel of this kind")
    return value
