"""Callbacks of transforms on emulated GPUs: the steps of each element, before and after."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from typing import Any

import door_kit
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="no C++ compiler here")

LOAD = """
#include <cufftXt.h>
__device__ cufftDoubleComplex load(
    void *in, unsigned long long at, void *by, void *shared) {
  cufftDoubleComplex x = ((cufftDoubleComplex *)in)[at];
  x.x *= ((double *)by)[at % 3];
  return x;
}
__device__ cufftJITCallbackLoadZ d_loadCallbackPtr = load;
"""
STORE = """
__device__ void store(
    void *out, unsigned long long at, cufftDoubleComplex x, void *info, void *shared) {
  x.y /= 4;
  ((cufftDoubleComplex *)out)[at] = x;
}
"""
FACTORS = np.array([1.0, 2, 3])


def loaded(a: Any) -> Any:
    """Return a dense array after the load callback."""
    return a.real * np.resize(FACTORS, a.shape) + 1j * a.imag


def stored(a: Any) -> Any:
    """Return a result after the store callback."""
    return a.real + 0.25j * a.imag


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("name", ["fft", "ifft", "fftn", "ifft2"])
def test_elements_go_through_callbacks(cp: Any, name: str, norm: Any) -> None:
    random = np.random.default_rng(1)
    a = random.random((4, 6)) + 1j * random.random((4, 6))
    factors = cp.asarray(FACTORS)
    with cp.fft.config.set_cufft_callbacks(
        cb_load=LOAD, cb_store=STORE, cb_load_data=factors.data, cb_ver="jit"
    ):
        made = getattr(cp.fft, name)(cp.asarray(a), norm=norm)
    assert np.allclose(made.get(), stored(getattr(np.fft, name)(loaded(a), norm=norm)))
    plain = getattr(cp.fft, name)(cp.asarray(a), norm=norm)
    assert np.allclose(plain.get(), getattr(np.fft, name)(a, norm=norm))


def test_what_is_read_alone_is_transformed_to_the_last_bit(cp: Any) -> None:
    """CuPy's example compares the two closely, in single precision."""
    whole = """__device__ cufftComplex whole(void *in, unsigned long long at, void *, void *) {
        return ((cufftComplex *)in)[at]; }"""
    a = cp.asarray(np.random.default_rng(3).random((30, 7)).astype("F"))
    for name in ("ifft", "irfft", "fft"):
        with cp.fft.config.set_cufft_callbacks(
            cb_load=whole, cb_load_name="whole", cb_load_data=a.data, cb_ver="jit"
        ):
            made = getattr(cp.fft, name)(a)
        assert np.array_equal(made.get(), getattr(cp.fft, name)(a).get())


@pytest.mark.parametrize(("n", "axis"), [(4, 0), (9, 1), (None, 0)])
def test_an_array_is_cut_or_padded_before_it_is_read(cp: Any, n: Any, axis: int) -> None:
    a = np.arange(30.0).reshape(5, 6) + 1j
    factors = cp.asarray(FACTORS)
    length = a.shape[axis] if n is None else n
    held = np.zeros([length if at == axis else size for at, size in enumerate(a.shape)], complex)
    part = tuple(slice(min(mine, other)) for mine, other in zip(a.shape, held.shape, strict=True))
    held[part] = a[part]
    dense = loaded(np.ascontiguousarray(np.moveaxis(held, axis, -1)))
    wanted = np.moveaxis(np.fft.fft(dense), -1, axis)
    with cp.fft.config.set_cufft_callbacks(cb_load=LOAD, cb_load_data=factors.data, cb_ver="jit"):
        made = cp.fft.fft(cp.asarray(a), n, axis)
    assert np.allclose(made.get(), wanted)


@pytest.mark.slow  # a compilation for each
@pytest.mark.parametrize(
    ("name", "char"),
    [(name, char) for name in ("rfft", "rfftn") for char in "fd"]
    + [(name, char) for name in ("irfft", "irfftn") for char in "FD"],
)
def test_real_transforms(cp: Any, name: str, char: str) -> None:
    real, double = char in "fd", char in "dD"
    kind = {"f": "cufftReal", "d": "cufftDoubleReal", "F": "cufftComplex"}.get(
        char, "cufftDoubleComplex"
    )
    element = "x" if real else "x.x"
    load = f"""__device__ {kind} twice(void *in, unsigned long long at, void *, void *) {{
        {kind} x = (({kind} *)in)[at]; {element} *= 2; return x; }}"""
    a = np.random.default_rng(2).random((3, 4)).astype(char)
    with cp.fft.config.set_cufft_callbacks(cb_load=load, cb_load_name="twice", cb_ver="jit"):
        made = getattr(cp.fft, name)(cp.asarray(a))
    assert made.dtype == np.dtype(("D" if double else "F") if real else ("d" if double else "f"))
    assert np.allclose(made.get(), getattr(np.fft, name)(2 * a), rtol=1e-4)


def test_errors_of_callbacks(cp: Any) -> None:
    config = cp.fft.config
    cases: list[tuple[Any, type[Exception], str]] = [
        (lambda: config.set_cufft_callbacks(LOAD, cb_ver="new"), ValueError, "cb_ver must be"),
        (lambda: config.set_cufft_callbacks(cb_ver="jit"), ValueError, "either cb_load or"),
        (lambda: config.set_cufft_callbacks("x", cb_ver="jit"), ValueError, "give cb_load_name"),
        (
            lambda: config.set_cufft_callbacks(LOAD, cb_store_data=cp.zeros(1).data, cb_ver="jit"),
            ValueError,
            "without cb_store",
        ),
        (
            lambda: config.set_cufft_callbacks(LOAD, cb_load_data=cp.zeros(1), cb_ver="jit"),
            TypeError,
            "must be a MemoryPointer",
        ),
    ]
    for call, kind, says in cases:
        with pytest.raises(kind, match=says):
            call()
    with (
        pytest.warns(DeprecationWarning, match="legacy callback"),
        config.set_cufft_callbacks("__device__ int wrong(void *in)"),
        pytest.raises(cp.cuda.compiler.CompileException),
    ):
        cp.fft.fft(cp.zeros(3))
    assert config.get_current_callback_manager() is None
    with (
        config.set_cufft_callbacks(LOAD, cb_ver="jit"),
        pytest.raises(ValueError, match="no callbacks go with 'hfft'"),
    ):
        cp.fft.hfft(cp.zeros(3, dtype=complex))
