"""`rawkernel`: translates a function for the types of its arguments, and launches the kernel."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from cupy._core.dispatch import arguments
from cupy._core.kernels.raw_kernels import RawKernel

from cupyx.jit._kinds import MODES, VOID, Array, Kind, Scalar, Translated, number_kind
from cupyx.jit._translation import LocatedError, Unit

PARAMETERS_MAX = 4096
"""Bytes that CUDA lets a kernel have of parameters."""

_OPTIONS = ("--std=c++17",)


class Kernel(Translated):
    """A Python function that runs on the device; `kernel[grid, block](...)` launches it."""

    def __init__(self, function: Any, mode: str, device: bool) -> None:
        self.function = function
        self.is_device = device
        self._mode = mode
        self._kernels: dict[tuple[Kind, ...], RawKernel] = {}

    def __call__(
        self, grid: Any, block: Any, args: Any, shared_mem: int = 0, stream: Any = None
    ) -> None:
        """Launch the kernel; it is translated at the first call for new types of arguments.

        Args:
            grid: number of blocks, in 1 to 3 dimensions.
            block: threads of a block, in 1 to 3 dimensions.
            args: arrays of the device, and numbers of Python or NumPy.
            shared_mem: bytes of shared memory for each block.
            stream: CuPy's stream.

        Raises:
            TypeError: an argument is no array of the device and no number, or types do not fit.
            ValueError, NotImplementedError, NameError, IndexError, AttributeError: the text of
                the function cannot be translated; the error names its line.
        """
        args = tuple(args)
        kinds = tuple([self._kind(arg) for arg in args])
        kernel = self._kernels.get(kinds)
        if kernel is None:
            kernel = self._kernels[kinds] = self._translated(kinds)
        values: list[Any] = []
        for arg, kind in zip(args, kinds):
            if isinstance(kind, Array):
                values += [arg, *arg.shape, *arg.strides]
            elif isinstance(kind, Scalar):
                # Half precision is single precision in a kernel.
                dtype = np.dtype(np.float32) if kind.dtype.char == "e" else kind.dtype
                values.append(dtype.type(arg))
        kernel(grid, block, tuple(values), shared_mem=shared_mem, stream=stream)

    def _kind(self, arg: Any) -> Kind:
        if arguments.is_array(arg):
            return Array(Scalar(arg.dtype), arg.ndim)
        if arguments.is_scalar(arg):
            return number_kind(self._mode, arg)
        raise TypeError(
            f"a kernel takes arrays of the device and numbers, and no {type(arg).__name__}"
        )

    def _translated(self, kinds: tuple[Kind, ...]) -> RawKernel:
        sizes = [8 * (1 + 2 * kind.ndim) if isinstance(kind, Array) else 16 for kind in kinds]
        if sum(sizes) > PARAMETERS_MAX:
            raise ValueError(
                f"the arguments need {sum(sizes):,} bytes of a kernel's {PARAMETERS_MAX:,}: an "
                "array needs 8 for its address, and 16 for each of its dimensions"
            )
        unit = Unit(self._mode)
        try:
            name, _ = unit.function(self.function, kinds, VOID)
        except LocatedError as error:
            told = error
        else:
            cooperative = unit.cooperative
            return RawKernel(unit.text(), name, _OPTIONS, enable_cooperative_groups=cooperative)
        raise told.plain() from None

    def __getitem__(self, grid_and_block: Any) -> Callable[..., None]:
        """Return a function that launches the kernel with a grid and blocks of these sizes."""
        grid, block = grid_and_block
        blocks = grid if isinstance(grid, tuple) else (grid, 1, 1)
        threads = block if isinstance(block, tuple) else (block, 1, 1)
        return lambda *args, **kwargs: self(blocks, threads, args, **kwargs)

    @property
    def cached_codes(self) -> dict[Any, str]:
        """The C++ by the types of arguments, of all launches so far."""
        if not self._kernels:
            warnings.warn("there is no code before the first launch", stacklevel=2)
        return {kinds: kernel.code for kinds, kernel in self._kernels.items()}

    @property
    def cached_code(self) -> str:
        """The C++ of the first launch."""
        codes = self.cached_codes
        if len(codes) > 1:
            warnings.warn("there is code for several types: see cached_codes", stacklevel=2)
        return next(iter(codes.values()))

    def get_lto_ir(self, args: Any) -> Any:
        """Refuse: the intermediate code is for a linker of this machine, and the GPU is remote."""
        raise NotImplementedError(
            "get_lto_ir is not here: the device and its linker are on another machine"
        )


def rawkernel(*, mode: str = "cuda", device: bool = False) -> Callable[[Any], Kernel]:
    """Return a decorator that makes a kernel of a Python function.

    Args:
        mode: "cuda" for C's rules of types, "numpy" for NumPy's.
        device: whether it is a function that kernels call.

    Raises:
        ValueError: there is no such mode.
    """
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is none of {', '.join(MODES)}")

    def wrapper(function: Any) -> Kernel:
        made = Kernel(function, mode, device)
        functools.update_wrapper(made, function)
        return made

    return wrapper
