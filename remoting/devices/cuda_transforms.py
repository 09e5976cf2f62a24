"""Transforms of real GPUs: by several GPUs of the worker, and the plans that CuPy keeps."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable
from typing import Any

from gpupool.remoting.devices.operation_names import FFT

Operation = Callable[..., Any]


def transforms(backend: Any) -> dict[str, Operation]:
    """Return name to callable; all run in the one thread with the plans that CuPy keeps."""
    cupy = backend.cupy
    config = cupy.fft.config
    functions = {name: getattr(cupy.fft, name) for name in FFT}
    ordinals = [spec.ordinal for spec in backend.devices]

    def several(gpus: Any, name: str, *args: Any) -> Any:
        if name not in functions or not all(at in range(len(ordinals)) for at in gpus):
            raise ValueError(f"no transform {name} by GPUs {gpus}")
        config.set_cufft_gpus([ordinals[at] for at in gpus])
        config.use_multi_gpus = True
        try:
            return functions[name](*args)
        finally:
            config.use_multi_gpus = False

    def cache() -> Any:
        return config.get_plan_cache()

    def numbers() -> list[int]:
        found = cache()
        sizes = (found.get_size(), found.get_curr_size())
        return [*sizes, found.get_memsize(), found.get_curr_memsize()]

    return {
        "fft.several": several,
        "fft.cache.numbers": numbers,
        "fft.cache.set_size": lambda size: cache().set_size(size),
        "fft.cache.set_memsize": lambda memsize: cache().set_memsize(memsize),
        "fft.cache.clear": lambda: cache().clear(),
    }
