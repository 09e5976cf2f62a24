"""`cupyx.scipy`: whole functions that the worker's CuPy runs, here SciPy on an emulated GPU."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
import inspect
from typing import Any

import numpy as np
import pytest

from gpupool.remoting.devices import extensions
from gpupool.remoting.devices.base import UnsupportedError
from gpupool.remoting.devices.extension_names import EXTENSIONS

pytest.importorskip("scipy")

HOST = np.random.RandomState(3).rand(12, 12)


def of(cp: Any, path: str) -> Any:
    """Return a sub-package of the drop-in, which the fixture has imported."""
    del cp
    return importlib.import_module(f"cupyx.{path}")


@pytest.mark.parametrize(
    ("path", "call"),
    [
        ("scipy.ndimage", lambda m, a: m.gaussian_filter(a, 2)),
        ("scipy.ndimage", lambda m, a: m.convolve(a, np.ones((3, 3)), mode="wrap")),
        ("scipy.ndimage", lambda m, a: m.label(a > 0.5)),
        ("scipy.ndimage", lambda m, a: m.sum_labels(a)),
        ("scipy.ndimage", lambda m, a: m.center_of_mass(a)),
        ("scipy.signal", lambda m, a: m.convolve(a, a, mode="same")),
        ("scipy.signal", lambda m, _a: m.butter(4, 0.2)),
        ("scipy.signal", lambda m, a: m.find_peaks(a.ravel())[0]),
        ("scipy.signal", lambda m, a: m.stft(a.ravel(), nperseg=32)),
        ("scipy.signal.windows", lambda m, _a: m.hann(9)),
        ("scipy.special", lambda m, a: m.erf(a)),
        ("scipy.special", lambda m, a: m.sici(a)),
        ("scipy.fft", lambda m, a: m.dctn(a, norm="ortho")),
        ("scipy.fft", lambda m, _a: m.next_fast_len(97)),
        ("scipy.linalg", lambda m, a: m.lu(a)),
        ("scipy.linalg", lambda m, a: m.solve_triangular(a, a[0], lower=True)),
        ("scipy.stats", lambda m, a: m.zscore(a)),
        ("scipy.interpolate", lambda m, a: m.krogh_interpolate(a[0], a[1], a[2])),
    ],
)
def test_a_function_gives_what_scipy_gives(cp: Any, path: str, call: Any) -> None:
    wanted = call(importlib.import_module(path), HOST)
    made = call(of(cp, path), cp.asarray(HOST))
    pairs = zip(made, wanted, strict=True) if isinstance(wanted, tuple) else [(made, wanted)]
    for one, other in pairs:
        assert np.allclose(cp.asnumpy(one), other)


def test_a_result_is_written_where_the_program_says(cp: Any) -> None:
    ndimage = of(cp, "scipy.ndimage")
    out = cp.zeros_like(cp.asarray(HOST))
    assert ndimage.uniform_filter(cp.asarray(HOST), 3, output=out) is out
    assert float(out.sum()) > 0


def test_what_is_absent_says_what_to_do(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AttributeError, match="no such name either"):
        of(cp, "scipy.signal").ShortTimeFFT  # noqa: B018 - the look is the test
    with pytest.raises(ModuleNotFoundError, match="no such name either"):
        of(cp, "scipy.optimize")
    with pytest.raises(AttributeError, match="--door cuda"):
        cp.ones(3).mdspan  # noqa: B018 - the look is the test
    with pytest.raises(TypeError, match="function"):
        of(cp, "scipy.ndimage").gaussian_filter(cp.ones(3), lambda x: x)

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(extensions.importlib, "import_module", missing)
    with pytest.raises(UnsupportedError, match="by SciPy, which its server lacks"):
        extensions.emulated_extensions()["cupyx.scipy.special.erf"](1.0)


def test_what_scipy_lacks_is_refused_with_the_reason(cp: Any) -> None:
    with pytest.raises(
        NotImplementedError, match=r"an emulated GPU lacks the functions of cupyx\.signal"
    ):
        importlib.import_module("cupyx.signal").freq_shift(cp.ones(3), 1.0, 2.0)


def test_the_package_follows_its_arguments(cp: Any) -> None:
    scipy = of(cp, "scipy")
    assert scipy.get_array_module(cp.ones(1)) is scipy
    assert scipy.get_array_module(np.ones(1)) is importlib.import_module("scipy")


def test_a_function_is_timed_here_and_on_the_device(cp: Any) -> None:
    profiler: Any = importlib.import_module("cupyx.profiler")
    calls: list[Any] = []
    a = cp.ones(3)

    def add(value: Any, *, times: int) -> None:
        calls.append(value + times)

    made = profiler.benchmark(add, (a,), {"times": 2}, n_repeat=4, n_warmup=3, devices=(0, 1))
    assert len(calls) == 7
    assert made.cpu_times.shape == (4,)
    assert made.gpu_times.shape == (2, 4)
    assert (made.cpu_times > 0).all()
    assert "add" in str(made)
    assert "GPU-1" in str(made)
    assert len(profiler.benchmark(calls.clear, n_repeat=9, max_duration=0).cpu_times) == 1
    with pytest.raises(ValueError, match="callable"):
        profiler.benchmark(3)
    with profiler.profile(), profiler.time_range("part", sync=True):
        calls.append(1)
    assert calls == [1]


def test_what_scipy_computes_by_another_convention_is_refused_or_made_cupys(cp: Any) -> None:
    signal, linalg = of(cp, "scipy.signal"), of(cp, "scipy.linalg")
    b, a, x = cp.asarray([1.0, 0.5]), cp.asarray([1.0, -0.2]), cp.ones(3)
    assert np.allclose(signal.lfilter(b, a, x).get(), [1, 1.7, 1.84])
    for call in (
        lambda: of(cp, "scipy.fft").dct(x, type=1),
        lambda: of(cp, "scipy.fft").idst(x, 4).get(),
    ):
        with pytest.raises(NotImplementedError, match=r"CuPy"):
            call()
    for call in (
        lambda: signal.lfilter(b, a, x, zi=cp.asarray([0.3])),
        lambda: signal.sosfilt(cp.ones((1, 6)), x, zi=cp.zeros((1, 2))),
    ):
        with pytest.raises(ValueError, match="zi: its shape"):
            call()
    lower = cp.asarray(np.tril(np.ones((2, 2, 2))))
    vectors = cp.asarray([[1.0, 3.0], [2.0, 2.0]])
    assert linalg.solve_triangular(lower, vectors, lower=True).tolist() == [[1, 2], [2, 0]]
    with pytest.raises(ValueError, match="incompatible"):
        linalg.solve_triangular(lower, vectors[0], lower=True)


def test_distances_take_cupys_keywords(cp: Any) -> None:
    image = cp.asarray([[1, 1, 0], [1, 1, 1]])
    edt = of(cp, "scipy.ndimage").distance_transform_edt
    assert edt(image, block_params=(1, 1, 1)).dtype == np.float64
    assert edt(image, float64_distances=False).dtype == np.float32


def test_real_transforms_of_fftpack_give_what_scipy_gives(cp: Any) -> None:
    ours, theirs = of(cp, "scipy.fftpack"), importlib.import_module("scipy.fftpack")
    host = HOST[:5, :7]
    for axis in (0, 1):
        for n in (None, 1, 2, 4, 5, 8, 9):
            for name in ("rfft", "irfft"):
                made = getattr(ours, name)(cp.asarray(host), n, axis)
                wanted = getattr(theirs, name)(host, n, axis)
                assert made.shape == wanted.shape
                assert np.allclose(made.get(), wanted), (name, n, axis)
    assert ours.rfft(cp.ones(4, "f")).dtype == ours.irfft(cp.ones(4, "f")).dtype == np.float32


def test_the_module_of_transforms_is_a_backend_of_scipy(cp: Any) -> None:
    fft = of(cp, "scipy.fft")
    theirs: Any = importlib.import_module("scipy.fft")
    with theirs.set_backend(fft, only=True):
        assert isinstance(theirs.dct(cp.ones(4)), cp.ndarray)


def test_a_plan_of_half_precision_computes_in_single_and_hermitian_ones_take_none(cp: Any) -> None:
    fft = of(cp, "scipy.fft")
    x = cp.ones(9, "e")
    plan = fft.get_fft_plan(cp.ones(9, "F"), value_type="C2R")
    assert fft.irfft(x, plan=plan).dtype == fft.irfft(x).dtype == np.float32
    with pytest.raises(NotImplementedError, match="hfft with a plan"):
        fft.hfft(x, plan="any")


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


def test_an_output_without_a_keyword_is_written(cp: Any) -> None:
    """It was given to the worker as an argument like others, and nothing was written."""
    ndimage, special = of(cp, "scipy.ndimage"), of(cp, "scipy.special")
    a, theirs = cp.asarray(HOST), importlib.import_module("scipy.ndimage")
    for call in (
        lambda m, x, out: m.shift(x, 1.5, out, 1),
        lambda m, x, out: m.zoom(x, 1.0, out, 1),
        lambda m, x, out: m.laplace(x, out),
        lambda m, x, out: m.rotate(x, 30, (1, 0), False, out),
        lambda m, x, out: m.shift(x, 1.5, output=out),
    ):
        output, wanted = cp.zeros_like(a), np.zeros_like(HOST)
        assert call(ndimage, a, output) is output
        call(theirs, HOST, wanted)
        np.testing.assert_allclose(cp.asnumpy(output), wanted)
    output = cp.zeros_like(a)
    assert special.erf(a, output) is output
    np.testing.assert_allclose(
        cp.asnumpy(output), importlib.import_module("scipy.special").erf(HOST)
    )
    labels = cp.zeros(a.shape, np.int32)
    wanted, count = theirs.label(HOST > 0.5)
    assert ndimage.label(a > 0.5, None, labels) == count
    assert ndimage.label(a > 0.5, output=labels) == count
    np.testing.assert_array_equal(cp.asnumpy(labels), wanted)


def test_elements_of_a_type_that_no_gpu_has_are_an_error_of_the_call(cp: Any) -> None:
    """The client ended the session at the description of such an array."""
    ndimage = of(cp, "scipy.ndimage")
    for call in (lambda: ndimage.laplace(None), lambda: ndimage.iterate_structure("", 1)):
        with pytest.raises(TypeError, match="elements of type"):
            cp.asnumpy(call())
    assert cp.ones(2).tolist() == [1, 1]
