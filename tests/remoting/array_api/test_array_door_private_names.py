"""Names of private modules, of `cupy.testing` and `cupy.typing`, and advice about missing names."""

import importlib
import importlib.util
import pkgutil
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from door_cases import close, refused

USED = [
    ("cupy._core", "ndarray", "cupy.ndarray"),
    ("cupy._core", "ElementwiseKernel", "cupy.ElementwiseKernel"),
    ("cupy._core.core", "ndarray", "cupy.ndarray"),
    ("cupy._core._kernel", "ElementwiseKernel", "cupy.ElementwiseKernel"),
    ("cupy._core._reduction", "ReductionKernel", "cupy.ReductionKernel"),
    ("cupy._core.raw", "RawModule", "cupy.RawModule"),
    ("cupy._core.fusion", "fuse", "cupy.fuse"),
    ("cupy._core.dlpack", "from_dlpack", "cupy.from_dlpack"),
    ("cupy._core._routines_manipulation", "moveaxis", "cupy.moveaxis"),
    ("cupy._creation.from_data", "asarray", "cupy.asarray"),
    ("cupy._environment", "get_cuda_path", "cupy.cuda.get_cuda_path"),
    ("cupy._util", "memoize", "cupy.memoize"),
    ("cupyx._scatter", "scatter_add", "cupyx.scatter_add"),
    ("cupyx._runtime", "get_runtime_info", "cupyx.get_runtime_info"),
    ("cupyx._rsqrt", "rsqrt", "cupyx.rsqrt"),
]


@pytest.mark.parametrize(("module", "name", "public"), USED)
def test_a_private_module_has_the_public_names(
    cp: Any, module: str, name: str, public: str
) -> None:
    del cp
    home, _, last = public.rpartition(".")
    wanted = getattr(importlib.import_module(home), last)
    assert getattr(importlib.import_module(module), name) is wanted
    package, _, part = module.rpartition(".")
    assert getattr(getattr(importlib.import_module(package), part), name) is wanted


def test_helpers_of_private_modules_do_what_cupys_do(cp: Any) -> None:
    internal: Any = importlib.import_module("cupy._core.internal")
    assert internal._normalize_axis_index(-1, 3) == 2
    assert internal._normalize_axis_indices((2, -3), 3) == (0, 2)
    assert internal._normalize_axis_indices((2, 0), 3, sort_axes=False) == (2, 0)
    assert internal._normalize_axis_indices(None, 2) == (0, 1)
    refused(
        (np.exceptions.AxisError, "", lambda: internal._normalize_axis_index(3, 3)),
        (ValueError, "duplicate", lambda: internal._normalize_axis_indices((0, -2), 2)),
    )
    assert [internal.prod((2, 3)), internal.clp2(5), internal.clp2(8)] == [6, 8, 8]
    assert [internal.get_size(3), internal.get_size(np.array([1, 2]))] == [(3,), (1, 2)]
    typename = cp._core._scalar.get_typename
    assert [typename(kind) for kind in "?lQdF"] == [
        "bool", "long long", "unsigned long long", "double", "thrust::complex<float>",
    ]  # fmt: skip
    headers: set[str] = set()
    assert typename("float16", headers) == "float16"
    assert headers == {'#include "cupy/float16.cuh"'}
    assert issubclass(cp._util.PerformanceWarning, RuntimeWarning)
    with pytest.warns(FutureWarning, match="of a library is experimental"):
        cp._util.experimental("of a library")


def test_libraries_that_cupy_can_do_without_are_not_available(cp: Any) -> None:
    assert cp.cuda.nccl.available is False
    assert importlib.import_module("cupy.cuda.cutensor").available is False
    with pytest.raises(AttributeError, match="CuPy"):
        cp.cuda.nccl.NcclCommunicator  # noqa: B018


OURS = "where CuPy is installed, `gpupool run --door cuda`"
NOBODYS = "CuPy 14.2.0 has no such name either"


@pytest.mark.parametrize(
    ("program", "advice"),
    [
        ("import cupyx.distributed", OURS),
        ("from cupyx import distributed", OURS),
        ("import cupy; cupy.disp", OURS),
        ("from cupy import disp", OURS),
        ("import cupy._core._accelerator", OURS),
        ("from cupy._core import _accelerator", OURS),
        ("import cupy; cupy._nothing", OURS),
        ("import cupy; cupy._util.bf16_loop", OURS),
        ("import cupy; cupy._core.core.nothing", OURS),
        ("import cupy; cupy.geomspace", NOBODYS),
        ("from cupy import spacing", NOBODYS),
        ("import cupy.nothing", NOBODYS),
        ("import cupy; cupy.cuda.runtime.nothing", NOBODYS),
        ("import cupyx.scipy.optimize", NOBODYS),
        ("import cupyx.scipy.special; cupyx.scipy.special.nothing", NOBODYS),
    ],
)
def test_a_missing_name_comes_with_advice_that_is_true(cp: Any, program: str, advice: str) -> None:
    del cp
    with pytest.raises((ImportError, AttributeError)) as caught:
        exec(program, {})
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("import cupyx.jit", ImportError),
        ("import cupyx.jit.thrust", ImportError),
        ("from cupyx.jit import rawkernel", ImportError),
        ("from cupyx import jit; jit.rawkernel()", ImportError),
        ("import cupyx; cupyx.jit.rawkernel()", AttributeError),
        ("from cupyx import GeneralizedUFunc", ImportError),
        ("import cupyx.scipy.signal as s; s.lti", AttributeError),
        ("import cupyx.scipy.signal as s; s.CZT(8)", AttributeError),
        ("from cupyx.scipy.signal import argrelextrema", ImportError),
        ("import cupyx.linalg", ImportError),
        ("from cupy_backends.cuda.libs import cusolver", ImportError),
        ("import cupy; cupy.fft.config.set_cufft_callbacks('')", AttributeError),
        ("import cupy; cupy.cuda.Stream().begin_capture()", AttributeError),
        ("import cupy; cupy.cuda.Graph()", AttributeError),
    ],
)
def test_names_that_are_left_to_cupy_are_refused_with_the_way_to_them(
    cp: Any, program: str, kind: type[Exception]
) -> None:
    assert cp.RawKernel
    with pytest.raises(kind, match="on Linux, where CuPy is installed, `gpupool run --door cuda`"):
        exec(program, {})
    # So what a program does without them goes on.
    assert not hasattr(importlib.import_module("cupyx"), "jit")
    assert importlib.util.find_spec("cupyx.jit") is None


