"""Linear systems of `cupyx.scipy.signal`: functions that take and make them.

A system is a few arrays and a sampling time, and its classes are the library's. It has no state of
its own, so the client holds the arrays, and the library's object lives as long as one call. A real
GPU has CuPy's classes, an emulated one SciPy's.

Form
    A system in arguments and answers is ``("system", class, (arrays...), dt)``, with one of the
    classes of ``PARTS``; ``dt`` is None for one of continuous time.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from gpupool.remoting.devices.base import UnsupportedError
from gpupool.remoting.devices.extensions import NO_SCIPY

Operation = Callable[..., Any]

PARTS = {
    "StateSpace": ("A", "B", "C", "D"),
    "TransferFunction": ("num", "den"),
    "ZerosPolesGain": ("zeros", "poles", "gain"),
}
"""The arrays of a system, by its class."""

MAKERS = (*PARTS, "dlti", "lti")
"""Classes by which a program makes a system."""

METHODS = ("to_discrete", "to_ss", "to_tf", "to_zpk")
OPERATORS = ("add", "mul", "neg", "sub", "truediv")
_FUNCTIONS = """
bode cont2discrete dbode decimate dfreqresp dimpulse dlsim dstep freqresp impulse lsim place_poles
step
"""
FUNCTIONS = tuple(_FUNCTIONS.split())
"""Functions of a system, or of a tuple of arrays in its place."""


class LinearSystems:
    """The operations on systems of one library."""

    def __init__(self, package: str, lacking: str) -> None:
        self._package = package
        self._lacking = lacking

    def table(self) -> dict[str, Operation]:
        """Return name to callable."""
        made = {f"signal.new.{name}": self._function(name) for name in MAKERS}
        made |= {f"signal.{name}": self._function(name) for name in FUNCTIONS}
        made |= {f"signal.system.{name}": self._method(name) for name in METHODS}
        return made | {f"signal.operator.{name}": self._operator(name) for name in OPERATORS}

    def _named(self, name: str) -> Any:
        try:
            library: Any = importlib.import_module(self._package)
            # It would be a warning of this process, which nobody reads.
            warnings.simplefilter("ignore", library.BadCoefficients)
            return getattr(library, name)
        except (ImportError, AttributeError):
            raise UnsupportedError(f"cupyx.scipy.signal.{name}: {self._lacking}") from None

    def _operand(self, value: Any) -> Any:
        """Return an argument as the library takes it: a system is an object of its class."""
        if type(value) is not tuple or len(value) != 4 or not isinstance(value[0], str):
            return value
        mark, name, arrays, dt = value
        good = mark == "system" and isinstance(name, str) and name in PARTS
        if not good or type(arrays) is not tuple or len(arrays) != len(PARTS[name]):
            raise TypeError("no linear system")
        made = self._named(name)(*arrays, **({} if dt is None else {"dt": dt}))
        for part, array in zip(PARTS[name], arrays, strict=True):
            setattr(made, part, array)  # as the program set it: making one trims coefficients
        return made

    def _told(self, value: Any) -> Any:
        """Return a result as an answer has it."""
        if type(value).__name__ == "Bunch":
            return {name: self._told(item) for name, item in vars(value).items()}
        for name, parts in PARTS.items():
            if isinstance(value, self._named(name)):
                arrays = [self._told(getattr(value, part)) for part in parts]
                return ("system", name, tuple(arrays), value.dt)
        if type(value) in (tuple, list):
            return tuple([self._told(item) for item in value])
        return np.asarray(value) if isinstance(value, np.generic) else value

    def _function(self, name: str) -> Operation:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._told(self._named(name)(*map(self._operand, args), **kwargs))

        return call

    def _method(self, name: str) -> Operation:
        def call(system: Any, *args: Any, **kwargs: Any) -> Any:
            made = self._operand(system)
            if made is system:
                raise TypeError("no linear system")
            return self._told(getattr(made, name)(*args, **kwargs))

        return call

    def _operator(self, name: str) -> Operation:
        function: Any = getattr(operator, name)

        def call(*args: Any) -> Any:
            operands = [self._operand(arg) for arg in args]
            if all(made is arg for made, arg in zip(operands, args, strict=True)):
                raise TypeError("no linear system")
            return self._told(function(*operands))

        return call


def real_systems() -> dict[str, Operation]:
    """Return the operations of a real GPU."""
    return LinearSystems("cupyx.scipy.signal", "this CuPy lacks it").table()


def emulated_systems() -> dict[str, Operation]:
    """Return the operations of an emulated GPU."""
    return LinearSystems("scipy.signal", NO_SCIPY).table()
