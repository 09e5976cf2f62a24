"""`cupyx.scipy`: whole functions that the worker's CuPy runs, here SciPy on an emulated GPU.

Answers never lie: a result comes as its own type, or its call raises, and the session lives.
"""

import importlib
import inspect
import random
import warnings
from collections.abc import Callable
from typing import Any

import door_calls
import door_kit
import numpy as np
import pytest
from door_cases import close, cupyx, junk, refused

from gpupool.remoting.array_api.server.array_results import Answer
from gpupool.remoting.devices import extensions
from gpupool.remoting.devices.base import UnsupportedError
from gpupool.remoting.devices.conventions.extension_conventions import REAL
from gpupool.remoting.devices.emulated import EmulatedBackend
from gpupool.remoting.devices.extension_names import EXTENSIONS

pytest.importorskip("scipy")

HOST = np.random.RandomState(3).rand(12, 12)
LABELS = np.random.RandomState(4).randint(0, 4, (12, 12)).astype(np.int32)


def scipys(path: str) -> Any:
    return importlib.import_module(f"scipy.{path}")


def test_what_is_absent_says_what_to_do(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    filtered = cupyx("scipy.ndimage").gaussian_filter
    refused(
        (AttributeError, "no such name either", lambda: cupyx("scipy.signal").ShortTimeFFT),
        (ModuleNotFoundError, "no such name either", lambda: cupyx("scipy.optimize")),
        (AttributeError, "--door cuda", lambda: cp.ones(3).mdspan),
        (TypeError, "function", lambda: filtered(cp.ones(3), lambda x: x)),
        (
            NotImplementedError,
            r"an emulated GPU lacks the functions of cupyx\.signal",
            lambda: cupyx("signal").freq_shift(cp.ones(3), 1.0, 2.0),
        ),
    )

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(extensions.importlib, "import_module", missing)
    erf = extensions.emulated_extensions()["cupyx.scipy.special.erf"]
    refused((UnsupportedError, "by SciPy, which its server lacks", lambda: erf(1.0)))


def test_a_function_is_timed_here_and_on_the_device(cp: Any) -> None:
    profiler: Any = cupyx("profiler")
    calls: list[Any] = []

    def add(value: Any, *, times: int) -> None:
        calls.append(value + times)

    given: Any = ((cp.ones(3),), {"times": 2})
    made = profiler.benchmark(add, *given, n_repeat=4, n_warmup=3, devices=(0, 1))
    assert len(calls) == 7
    assert (made.cpu_times.shape, made.gpu_times.shape) == ((4,), (2, 4))
    assert (made.cpu_times > 0).all()
    assert "add" in str(made)
    assert "GPU-1" in str(made)
    assert len(profiler.benchmark(calls.clear, n_repeat=9, max_duration=0).cpu_times) == 1
    refused((ValueError, "callable", lambda: profiler.benchmark(3)))
    with profiler.profile(), profiler.time_range("part", sync=True):
        calls.append(1)
    assert calls == [1]


def test_packages_follow_their_arguments(cp: Any) -> None:
    scipy, theirs = cupyx("scipy"), scipys("fft")
    assert scipy.get_array_module(cp.ones(1)) is scipy
    assert scipy.get_array_module(np.ones(1)) is importlib.import_module("scipy")
    with theirs.set_backend(cupyx("scipy.fft"), only=True):
        assert isinstance(theirs.dct(cp.ones(4)), cp.ndarray)


# --- outputs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["scipy.ndimage", "scipy.special"])
def test_places_of_outputs_are_those_of_scipy(cp: Any, path: str) -> None:
    del cp
    module = importlib.import_module(path)
    for name, (_, place) in EXTENSIONS[path].items():
        function = getattr(module, name, None)
        if isinstance(function, np.ufunc):
            wanted = function.nin if function.nout == 1 else -1
        elif function is None:
            continue  # newer versions of SciPy have it no more
        else:
            names = list(inspect.signature(function).parameters)
            wanted = next((names.index(each) for each in ("output", "out") if each in names), -1)
        assert place == wanted, name


def test_an_output_is_written_with_and_without_a_keyword(cp: Any) -> None:
    """It was given to the worker as an argument like others, and nothing was written."""
    a, ndimage = cp.asarray(HOST), cupyx("scipy.ndimage")
    for path, call in (
        ("ndimage", lambda m, x, out: m.shift(x, 1.5, out, 1)),
        ("ndimage", lambda m, x, out: m.zoom(x, 1.0, out, 1)),
        ("ndimage", lambda m, x, out: m.laplace(x, out)),
        ("ndimage", lambda m, x, out: m.rotate(x, 30, (1, 0), False, out)),
        ("ndimage", lambda m, x, out: m.shift(x, 1.5, output=out)),
        ("special", lambda m, x, out: m.erf(x, out)),
    ):
        output, wanted = cp.zeros_like(a), np.zeros_like(HOST)
        assert call(cupyx(f"scipy.{path}"), a, output) is output
        call(scipys(path), HOST, wanted)
        close(output, wanted)
    labels = cp.zeros(a.shape, np.int32)
    wanted, count = scipys("ndimage").label(HOST > 0.5)
    assert ndimage.label(a > 0.5, None, labels) == ndimage.label(a > 0.5, output=labels) == count
    close(labels, wanted)


@pytest.mark.parametrize("dtype", ["i2", "u4", "i8"])
def test_a_distance_transform_writes_arrays_of_the_program(cp: Any, dtype: str) -> None:
    transform = cupyx("scipy.ndimage").distance_transform_edt
    image = cp.asarray(HOST > 0.2)
    wanted, places = transform(image, None, True, True)
    assert float(wanted.sum()) > 0
    distances, indices = cp.empty(image.shape), cp.empty((2, 12, 12), dtype)
    transform(image, distances=distances)
    close(distances, wanted.get())
    transform(image, return_distances=False, return_indices=True, indices=indices)
    close(indices, places.get())
    assert transform(image, block_params=(1, 1, 1)).dtype == np.float64
    assert transform(image, float64_distances=False).dtype == np.float32


# --- CuPy's conventions ---------------------------------------------------------------------------


def test_what_scipy_computes_by_another_convention_is_refused(cp: Any) -> None:
    signal, linalg, fft = (cupyx(f"scipy.{name}") for name in ("signal", "linalg", "fft"))
    transform = cupyx("scipy.ndimage").distance_transform_edt
    b, a, x = cp.asarray([1.0, 0.5]), cp.asarray([1.0, -0.2]), cp.ones(3)
    lower = cp.asarray(np.tril(np.ones((2, 2, 2))))
    vectors = cp.asarray([[1.0, 3.0], [2.0, 2.0]])
    close(signal.lfilter(b, a, x), np.array([1, 1.7, 1.84]))
    assert linalg.solve_triangular(lower, vectors, lower=True).tolist() == [[1, 2], [2, 0]]
    image, both = cp.ones((512, 512), bool), {"return_distances": False, "return_indices": True}
    sections, rows = cp.ones((1, 6)), cp.zeros((1, 2))
    whole, small = cp.empty(image.shape, "i4"), cp.empty((2, 512, 512), "i1")
    refused(
        (NotImplementedError, "CuPy", lambda: fft.dct(x, type=1)),
        (NotImplementedError, "CuPy", lambda: fft.idst(x, 4).get()),
        (NotImplementedError, "hfft with a plan", lambda: fft.hfft(x, plan="any")),
        (ValueError, "zi: its shape", lambda: signal.lfilter(b, a, x, zi=cp.asarray([0.3]))),
        (ValueError, "zi: its shape", lambda: signal.sosfilt(sections, x, zi=rows)),
        (ValueError, "incompatible", lambda: linalg.solve_triangular(lower, vectors[0])),
        (np.linalg.LinAlgError, "", lambda: linalg.bandwidth(cp.ones(3))),
        (NotImplementedError, "", lambda: transform(cp.zeros(8))),
        (RuntimeError, "", lambda: transform(image, distances=cp.empty(3))),
        (RuntimeError, "", lambda: transform(image, distances=whole)),
        (RuntimeError, "", lambda: transform(image, distances=whole.astype("d"), **both)),
        (RuntimeError, "", lambda: transform(image, indices=small, **both)),
    )


def test_real_transforms_of_fftpack_give_what_scipy_gives(cp: Any) -> None:
    ours, theirs, host = cupyx("scipy.fftpack"), scipys("fftpack"), HOST[:5, :7]
    for axis in (0, 1):
        for n in (None, 1, 2, 4, 5, 8, 9):
            for name in ("rfft", "irfft"):
                made = getattr(ours, name)(cp.asarray(host), n, axis)
                close(made, getattr(theirs, name)(host, n, axis), 1e-5, 1e-8)
    assert ours.rfft(cp.ones(4, "f")).dtype == ours.irfft(cp.ones(4, "f")).dtype == np.float32
    fft, x = cupyx("scipy.fft"), cp.ones(9, "e")
    plan = fft.get_fft_plan(cp.ones(9, "F"), value_type="C2R")
    assert fft.irfft(x, plan=plan).dtype == fft.irfft(x).dtype == np.float32
    # A fast length has the factors of cuFFT.
    lengths = {0: 0, 1: 1, 11: 12, 13: 14, 97: 98, 121: 125, 1021: 1024}
    assert {n: fft.next_fast_len(n) for n in lengths} == lengths


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_bandwidth_of_any_type(cp: Any, dtype: str, order: str) -> None:
    banded = np.tri(9, 7, 2, bool) & ~np.tri(9, 7, -4, bool)
    of = cupyx("scipy.linalg").bandwidth
    assert tuple(of(cp.asarray(banded.astype(dtype), order=order))) == (3, 2)
    assert tuple(of(cp.zeros((3, 3), dtype))) == (0, 0)


@pytest.mark.parametrize("name", ["sum", "sum_labels", "mean", "variance", "standard_deviation"])
def test_statistics_take_arrays_of_the_gpu_alone(cp: Any, name: str) -> None:
    ndimage: Any = cupyx("scipy.ndimage")
    function, centre = getattr(ndimage, name), ndimage.center_of_mass
    image, labels, index = cp.asarray(HOST), cp.asarray(LABELS), cp.asarray([1, 2])
    assert function(image, labels, index).shape == (2,)
    assert function(image, labels, 1).shape == ()
    for args in ((HOST, labels, index), (image, LABELS, index), (image, labels, [1, 2])):
        refused(*[(TypeError, r"must be cupy\.ndarray", lambda f=f, args=args: f(*args))
                  for f in (function, centre)])  # fmt: skip


def test_results_of_images_are_cupys(cp: Any) -> None:
    ndimage: Any = cupyx("scipy.ndimage")
    image, labels = cp.arange(400).reshape(20, 20), cp.arange(400).reshape(20, 20) // 4
    made = ndimage.maximum_position(image, labels, cp.arange(1, 100))
    assert (made[0], len(made)) == ((0, 7), 99)
    assert [int(each) for each in ndimage.extrema(image)[2]] == [0, 0]
    bins = ndimage.histogram(image, 0, 400, 4, labels // 50, cp.asarray([0, 1]))
    assert cp.stack(bins).tolist() == [[100, 100, 0, 0], [0, 0, 100, 100]]
    cross = cp.asarray([[0, 1, 0], [1, 1, 1], [0, 1, 0]])
    for made, origin in (
        ndimage.iterate_structure(cross, 2, 1),
        ndimage.iterate_structure(cross, 2, origin=1),
    ):
        assert origin == [2, 2]
        close(made, ndimage.iterate_structure(cross, 2).get())
    # Those of real GPUs are numbers too: an answer has room for 64 arrays.
    found = [(np.int64(at), np.int64(2)) for at in range(100)]
    position = REAL["scipy.ndimage.maximum_position"](lambda: found)
    assert position() == [(at, 2) for at in range(100)]
    assert {type(each) for pair in position() for each in pair} == {int}
    extrema = REAL["scipy.ndimage.extrema"](lambda: (1.0, 2.0, found, found[3]))
    assert [type(each) for each in extrema()[3]] == [int, int]


def test_signals_take_either_name_of_a_type_and_a_polynomial(cp: Any) -> None:
    signal, theirs, times = cupyx("scipy.signal"), scipys("signal"), np.linspace(0, 3, 50)
    for dtype in (np.longlong, np.int64):
        assert signal.medfilt(cp.asarray(np.arange(10).astype(dtype)), 3).dtype == np.int64
    made = signal.sweep_poly(cp.asarray(times), cp.poly1d([1.0, 0.0, 1.0]))
    close(made, theirs.sweep_poly(times, np.poly1d([1.0, 0.0, 1.0])))


def test_elements_of_a_type_that_no_gpu_has_are_an_error_of_the_call(cp: Any) -> None:
    """The client ended the session at the description of such an array."""
    ndimage: Any = cupyx("scipy.ndimage")
    for call in (lambda: ndimage.laplace(None), lambda: ndimage.iterate_structure("", 1)):
        refused((TypeError, "elements of type", lambda: cp.asnumpy(call())))  # noqa: B023
    assert cp.ones(2).tolist() == [1, 1]


# --- any arguments --------------------------------------------------------------------------------

OTHERWISE = frozenset(
    (
        # CuPy's conventions, which the emulation has adapters for.
        *("lfilter", "sosfilt", "lfilter_zi", "sosfilt_zi", "lfiltic", "solve_triangular"),
        *("dct", "dst", "idct", "idst", "affine_transform", "distance_transform_edt"),
        *("binary_erosion", "binary_dilation", "binary_opening", "binary_closing"),
        *EXTENSIONS["scipy.spatial.distance"],
    )
)


def needed(function: Any) -> int:
    """Return how many arguments a function cannot do without."""
    if isinstance(function, np.ufunc):
        return function.nin
    if inspect.isbuiltin(function):  # it says nothing of its parameters
        return 3
    parameters = inspect.signature(function).parameters.values()
    free = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL)
    return sum(each.default is each.empty and each.kind not in free for each in parameters)


def outcome(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
        try:
            made = call()
            return list(made.values()) if isinstance(made, dict) else made
        except Exception as error:  # noqa: BLE001 - any error will do
            return error


@pytest.mark.parametrize("path", EXTENSIONS)
def test_any_call_gives_what_scipy_gives_or_raises_and_the_session_lives(
    cp: Any, path: str
) -> None:
    session, draw = cp._door.pool.current(), random.Random(path)
    kinds = (TypeError, ValueError, NotImplementedError, MemoryError, OverflowError)
    for name in EXTENSIONS[path]:
        theirs: Any = getattr(importlib.import_module(path), name, None)
        ours = cupyx(path)
        for _ in range(2 if theirs is not None else 0):  # newer versions of SciPy lack some
            host = [junk(draw) for _ in range(needed(theirs))]
            given = [cp.asarray(each) if isinstance(each, np.ndarray) else each for each in host]
            made = outcome(lambda: (getattr(ours, name)(*given), session.synchronize())[0])  # noqa: B023
            assert session.failure is None, (name, host)
            if name in OTHERWISE or isinstance(made, kinds):
                continue  # at what is refused here, SciPy alone may end the process
            wanted = outcome(lambda: theirs(*host))  # noqa: B023
            if isinstance(made, Exception):
                assert isinstance(wanted, Exception), (name, host, made)
            else:
                assert not door_calls.difference(made, wanted), (name, host)


class RealLike(EmulatedBackend):
    """A backend with arrays that are no NumPy scalars, as on a real GPU."""

    def is_array(self, value: Any) -> bool:
        """Say whether a value is an array of the device."""
        return isinstance(value, np.ndarray)


BACKEND = RealLike(door_kit.emulated(1, 1 << 20), door_kit.MemoryBudget([1 << 20]))


def test_slices_dictionaries_tuples_and_lists_stay_what_they_are(cp: Any) -> None:
    labels = np.asarray([[1, 0, 2], [1, 0, 2], [0, 0, 0], [4, 4, 0]])
    found = cupyx("scipy.ndimage").find_objects(cp.asarray(labels))
    assert found == scipys("ndimage").find_objects(labels)
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
    special = scipys("special")
    assert type(made) is tuple
    close(list(made), list(special.logsumexp(values, b=weights, return_sign=True)))
    ours, theirs = cupyx("scipy.ndimage"), scipys("ndimage")
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
    function = BACKEND.operations()["cupyx.scipy.ndimage.find_objects"]
    said = "this filter or label"
    refused(*((ValueError, said, lambda x=x: function(np.asarray(x)))
              for x in (1 << 62, -(1 << 62), [1, (1 << 63) - 1])))  # fmt: skip
    refused((ValueError, said, lambda: function(np.ones(3, int), max_label=1 << 62)))
    assert function(np.asarray([1, 0, 1])) == [(slice(0, 3, None),)]
