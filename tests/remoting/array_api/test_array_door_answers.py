"""Answers never lie: a result comes as its own type, or its call raises, and the session lives."""

import importlib
from typing import Any

import door_kit
import numpy as np
import pytest
from door_cases import close, cupyx, refused

from gpupool.remoting.array_api.server.array_results import Answer
from gpupool.remoting.devices.emulated import EmulatedBackend

scipy = pytest.importorskip("scipy")


class RealLike(EmulatedBackend):
    """A backend with arrays that are no NumPy scalars, as on a real GPU."""

    def is_array(self, value: Any) -> bool:
        """Say whether a value is an array of the device."""
        return isinstance(value, np.ndarray)


BACKEND = RealLike(door_kit.emulated(1, 1 << 20), door_kit.MemoryBudget([1 << 20]))


def test_slices_dictionaries_tuples_and_lists_stay_what_they_are(cp: Any) -> None:
    labels = np.asarray([[1, 0, 2], [1, 0, 2], [0, 0, 0], [4, 4, 0]])
    found = cupyx("scipy.ndimage").find_objects(cp.asarray(labels))
    assert found == importlib.import_module("scipy.ndimage").find_objects(labels)
    assert type(found) is list
    assert found[0] == (slice(0, 2, None), slice(0, 1, None))
    assert found[2] is None
    peaks, more = cupyx("scipy.signal").find_peaks(cp.asarray([0.0, 1, 0, 2, 0]), height=0.5)
    assert (peaks.tolist(), list(more)) == ([1, 3], ["peak_heights"])
    assert isinstance(more["peak_heights"], cp.ndarray)
    assert more["peak_heights"].tolist() == [1.0, 2.0]
    assert type(cupyx("scipy.linalg").lu(cp.eye(3))) is tuple


def test_a_keyword_that_asks_for_another_result_gets_it(cp: Any) -> None:
    values, weights, image = np.asarray([1.0, 2.0, 0.5]), [1, -3, 1], np.ones((3, 4))
    image[1, 2] = 0
    made = cupyx("scipy.special").logsumexp(
        cp.asarray(values), b=cp.asarray(weights), return_sign=True
    )
    special: Any = importlib.import_module("scipy.special")
    assert type(made) is tuple
    close(list(made), list(special.logsumexp(values, b=weights, return_sign=True)))
    ours, theirs = cupyx("scipy.ndimage"), importlib.import_module("scipy.ndimage")
    wanted = theirs.distance_transform_edt(image, return_indices=True)
    made = ours.distance_transform_edt(cp.asarray(image), return_indices=True)
    assert type(made) is tuple
    close(made, wanted)
    only: Any = {"return_distances": False, "return_indices": True}
    close(ours.distance_transform_edt(cp.asarray(image), **only), wanted[1])


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
    answer = Answer(BACKEND, kept.__setitem__, kept.pop, first=7, objects=objects)
    return answer.encode(value), kept


def test_numbers_of_numpy_keep_their_type(cp: Any) -> None:
    assert encoded(np.float32(1.5)) == (["n", "<f4", np.float32(1.5).tobytes()], {})
    assert encoded(np.bool_(1))[0] == ["n", "|b1", b"\x01"]
    assert encoded(slice(1, None, np.int64(2)))[0] == ["s", 1, None, 2]
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
    a, said = np.ones((4, 4)), "no array is as large as this filter"
    refused((ValueError, said, lambda: function(a, size)))
    assert function(a, 3).shape == function(a, size=3).shape == (4, 4)


def test_a_label_that_no_memory_holds_is_refused() -> None:
    """SciPy wrote behind its memory here too."""
    function, said = (
        BACKEND.operations()["cupyx.scipy.ndimage.find_objects"],
        "this filter or label",
    )
    refused(*((ValueError, said, lambda x=x: function(np.asarray(x)))
              for x in (1 << 62, -(1 << 62), [1, (1 << 63) - 1])))  # fmt: skip
    refused((ValueError, said, lambda: function(np.ones(3, int), max_label=1 << 62)))
    assert function(np.asarray([1, 0, 1])) == [(slice(0, 3, None),)]
