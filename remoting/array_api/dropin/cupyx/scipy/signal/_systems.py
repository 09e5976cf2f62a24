"""Linear systems: values of a few device arrays, which the worker's library converts and runs."""

# A system's own parts are this module's, and a class may have its arrays where others compute them.
# pyright: reportPrivateUsage=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from typing import Any

import cupy as _cupy
from cupy._core.dispatch import make as _make

from cupyx._extensions import operand as _operand


class BadCoefficients(UserWarning):
    """Warning of coefficients that are badly conditioned."""


class Bunch:
    """Results by their names."""

    def __init__(self, **kwds: Any) -> None:
        self.__dict__.update(kwds)


def _sent(value: Any) -> Any:
    if isinstance(value, LinearTimeInvariant):
        arrays = tuple([_operand(array) for array in value._values])
        return ("system", value._form, arrays, value._dt)
    return _operand(value)


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        return Bunch(**value)
    if not isinstance(value, tuple):
        return value
    if value and isinstance(value[0], str) and value[0] == "system":
        return _remade(*value[1:])
    return value


def _remade(form: str, arrays: tuple[Any, ...], dt: Any) -> Any:
    """Return the system of these arrays."""
    made: Any = object.__new__(_CLASSES[form, dt is None])
    made._values, made._dt = list(arrays), dt
    return made


