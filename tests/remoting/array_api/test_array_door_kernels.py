"""Kernels from source on emulated GPUs: compiled by the worker, and run on the processor.

A compilation takes some tenths of a second of processor time, so most tests share one module.
"""

import io
from pathlib import Path
from typing import Any

import door_kit
import numpy as np
import pytest
from door_cases import refused

pytestmark = pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="no C++ compiler here")

SOURCE = (Path(__file__).parent / "kernels" / "kernels.cu").read_text()
NAMES = ["filled<short>", "filled<complex<float> >", "inner::hidden"]


@pytest.fixture(scope="module")
def module(cp: Any) -> Any:
    return cp.RawModule(code=SOURCE, options=("-std=c++17",), name_expressions=NAMES)


def test_threads_know_their_places(cp: Any, module: Any) -> None:
    launches = cp.ndarray((1,), cp.int32, module.get_global("launches"))
    before = int(launches[0])
    out = cp.zeros(2 * 3 * 2 * 4 * 2 * 2, dtype=cp.int32)
    module.get_function("where")((2, 3, 2), (4, 2, 2), (out,))
    expected = [block * 1000 + thread for block in range(12) for thread in range(16)]
    assert out.get().tolist() == expected
    assert launches.get().tolist() == [before + 1]


def test_a_launch_in_a_stream_leaves_the_current_one_as_it_was(cp: Any, module: Any) -> None:
    session = cp._door.pool.current()
    here = cp._door.state.local.context[0]
    used, real = list[Any](), session.call
    out = cp.zeros(2 * 3 * 2 * 4 * 2 * 2, dtype=cp.int32)
    kernel = module.get_function("where")
    kernel((2, 3, 2), (4, 2, 2), (out,))  # compiled
    launch, own = cp.cuda.Stream(), cp.cuda.Stream()

    def call(*args: Any) -> Any:
        used.append(cp._door.state.local.streams.get(here))
        return real(*args)

    own.use()
    session.call = call
    try:
        kernel((2, 3, 2), (4, 2, 2), (out,), stream=launch)
        kernel((2, 3, 2), (4, 2, 2), (out,))
    finally:
        del session.call
    assert used == [launch, own]
    assert cp.cuda.get_current_stream() == own
    cp.cuda.Stream.null.use()


def test_dynamic_shared_memory(cp: Any, module: Any) -> None:
    x = cp.arange(200, dtype=cp.int32)
    out = cp.zeros_like(x)
    module.get_function("reversed")((1,), (200,), (x, out), shared_mem=800)
    assert out.get().tolist() == list(range(199, -1, -1))
    with pytest.raises(cp.cuda.driver.CUDADriverError, match="CUDA_ERROR_INVALID_VALUE"):
        module.get_function("reversed")((1,), (200,), (x, out), shared_mem=1 << 20)


def test_threads_of_a_warp_pass_values(cp: Any, module: Any) -> None:
    x = cp.arange(100, 228, dtype=cp.int32)
    out = cp.zeros(10, dtype=cp.int32)
    module.get_function("warps")((1,), (128,), (x, out))
    sums = np.arange(100, 228).reshape(4, 32).sum(1).tolist()
    assert out.get().tolist() == [*sums, 134, 3 ^ 5, 7, 1, 16 + 31 + 4, 43]


def test_groups_of_threads_are_blocks_and_tiles(cp: Any) -> None:
    kernel = cp.RawKernel(
        r"""
        #include <cooperative_groups.h>
        namespace cg = cooperative_groups;
        extern "C" __global__ void f(int *out) {
          __shared__ int held[64];
          cg::thread_block block = cg::this_thread_block();
          auto tile = cg::tiled_partition<8>(block);
          int me = block.thread_rank();
          held[me] = tile.thread_rank() + 10 * block.thread_index().y;
          cg::sync(block);
          int sum = held[63 - me];
          for (int with = 4; with; with /= 2) sum += tile.shfl_xor(sum, with);
          out[block.group_index().x * block.size() + me] = sum + tile.size();
        }
        """,
        "f",
    )
    out = cp.zeros(128, np.int32)
    kernel((2,), (16, 4), (out,))
    assert out.tolist() == [28 + 80 * (3 - me // 16) + 8 for me in range(64)] * 2


def test_a_barrier_that_is_never_complete_fails(cp: Any, module: Any) -> None:
    out = cp.zeros(1, dtype=cp.int32)
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="different barriers for ever"):
        module.get_function("never_together")((1,), (64,), (out,))
    assert int(out[0]) == 0


def test_an_assertion_in_a_kernel_is_an_error(cp: Any, module: Any) -> None:
    x = cp.ones(40, dtype=cp.int32)
    kernel = module.get_function("asserts")
    kernel((1,), (40,), (x,))
    x[33] = 0
    kernel((1,), (40,), (x,))  # not the first one, so that its error is late
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="assertion failed: x"):
        cp.cuda.Device().synchronize()


