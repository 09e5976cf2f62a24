"""Plans of transforms on an emulated GPU, which keeps none, but the limits that a program sets."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Callable
from typing import Any

from gpupool.remoting.devices.operation_names import FFT

Operation = Callable[..., Any]
_SIZE = 16
"""Plans that CuPy keeps by default."""


def plan_operations(
    table: dict[str, Operation], devices: int, current: Callable[[], int]
) -> dict[str, Operation]:
    """Return the operations on the plans of the current device, and transforms by several GPUs.

    Args:
        table: the transforms by name.
        devices: how many there are.
        current: says the number of the current one.
    """
    limits = [[_SIZE, -1] for _ in range(devices)]  # plans, and bytes; -1 for any number

    def limit(place: int, value: int) -> None:
        if value < -1:
            raise ValueError("invalid input")
        limits[current()][place] = value

    def several(gpus: Any, name: str, a: Any, *args: Any) -> Any:
        if name not in FFT or not all(at in range(devices) for at in gpus):
            raise ValueError(f"no transform {name} by GPUs {gpus}")
        return table[f"fft.{name}"](a, *args)

    return {
        "fft.cache.numbers": lambda: [limits[current()][0], 0, limits[current()][1], 0],
        "fft.cache.set_size": lambda size: limit(0, size),
        "fft.cache.set_memsize": lambda size: limit(1, size),
        "fft.cache.clear": lambda: None,
        "fft.several": several,
    }
