"""Plans of Fourier transforms: made and checked as CuPy does, and without effect on values."""

import threading
from typing import Any

import numpy as np
import pytest
from door_cases import cupyx, package, refused

pack = package("scipy.fftpack")


def test_a_transform_of_a_plan_has_its_values(cp: Any, pack: Any) -> None:
    host: Any = np.random.default_rng(1).random((4, 6)).astype("D")
    a = cp.asarray(host)
    whole, rows = pack.get_fft_plan(a), pack.get_fft_plan(a, axes=1)
    assert isinstance(whole, cp.cuda.cufft.PlanNd)
    assert isinstance(rows, cp.cuda.cufft.Plan1d)
    with whole:
        assert np.allclose(cp.fft.fftn(a).get(), np.fft.fftn(host))
    with rows:
        assert np.allclose(cp.fft.fft(a).get(), np.fft.fft(host))
    assert np.allclose(pack.fftn(a, plan=whole).get(), np.fft.fftn(host))
    assert np.allclose(cupyx("scipy.fft").ifft(a, plan=rows).get(), np.fft.ifft(host))
    real = cp.asarray(host.real)
    with pack.get_fft_plan(real, value_type="R2C"):
        assert np.allclose(cp.fft.rfftn(real).get(), np.fft.rfftn(host.real))
    with pack.get_fft_plan(a, (4, 9), value_type="C2R"):
        assert np.allclose(cp.fft.irfftn(a, (4, 9)).get(), np.fft.irfftn(host, (4, 9), (0, 1)))
    assert cp.cuda.cufft.get_current_plan() is None


def test_another_transform_in_the_block_is_refused(cp: Any, pack: Any) -> None:
    a, fft, other = cp.ones((4, 6), "D"), cp.fft, "another type of numbers or of transform"
    with pack.get_fft_plan(a, axes=1):
        refused(
            (ValueError, "size does not match", lambda: fft.fft(a, 7)),
            (ValueError, "transforms at once: 4 and 2", lambda: fft.fft(a[:2])),
            (ValueError, other, lambda: fft.fft(a.astype("F"))),
            (ValueError, other, lambda: fft.rfft(a.real)),
        )


def test_plans_that_cufft_does_not_have_are_refused(cp: Any, pack: Any) -> None:
    a = cp.ones((2, 3, 4), "D")
    plan, make = pack.get_fft_plan(a), pack.get_fft_plan
    refused(
        (ValueError, "has no plan over axes", lambda: make(a, axes=(0, 2))),
        (ValueError, "shape has 2 lengths", lambda: make(a, axes=(1,), shape=(3, 4))),
        (ValueError, "axis 5 is out of bounds", lambda: make(a, axes=5)),
        (ValueError, "value_type", lambda: make(a, value_type="none")),
        (ValueError, "contiguous", lambda: make(a[:, ::2])),
        (ValueError, "do not match", lambda: pack.fftn(cp.ones((2, 3, 5), "D"), plan=plan)),
    )
    with plan, pytest.raises(RuntimeError, match="Use the cuFFT plan either as"):
        pack.fftn(a, plan=plan)


def test_two_threads_use_one_plan_at_the_same_time(cp: Any, pack: Any) -> None:
    current = cp.cuda.cufft.get_current_plan
    inner, outer = (pack.get_fft_plan(cp.ones(size, complex)) for size in (8, 16))
    found: list[Any] = []

    def other() -> None:
        with inner:
            found.append(current())
        found.append(current())

    with outer:
        with inner:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(20)
            found.append(current())
        found.append(current())
    assert [*found, current()] == [inner, None, inner, outer, None]


def test_the_plans_of_a_device_are_limited(cp: Any) -> None:
    cache = cp.fft.config.get_plan_cache()
    cache.clear()
    cache.set_size(2)
    try:
        assert (cache.get_curr_size(), cache.get_size()) == (0, 2)  # an emulated GPU keeps none
        with cp.cuda.Device(1):
            assert cp.fft.config.get_plan_cache_size() == 16
        cache.set_memsize(64)
        assert cache.get_memsize() == 64
        with pytest.raises(ValueError, match="invalid"):
            cache.set_size(-2)
    finally:
        cache.set_memsize(-1)
        cache.set_size(16)


def test_settings_of_several_gpus_change_no_value(cp: Any) -> None:
    config, host = cp.fft.config, np.arange(64) + 1j
    config.use_multi_gpus = True
    try:
        config.set_cufft_gpus([1, 0])
        assert np.allclose(cp.fft.fft(cp.asarray(host)).get(), np.fft.fft(host))
    finally:
        config.use_multi_gpus = False
