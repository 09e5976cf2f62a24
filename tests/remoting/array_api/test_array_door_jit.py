"""`cupyx.jit`: kernels of Python's text, translated here and run by the worker.

Each kernel is compiled once, which takes some 0.1 s, so a test puts several things into one.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# A kernel's variables begin in branches.
# pyright: reportPossiblyUnboundVariable=false

import importlib
from typing import Any

import door_kit
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="no C++ compiler here")

TABLE = (3, 5.5)


@pytest.fixture(scope="module")
def jit(cp: Any) -> Any:
    """Give `cupyx.jit`, which a look at `cupyx` imports."""
    assert cp.__name__ == "cupy"
    return importlib.import_module("cupyx").jit


def same(made: Any, wanted: Any) -> None:
    """Compare an array of the device with one of NumPy."""
    np.testing.assert_array_equal(made.get(), wanted)


def test_a_loop_over_the_grid_on_arrays_of_any_strides(cp: Any, jit: Any) -> None:
    @jit.rawkernel()
    def copy(x: Any, y: Any, size: Any) -> None:
        """Copy."""
        start = jit.blockIdx.x * jit.blockDim.x + jit.threadIdx.x
        for i in range(start, size, jit.gridDim.x * jit.blockDim.x):
            y[i] = x[i]

    x = np.arange(200, dtype=np.float32)
    for part in (slice(None), slice(None, None, -3), slice(5, 90, 7)):
        made = cp.zeros(x[part].size * 2, np.float32)
        copy((3,), (16,), (cp.asarray(x)[part], made[::2], x[part].size))
        same(made[::2], x[part])
        same(made[1::2], np.zeros(x[part].size))
        copy[2, 8](cp.asarray(x)[part][::-1], made[::2], np.uint32(x[part].size))
        same(made[::2], x[part][::-1])
    assert len(copy.cached_codes) == 2  # of a Python number and of one of 32 bits


def test_indices_parts_and_attributes_of_arrays(cp: Any, jit: Any) -> None:
    @jit.rawkernel()
    def look(x: Any, y: Any, zero: Any, told: Any) -> None:
        i, j, k = jit.grid(3)
        if i < x.shape[0] and j < x.shape[1] and k < x.shape[2]:
            plane = x[i]
            row = x[i, j]
            place = (i, j, k)
            y[place] = plane[j, k] * 1000000 + row[k] * 1000 + x[i][j][k]
        if i == 0 and j == 0 and k == 0:
            shape = x.shape
            told[0] = shape[0] * 100 + shape[1] * 10 + shape[-1]
            told[1] = x.strides[1]
            told[2] = x.size
            told[3] = x.ndim * 10 + len(x)
            told[4] = zero[()] + plane.shape[0] + len(row)
            told[5] = jit.gridsize(3)[0] * 100 + jit.gridsize(2)[1] + jit.gridsize(1)
            zero[()] += 1

    x = np.arange(24).reshape(2, 3, 4)
    plain = cp.asarray(x)
    devices = (
        *(plain, cp.asarray(np.asfortranarray(x)), plain[:, ::-1, ::2]),
        cp.broadcast_to(plain[:, :1], x.shape),
    )
    for device in devices:
        host = device.get()
        made, told, zero = cp.zeros(host.shape, np.int64), cp.zeros(6, np.int64), cp.asarray(7)
        look[(1, 2, 2), (2, 2, 2)](device, made, zero, told)
        same(made, host * 1001001)
        a, b, c = host.shape
        wanted = [a * 100 + b * 10 + c, device.strides[1], host.size, 30 + a, 7 + b + c, 206]
        assert told.tolist() == wanted
        assert int(zero) == 8


def test_loops_branches_and_conditions(cp: Any, jit: Any) -> None:
    unroll: Any = None

    @jit.rawkernel()
    def run(x: Any, y: Any, n: Any, step: Any) -> None:
        total = 0
        for i in range(10):
            if i == 2:
                continue
            if i == 7:
                break
            total += i
        y[0] = total
        left = n
        while left > 0 and not left == 3:  # noqa: SIM201 - both are to be translated
            left -= 1
        y[1] = left
        total = 0
        for i in range(n - 1, -1, -1):
            total = total * 3 + i
        y[2] = total
        total = 0
        for i in range(20, 5, step):  # by a step whose sign only the device knows
            total = total * 3 + i
        for i in range(5, 20, -step):
            total = total * 3 + i
        y[3] = total
        y[4] = (5 if n > 3 else 6) + (1 if n < 3 else 0)
        guarded = n < 3 and x[n * 1000000] > 0  # is not looked at
        y[5] = 1 if guarded or n == 9 else 0
        if unroll == None:  # noqa: E711 - as CuPy's kernels ask
            y[6] = 1
        elif x.nothing:  # is not translated
            y[6] = unroll.nothing
        while True:
            total -= 1
            if total < 100:
                break
            if total > 10**9:
                y[7] = -1
            elif total > 10**8:
                pass
            else:
                continue
        y[7] += i
        if n == 9:  # noqa: SIM108 - a variable begins in a branch
            later = 4.5
        else:
            later = 2.5
        y[8] = cp.int64(later * 2)
        y[9] = min(n, 4, 7) * 10 + max(n, step) + min(3, 2) + len(TABLE)

    def digits(*turns: range) -> int:
        total = 0
        for i in (i for each in turns for i in each):
            total = total * 3 + i
        return total

    x, made = cp.zeros(1), cp.zeros(10, np.int64)
    run[1, 1](x, made, 9, -6)
    counted = digits(range(20, 5, -6), range(5, 20, 6))
    assert made.tolist() == [19, 3, digits(range(8, -1, -1)), counted, 5, 1, 1, 17, 9, 53]


def test_tuples_variables_and_changes_in_place(cp: Any, jit: Any) -> None:
    @jit.rawkernel(device=True)
    def next_of(counter: Any) -> Any:
        counter[0] += 1
        return counter[0] - 1

    @jit.rawkernel()
    def run(x: Any, counter: Any, n: Any) -> None:
        a, b = 1, 2
        a, b = b, a
        (a, c), b = (b * 10, a), a + b  # the values are there before the names change
        x[0] = a * 100 + b * 10 + c
        x[next_of(counter) + 1] += 5  # the index is computed once
        x[next_of(counter) + 1] **= 2
        kind = cp.float32
        pair = (n, kind(n) / 2)
        x[3] = pair[0] + pair[1] * 4
        n += 1.5
        x[4] = n
        auto, x_p, n0_x, ключ = 1, 2, 3, 4
        x[5] = auto + x_p + n0_x + ключ
        x[6] = -n + ~a + +b
        x[7] = jit.atomic_add(counter, 0, 10) + counter[0]

    x, counter = cp.asarray(np.full(8, 3.0)), cp.zeros(1, np.int32)
    run[1, 1](x, counter, np.float64(2))
    assert x.tolist()[:7] == [10 * 100 + 30 + 2, 8, 9, 6, 3.5, 10, -3.5 - 11 + 3]
    assert counter.tolist() == [12]


def test_constants_of_closures_and_modules(cp: Any, jit: Any) -> None:
    far = {"low": -(2**31), "lowest": -(2**63), "high": 2**63 - 1}
    table = np.array([2.5, 3.5])

    @jit.rawkernel()
    def run(x: Any, y: Any) -> None:
        x[0] = far["low"]
        x[1] = far["lowest"]
        x[2] = far["high"]
        x[3] = 3000000000
        x[4] = cp.int8(-7)
        y[0] = table[1] + TABLE[1] + TABLE[0]
        y[1] = cp.inf
        y[2] = -cp.inf
        y[3] = cp.nan
        y[4] = 0.1
        y[5] = cp.float64(1e-300 * 2)
        y[6] = cp.float32(0.1)

    x, y = cp.zeros(5, np.int64), cp.zeros(7)
    run((1,), (1,), (x, y))
    assert x.tolist() == [-(2**31), -(2**63), 2**63 - 1, 3000000000, -7]
    tenth = float(np.float32(0.1))  # a constant has 32 bits, as in CuPy
    np.testing.assert_array_equal(y.get(), [12, np.inf, -np.inf, np.nan, tenth, 2e-300, tenth])


def test_threads_of_a_block_share_memory(cp: Any, jit: Any) -> None:
    @jit.rawkernel()
    def reverse(x: Any, y: Any, z: Any) -> None:
        i = jit.threadIdx.x
        n = jit.blockDim.x
        whole = jit.shared_memory(np.int32, 64)
        part = jit.shared_memory(cp.complex128, size=64, alignment=32)
        free = jit.shared_memory(dtype=np.float16, size=None)
        whole[i] = x[i]
        part[i] = x[i] * 1j
        free[i] = x[i]
        jit.syncthreads()
        y[i] = whole[n - i - 1] + cp.int32(free[n - i - 1])
        z[i] = part[n - i - 1]
        tail = whole + 1
        if i == 5:
            y[5] = tail[0] + (tail - whole) * 100 + (2 + whole)[0] + (tail - 1)[0] + tail.ndim

    x = np.arange(64, dtype=np.int32)
    y, z = cp.zeros(64, np.int32), cp.zeros(64, np.complex128)
    reverse[1, 64](cp.asarray(x), y, z, shared_mem=128)
    wanted = x[::-1] * 2
    wanted[5] = 101 + 3
    same(y, wanted)
    same(z, x[::-1] * 1j)


def test_threads_of_a_warp_pass_values(cp: Any, jit: Any) -> None:
    @jit.rawkernel()
    def run(x: Any, y: Any, width: Any) -> None:
        i = jit.threadIdx.x
        lane = jit.laneid()
        y[0, i] = jit.shfl_sync(0xFFFFFFFF, x[i], 3)
        y[1, i] = jit.shfl_up_sync(0xFFFFFFFF, x[i], 2)
        y[2, i] = jit.shfl_down_sync(0xFFFFFFFF, x[i], 4, width=8)
        y[3, i] = jit.shfl_xor_sync(0xFFFFFFFF, x[i], 1)
        y[4, i] = jit.shfl_sync(0xFFFFFFFF, x[i], 1, width=width)
        y[5, i] = lane + jit.warpsize * 100
        jit.syncwarp()
        if lane < 4:
            jit.syncwarp(mask=0xF)
        if lane < width:
            jit.syncwarp(mask=(1 << width) - 1)

    x = np.arange(64.0) * 2
    y = cp.zeros((6, 64))
    run[1, 64](cp.asarray(x), y, 16)
    rows, lane = x.reshape(2, 32), np.arange(32)
    wanted = [rows[:, [3] * 32], rows[:, np.where(lane < 2, lane, lane - 2)]]
    wanted += [rows[:, np.where(lane % 8 < 4, lane + 4, lane)], rows[:, lane ^ 1]]
    wanted += [rows[:, lane // 16 * 16 + 1], np.tile(lane + 3200, (2, 1))]
    same(y, np.array([each.reshape(64) for each in wanted]))
    run[1, 64](cp.asarray(x), y, 32)  # a shift by all bits gives 0, as on a GPU
    same(y[4], rows[:, [1] * 32].reshape(64))


def test_atomic_operations(cp: Any, jit: Any) -> None:
    @jit.rawkernel()
    def run(x: Any, half: Any, short: Any, old: Any) -> None:
        i = jit.threadIdx.x
        jit.atomic_add(x, (0, 0), 2)
        jit.atomic_sub(x[0], 1, i)
        jit.atomic_max(x, (0, 2), i)
        jit.atomic_min(x, (0, 3), i)
        jit.atomic_inc(x, (0, 4), 9)
        jit.atomic_dec(x, (0, 5), 9)
        jit.atomic_and(x, (1, 0), ~(1 << i))
        jit.atomic_or(x, (1, 1), 1 << i)
        jit.atomic_xor(x, (1, 2), 1 << (i % 3))
        old[i] = jit.atomic_exch(x, (1, 3), i)
        jit.atomic_cas(x, (1, 4), i, i + 1)
        jit.atomic_cas(array=short, index=0, value=i, alt_value=i + 1)
        jit.atomic_add(half, 0, 0.5)
        shared = jit.shared_memory(np.uint32, 1)
        shared[0] = 0
        jit.syncthreads()
        jit.atomic_add(shared, 0, 1)
        jit.syncthreads()
        x[1, 5] = shared[0]

    x = cp.zeros((2, 6), np.uint32)
    x[0, 1], x[0, 3], x[1, 0] = 1000, 1000, 0xFFFFFFFF
    half, short, old = cp.zeros(1, np.float16), cp.zeros(1, np.uint16), cp.zeros(20, np.int32)
    run[1, 20](x, half, short, old)
    wanted = [[40, 1000 - 190, 19, 0, 0, 0], [0xFFF00000, 0xFFFFF, 0b111 ^ 0b100, 19, 20, 20]]
    same(x, wanted)
    assert (half.tolist(), short.tolist()) == ([10], [20])
    same(old, [0, *range(19)])


def test_functions_of_the_device(cp: Any, jit: Any) -> None:
    double = jit.rawkernel(device=True)(lambda value: value * 2)

    @jit.rawkernel(device=True)
    def parts(value: Any, by: Any) -> Any:
        return value // by, value % by

    @jit.rawkernel(device=True)
    def clamped(value: Any, low: Any) -> Any:
        if value < low:
            return low
        return double(value)

    def power_of(exponent: int) -> Any:
        @jit.rawkernel(device=True)
        def power(x: Any, i: Any) -> Any:
            return x[i] * 1 if exponent == 0 else x[i] * power_of(exponent - 1)(x, i)

        return power

    @jit.rawkernel(device=True)
    def fill(row: Any, value: Any) -> None:
        value += 1  # of its own
        for i in range(len(row)):
            row[i] = value

    @jit.rawkernel()
    def run(x: Any, y: Any) -> None:
        i = jit.threadIdx.x
        quotient, rest = parts(x[i], 4)
        y[0, i] = quotient * 100 + rest
        y[1, i] = clamped(x[i], 5)
        y[2, i] = clamped(x[i] * 0.5, cp.float32(1.5)) * 2
        y[3, i] = power_of(3)(x, i)
        value = i
        if i == 0:
            fill(y[4], value)
        y[5, i] = parts(x[i], 3)[1]
        return

    x, y = np.arange(10, dtype=np.int32), cp.zeros((6, 10), np.float32)
    run[1, 10](cp.asarray(x), y)
    wanted = [x // 4 * 100 + x % 4, np.where(x < 5, 5, 2 * x)]
    wanted += [np.where(x < 3, 3, x * 2.0), x.astype(float) ** 4, np.ones(10), x % 3]
    same(y, wanted)
    text = run.cached_code
    assert text.count("__global__") == 1
    assert text.count("clamped") >= 4  # once for each list of types, and their calls


def test_complex_numbers_and_half_precision(cp: Any, jit: Any) -> None:
    @jit.rawkernel()
    def run(z: Any, w: Any, h: Any, out: Any, truths: Any, small: Any) -> None:
        i = jit.threadIdx.x
        out[0, i] = z[i] * w[i] + 2 - 1j
        out[1, i] = cp.sqrt(z[i]) / w[i]
        out[2, i] = z[i] ** 2 * cp.conjugate(w[i])
        out[3, i] = cp.exp(z[i]) + abs(-2)
        out[4, i] = cp.absolute(z[i]) + h[i]
        out[5, i] = complex(h[i])
        truths[0, i] = z[i] == w[i]
        truths[1, i] = z[i] < w[i]
        truths[2, i] = not z[i]
        truths[3, i] = bool(z[i]) and z[i] != 1
        small[i] = h[i] * h[i] + 0.1
        small[i] += 1
        held = h[i]
        held += 0.5
        h[i] = held
        small[0] = cp.float16(0.1)

    z = np.array([0, 1 + 2j, -3.5j, 2.25], np.complex64)
    w = np.array([1 - 1j, 1 + 2j, 1j, -7], np.complex128)
    h = np.array([0.5, 1.25, -3, 1000], np.float16)
    out, truths, small = cp.zeros((6, 4), np.complex128), cp.zeros((4, 4), bool), cp.zeros(4, "e")
    half = cp.asarray(h)
    run[1, 4](cp.asarray(z), cp.asarray(w), half, out, truths, small)
    wide = h.astype(np.float32)
    wanted = [z * w + 2 - 1j, np.sqrt(z) / w, z**2 * w.conj(), np.exp(z) + 2, abs(z) + wide, wide]
    np.testing.assert_allclose(out.get(), wanted, rtol=1e-6, atol=1e-6)
    order = (z.real < w.real) | ((z.real == w.real) & (z.imag < w.imag))
    same(truths, [z == w, order, z == 0, (z != 0) & (z != 1)])
    with np.errstate(over="ignore"):
        rounded = (wide * wide + np.float32(0.1)).astype(np.float16).astype(np.float32) + 1
        rounded = rounded.astype(np.float16)
    rounded[0] = 0.1
    same(small, rounded)
    same(half, h + np.float16(0.5))


def test_groups_of_threads(cp: Any, jit: Any) -> None:
    @jit.rawkernel()
    def run(x: Any, y: Any) -> None:
        held = jit.shared_memory(np.int32, 8)
        block, grid = 0, 0
        x[0] = block + grid
        b = jit.cg.this_thread_block()
        g = jit.cg.this_grid()
        if g.thread_rank() == 9:
            x[1] = b.thread_rank() + b.size() * 10 + b.group_dim().y * 100
            x[2] = b.group_index().x + b.thread_index().x * 10
            x[3] = g.size() + g.block_rank() * 100 + g.num_blocks() * 1000
            x[4] = g.is_valid() + g.group_dim().x
            index = g.block_index()
            x[5] = index.x + index.y
        jit.cg.memcpy_async(b, held, 0, y, 8, 32)
        jit.cg.wait(b)
        if g.block_rank() == 0:
            y[b.thread_rank()] = held[b.thread_rank()]
        jit.cg.sync(b)

    @jit.rawkernel()
    def together() -> None:
        jit.cg.sync(jit.cg.this_grid())

    x, y = cp.zeros(6, np.int64), cp.arange(16, dtype=np.int32)
    run[2, (4, 2)](x, y)
    assert x.tolist() == [0, 281, 11, 2116, 2, 1]
    same(y, [*range(8, 16)] * 2)
    with pytest.raises(NotImplementedError, match="a cooperative launch needs a real GPU"):
        together[2, 4]()


def test_numbers_as_arguments_have_types_by_the_mode(cp: Any, jit: Any) -> None:
    def run(x: Any, truth: Any, whole: Any, real: Any, z: Any, short: Any) -> None:
        x[0] = real - 0.1
        x[1] = z + truth + whole
        x[2] = short + short
        x[3] = whole / 2

    for mode, kind in (("cuda", np.float32), ("numpy", np.float64)):
        kernel = jit.rawkernel(mode=mode)(run)
        x = cp.zeros(4, np.complex128)
        kernel((1,), (1,), (x, True, 3, 0.1, 2j, np.int8(100)))
        assert x.tolist() == [0 if mode == "numpy" else kind(0.1) - kind(0.1), 4 + 2j, -56, 1.5]
    assert [str(kind) for kind in next(iter(kernel.cached_codes))[1:]] == [
        "bool",
        "int64",
        "float64",
        "complex128",
        "int8",
    ]


def test_each_device_and_each_stream_runs_kernels(cp: Any, jit: Any) -> None:
    @jit.rawkernel()
    def fill(x: Any, value: Any) -> None:
        x[jit.threadIdx.x] = value

    for device in (0, 1):
        with cp.cuda.Device(device):
            stream = cp.cuda.Stream()
            x = cp.zeros(3)
            fill((1,), (3,), (x, device + 5.0), stream=stream)
            stream.synchronize()
            assert x.tolist() == [device + 5] * 3
    assert len(fill.cached_codes) == 1
    assert fill.__name__ == "fill"
    with pytest.raises(NotImplementedError, match="another machine"):
        fill.get_lto_ir((x, 1.0))