def test_each_module_of_the_dropin_gives_advice(cp: Any) -> None:
    import cupyx  # pyright: ignore[reportMissingImports]

    names = ["cupy", "cupyx"]
    for package in (cp, cupyx):
        found = pkgutil.walk_packages(package.__path__, package.__name__ + ".")
        names += [each.name for each in found if "._" not in each.name]
    assert len(names) > 40
    silent: list[str] = []
    for name in names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module(name)
        with pytest.raises(AttributeError) as caught:
            module.no_such_name  # noqa: B018
        if "CuPy" not in str(caught.value):
            silent.append(name)
    assert not silent


def test_an_attribute_that_python_asks_for_is_missing_without_a_word(cp: Any) -> None:
    with pytest.raises(AttributeError, match=r"'__array_namespace_info__'$"):
        cp.__array_namespace_info__  # noqa: B018


# --- BLAS -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_the_norm_of_blas(cp: Any, dtype: str) -> None:
    blas: Any = importlib.import_module("cupy.cublas")
    x = np.linspace(-1, 2, 7).astype(dtype) * np.asarray(1 - 2j if dtype[0] == "c" else 2, dtype)
    a, value = cp.asarray(x), np.linalg.norm(x)
    outs = (cp.zeros((), value.dtype), np.zeros((), value.dtype))
    assert all(blas.nrm2(a, out=out) is out for out in outs)
    for made in (blas.nrm2(a), *outs):
        assert made.dtype == value.dtype
        close(made, value, 1e-4 if value.dtype == "f4" else 1e-10)
    refused(
        (ValueError, "1D", lambda: blas.nrm2(a[None])),
        (TypeError, "invalid dtype", lambda: blas.nrm2(a.real.astype("f2"))),
        (AttributeError, "leaves BLAS to CuPy itself", lambda: blas.axpy),
        (AttributeError, "leaves BLAS to CuPy itself", lambda: blas.gemm),
    )


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "assert_allclose": ([1.0, 2.1], {"rtol": 0.01}),
    "assert_array_almost_equal": ([1.0, 2.01], {"decimal": 3}),
    "assert_array_almost_equal_nulp": ([1.0, 2.01], {"nulp": 4}),
    "assert_array_max_ulp": ([1.0, 2.01], {"maxulp": 4}),
    "assert_array_equal": ([1.0, 3.0], {}),
    "assert_array_less": ([2.0, 2.0], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_an_assertion_takes_arrays_of_both_kinds(cp: Any, name: str) -> None:
    left, (wrong, keywords) = [1.0, 2.0], CASES[name]
    right = [3.0, 3.0] if name == "assert_array_less" else left
    check: Callable[..., None] = getattr(cp.testing, name)
    for x in (np.asarray(left), cp.asarray(left)):
        for kind in (np, cp):
            check(x, kind.asarray(right), **keywords)
            refused((AssertionError, "", lambda: check(x, kind.asarray(wrong), **keywords)))  # noqa: B023


def test_types_and_strides_are_compared_where_one_asks(cp: Any) -> None:
    whole, real = cp.ones((2, 3), "i4"), cp.ones((2, 3), "f8")
    cp.testing.assert_array_equal(whole, real)
    turned, check = cp.asfortranarray(whole), cp.testing.assert_array_equal
    check(whole, turned)
    strict = AssertionError if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else TypeError
    refused(
        (strict, "", lambda: check(whole, real, strict=True)),
        (AssertionError, "Strides", lambda: check(whole, turned, strides_check=True)),
        (AssertionError, "it says", lambda: check(cp.ones(2), cp.zeros(2), err_msg="it says")),
    )


def test_lists_of_arrays(cp: Any) -> None:
    some, same = [cp.ones(2), np.zeros(3)], [np.ones(2), cp.zeros(3)]
    check = cp.testing.assert_array_list_equal
    check(some, same)
    for other in ([], tuple(same), [np.ones(2), cp.ones(3)]):
        refused((AssertionError, "", lambda: check(some, other)))  # noqa: B023
    refused((AssertionError, "lists or tuples", lambda: check(cp.ones(2), cp.ones(2))))


def test_annotations_and_packages_that_need_no_import(cp: Any) -> None:
    typing = importlib.import_module("cupy.typing")
    assert typing.NDArray[np.float32].__origin__ is cp.ndarray
    assert all((typing.ArrayLike, typing.DTypeLike, typing.NBitBase))
    assert cp.typing is typing
    assert cp.testing.assert_allclose
    cupyx = importlib.import_module("cupyx")
    assert cupyx.scipy.__name__ == "cupyx.scipy"
    assert list(cp.ndindex(2, 1)) == [(0, 0), (1, 0)]
    assert cp.cuda.get_nvcc_path() is None
