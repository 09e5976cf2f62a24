"""Uses of CuPy by public libraries that no test of CuPy covers."""

import importlib
from typing import Any

import door_kit
import numpy as np
import pytest

scipy: Any = pytest.importorskip("scipy")
needs_compiler = pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="no C++ compiler")


@pytest.mark.filterwarnings("ignore")
def test_scipys_universal_functions_take_our_arrays(cp: Any) -> None:
    ours: Any = importlib.import_module("cupyx.scipy.special")
    tried = [
        name
        for name in sorted(ours.__all__)
        if isinstance(getattr(scipy.special, name, None), np.ufunc)
    ]
    assert len(tried) > 80
    host = np.linspace(0.1, 0.9, 5)
    array = cp.asarray(host)
    wrong: list[str] = []
    for name in tried:
        function = getattr(scipy.special, name)
        wanted = function(*[host] * function.nin)
        made = function(*[array] * function.nin)
        several = isinstance(wanted, tuple)
        pairs = zip(made, wanted, strict=True) if several else [(made, wanted)]
        if not all(np.allclose(one.get(), other, equal_nan=True) for one, other in pairs):
            wrong.append(name)
    assert not wrong


def test_a_universal_function_that_nobody_has_is_refused(cp: Any) -> None:
    with pytest.raises(TypeError, match="NotImplemented"):
        np.frompyfunc(lambda x: x, 1, 1)(cp.ones(2))


@pytest.mark.parametrize("value", [np.array(3.5), np.array([3.5]), np.array([[3.5]])])
def test_an_array_is_filled_with_numpys_only_element(cp: Any, value: Any) -> None:
    assert cp.full((2,), value).tolist() == [3.5, 3.5]
    assert cp.full_like(cp.ones(2, "i4"), value).tolist() == [3, 3]
    with pytest.raises(ValueError, match="non-scalar"):
        cp.full((2,), np.ones(2))


def test_memory_is_compared_by_its_bounds(cp: Any) -> None:
    a = cp.arange(6)
    for bounds, elements, first, second in (
        (True, True, a, a),
        (True, False, a[::2], a[1::2]),
        (False, False, a[:3], a[3:]),
    ):
        assert cp.shares_memory(first, second, "MAY_SHARE_BOUNDS") is bounds
        assert bool(cp.shares_memory(first, second)) is elements
        assert bool(cp.shares_memory(first, second, "MAY_SHARE_EXACT")) is elements
    with pytest.raises(NotImplementedError):
        cp.shares_memory(a, a, 3)


def test_a_generator_is_its_own_generator(cp: Any) -> None:
    made = cp.random.default_rng(3)
    assert cp.random.default_rng(made) is made


PROPERTIES = (
    "name totalGlobalMem sharedMemPerBlock regsPerBlock warpSize maxThreadsPerBlock maxThreadsDim "
    "maxGridSize clockRate totalConstMem major minor textureAlignment texturePitchAlignment "
    "multiProcessorCount kernelExecTimeoutEnabled integrated canMapHostMemory computeMode "
    "maxTexture1D maxTexture2D maxTexture3D concurrentKernels ECCEnabled pciBusID pciDeviceID "
    "pciDomainID tccDriver memoryClockRate memoryBusWidth l2CacheSize maxThreadsPerMultiProcessor "
    "isMultiGpuBoard cooperativeLaunch cooperativeMultiDeviceLaunch maxTexture1DMipmap "
    "maxTexture1DLayered maxTexture2DMipmap maxTexture2DLinear maxTexture2DLayered "
    "maxTexture2DGather maxTexture3DAlt maxTextureCubemap maxTextureCubemapLayered maxSurface1D "
    "maxSurface1DLayered maxSurface2D maxSurface2DLayered maxSurface3D maxSurfaceCubemap "
    "maxSurfaceCubemapLayered surfaceAlignment asyncEngineCount unifiedAddressing "
    "streamPrioritiesSupported globalL1CacheSupported localL1CacheSupported "
    "sharedMemPerMultiprocessor regsPerMultiprocessor managedMemory multiGpuBoardGroupID "
    "hostNativeAtomicSupported pageableMemoryAccess concurrentManagedAccess "
    "computePreemptionSupported canUseHostPointerForRegisteredMem sharedMemPerBlockOptin "
    "pageableMemoryAccessUsesHostPageTables directManagedMemAccessFromHost uuid luid "
    "luidDeviceNodeMask persistingL2CacheMaxSize maxBlocksPerMultiProcessor "
    "accessPolicyMaxWindowSize reservedSharedMemPerBlock deviceOverlap maxTexture1DLinear "
    "singleToDoublePrecisionPerfRatio"
)
"""Those of CuPy 14.2 with CUDA."""


def test_a_device_has_all_properties(cp: Any) -> None:
    found = cp.cuda.runtime.getDeviceProperties(0)
    assert sorted(found) == sorted(PROPERTIES.split())
    assert found["maxThreadsDim"] == (1024, 1024, 64)
    assert {type(found[name]) for name in ("name", "uuid", "luid")} == {bytes}
    attributes = cp.cuda.Device(0).attributes
    assert attributes["MaxSharedMemoryPerBlock"] == found["sharedMemPerBlock"]
    assert attributes["MaxRegistersPerBlock"] == found["regsPerBlock"]
    assert cp.cuda.runtime.deviceGetAttribute(4, 0) == found["maxThreadsDim"][2]


# --- kernels --------------------------------------------------------------------------------------


HEADERS = (
    "cuda/std/type_traits cuda/std/limits cuda/std/utility cuda/std/tuple cuda/std/cstdint "
    "cupy/cuda_workaround.h cupy/float16.cuh cupy/bfloat16.cuh cupy/type_dispatcher.cuh "
    "cupy/cuComplex_bridge.h cupy/hip_workaround.cuh cupy/complex.cuh cupy/carray.cuh "
    "cupy/atomics.cuh cupy/math_constants.h cuda_fp16.h cuComplex.h cuda_runtime.h vector_types.h "
    "math_constants.h cooperative_groups.h assert.h type_traits limits cstdint stdint.h cmath "
    "math.h"
)


@needs_compiler
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


@needs_compiler
def test_a_line_that_includes_is_still_a_line_in_messages(cp: Any) -> None:
    kernel = cp.RawKernel('#include <math.h>\n#include "cuda.h"\nint x = nothing;', "f")
    with pytest.raises(cp.cuda.compiler.CompileException, match=r"kernel.cu:3:"):
        kernel.compile()


@needs_compiler
def test_arguments_that_a_kernel_does_not_have_are_not_seen(cp: Any) -> None:
    kernel = cp.RawKernel(
        'extern "C" __global__ void f(int *x, int n) { x[threadIdx.x] = n; }', "f"
    )
    x = cp.zeros(3, "i4")
    kernel((1,), (3,), (x, np.int32(4), np.int32(5), cp.ones(2)))
    assert x.tolist() == [4, 4, 4]
    with pytest.raises(TypeError, match="2 parameters, and was given 1"):
        kernel((1,), (3,), (x,))


@needs_compiler
def test_arrays_and_indices_of_kernels_tell_their_dimensions(cp: Any) -> None:
    kernel = cp.ElementwiseKernel(
        "raw T x, raw T z", "int32 y", "y = x.ndim * 100 + _ind.ndim * 10 + z.ndim", "dimensions"
    )
    made = kernel(cp.ones((2, 3)), cp.ones(3), cp.zeros((4, 2), "i4"))
    assert made.tolist() == [[211, 211]] * 4
