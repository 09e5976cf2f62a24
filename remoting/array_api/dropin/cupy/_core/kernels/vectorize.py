"""`vectorize`: a Python function of elements, which the program itself computes.

CuPy translates the function into a kernel. Here it runs on the host, once for each element, on
NumPy's numbers, and the result is uploaded. So the call waits for its arguments, and costs the
time of a loop in Python. CuPy knows the type of a result from the source, and here the results
have it: where branches return different types, it is the type that those which were taken share.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy._core import convert
from cupy._core.dispatch import arguments
from cupy._core.ufunc import broadcast

_PYTHON: dict[type, Any] = {bool: False, int: 0, float: 0.0, complex: 0j}
"""Python's number types, which give way to those of arrays; a number stands for each."""


def _host(value: Any) -> Any:
    """Return an argument on the host; a Python number has the type that NumPy gives it."""
    operand = arguments.operand(value)
    return operand.get() if arguments.is_array(operand) else np.asarray(operand)


def _number(value: Any) -> Any:
    """Return one result as a number.

    Raises:
        TypeError: it is none.
    """
    if arguments.is_array(value) and value.shape == ():
        value = value.get()[()]
    if type(value) in _PYTHON or (isinstance(value, np.generic) and value.dtype.kind in "biufc"):
        return value
    raise TypeError(f"Invalid return type: {type(value).__name__}")


def _typed(results: list[Any]) -> Any:
    """Return the type that results share."""
    kinds = {type(value) for value in results}
    weak = [_PYTHON[kind] for kind in kinds if kind in _PYTHON]
    strong = [np.dtype(kind) for kind in kinds if kind not in _PYTHON]
    return np.result_type(*strong, *weak)


class vectorize:
    """A function of elements, applied to each element of arrays; see CuPy's documentation."""

    def __init__(
        self,
        pyfunc: Any,
        otypes: Any = None,
        doc: str | None = None,
        excluded: Any = None,
        cache: bool = False,
        signature: Any = None,
    ) -> None:
        for name, value in (("excluded", excluded), ("signature", signature)):
            if value is not None:
                raise NotImplementedError(f"cupy.vectorize does not support `{name}`")
        self.pyfunc = pyfunc
        self.__doc__ = doc or pyfunc.__doc__
        self.otypes = None if otypes is None else "".join([np.dtype(each).char for each in otypes])
        self.excluded = excluded
        self.cache = cache
        self.signature = signature

    def __call__(self, *args: Any) -> Any:
        """Call the function for each element; wait for the elements, and return new arrays.

        Raises:
            TypeError: an argument is no array of a device and no number, or a result is no number.
            NotImplementedError: there are `otypes`, which CuPy does not take either.
            Exception: any that the function raises.
        """
        if self.otypes is not None:
            raise NotImplementedError("cupy.vectorize does not support `otypes`")
        if not any(arguments.is_array(arg) for arg in args):
            for arg in args:
                arguments.operand(arg)
            raise ValueError("Loop size is undecided.")
        values = [_host(arg) for arg in args]
        shape = broadcast(*[value.shape for value in values])
        columns = [list(np.broadcast_to(value, shape).ravel()) for value in values]
        rows = list(zip(*columns))
        # Without elements the function is asked for its type, as a kernel has one.
        asked = rows or [tuple([value.dtype.type(1) for value in values])]
        with np.errstate(all="ignore"):  # as on a GPU
            made = [self.pyfunc(*row) for row in asked]
        several = type(made[0]) is tuple
        count = len(made[0]) if several else 1
        if any((type(one) is tuple) != several or (several and len(one) != count) for one in made):
            raise TypeError("the function gives another number of results for some elements")
        parts = zip(*made) if several else [made]
        arrays = [self._array([_number(value) for value in part], rows, shape) for part in parts]
        return tuple(arrays) if several else arrays[0]

    @staticmethod
    def _array(numbers: list[Any], rows: list[Any], shape: tuple[int, ...]) -> Any:
        kind = _typed(numbers)
        return convert.asarray(np.asarray(numbers[: len(rows)], kind).reshape(shape))


VECTORIZE: dict[str, Any] = {"vectorize": vectorize}
