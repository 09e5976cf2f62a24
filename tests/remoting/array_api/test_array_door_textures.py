"""Textures and surfaces of an emulated GPU, compared with a model in NumPy."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import gc
import itertools
from collections.abc import Sequence
from typing import Any

import door_kit
import numpy as np
import pytest

needs_compiler = pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="no C++ compiler here")

Array = np.ndarray[Any, Any]
LENGTHS = [(68,), (12, 5), (9, 4, 3)]
TYPES = ["i1", "i2", "i4", "u1", "u2", "u4", "f2", "f4"]
WRAP, CLAMP, MIRROR, BORDER = range(4)
LOAD_STORE = 2
COLORS = (0.5, -2.0, 3.0, 0.25)

FETCHES = r"""
template <class T> __global__ void at_indices(T *out, cudaTextureObject_t t, int first, int n) {
  int i = threadIdx.x;
  if (i < n) out[i] = tex1Dfetch<T>(t, i + first);
}
template <class T> __global__ void at_points(T *out, cudaTextureObject_t t, int axes,
                                             const float *x, const float *y, const float *z) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = axes == 1 ? tex1D<T>(t, x[i])
         : axes == 2 ? tex2D<T>(t, x[i], y[i]) : tex3D<T>(t, x[i], y[i], z[i]);
}
extern "C" __global__ void by_pointer(float4 *out, cudaTextureObject_t t, float x, float y) {
  tex1Dfetch(out, t, 1);
  tex1D(out + 1, t, x);
  tex2D(out + 2, t, x, y);
  tex3D(out + 3, t, x, y, 0.5f);
}
"""
VECTORS = ["char", "uchar", "short", "ushort", "int", "uint", "float"]
FETCHED = [*VECTORS, "signed char", *[f"{name}{at}" for name in VECTORS for at in (1, 2, 4)]]


@pytest.fixture(scope="module")
def fetches(cp: Any) -> Any:
    names = [f"at_indices<{name}>" for name in FETCHED]
    names += [f"at_points<{name}>" for name in ("float", "float4", "uchar4", "short", "unsigned")]
    return cp.RawModule(code=FETCHES, name_expressions=names)


def channel(cp: Any, dtype: Any, count: int = 1) -> Any:
    kind = np.dtype(dtype)
    bits = [kind.itemsize * 8] * count + [0] * (4 - count)
    return cp.cuda.texture.ChannelFormatDescriptor(*bits, "iuf".index(kind.kind))


def cuda_array(cp: Any, values: Array, count: int = 1, flags: int = 0) -> Any:
    lengths = [*values.shape[::-1]]
    lengths[0] //= count
    made = cp.cuda.texture.CUDAarray(
        channel(cp, values.dtype, count), *lengths, *[0] * (3 - len(lengths)), flags
    )
    made.copy_from(values)
    return made


def texture_of(cp: Any, array: Any, modes: Any = (CLAMP,) * 3, **look: Any) -> Any:
    of = cp.cuda.texture
    given = {"filterMode": 0, "readMode": 0, "normalizedCoords": 0} | look
    return of.TextureObject(
        of.ResourceDescriptor(0, cuArr=array), of.TextureDescriptor(modes, **given)
    )


def some(shape: Sequence[int], dtype: Any, seed: int = 0) -> Array:
    random, kind = np.random.default_rng(seed), np.dtype(dtype)
    if kind.kind == "f":
        return random.uniform(-9, 9, shape).astype(kind)
    limits = np.iinfo(dtype)
    made: Array = random.integers(limits.min, limits.max, shape, kind, endpoint=True)
    made.flat[0], made.flat[-1] = limits.min, limits.max
    return made


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_copy_comes_back(cp: Any, lengths: Any, dtype: str, count: int) -> None:
    values = some((*lengths[:0:-1], lengths[0] * count), dtype)
    array = cuda_array(cp, values, count)
    assert array.ndim == len(lengths)
    back, host = cp.zeros_like(cp.asarray(values)), np.zeros_like(values)
    array.copy_to(back)
    array.copy_to(host)
    assert np.array_equal(back.get(), values)
    assert np.array_equal(host, values)
    array.copy_from(cp.asarray(np.repeat(values, 2, -1))[..., ::-2], cp.cuda.Stream())
    array.copy_to(host)
    assert np.array_equal(host, values[..., ::-1])


def test_a_new_cuda_array_is_zero(cp: Any) -> None:
    array = cp.cuda.texture.CUDAarray(channel(cp, "f4"), 5)
    host = np.ones(5, np.float32)
    array.copy_to(host)
    assert not host.any()


def test_a_copy_has_the_shape_and_the_type_of_the_cuda_array(cp: Any) -> None:
    array = cuda_array(cp, some((4, 6), "f4"), 2)
    for shape in ((4, 3), (6, 4), (24,), (1, 4, 6)):
        for copy in (array.copy_from, array.copy_to):
            with pytest.raises(ValueError, match="shape mismatch"):
                copy(cp.zeros(shape, "f4"))
    for dtype in ("f2", "f8", "i4", "u4"):
        for copy in (array.copy_from, array.copy_to):
            with pytest.raises(ValueError, match="dtype mismatch"):
                copy(np.zeros((4, 6), dtype))
    with pytest.raises(ValueError, match="C-contiguous"):
        array.copy_to(cp.zeros((6, 4), "f4").T)


# --- fetches --------------------------------------------------------------------------------------


def neighbours(u: Array, length: int, mode: int, normalized: bool, linear: bool) -> Any:
    """Return the two indices along an axis, -1 beyond the border, and the second one's weight."""
    if normalized:
        if mode == WRAP:
            u = u % 1
        elif mode == MIRROR:
            u = 1 - np.abs(u % 2 - 1)
        u = u * length
    if linear:
        u = u - 0.5
    low = np.floor(u).astype(int)
    found = np.stack([low, low + 1])
    if mode == WRAP and normalized:
        found = found % length
    elif mode == BORDER:
        found = np.where((found < 0) | (found >= length), -1, found)
    else:
        found = found.clip(0, length - 1)
    return found, u - low


