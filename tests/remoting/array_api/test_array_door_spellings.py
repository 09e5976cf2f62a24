"""Integers, shapes and axes may be of any type; functions that call a method take any object."""

import types
from collections.abc import Callable
from typing import Any

import door_calls
import numpy as np
import pytest
from door_cases import refused

FORMS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "NumPy's integers": (np.int64, lambda value: tuple(np.int32(each) for each in value)),
    "arrays of NumPy": (int, np.array),
    "lists": (int, list),
    "tuples": (int, tuple),
}
"""Forms of an integer, and of several."""


def spelled(value: Any, form: str) -> Any:
    """Return an argument, its integers of other types."""
    if isinstance(value, Spelling):
        return value.value
    if type(value) is int:
        return FORMS[form][0](value)
    if type(value) in (tuple, list):
        if value and all(type(each) is int for each in value):
            return FORMS[form][1](value)
        return type(value)(spelled(each, form) for each in value)
    return value


class Spelling:
    """A module; its functions get arguments of other types."""

    def __init__(self, value: Any, form: str) -> None:
        self.value = value
        self._form = form

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.value, name)
        if isinstance(found, types.ModuleType):
            return Spelling(found, self._form)
        if not callable(found) or isinstance(found, type):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            named = {key: spelled(each, self._form) for key, each in kwargs.items()}
            return found(*[spelled(each, self._form) for each in args], **named)

        return call


ELEMENTS = {"asarray", "clip", "float_power", "isscalar"}
"""Functions with integers as elements; CuPy takes no array of NumPy for these."""

REFUSED = {"linalg.matrix_power", "repeat"}
"""Functions that refuse integers of other types in CuPy too."""


@pytest.mark.parametrize("form", FORMS)
def test_functions_take_integers_of_any_type(cp: Any, form: str) -> None:
    wrong: list[str] = []
    skipped = ELEMENTS | REFUSED if "NumPy" in form else set[str]()
    for name, call in door_calls.CALLS.items():
        if name in skipped:
            continue
        with np.errstate(all="ignore"):
            wanted = call(np, door_calls.arrays(np))
        try:
            made = call(Spelling(cp, form), door_calls.arrays(cp))
            difference = door_calls.difference(made, wanted)
        except Exception as error:  # noqa: BLE001 - all of them are told at once
            difference = f"{type(error).__name__}: {error}"
        if difference:
            wrong.append(f"{name}: {difference}")
    assert not wrong


# --- duck typing ----------------------------------------------------------------------------------


class Duck:
    """An array of another library: it notes how its methods are called."""

    ndim = 2
    shape = (2, 2)
    dtype = np.dtype("f8")

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: self.calls.append(name) or self

    def __getitem__(self, index: Any) -> Any:
        del index
        self.calls.append("[]")
        return self


BY_METHOD: dict[str, Callable[[Any, Any], Any]] = {
    "squeeze": lambda cp, x: cp.squeeze(x),
    "ravel": lambda cp, x: cp.ravel(x),
    "argsort": lambda cp, x: cp.argsort(x),
    "argmax": lambda cp, x: cp.argmax(x),
    "trace": lambda cp, x: cp.trace(x),
    "diagonal": lambda cp, x: cp.diagonal(x),
    "sum": lambda cp, x: cp.sum(x, axis=0),
    "std": lambda cp, x: cp.std(x, axis=0),
    "var": lambda cp, x: cp.var(x, axis=0),
    "copy": lambda cp, x: cp.copy(x, "F"),
    "take": lambda cp, x: cp.take(x, [1], axis=1),
    "choose": lambda cp, x: cp.choose(x, [1]),
    "compress": lambda cp, x: cp.compress([True], x, 1),
    "clip": lambda cp, x: cp.clip(x, 0, 1),
    "reshape": lambda cp, x: cp.reshape(x, (4,)),
    "transpose": lambda cp, x: cp.permute_dims(x, (1, 0)),
    "swapaxes": lambda cp, x: cp.linalg.matrix_transpose(x),
    "repeat": lambda cp, x: cp.repeat(x, 2, axis=0),
    "argpartition": lambda cp, x: cp.argpartition(x, 1),
    "max": lambda cp, x: cp.amax(x),
    "[]": lambda cp, x: cp.flipud(x),
}
"""Functions that CuPy leaves to a method of their argument, of any type."""


@pytest.mark.parametrize("name", BY_METHOD)
def test_a_function_calls_the_method_of_any_object(cp: Any, name: str) -> None:
    duck = Duck()
    assert BY_METHOD[name](cp, duck) is duck
    assert duck.calls[-1] == name


def test_an_array_of_numpy_stays_on_the_host_where_cupy_calls_its_method(cp: Any) -> None:
    a = np.arange(6.0).reshape(1, 2, 3)
    assert isinstance(cp.squeeze(a), np.ndarray)
    assert np.array_equal(cp.transpose(a, (2, 0, 1)), a.transpose(2, 0, 1))
    assert cp.max(a) == 5
    refused((TypeError, "expected cupy.ndarray, got list", lambda: cp.squeeze([[1.0]])))
    for function in (cp.all, cp.any, cp.nonzero, cp.flatnonzero):  # CuPy checks these
        refused((TypeError, "", lambda function=function: function(a)))


@pytest.mark.parametrize("order", ["C", "F"])
def test_new_arrays_may_look_like_arrays_of_numpy(cp: Any, order: Any) -> None:
    host = np.zeros((2, 3), "i2", order).transpose(1, 0)
    for name in ("empty_like", "zeros_like", "ones_like"):
        made = getattr(cp, name)(host)
        assert (made.shape, made.dtype, made.strides) == (host.shape, host.dtype, host.strides)
    assert cp.full_like(host, 7, "f4", shape=(2,)).tolist() == [7, 7]
    assert cp.isfortran(host) == np.isfortran(host)
    refused(
        (TypeError, "", lambda: cp.zeros_like([1, 2])),
        (ValueError, "Unsupported dtype", lambda: cp.zeros_like(np.array(["text"]))),
    )


@pytest.mark.parametrize(
    "name", ["diff", "gradient", "fft.fftshift", "fft.ifftshift", "tril", "unwrap"]
)
def test_functions_that_upload_in_cupy_upload_here(cp: Any, name: str) -> None:
    host = np.array([[3.0, 1.0, 2.0], [5.0, 9.0, 4.0]])
    call = door_calls.named(name, "host")
    for given in (host, host.tolist()):
        ours, theirs = (call(xp, types.SimpleNamespace(host=given)) for xp in (cp, np))
        assert not door_calls.difference(ours, theirs)