def ask(name: str, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on systems, and wait for its result."""
    given = [_sent(value) for value in args]
    keywords = {key: _sent(value) for key, value in kwargs.items()}
    flat: list[Any] = []
    for value in (*given, *keywords.values()):
        flat += value if isinstance(value, tuple) else (value,)  # the arrays of a system too
    session = _make.session_of(*flat)
    return _read(session.ask(f"signal.{name}", tuple(given), keywords))


def _function(name: str) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        return ask(name, *args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__module__ = "cupyx.scipy.signal"
    function.__doc__ = f"Run `cupyx.scipy.signal.{name}` of the server's CuPy."
    return function


bode = _function("bode")
cont2discrete = _function("cont2discrete")
dbode = _function("dbode")
dfreqresp = _function("dfreqresp")
dimpulse = _function("dimpulse")
dlsim = _function("dlsim")
dstep = _function("dstep")
freqresp = _function("freqresp")
impulse = _function("impulse")
lsim = _function("lsim")
place_poles = _function("place_poles")
step = _function("step")


class LinearTimeInvariant:
    """A linear time-invariant system."""

    _form = ""  # by which the worker knows what the arrays are
    _maker = ""
    _values: list[Any]
    _dt: Any

    def __new__(cls, *system: Any, **kwargs: Any) -> Any:
        """Ask the worker's library to check and complete the arrays."""
        if not cls._maker:
            raise NotImplementedError(
                "The LinearTimeInvariant class is not meant to be used directly, use `lti` or "
                "`dlti` instead."
            )
        if cls._form and issubclass(cls, dlti):
            kwargs.setdefault("dt", True)
        if len(system) == 1 and isinstance(system[0], LinearTimeInvariant) and cls._form:
            return getattr(system[0], _CONVERSIONS[cls._form])()
        return ask(f"new.{cls._maker}", *system, **kwargs)

    @property
    def dt(self) -> Any:
        """The sampling time, None for a system of continuous time."""
        return self._dt

    @property
    def zeros(self) -> Any:
        """Zeros of the system."""
        return self.to_zpk().zeros

    @property
    def poles(self) -> Any:
        """Poles of the system."""
        return self.to_zpk().poles

    def to_tf(self, **kwargs: Any) -> Any:
        """Return the system by its transfer function."""
        return ask("system.to_tf", self, **kwargs)

    def to_zpk(self, **kwargs: Any) -> Any:
        """Return the system by its zeros, poles and gain."""
        return ask("system.to_zpk", self, **kwargs)

    def to_ss(self) -> Any:
        """Return the system by its states."""
        return ask("system.to_ss", self)

    @property
    def _shape(self) -> tuple[int, int]:
        shape = self._values[0].shape
        return shape if len(shape) > 1 else (1, 1)

    @property
    def inputs(self) -> int:
        """How many inputs the system has."""
        return self._shape[1]

    @property
    def outputs(self) -> int:
        """How many outputs the system has."""
        return self._shape[0]

    def __reduce__(self) -> Any:
        return _remade, (self._form, tuple(self._values), self._dt)

    def __repr__(self) -> str:
        parts = "".join(f"{value!r},\n" for value in self._values)
        return f"{type(self).__name__}(\n{parts}dt: {self._dt!r}\n)"


class lti(LinearTimeInvariant):
    """A system of continuous time."""

    _maker = "lti"

    def impulse(self, X0: Any = None, T: Any = None, N: Any = None) -> Any:
        """Return the response to an impulse."""
        return impulse(self, X0=X0, T=T, N=N)

    def step(self, X0: Any = None, T: Any = None, N: Any = None) -> Any:
        """Return the response to a step."""
        return step(self, X0=X0, T=T, N=N)

    def output(self, U: Any, T: Any, X0: Any = None) -> Any:
        """Return the response to an input."""
        return lsim(self, U, T, X0=X0)

    def bode(self, w: Any = None, n: int = 100) -> Any:
        """Return frequencies, magnitudes and phases."""
        return bode(self, w=w, n=n)

    def freqresp(self, w: Any = None, n: int = 10000) -> Any:
        """Return frequencies and the response to them."""
        return freqresp(self, w=w, n=n)

    def to_discrete(self, dt: Any, method: str = "zoh", alpha: Any = None) -> Any:
        """Return the system of discrete time."""
        return ask("system.to_discrete", self, dt, method=method, alpha=alpha)


class dlti(LinearTimeInvariant):
    """A system of discrete time."""

    _maker = "dlti"

    @property
    def dt(self) -> Any:
        """The sampling time; True if it is not specified."""
        return self._dt

    @dt.setter
    def dt(self, dt: Any) -> None:
        self._dt = dt

    def impulse(self, x0: Any = None, t: Any = None, n: Any = None) -> Any:
        """Return the response to an impulse."""
        return dimpulse(self, x0=x0, t=t, n=n)

    def step(self, x0: Any = None, t: Any = None, n: Any = None) -> Any:
        """Return the response to a step."""
        return dstep(self, x0=x0, t=t, n=n)

    def output(self, u: Any, t: Any, x0: Any = None) -> Any:
        """Return the response to an input."""
        return dlsim(self, u, t, x0=x0)

    def bode(self, w: Any = None, n: int = 100) -> Any:
        """Return frequencies, magnitudes and phases."""
        return dbode(self, w=w, n=n)

    def freqresp(self, w: Any = None, n: int = 10000, whole: bool = False) -> Any:
        """Return frequencies and the response to them."""
        return dfreqresp(self, w=w, n=n, whole=whole)


def _part(index: int, name: str, complete: Any) -> Any:
    def get(self: Any) -> Any:
        return self._values[index]

    def put(self: Any, value: Any) -> None:
        self._values[index] = complete(value)

    return property(get, put, doc=f"`{name}` of the system, a device array.")


def _matrix(value: Any) -> Any:
    return None if value is None else _cupy.atleast_2d(value)


def _as_given(value: Any) -> Any:
    return value


class TransferFunction(LinearTimeInvariant):
    """A system by the numerator and the denominator of its transfer function."""

    _form = _maker = "TransferFunction"
    num = _part(0, "num", _cupy.atleast_1d)
    den = _part(1, "den", _cupy.atleast_1d)


class ZerosPolesGain(LinearTimeInvariant):
    """A system by its zeros, poles and gain."""

    _form = _maker = "ZerosPolesGain"
    zeros = _part(0, "zeros", _cupy.atleast_1d)
    poles = _part(1, "poles", _cupy.atleast_1d)
    gain = _part(2, "gain", _as_given)


class StateSpace(LinearTimeInvariant):
    """A system by the four matrices of its states."""

    _form = _maker = "StateSpace"
    __array_priority__ = 100.0
    __array_ufunc__ = None
    A = _part(0, "A", _matrix)
    B = _part(1, "B", _matrix)
    C = _part(2, "C", _matrix)
    D = _part(3, "D", _matrix)

    @property
    def _shape(self) -> tuple[int, int]:
        return self.C.shape[0], self.B.shape[-1]

    def __neg__(self) -> Any:
        return ask("operator.neg", self)


def _operator(name: str, *, swapped: bool = False) -> Any:
    def operate(self: Any, other: Any) -> Any:
        good = isinstance(other, (StateSpace, _cupy.ndarray, float, complex, _cupy.number, int))
        if not good:
            return NotImplemented
        return ask(f"operator.{name}", *((other, self) if swapped else (self, other)))

    return operate


for _name in ("add", "sub", "mul", "truediv"):
    setattr(StateSpace, f"__{_name}__", _operator(_name))
for _name in ("add", "sub", "mul"):
    setattr(StateSpace, f"__r{_name}__", _operator(_name, swapped=True))


class TransferFunctionContinuous(TransferFunction, lti):
    """A transfer function of continuous time."""

    _maker = "TransferFunction"


class TransferFunctionDiscrete(TransferFunction, dlti):
    """A transfer function of discrete time."""

    _maker = "TransferFunction"


class ZerosPolesGainContinuous(ZerosPolesGain, lti):
    """Zeros, poles and gain of continuous time."""

    _maker = "ZerosPolesGain"


class ZerosPolesGainDiscrete(ZerosPolesGain, dlti):
    """Zeros, poles and gain of discrete time."""

    _maker = "ZerosPolesGain"


class StateSpaceContinuous(StateSpace, lti):
    """States of continuous time."""

    _maker = "StateSpace"


class StateSpaceDiscrete(StateSpace, dlti):
    """States of discrete time."""

    _maker = "StateSpace"


_CONVERSIONS = {"TransferFunction": "to_tf", "ZerosPolesGain": "to_zpk", "StateSpace": "to_ss"}
_CLASSES: dict[tuple[str, bool], Any] = {
    ("TransferFunction", True): TransferFunctionContinuous,
    ("TransferFunction", False): TransferFunctionDiscrete,
    ("ZerosPolesGain", True): ZerosPolesGainContinuous,
    ("ZerosPolesGain", False): ZerosPolesGainDiscrete,
    ("StateSpace", True): StateSpaceContinuous,
    ("StateSpace", False): StateSpaceDiscrete,
}