def fetched(
    values: Array, points: Any, modes: Any, normalized: bool, linear: bool, border: Any = 0.0
) -> Array:
    """Return the reads of textures at points with coordinates along x, y and z."""
    lengths = values.shape[::-1]
    along = [
        neighbours(np.asarray(u, float), length, mode, normalized, linear)
        for u, length, mode in zip(points, lengths, modes, strict=False)
    ]
    total = np.zeros(len(points[0]))
    for corner in itertools.product(*[(0, 1)] * len(lengths)) if linear else [(0,) * len(lengths)]:
        index = [found[at] for (found, _), at in zip(along, corner, strict=True)]
        one = np.where(np.min(index, axis=0) < 0, border, values[tuple(index[::-1])])
        weights = [w if at else 1 - w for (_, w), at in zip(along, corner, strict=True)]
        total += one * (np.prod(weights, axis=0) if linear else 1)
    return total


def points_of(axes: int, normalized: bool, lengths: Sequence[int]) -> list[Array]:
    """Return coordinates that single precision has exactly, as has their products with lengths."""
    random = np.random.default_rng(7)
    counts = [1 if normalized else length for length in lengths]
    made = [random.integers(-128 * n, 192 * n, 256) / np.float32(64) for n in counts]
    return [each.astype(np.float32) for each in made[:axes]]


