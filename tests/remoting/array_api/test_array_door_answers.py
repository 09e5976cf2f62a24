"""Answers never lie: a result comes as its own type, or its call raises, and the session lives."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
from typing import Any

import door_kit
import numpy as np
import pytest

from gpupool.remoting.array_api.server.array_results import Answer
from gpupool.remoting.devices.emulated import EmulatedBackend

scipy = pytest.importorskip("scipy")


class RealLike(EmulatedBackend):
    """A backend with arrays that are no NumPy scalars, as on a real GPU."""

    def is_array(self, value: Any) -> bool:
        """Say whether a value is an array of the device."""
        return isinstance(value, np.ndarray)


BACKEND = RealLike(door_kit.emulated(1, 1 << 20), door_kit.MemoryBudget([1 << 20]))


def of(cp: Any, path: str) -> Any:
    """Return a sub-package of the drop-in, which the fixture has imported."""
    del cp
    return importlib.import_module(f"cupyx.{path}")


def test_slices_come_as_slices(cp: Any) -> None:
    labels = np.asarray([[1, 0, 2], [1, 0, 2], [0, 0, 0], [4, 4, 0]])
    found = of(cp, "scipy.ndimage").find_objects(cp.asarray(labels))
    assert found == importlib.import_module("scipy.ndimage").find_objects(labels)
    assert found[0] == (slice(0, 2, None), slice(0, 1, None))
    assert found[2] is None


def test_arrays_in_a_dictionary_are_arrays(cp: Any) -> None:
    peaks, more = of(cp, "scipy.signal").find_peaks(cp.asarray([0.0, 1, 0, 2, 0]), height=0.5)
    assert peaks.tolist() == [1, 3]
    assert list(more) == ["peak_heights"]
    assert isinstance(more["peak_heights"], cp.ndarray)
    assert more["peak_heights"].tolist() == [1.0, 2.0]


def test_a_tuple_stays_a_tuple_and_a_list_a_list(cp: Any) -> None:
    a = np.random.RandomState(1).rand(3, 3)
    assert type(of(cp, "scipy.linalg").lu(cp.asarray(a))) is tuple
    assert type(of(cp, "scipy.ndimage").find_objects(cp.asarray([1, 0, 1]))) is list


def test_a_keyword_that_asks_for_another_result_gets_it(cp: Any) -> None:
    special, ndimage = of(cp, "scipy.special"), of(cp, "scipy.ndimage")
    values = np.asarray([1.0, 2.0, 0.5])
    made = special.logsumexp(cp.asarray(values), b=cp.asarray([1, -3, 1]), return_sign=True)
    wanted = importlib.import_module("scipy.special").logsumexp(
        values, b=[1, -3, 1], return_sign=True
    )
    assert type(made) is tuple
    assert [float(one) for one in made] == pytest.approx([float(one) for one in wanted])
    image = np.ones((3, 4))
    image[1, 2] = 0
    wanted = importlib.import_module("scipy.ndimage").distance_transform_edt(
        image, return_indices=True
    )
    made = ndimage.distance_transform_edt(cp.asarray(image), return_indices=True)
    assert type(made) is tuple
    for one, other in zip(made, wanted, strict=True):
        assert np.allclose(cp.asnumpy(one), other)
    only = ndimage.distance_transform_edt(
        cp.asarray(image), return_distances=False, return_indices=True
    )
    assert np.array_equal(only.get(), wanted[1])


def test_several_results_where_one_was_expected_are_an_error_of_the_call(cp: Any) -> None:
    make: Any = importlib.import_module("cupy._core.dispatch.make")
    session = cp._door.pool.current()
    with pytest.raises(TypeError, match="several results"):
        make.lazy("cupyx.scipy.signal.find_peaks", (cp.asarray([0.0, 1, 0]),), {}).get()
    assert session.failure is None
    late = make.lazy("cupyx.scipy.signal.get_window", ("hann", 3), {})
    assert late.get().tolist() == pytest.approx([0.0, 0.75, 0.75])


def encoded(value: Any, *, objects: bool = False) -> tuple[Any, dict[int, Any]]:
    kept: dict[int, Any] = {}

    def store(handle: int, one: Any) -> None:
        kept[handle] = one

    answer = Answer(BACKEND, store, kept.pop, first=7, objects=objects)
    return answer.encode(value), kept


def test_numbers_of_numpy_keep_their_type() -> None:
    assert encoded(np.float32(1.5)) == (["n", "<f4", np.float32(1.5).tobytes()], {})
    assert encoded(np.bool_(1))[0] == ["n", "|b1", b"\x01"]
    assert encoded(slice(1, None, np.int64(2)))[0] == ["s", 1, None, 2]


def test_a_number_of_numpy_arrives_as_one(cp: Any) -> None:
    session, answers = cp._door.pool.current(), cp._door.answers
    reply = importlib.import_module("cupy._door.transport.receiver").Reply(None)
    for value in (np.float32(1.5), np.int64(-3), np.bool_(True), np.complex64(1 + 2j)):
        found = answers.read(session, encoded(value)[0], reply)
        assert type(found) is type(value)
        assert found == value
    assert answers.read(session, ["s", 1, None, 2], reply) == slice(1, None, 2)
    for bad in (["n", "|O", b"12345678"], ["n", "<f8", b"1"], ["n", "<f8"], ["s", 1], ["q", 1], []):
        with pytest.raises((TypeError, ValueError, LookupError)):
            answers.read(session, bad, reply)


def test_what_has_no_form_is_refused_and_nothing_is_kept() -> None:
    for strange in (object(), {1, 2}, np.asarray([object()]), lambda: 1, np.datetime64("now")):
        kept: dict[int, Any] = {}
        answer = Answer(BACKEND, kept.__setitem__, kept.pop, first=7)
        with pytest.raises(TypeError, match="cannot be sent"):
            answer.encode((np.ones(3), strange))
        assert kept == {}
    value = object()
    assert encoded(value, objects=True) == (["o", 0], {7: value})


@pytest.mark.parametrize("name", ["uniform_filter", "maximum_filter1d", "white_tophat"])
@pytest.mark.parametrize("size", [(1 << 63) - 1, 1 << 62, -(1 << 62), [3, 1 << 61]])
def test_a_filter_that_no_memory_holds_is_refused(name: str, size: Any) -> None:
    """SciPy wrote behind its memory, which ended the worker by SIGSEGV."""
    function = BACKEND.operations()[f"cupyx.scipy.ndimage.{name}"]
    with pytest.raises(ValueError, match="no array is as large as this filter"):
        function(np.ones((4, 4)), size)
    assert function(np.ones((4, 4)), 3).shape == (4, 4)
    assert function(np.ones((4, 4)), size=3).shape == (4, 4)