def test_variables_of_a_module_are_arrays(cp: Any, module: Any) -> None:
    weights = cp.ndarray((4,), cp.float32, module.get_global("weights"))
    weights[...] = cp.arange(4)
    x = cp.full(4, 3, dtype=cp.float32)
    module.get_function("weighted")((1,), (4,), (x,))
    assert x.get().tolist() == [0, 3, 6, 9]
    beyond, missing = cp.ndarray((5,), cp.float32, module.get_global("weights")), "no_such_variable"
    refused(
        (ValueError, "outside its allocation", beyond.get),
        (cp.cuda.driver.CUDADriverError, "_NOT_FOUND", lambda: module.get_global(missing)),
    )


def test_complex_numbers_halves_and_functions(cp: Any, module: Any) -> None:
    w = 0.3 - 1.2j
    z = cp.array([w])
    out, d = cp.zeros(3, dtype=complex), cp.zeros(3)
    h = cp.array([1.5, 0], dtype=cp.float16)
    module.get_function("numbers")((1,), (1,), (z, out, h, d))
    wanted = [w * w.conjugate() + 1.5, np.exp(w) / w, w**2 - np.sqrt(w)]
    assert np.allclose(out.get(), wanted, rtol=1e-14)
    assert h.get().tolist() == [1.5, 3.25]
    first = abs(w) ** 2 + abs(w) + np.angle(w)
    assert np.allclose(d.get(), [first, 0.5 + 2 + 2.5 + 10 + 8, 1.5 + 2 + 3 + 100], rtol=1e-14)


def test_numbers_are_arguments(cp: Any, module: Any) -> None:
    out = cp.zeros(6)
    module.get_function("all_kinds")((1,), (1,), (True, -7, 1 << 40, 2.5, 1 - 2j, out))
    assert out.get().tolist() == [1, -7, float(1 << 40), 2.5, 1, -2]
    numbers = (np.bool_(0), np.int32(8), np.int64(-9), np.float64(0.5), np.complex128(3), out)
    module.get_function("all_kinds")((1,), (1,), numbers)
    assert out.get().tolist() == [0, 8, -9, 0.5, 3, 0]
    with pytest.raises(TypeError, match="'all_kinds' has 6 parameters, and was given 2"):
        module.get_function("all_kinds")((1,), (1,), (1, out))


@pytest.mark.parametrize("translated", [False, True])
def test_complex_numbers_of_c(cp: Any, translated: bool) -> None:
    source = """#include <cuComplex.h>
    extern "C" __global__ void f(const cuDoubleComplex *a, cuDoubleComplex *out) {
      out[0] = cuCdiv(a[0], a[1]), out[1] = cuCfma(a[0], a[1], cuConj(a[1]));
      out[2] = make_cuDoubleComplex(cuCabs(a[0]), cuCimagf(cuComplexDoubleToFloat(a[1])));
    }"""
    a, b = 1.5 - 2j, -3 + 0.25j
    out = cp.zeros(3, dtype=complex)
    kernel = cp.RawKernel(source, "f", translate_cucomplex=translated)
    kernel((1,), (1,), (cp.array([a, b]), out))
    assert np.allclose(out.get(), [a / b, a * b + b.conjugate(), 2.5 + 0.25j], rtol=1e-14)