def read(cp: Any, kernel: Any, texture: Any, points: Any, dtype: Any, count: int = 1) -> Array:
    out = cp.zeros((len(points[0]), count), dtype)
    given = [cp.asarray(u) for u in points]
    kernel((len(out) // 64,), (64,), (out, texture, np.int32(len(points)), *(given * 3)[:3]))
    return out.get() if count > 1 else out.get()[:, 0]


@needs_compiler
@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("lengths", [(8,), (1,), (8, 5), (5, 3, 4)])
def test_filters_and_address_modes(
    cp: Any, fetches: Any, lengths: Any, normalized: bool, linear: bool
) -> None:
    values = some(lengths[::-1], "f4")
    array = cuda_array(cp, values)
    points = points_of(len(lengths), normalized, lengths)
    kernel = fetches.get_function("at_points<float>")
    for modes in [(mode,) * 3 for mode in range(4)] + [(WRAP, BORDER, MIRROR), (BORDER, CLAMP, 0)]:
        texture = texture_of(
            *(cp, array, modes),
            filterMode=int(linear),
            normalizedCoords=int(normalized),
            borderColors=COLORS,
        )
        made = read(cp, kernel, texture, points, "f4")
        wanted = fetched(values, points, modes, normalized, linear, COLORS[0])
        np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5, err_msg=str(modes))


@needs_compiler
def test_coordinates_that_are_no_numbers_or_too_large(cp: Any, fetches: Any) -> None:
    array = cuda_array(cp, np.arange(1, 5, dtype=np.float32))
    kernel = fetches.get_function("at_points<float>")
    odd = np.array([np.inf, -np.inf, 1e30, -1e30, np.nan] * 64, np.float32)
    for mode, linear, normalized in itertools.product(range(4), (0, 1), (0, 1)):
        texture = texture_of(cp, array, (mode,), filterMode=linear, normalizedCoords=normalized)
        made = read(cp, kernel, texture, [odd], "f4")
        assert ((made >= 0) & (made <= 4)).all()
        if mode == CLAMP:
            assert made[:4].tolist() == [4, 1, 4, 1]


@needs_compiler
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2"])
@pytest.mark.parametrize("linear", [False, True])
def test_integers_are_read_as_fractions(cp: Any, fetches: Any, dtype: str, linear: bool) -> None:
    values = some((6, 4 * 8), dtype)
    array = cuda_array(cp, values, 4)
    texture = texture_of(cp, array, (CLAMP, CLAMP), readMode=1, filterMode=int(linear))
    points = points_of(2, False, (8, 6))
    made = read(cp, fetches.get_function("at_points<float4>"), texture, points, "f4", 4)
    for at in range(4):
        whole = np.maximum(values[:, at::4] / np.iinfo(dtype).max, -1)
        wanted = fetched(whole, points, (CLAMP, CLAMP), False, linear)
        np.testing.assert_allclose(made[:, at], wanted, rtol=1e-5, atol=1e-6)


@needs_compiler
def test_srgb_is_made_linear_but_for_the_last_channel(cp: Any, fetches: Any) -> None:
    values = some((4 * 64,), "u1")
    texture = texture_of(cp, cuda_array(cp, values, 4), readMode=1, sRGB=1)
    made = read(
        *(cp, fetches.get_function("at_points<float4>"), texture),
        *([np.arange(64, dtype=np.float32)], "f4", 4),
    )
    wanted = values.reshape(64, 4) / 255
    curve = np.where(wanted <= 0.04045, wanted / 12.92, ((wanted + 0.055) / 1.055) ** 2.4)
    np.testing.assert_allclose(made, np.column_stack([curve[:, :3], wanted[:, 3]]), rtol=1e-5)


@needs_compiler
@pytest.mark.parametrize("name", FETCHED)
def test_each_type_is_fetched_by_its_index(cp: Any, fetches: Any, name: str) -> None:
    count = int(name[-1]) if name[-1].isdigit() else 1
    plain = name.rstrip("124")
    letter = {"char": "i1", "signed char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2"}
    dtype = np.dtype(letter.get(plain, {"int": "i4", "uint": "u4", "float": "f4"}.get(plain, "")))
    values = cp.asarray(some((16 * count,), dtype))
    of = cp.cuda.texture
    resource = of.ResourceDescriptor(
        2, arr=values, chDesc=channel(cp, dtype, count), sizeInBytes=values.nbytes
    )
    texture = of.TextureObject(resource, of.TextureDescriptor())
    out = cp.ones(20 * count, dtype)
    kernel = fetches.get_function(f"at_indices<{name}>")
    kernel((1,), (32,), (out, texture, np.int32(-2), np.int32(20)))
    wanted = np.concatenate([np.zeros(2 * count), values.get(), np.zeros(2 * count)])
    assert np.array_equal(out.get(), wanted.astype(dtype))  # 0 beyond the ends, as on a GPU


@needs_compiler
def test_half_precision_is_fetched_as_float(cp: Any, fetches: Any) -> None:
    values = some((64,), "f2")
    texture = texture_of(cp, cuda_array(cp, values))
    points = [np.arange(64, dtype=np.float32)]
    made = read(cp, fetches.get_function("at_points<float>"), texture, points, "f4")
    assert np.array_equal(made, values.astype(np.float32))


@needs_compiler
def test_a_fetch_may_write_where_a_pointer_says(cp: Any, fetches: Any) -> None:
    values = some((3, 4 * 5), "f4")
    texture = texture_of(cp, cuda_array(cp, values, 4))
    out = cp.zeros((4, 4), "f4")
    by_pointer = fetches.get_function("by_pointer")
    by_pointer((1,), (1,), (out, texture, np.float32(2), np.float32(1)))
    rows = values.reshape(3, 5, 4)
    assert np.array_equal(out.get(), [rows[0, 1], rows[0, 2], rows[1, 2], rows[1, 2]])


@needs_compiler
def test_a_texture_of_rows_with_gaps(cp: Any, fetches: Any) -> None:
    values = cp.asarray(some((5, 16), "i2"))
    of = cp.cuda.texture
    resource = of.ResourceDescriptor(
        3, arr=values, chDesc=channel(cp, "i2"), width=10, height=5, pitchInBytes=32
    )
    texture = of.TextureObject(resource, of.TextureDescriptor((CLAMP, CLAMP)))
    y, x = np.indices((8, 16), np.float32)
    kernel = fetches.get_function("at_points<short>")
    made = read(cp, kernel, texture, [x.ravel(), y.ravel()], "i2").reshape(8, 16)
    wanted = np.pad(values.get()[:, :10], [(0, 3), (0, 6)], mode="edge")
    assert np.array_equal(made, wanted)


@needs_compiler
def test_a_texture_is_an_argument_of_elementwise_and_reduction_kernels(cp: Any) -> None:
    values = some((12,), "f4")
    texture = texture_of(cp, cuda_array(cp, values))
    kernel = cp.ElementwiseKernel("T x, U t", "T y", "y = x + tex1D<T>(t, (float)i)", "of_texture")
    x = cp.arange(12, dtype="f4")
    assert np.array_equal(kernel(x, texture).get(), x.get() + values)
    with pytest.raises(TypeError, match="Type is mismatched"):
        cp.ElementwiseKernel("T x, T t", "T y", "y = x", "of_one")(x, texture)
    total = cp.ReductionKernel(
        "T x, U t", "T y", "x * tex1D<T>(t, (float)_J)", "a + b", "y = a", "0", "with_texture"
    )
    np.testing.assert_allclose(total(x, texture).get(), (x.get() * values).sum(), rtol=1e-5)


@needs_compiler
def test_what_a_launch_uses_stays_until_it_has_run(cp: Any, fetches: Any) -> None:
    values = some((64,), "f4")
    points = cp.arange(64, dtype="f4")
    outs: list[Any] = []
    kernel = fetches.get_function("at_points<float>")
    for step in range(20):
        texture = texture_of(cp, cuda_array(cp, values + np.float32(step)))
        outs.append(cp.zeros(64, "f4"))
        kernel((1,), (64,), (outs[-1], texture, np.int32(1), points, points, points))
        del texture  # and with it the CUDA array
    for step, out in enumerate(outs):
        assert np.array_equal(out.get(), values + np.float32(step))


@needs_compiler
def test_a_linear_texture_keeps_its_array(cp: Any, fetches: Any) -> None:
    values = some((16,), "i4")
    of = cp.cuda.texture
    resource = of.ResourceDescriptor(
        2, arr=cp.asarray(values)[4:], chDesc=channel(cp, "i4"), sizeInBytes=48
    )
    texture = of.TextureObject(resource, of.TextureDescriptor())
    texture.ResDesc = None
    del resource
    cp.get_default_memory_pool().free_all_blocks()
    filled = [cp.full(16, 7, "i4") for _ in range(50)]
    out = cp.zeros(12, "i4")
    kernel = fetches.get_function("at_indices<int>")
    kernel((1,), (12,), (out, texture, np.int32(0), np.int32(12)))
    assert np.array_equal(out.get(), values[4:])
    del filled


# --- errors ---------------------------------------------------------------------------------------


def test_what_cuda_does_not_make_is_refused(cp: Any) -> None:
    of, floats = cp.cuda.texture, channel(cp, "f4")
    array = cuda_array(cp, some((4,), "f4"))
    whole, wide = cuda_array(cp, some((4,), "u1")), cuda_array(cp, some((4,), "i4"))
    linear = of.ResourceDescriptor(2, arr=cp.zeros(8, "f4"), chDesc=floats, sizeInBytes=32)
    too_long = of.ResourceDescriptor(2, arr=cp.zeros(8, "f4"), chDesc=floats, sizeInBytes=36)
    driver = cp.cuda.runtime.CUDARuntimeError
    bits = of.ChannelFormatDescriptor
    cases: list[tuple[Any, type[Exception], str]] = [
        (lambda: of.CUDAarray(bits(64, 0, 0, 0, 2), 4), ValueError, "each has 0, 8, 16 or 32"),
        (lambda: of.CUDAarray(bits(0, 0, 0, 0, 2), 4), driver, "InvalidValue"),
        (lambda: of.CUDAarray(bits(32, 32, 32, 0, 2), 4), driver, "InvalidValue"),
        (lambda: of.CUDAarray(bits(32, 16, 0, 0, 1), 4), driver, "InvalidValue"),
        (lambda: of.CUDAarray(bits(8, 0, 0, 0, 2), 4), driver, "InvalidValue"),
        (lambda: of.CUDAarray(bits(32, 0, 0, 0, 3), 4), driver, "InvalidValue"),
        (lambda: of.CUDAarray(floats, 1 << 21), ValueError, "a CUDA array of 2097152 x 0 x 0"),
        (lambda: of.CUDAarray(floats, 4, 4, 4, 1), NotImplementedError, "no layered CUDA arrays"),
        (lambda: texture_of(cp, array, (5,)), driver, "InvalidValue"),
        (lambda: texture_of(cp, array, (1,) * 4), ValueError, "at most 3 address modes"),
        (lambda: texture_of(cp, array, filterMode=2), driver, "InvalidValue"),
        (lambda: texture_of(cp, whole, filterMode=1), driver, "InvalidFilterSetting"),
        (lambda: texture_of(cp, wide, readMode=1), driver, "InvalidNormSetting"),
        (lambda: of.TextureObject(too_long, of.TextureDescriptor()), ValueError, "outside its"),
        (lambda: of.SurfaceObject(linear), driver, "InvalidValue"),
        (lambda: of.SurfaceObject(of.ResourceDescriptor(0, cuArr=array)), driver, "InvalidValue"),
    ]
    for call, kind, says in cases:
        with pytest.raises(kind, match=says):
            call()


def test_a_cuda_array_takes_the_memory_of_one_that_was_dropped_before(cp: Any) -> None:
    cp.get_default_memory_pool().free_all_blocks()
    width = cp.cuda.runtime.memGetInfo()[0] // (4 * 1024) * 6 // 10
    for _ in range(6):  # six tenths of the memory, again and again
        array = cp.cuda.texture.CUDAarray(channel(cp, "f4"), width, 1024)
        del array


def test_a_cuda_array_counts_until_it_is_dropped(cp: Any) -> None:
    pool = cp.get_default_memory_pool()
    gc.collect()  # of errors of other tests, which hold their arrays
    pool.free_all_blocks()
    used, (free, _) = pool.used_bytes(), cp.cuda.runtime.memGetInfo()
    array = cp.cuda.texture.CUDAarray(channel(cp, "f4"), 1024, 1000)
    assert cp.cuda.runtime.memGetInfo()[0] == free - 63 * (64 << 10)  # 4,096,000 bytes, rounded up
    assert pool.used_bytes() == used  # it is no array of the pool, as in CuPy
    texture = texture_of(cp, array)
    del array
    assert cp.cuda.runtime.memGetInfo()[0] == free - 63 * (64 << 10)
    del texture
    assert cp.cuda.runtime.memGetInfo()[0] == free
    with pytest.raises(cp.cuda.memory.OutOfMemoryError):
        cp.cuda.texture.CUDAarray(channel(cp, "f4", 4), 1024, 1024, 1024)
    assert cp.cuda.runtime.memGetInfo()[0] == free
    kept = cp.zeros(300 << 20, "u1")
    del kept
    cp.cuda.Device().synchronize()
    assert pool.total_bytes() >= 300 << 20
    array = cp.cuda.texture.CUDAarray(channel(cp, "f4"), 1024, 1024, 75)
    assert pool.total_bytes() < 300 << 20  # its block was given up for the CUDA array
    assert cp.cuda.runtime.memGetInfo()[0] == free - (300 << 20)
    del array


# --- surfaces -------------------------------------------------------------------------------------

SURFACES = r"""
template <class T, int axes> __global__ void twice(cudaSurfaceObject_t s, const T *more) {
  int x = threadIdx.x * sizeof(T), y = blockIdx.x, z = blockIdx.y;
  T old, by = more[(z * gridDim.x + y) * blockDim.x + threadIdx.x];
  if (axes == 1) old = surf1Dread<T>(s, x);
  if (axes == 2) old = surf2Dread<T>(s, x, y);
  if (axes == 3) surf3Dread(&old, s, x, y, z);
  old.x += by.x;
  old.y += by.y;
  if (axes == 1) surf1Dwrite(old, s, x);
  if (axes == 2) surf2Dwrite(old, s, x, y, cudaBoundaryModeTrap);
  if (axes == 3) surf3Dwrite(old, s, x, y, z, cudaBoundaryModeZero);
}
extern "C" __global__ void beyond(short *out, cudaSurfaceObject_t s, int zero) {
  cudaSurfaceBoundaryMode mode = zero ? cudaBoundaryModeZero : cudaBoundaryModeClamp;
  const int at[4][2] = {{-2, 0}, {100, 1}, {0, 9}, {2, 1}};
  for (int i = 0; i < 4; i++) out[i] = surf2Dread<short>(s, at[i][0], at[i][1], mode);
  surf2Dwrite((short)99, s, 100, -5, mode);
}
extern "C" __global__ void trapped(cudaSurfaceObject_t s, int x) { surf2Dwrite((short)1, s, x, 0); }
extern "C" __global__ void wrong(float *out, cudaSurfaceObject_t s) { *out = tex1D<float>(s, 0); }
"""
PAIRS = [("char2", "i1"), ("ushort2", "u2"), ("int2", "i4"), ("float2", "f4")]


@pytest.fixture(scope="module")
def surfaces(cp: Any) -> Any:
    names = [f"twice<{name}, {axes}>" for name, _ in PAIRS for axes in (1, 2, 3)]
    return cp.RawModule(code=SURFACES, name_expressions=names)


def surface_of(cp: Any, array: Any) -> Any:
    of = cp.cuda.texture
    return of.SurfaceObject(of.ResourceDescriptor(0, cuArr=array))


@needs_compiler
@pytest.mark.parametrize(("name", "dtype"), PAIRS)
@pytest.mark.parametrize("lengths", [(8,), (8, 5), (8, 5, 3)])
def test_a_surface_is_read_and_written(
    cp: Any, surfaces: Any, lengths: Any, name: str, dtype: str
) -> None:
    shape = (*lengths[:0:-1], 2 * lengths[0])
    values, more = (some(shape, dtype) // 2).astype(dtype), (some(shape, dtype, 1) // 4)
    array = cuda_array(cp, values, 2, LOAD_STORE)
    kernel = surfaces.get_function(f"twice<{name}, {len(lengths)}>")
    grid = (*lengths[1:], 1, 1)[:2]
    kernel(grid, (8,), (surface_of(cp, array), cp.asarray(more.astype(dtype))))
    host = np.zeros_like(values)
    array.copy_to(host)
    assert np.array_equal(host, values + more.astype(dtype))


@needs_compiler
def test_a_surface_beyond_its_border(cp: Any, surfaces: Any) -> None:
    values = np.arange(1, 9, dtype=np.int16).reshape(2, 4)
    array = cuda_array(cp, values, 1, LOAD_STORE)
    surface, out, host = surface_of(cp, array), cp.zeros(4, "i2"), np.zeros_like(values)
    beyond = surfaces.get_function("beyond")
    beyond((1,), (1,), (out, surface, np.int32(1)))
    array.copy_to(host)
    assert out.get().tolist() == [0, 0, 0, 6]
    assert np.array_equal(host, values)
    beyond((1,), (1,), (out, surface, np.int32(0)))
    array.copy_to(host)
    assert out.get().tolist() == [1, 8, 5, 6]
    assert host.tolist() == [[1, 2, 3, 99], [5, 6, 7, 8]]


@needs_compiler
def test_a_wrong_use_of_a_surface_ends_the_launch(cp: Any, surfaces: Any) -> None:
    array = cuda_array(cp, np.zeros((2, 4), np.int16), 1, LOAD_STORE)
    surface, trapped = surface_of(cp, array), surfaces.get_function("trapped")

    def run(kernel: Any, *args: Any) -> None:
        kernel((1,), (1,), args)
        cp.cuda.Device().synchronize()

    cases = [(8, "beyond its border"), (-2, "beyond its border"), (3, "a byte between elements")]
    for x, says in cases:
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match=says):
            run(trapped, surface, np.int32(x))
    wrong, out = surfaces.get_function("wrong"), cp.zeros(1, "f4")
    for other in (surface, np.uint64(0)):
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="that is no texture object"):
            run(wrong, out, other)
    with pytest.raises(TypeError, match="Unsupported type"):
        run(wrong, out, array)
