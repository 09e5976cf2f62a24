"""Functions of `cupyx.scipy` on an emulated GPU: CuPy's errors and types, not SciPy's."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
from typing import Any

import numpy as np
import pytest

from gpupool.remoting.devices.conventions.extension_conventions import REAL

pytest.importorskip("scipy")

HOST = np.random.RandomState(3).rand(12, 12)
LABELS = np.random.RandomState(4).randint(0, 4, (12, 12)).astype(np.int32)


def of(cp: Any, path: str) -> Any:
    """Return a sub-package of the drop-in, which the fixture has imported."""
    del cp
    return importlib.import_module(f"cupyx.scipy.{path}")


# --- matrices and lengths -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_bandwidth_of_any_type(cp: Any, dtype: str, order: str) -> None:
    banded = np.tri(9, 7, 2, bool) & ~np.tri(9, 7, -4, bool)
    made = of(cp, "linalg").bandwidth(cp.asarray(banded.astype(dtype), order=order))
    assert tuple(made) == (3, 2)
    assert tuple(of(cp, "linalg").bandwidth(cp.zeros((3, 3), dtype))) == (0, 0)


def test_what_is_no_matrix_is_an_error_of_linear_algebra(cp: Any) -> None:
    with pytest.raises(np.linalg.LinAlgError):
        of(cp, "linalg").bandwidth(cp.ones(3))


def test_a_fast_length_has_the_factors_of_cufft(cp: Any) -> None:
    fft = of(cp, "fft")
    assert [fft.next_fast_len(n) for n in (0, 1, 11, 13, 97, 121, 1021)] == [
        *(0, 1, 12, 14, 98, 125, 1024)
    ]


# --- images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["i2", "u4", "i8"])
def test_a_distance_transform_writes_arrays_of_the_program(cp: Any, dtype: str) -> None:
    transform = of(cp, "ndimage").distance_transform_edt
    image = cp.asarray(HOST > 0.2)
    wanted, places = transform(image, None, True, True)
    distances, indices = cp.empty(image.shape), cp.empty((2, 12, 12), dtype)
    transform(image, distances=distances)
    np.testing.assert_array_equal(distances.get(), wanted.get())
    transform(image, return_distances=False, return_indices=True, indices=indices)
    np.testing.assert_array_equal(indices.get(), places.get())


def test_a_distance_transform_refuses_what_cupy_refuses(cp: Any) -> None:
    transform = of(cp, "ndimage").distance_transform_edt
    image = cp.ones((512, 512), bool)
    both: Any = {"return_distances": False, "return_indices": True}
    for error, call in (
        (NotImplementedError, lambda: transform(cp.zeros(8))),
        (RuntimeError, lambda: transform(image, distances=cp.empty(3))),
        (RuntimeError, lambda: transform(image, distances=cp.empty(image.shape, "i4"))),
        (RuntimeError, lambda: transform(image, distances=cp.empty(image.shape), **both)),
        (RuntimeError, lambda: transform(image, indices=cp.empty((2, 512, 512), "i1"), **both)),
    ):
        with pytest.raises(error):
            call()


def test_an_iterated_structure_comes_with_its_origin(cp: Any) -> None:
    iterate = of(cp, "ndimage").iterate_structure
    cross = cp.asarray([[0, 1, 0], [1, 1, 1], [0, 1, 0]])
    for made, origin in (iterate(cross, 2, 1), iterate(cross, 2, origin=1)):
        assert origin == [2, 2]
        np.testing.assert_array_equal(made.get(), iterate(cross, 2).get())


@pytest.mark.parametrize("name", ["sum", "sum_labels", "mean", "variance", "standard_deviation"])
def test_statistics_take_arrays_of_the_gpu_alone(cp: Any, name: str) -> None:
    function = getattr(of(cp, "ndimage"), name)
    image, labels, index = cp.asarray(HOST), cp.asarray(LABELS), cp.asarray([1, 2])
    assert function(image, labels, index).shape == (2,)
    assert function(image, labels, 1).shape == ()
    for args in ((HOST, labels, index), (image, LABELS, index), (image, labels, [1, 2])):
        with pytest.raises(TypeError, match=r"must be cupy\.ndarray"):
            function(*args)
        with pytest.raises(TypeError, match=r"must be cupy\.ndarray"):
            of(cp, "ndimage").center_of_mass(*args)


def test_measurements_of_many_labels(cp: Any) -> None:
    ndimage = of(cp, "ndimage")
    image, labels = cp.arange(400).reshape(20, 20), cp.arange(400).reshape(20, 20) // 4
    made = ndimage.maximum_position(image, labels, cp.arange(1, 100))
    assert made[0] == (0, 7)
    assert len(made) == 99
    assert [int(each) for each in ndimage.extrema(image)[2]] == [0, 0]
    bins = ndimage.histogram(image, 0, 400, 4, labels // 50, cp.asarray([0, 1]))
    np.testing.assert_array_equal(cp.stack(bins).get(), [[100, 100, 0, 0], [0, 0, 100, 100]])


# --- signals --------------------------------------------------------------------------------------


def test_a_median_filter_takes_either_name_of_a_type(cp: Any) -> None:
    for dtype in (np.longlong, np.int64):
        made = of(cp, "signal").medfilt(cp.asarray(np.arange(10).astype(dtype)), 3)
        assert made.dtype == np.int64


def test_a_sweep_takes_a_polynomial(cp: Any) -> None:
    theirs: Any = importlib.import_module("scipy.signal")
    times = np.linspace(0, 3, 50)
    made = of(cp, "signal").sweep_poly(cp.asarray(times), cp.poly1d([1.0, 0.0, 1.0]))
    wanted = theirs.sweep_poly(times, np.poly1d([1.0, 0.0, 1.0]))
    np.testing.assert_allclose(made.get(), wanted)


def test_positions_of_real_gpus_are_numbers_too() -> None:
    """CuPy's are NumPy's scalars, and an answer has room for 64 arrays."""
    found = [(np.int64(at), np.int64(2)) for at in range(100)]
    position = REAL["scipy.ndimage.maximum_position"](lambda: found)
    assert position() == [(at, 2) for at in range(100)]
    assert {type(each) for pair in position() for each in pair} == {int}
    extrema = REAL["scipy.ndimage.extrema"](lambda: (1.0, 2.0, found, found[3]))
    assert [type(each) for each in extrema()[3]] == [int, int]
