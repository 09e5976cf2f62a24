"""Integers, shapes and axes may be of any type; functions that call a method take any object."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import inspect
import types
from collections.abc import Callable
from functools import reduce
from typing import Any, ClassVar

import door_calls
import numpy as np
import pytest

FORMS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "NumPy's integers": (np.int64, lambda value: tuple(np.int32(each) for each in value)),
    "arrays of NumPy": (np.array, np.array),
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
    """A module or an array; its functions get arguments of other types."""

    seen: ClassVar[set[tuple[str, str]] | None] = None
    """Names of functions and of their parameters that were given, where a test wants them."""

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
            if self.seen is not None and inspect.isfunction(found):
                bound = inspect.signature(found).bind(*args, **kwargs).arguments
                self.seen.update((name, each) for each in bound)
            given = [spelled(each, self._form) for each in args]
            named = {key: spelled(each, self._form) for key, each in kwargs.items()}
            return found(*given, **named)

        return call


OPERANDS = {"asarray", "clip", "float_power", "isscalar"}
"""Functions with integers as elements; CuPy takes no array of NumPy for these."""

REFUSED = {"linalg.matrix_power", "repeat"}
"""Functions that refuse integers of other types in CuPy too."""


def _by_name(name: str, operand: str, *args: Any, **kwargs: Any) -> door_calls.Call:
    """Return a call of a function of the module on one of its arrays."""

    def call(xp: Any, d: Any) -> Any:
        return reduce(getattr, name.split("."), xp)(getattr(d, operand), *args, **kwargs)

    return call


def _method(operand: str, name: str, **kwargs: Any) -> door_calls.Call:
    return lambda _, d: getattr(getattr(d, operand), name)(**kwargs)


REDUCING = [
    "all",
    "any",
    "max",
    "min",
    "ptp",
    "sum",
    "prod",
    "mean",
    "var",
    "std",
    "median",
    "nanmax",
    "nanmin",
    "nansum",
    "nanprod",
    "nanmean",
    "nanvar",
    "nanstd",
    "nanmedian",
]
SEQUENCES: dict[str, door_calls.Call] = {
    **{name: _by_name(name, "t", axis=(0, 2)) for name in REDUCING},
    **{
        f"fft.{name}": _by_name(f"fft.{name}", "t", (2, 3), (0, 2))
        for name in ("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn")
    },
    **{
        f"fft.{name}": _by_name(f"fft.{name}", "t", 3, 1)
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    },
    "fft.fftshift": lambda xp, d: xp.fft.fftshift(d.t, (0, 2)),
    "fft.ifftshift": lambda xp, d: xp.fft.ifftshift(d.t, (0, 2)),
    "array_split": lambda xp, d: xp.array_split(d.a, (1, 3), 1),
    "split": lambda xp, d: xp.split(d.a, (1, 3), 1),
    "hsplit": lambda xp, d: xp.hsplit(d.a, (1, 3)),
    "vsplit": lambda xp, d: xp.vsplit(d.a, (1, 3)),
    "dsplit": lambda xp, d: xp.dsplit(d.t, (1, 3)),
    "apply_over_axes": lambda xp, d: xp.apply_over_axes(xp.sum, d.t, (0, 2)),
    "broadcast_to": lambda xp, d: xp.broadcast_to(d.v, (2, 6)),
    "count_nonzero": lambda xp, d: xp.count_nonzero(d.t, (0, 2)),
    "average": lambda xp, d: xp.average(d.t, (0, 2)),
    "percentile": lambda xp, d: xp.percentile(d.t, 30, axis=(0, 2)),
    "quantile": lambda xp, d: xp.quantile(d.t, 0.3, axis=(0, 2)),
    "delete": lambda xp, d: xp.delete(d.v, (1, 3)),
    "empty_like": lambda xp, d: xp.empty_like(d.a, shape=(2, 3)).shape,
    "zeros_like": lambda xp, d: xp.zeros_like(d.a, shape=(2, 3)),
    "ones_like": lambda xp, d: xp.ones_like(d.a, shape=(2, 3)),
    "full_like": lambda xp, d: xp.full_like(d.a, 2.0, shape=(2, 3)),
    "expand_dims": lambda xp, d: xp.expand_dims(d.v, (0, 2)),
    "flip": lambda xp, d: xp.flip(d.t, (0, 2)),
    "gradient": lambda xp, d: list(xp.gradient(d.t, axis=(0, 2))),
    "linalg.norm": lambda xp, d: xp.linalg.norm(d.t, axis=(0, 2)),
    "linalg.tensorsolve": lambda xp, d: xp.linalg.tensorsolve(d.s.reshape(3, 3, 1), d.v[:3], (2,)),
    "moveaxis": lambda xp, d: xp.moveaxis(d.t, (0, 1), (1, 2)),
    "pad": lambda xp, d: xp.pad(d.a, ((1, 2), (0, 1))),
    "partition": lambda xp, d: xp.partition(d.v, (1, 3))[3],
    "argpartition": lambda xp, d: d.v[xp.argpartition(d.v, (1, 3))[3]],
    "ravel_multi_index": lambda xp, d: xp.ravel_multi_index((d.j, d.j), (4, 5)),
    "resize": lambda xp, d: xp.resize(d.v, (2, 5)),
    "roll": lambda xp, d: (xp.roll(d.t, (1, 2), (0, 2)), xp.roll(d.t, (1, 2), 1)),
    "rollaxis": lambda xp, d: xp.rollaxis(d.t, 2, 1),
    "rot90": lambda xp, d: xp.rot90(d.t, 3, (1, 2)),
    "squeeze": lambda xp, d: xp.squeeze(d.t[:1, :1], (0, 1)),
    "take": lambda xp, d: xp.take(d.a, (1, 3), 1),
    "tensordot": lambda xp, d: (
        xp.tensordot(d.t, d.t, ((0, 1), (0, 1))),
        xp.tensordot(d.t, d.t, (1, 1)),
        xp.tensordot(d.t, d.t, 3),
    ),
    "tile": lambda xp, d: xp.tile(d.a, (2, 1)),
    "trace": lambda xp, d: xp.trace(d.t, 1, 1, 2),
    "vander": lambda xp, d: xp.vander(d.w, 3),
    "unique": lambda xp, d: xp.unique(d.i % 2, axis=1),
    "unravel_index": lambda xp, d: list(xp.unravel_index(d.j, (3, 2))),
    "bincount": lambda xp, d: xp.bincount(d.k, minlength=9),
    "diff": lambda xp, d: xp.diff(d.a, 2, 0),
    "cross": lambda xp, d: xp.cross(d.s, d.s[::-1], axis=1),
    "tri": lambda xp, d: xp.tri(3, 4, -1),
    "eye": lambda xp, d: xp.eye(3, 4, -1),
    "diag": lambda xp, d: (xp.diag(d.v, -1), xp.diag(d.a, 2), xp.diagflat(d.v, 1)),
    "linspace": lambda xp, d: xp.linspace(0, 1, 5),
    "packbits": lambda xp, d: (xp.packbits(d.m, 1), xp.unpackbits(d.u, 0)),
    "lib.stride_tricks.as_strided": lambda xp, d: xp.lib.stride_tricks.as_strided(
        d.v, (2, 2), (16, 8)
    ),
    "lib.stride_tricks.sliding_window_view": lambda xp, d: xp.lib.stride_tricks.sliding_window_view(
        d.a, (2, 3), (0, 1)
    ),
    "ndarray": lambda xp, d: xp.ndarray((2, 3), "f4").shape,
    "append": lambda xp, d: xp.append(d.a, d.a, axis=1),
    "partition of rows": lambda xp, d: xp.partition(d.a, 2, axis=0)[2],
    "argpartition of rows": lambda xp, d: xp.argpartition(d.a, 2, axis=0)[2],
    "cumulative": lambda xp, d: (
        xp.cumulative_sum(d.a, axis=1),
        xp.cumulative_prod(d.a, axis=1),
    ),
    "spaces": lambda xp, d: (xp.linspace(d.v, 2, 3, axis=1), xp.logspace(d.v, 2, 3, axis=1)),
}
METHODS: dict[str, door_calls.Call] = {
    **{
        name: _method("t", name, axis=(0, 2))
        for name in ("all", "any", "max", "min", "sum", "prod", "mean", "var", "std")
    },
    "argpartition": lambda _, d: d.v.take(d.v.value.argpartition((1, 3))[3:4]),
    "squeeze": lambda _, d: d.t.reshape((1, 24)).squeeze((0,)),
    "reshape": lambda _, d: (d.t.reshape(4, 6), d.t.reshape((4, -1)), d.t.reshape(-1)),
    "transpose": lambda _, d: (d.t.transpose(2, 0, 1), d.t.transpose((2, 0, 1))),
    "take": lambda _, d: d.a.take((1, 3), 1),
    "swapaxes": lambda _, d: d.t.swapaxes(0, 2),
    "repeat": lambda _, d: d.v.repeat(2, 0),
    "sort": lambda _, d: d.a.sort(0),
    "partition": lambda _, d: d.v.partition((1, 3)),
    "round": lambda _, d: d.a.round(1),
    "trace": lambda _, d: d.t.trace(1, 1, 2),
    "diagonal": lambda _, d: d.t.diagonal(1, 1, 2),
    "cumsum": lambda _, d: (d.a.cumsum(1), d.a.cumprod(1), d.a.argmax(1)),
}


def _is_refused(name: str, form: str) -> bool:
    return form in ("NumPy's integers", "arrays of NumPy") and name in OPERANDS | REFUSED


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("table", [door_calls.CALLS, SEQUENCES], ids=["calls", "sequences"])
def test_functions_take_integers_of_any_type(cp: Any, table: Any, form: str) -> None:
    wrong: list[str] = []
    for name, call in table.items():
        if _is_refused(name, form):
            continue
        with np.errstate(all="ignore"):
            wanted = call(np, door_calls.arrays(np))
        try:
            difference = door_calls.difference(
                call(Spelling(cp, form), door_calls.arrays(cp)), wanted
            )
        except Exception as error:  # noqa: BLE001 - all of them are told at once
            difference = f"{type(error).__name__}: {error}"
        if difference:
            wrong.append(f"{name}: {difference}")
    assert not wrong


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_takes_integers_of_any_type(cp: Any, name: str, form: str) -> None:
    if form == "arrays of NumPy" and name == "repeat":
        pytest.skip("CuPy refuses it")
    made: dict[Any, Any] = {}
    for xp, how in ((np, "tuples"), (cp, form)):
        operands = vars(door_calls.arrays(xp)).items()
        spelled_operands = types.SimpleNamespace(**{k: Spelling(v, how) for k, v in operands})
        result = METHODS[name](None, spelled_operands)
        in_place = {"sort": "a", "partition": "v"}
        made[xp] = getattr(spelled_operands, in_place[name]).value if name in in_place else result
        if name == "partition":
            made[xp] = made[xp][[1, 3]]
    assert not door_calls.difference(made[cp], made[np])


INTEGERS = frozenset(
    [
        "axis",
        "axes",
        "shape",
        "newshape",
        "new_shape",
        "shift",
        "reps",
        "indices_or_sections",
        "pad_width",
        "dims",
        "source",
        "destination",
        "kth",
        "axis1",
        "axis2",
        "offset",
        "minlength",
        "window_shape",
        "strides",
        "s",
        "dimensions",
    ]
)
"""Names of parameters that take integers."""

DONE_BY_OTHERS = {
    *[
        "alltrue",
        "amax",
        "amin",
        "cumproduct",
        "product",
        "sometrue",
        "permute_dims",
        "round_",
        "concat",
    ],
    # with a ufunc's own loop over axes, or refusals of the same function
    *["apply_along_axis", "array", "asarray", "compress", "put_along_axis", "take_along_axis"],
    *["trapezoid", "trapz", "unwrap"],
}


def test_each_parameter_for_integers_is_tried(cp: Any) -> None:
    tried: set[tuple[str, str]] = set()
    Spelling.seen = tried
    try:
        for table in (door_calls.CALLS, SEQUENCES):
            for call in table.values():
                call(Spelling(cp, "lists"), door_calls.arrays(cp))
    finally:
        Spelling.seen = None
    untried: list[str] = []
    for module in (cp, cp.fft, cp.linalg, cp.lib.stride_tricks):
        for name, found in vars(module).items():
            own = (
                name[0] != "_"
                and name != "fresh"
                and inspect.isfunction(found)
                and name not in DONE_BY_OTHERS
            )
            if own and found.__module__.startswith("cupy"):
                wanted = INTEGERS & set(inspect.signature(found).parameters)
                untried += [f"{name}({each})" for each in wanted if (name, each) not in tried]
    assert not sorted(untried)


# --- duck typing ----------------------------------------------------------------------------------


class Duck:
    """An array of another library: it notes how its methods are called."""

    ndim = 2
    shape = (2, 2)
    dtype = np.dtype("f8")

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def method(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            return self

        return method

    def __getitem__(self, index: Any) -> Any:
        self.calls.append(("[]", index, {}))
        return self


BY_METHOD: dict[str, Callable[[Any, Any], Any]] = {
    "copy": lambda cp, x: cp.copy(x, "F"),
    "take": lambda cp, x: cp.take(x, [1], axis=1),
    "choose": lambda cp, x: cp.choose(x, [1]),
    "compress": lambda cp, x: cp.compress([True], x, 1),
    "clip": lambda cp, x: cp.clip(x, 0, 1),
    "squeeze": lambda cp, x: cp.squeeze(x),
    "ravel": lambda cp, x: cp.ravel(x),
    "reshape": lambda cp, x: cp.reshape(x, (4,)),
    "transpose": lambda cp, x: cp.permute_dims(x, (1, 0)),
    "swapaxes": lambda cp, x: cp.linalg.matrix_transpose(x),
    "repeat": lambda cp, x: cp.repeat(x, 2, axis=0),
    "argsort": lambda cp, x: cp.argsort(x),
    "argpartition": lambda cp, x: cp.argpartition(x, 1),
    "argmax": lambda cp, x: cp.argmax(x),
    "trace": lambda cp, x: cp.trace(x),
    "diagonal": lambda cp, x: cp.diagonal(x),
    "max": lambda cp, x: cp.amax(x),
    "sum": lambda cp, x: cp.sum(x, axis=0),
    "std": lambda cp, x: cp.std(x, axis=0),
    "var": lambda cp, x: cp.var(x, axis=0),
    "[]": lambda cp, x: cp.flipud(x),
}
"""Functions that CuPy leaves to a method of their argument, of any type."""


@pytest.mark.parametrize("name", BY_METHOD)
def test_a_function_calls_the_method_of_any_object(cp: Any, name: str) -> None:
    duck = Duck()
    assert BY_METHOD[name](cp, duck) is duck
    assert duck.calls[-1][0] == name


def test_an_array_of_numpy_stays_on_the_host_where_cupy_calls_its_method(cp: Any) -> None:
    a = np.arange(6.0).reshape(1, 2, 3)
    assert isinstance(cp.squeeze(a), np.ndarray)
    assert np.array_equal(cp.transpose(a, (2, 0, 1)), a.transpose(2, 0, 1))
    assert cp.max(a) == 5
    with pytest.raises(TypeError, match=r"expected cupy.ndarray, got list"):
        cp.squeeze([[1.0]])
    for function in (cp.all, cp.any, cp.nonzero, cp.flatnonzero):  # CuPy checks these
        with pytest.raises(TypeError):
            function(a)


@pytest.mark.parametrize("order", ["C", "F"])
def test_new_arrays_may_look_like_arrays_of_numpy(cp: Any, order: Any) -> None:
    host = np.zeros((2, 3), "i2", order).transpose(1, 0)
    for name in ("empty_like", "zeros_like", "ones_like"):
        made = getattr(cp, name)(host)
        assert (made.shape, made.dtype, made.strides) == (host.shape, host.dtype, host.strides)
    assert cp.full_like(host, 7, "f4", shape=(2,)).tolist() == [7, 7]
    assert cp.isfortran(host) == np.isfortran(host)
    with pytest.raises(TypeError):
        cp.zeros_like([1, 2])
    with pytest.raises(ValueError, match="Unsupported dtype"):
        cp.zeros_like(np.array(["text"]))


def test_functions_that_upload_in_cupy_upload_here(cp: Any) -> None:
    host = np.array([[3.0, 1.0, 2.0], [5.0, 9.0, 4.0]])
    for function, wanted in (
        (cp.diff, np.diff),
        (cp.gradient, np.gradient),
        (cp.fft.fftshift, np.fft.fftshift),
        (cp.fft.ifftshift, np.fft.ifftshift),
        (cp.tril, np.tril),
        (cp.unwrap, np.unwrap),
    ):
        assert not door_calls.difference(function(host), wanted(host))
        assert not door_calls.difference(function(host.tolist()), wanted(host))