def test_structures_are_passed_by_value(cp: Any, module: Any) -> None:
    kind = np.dtype([("x", "f8"), ("y", "f4", 6)], align=True)
    one, out = np.array((1.5, range(6)), kind), cp.zeros(7)
    kernel = module.get_function("structures")
    for value in (one, one.reshape(1), one[()]):
        out.fill(0)
        kernel((1,), (1,), (value, out))
        assert out.get().tolist() == [1.5, 0, 1, 2, 3, 4, 5]
    two, large = np.zeros(2), np.zeros((), "V5000")
    refused(
        (TypeError, r"ndarray of shape \(2,\)", lambda: kernel((1,), (1,), (two, out))),
        (ValueError, "at most 4,096", lambda: kernel((1,), (1,), (large, out))),
    )


@pytest.mark.parametrize("x", [1e-300, 1e-9, 0.2, 0.5, 0.7, 0.999999])
def test_inverses_of_the_error_function(cp: Any, module: Any, x: float) -> None:
    special = pytest.importorskip("scipy.special")
    out = cp.zeros(4)
    module.get_function("inverses")((1,), (1,), (cp.array([x]), out))
    wanted = [special.erfcinv(x), special.erfinv(x), special.ndtr(x), special.ndtri(x)]
    assert np.allclose(out.get(), wanted, rtol=1e-12)


def test_templates_macros_and_namespaces(cp: Any, module: Any) -> None:
    short = cp.zeros(3, dtype=cp.int16)
    module.get_function("filled<short>")((1,), (3,), (short, np.int16(4)))
    assert short.get().tolist() == [4, 4, 4]
    pairs = cp.zeros(2, dtype=cp.complex64)
    module.get_function(NAMES[1])((1,), (2,), (pairs, np.complex64(1j)))
    assert pairs.get().tolist() == [1j, 1j]
    x = cp.ones(3, dtype=cp.float32)
    module.get_function("scale_float")((1,), (3,), (x, np.float32(2.5)))
    assert x.get().tolist() == [2.5] * 3
    one = cp.zeros(1, dtype=cp.int32)
    module.get_function("inner::hidden")((1,), (1,), (one,))
    assert int(one[0]) == 4


@pytest.mark.parametrize("name", ["mangled", "hidden", "filled", "nothing", "neither", "", "x y"])
def test_what_no_gpu_finds_is_not_found(cp: Any, module: Any, name: str) -> None:
    with pytest.raises(
        cp.cuda.driver.CUDADriverError, match="CUDA_ERROR_NOT_FOUND: named symbol not found"
    ):
        module.get_function(name)


def test_a_kernel_has_attributes_and_a_log(cp: Any, module: Any) -> None:
    kernel = module.get_function("where")
    assert kernel.max_threads_per_block == 1024
    assert kernel.num_regs > 0
    log = io.StringIO()
    module.compile(log_stream=log)
    assert "prelude" not in log.getvalue()


def test_a_source_that_does_not_compile_is_an_error_of_the_launch(cp: Any) -> None:
    kernel = cp.RawKernel('extern "C" __global__ void f(int *x) {\n  x[0] = y;\n}', "f")
    x = cp.zeros(1, dtype=cp.int32)
    with pytest.raises(cp.cuda.compiler.CompileException) as error:
        kernel((1,), (1,), (x,))
    assert "kernel.cu:2:" in str(error.value)
    assert "'y' was not declared" in str(error.value).replace("\u2018", "'").replace("\u2019", "'")
    assert "/" not in str(error.value).replace("kernel.cu", "")
    loaded = 'void missing(int *x);\nextern "C" __global__ void f(int *x) { missing(x); }'
    includes = '#include <math.h>\n#include "cuda.h"\nint x = nothing;'
    refused(
        (type(error.value), r"loaded: kernel\.so: un", lambda: cp.RawKernel(loaded, "f").compile()),
        (type(error.value), r"kernel.cu:3:", lambda: cp.RawKernel(includes, "f").compile()),
    )


def test_what_needs_a_real_gpu_says_so(cp: Any, tmp_path: Path) -> None:
    given: Any = ((1,), (1,), (cp.zeros(1),))
    module = cp.RawModule
    (tmp_path / "a.ptx").write_text(".version 8.0")
    launches = 'extern "C" __global__ void f(int *x) { f<<<1, 1>>>(x); }'
    cooperative = cp.RawKernel("", "f", enable_cooperative_groups=True)
    assembled = module(path=str(tmp_path / "a.ptx"))
    driver, compiler = cp.cuda.driver.CUDADriverError, cp.cuda.compiler.CompileException
    refused(
        (NotImplementedError, "launch needs a real GPU", lambda: cooperative(*given)),
        (driver, "CUDA_ERROR_FILE_NOT_FOUND", lambda: module(path=str(tmp_path / "b.ptx"))),
        (NotImplementedError, "module's source", lambda: assembled.get_function("f")(*given)),
        (compiler, "launches kernels", lambda: cp.RawKernel(launches, "f")(*given)),
    )


def test_an_empty_grid_is_one_block_and_arguments_too_many_are_not_seen(cp: Any) -> None:
    source = """extern "C" __global__ void fill(float* x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] = 1;
    }"""
    kernel = cp.RawKernel(source, "fill")
    for count in (5, 0):
        array = cp.zeros(count, "f4")
        kernel(((count + 127) // 128,), (128,), (array, count))
        assert array.tolist() == [1] * count
    array = cp.zeros(3, "f4")
    kernel((1, 0, 1, 7), (4, -1), (array, 3, np.int32(5), cp.ones(2)))  # it has two parameters
    assert array.tolist() == [1, 1, 1]
    for wrong in (((1), (4,)), ((1,), [4]), ((1.5,), (4,))):
        with pytest.raises(TypeError):
            kernel(*wrong, (array, 3))


def test_kernels_of_one_name_have_shared_memory_apart(cp: Any) -> None:
    code = "template <class T> __global__ void k(T *y) {{ __shared__ T held[{0}]; "
    code += "for (int i = 0; i < {0}; i++) held[i] = {0} + i; y[0] = held[{0} - 1]; }}"
    for count in (4, 4000):
        module = cp.RawModule(code=code.format(count), name_expressions=["k<int>"])
        made = cp.empty(1, "i")
        module.get_function("k<int>")((1,), (1,), (made,))
        assert int(made[0]) == 2 * count - 1


# --- as public libraries use kernels --------------------------------------------------------------


HEADERS = (
    "cuda/std/type_traits cuda/std/limits cuda/std/utility cuda/std/tuple cuda/std/cstdint "
    "cupy/cuda_workaround.h cupy/float16.cuh cupy/bfloat16.cuh cupy/type_dispatcher.cuh "
    "cupy/cuComplex_bridge.h cupy/hip_workaround.cuh cupy/complex.cuh cupy/carray.cuh "
    "cupy/atomics.cuh cupy/math_constants.h cuda_fp16.h cuComplex.h cuda_runtime.h vector_types.h "
    "math_constants.h cooperative_groups.h assert.h type_traits limits cstdint stdint.h cmath "
    "math.h"
)


def test_kernels_may_include_what_cupy_ships(cp: Any) -> None:
    lines = "".join(f"#include <{name}>\n" for name in HEADERS.split())
    kernel = cp.RawKernel(
        lines
        + """
        template <class T> __device__ T largest() { return cuda::std::numeric_limits<T>::max(); }
        extern "C" __global__ void f(double *out) {
          bfloat16 a(1.00390625f), b(3);
          a += b;
          out[0] = largest<short>();
          out[1] = std::is_same<float, cuda::std::remove_cv<const float>::type>::value;
          out[2] = a;
          out[3] = CUPY_TYPE_BOOL;
          out[4] = bfloat16(float16(0.1f));
          uint64_t far = 1ull << 40;
          out[5] = far;
        }
        """,
        "f",
    )
    out = cp.zeros(6)
    kernel((1,), (1,), (out,))
    assert out.tolist() == [32767, 1, 4, 13, 0.10009765625, 1 << 40]


def test_arrays_and_indices_of_kernels_tell_their_dimensions(cp: Any) -> None:
    kernel = cp.ElementwiseKernel(
        "raw T x, raw T z", "int32 y", "y = x.ndim * 100 + _ind.ndim * 10 + z.ndim", "dimensions"
    )
    made = kernel(cp.ones((2, 3)), cp.ones(3), cp.zeros((4, 2), "i4"))
    assert made.tolist() == [[211, 211]] * 4
