"""Strict mode: it names each planted fault, and accuses no right kernel and no right program.

All kernels of one kind are one module, which is compiled once.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import door_kit
import numpy as np
import pytest
from door_cases import cupyx, refused

pytestmark = pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="no C++ compiler here")

KERNELS = Path(__file__).parent / "kernels"
BOUNDS, RACE, UNWRITTEN = "cudaErrorIllegalAddress", "a race", "that nothing has written"
TEMPLATES = ("scaled<float>", "scaled<double>", "block_max<float, 64>", "block_max<int, 32>")
RNG = np.random.default_rng(1)
F, D = RNG.normal(size=1000).astype("f"), RNG.normal(size=64)
WHOLE, BYTES = RNG.integers(0, 8, 1000).astype("i"), RNG.integers(0, 255, 64).astype("u1")
RANGE = np.arange(128, dtype="i")
SQUARE = F[:576].reshape(24, 24)
BINS = np.bincount(WHOLE, minlength=8)
EXPONENTS = np.frexp(F[:64])[1]
TURNED = F[:400].reshape(20, 20).T[:, ::-1].ravel()


def made_by(name: str) -> Callable[..., Any]:
    return lambda size, kind="f": lambda cp: getattr(cp, name)(size, kind)


empty, zeros = made_by("empty"), made_by("zeros")


@pytest.fixture(scope="module")
def strict(cp: Any, session: Any) -> Iterator[Any]:
    """Give the drop-in with a session in strict mode."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUPOOL_STRICT", "1")
        patch.setenv("GPUPOOL_BLOCKING", "1")
        session.close()
        session.open()
        yield cp
    session.close()
    session.open()


@pytest.fixture(scope="module")
def faulty(strict: Any) -> Any:
    return strict.RawModule(code=(KERNELS / "strict_faulty.cu").read_text())


@pytest.fixture(scope="module")
def right(strict: Any) -> Any:
    return strict.RawModule(
        code=(KERNELS / "strict_right.cu").read_text(), name_expressions=TEMPLATES
    )


def launch(cp: Any, module: Any, name: str, grid: Any, block: Any, args: Any, shared: int) -> Any:
    """Launch a kernel; return its arguments."""
    made = [
        arg(cp) if callable(arg) else cp.asarray(arg) if isinstance(arg, np.ndarray) else arg
        for arg in args
    ]
    dims = [each if isinstance(each, tuple) else (each,) for each in (grid, block)]
    module.get_function(name)(*dims, made, shared_mem=shared)
    return made


FIRST = np.arange(64, dtype="f")
FAULTS: list[tuple[Any, ...]] = [
    ("past_the_end", 2, 64, (zeros(100),), "(36, 0, 0) of block (1, 0, 0)"),
    ("past_the_end", 2, 64, (zeros(100),), "kernel.cu:3 writes 4 bytes at 0x"),
    ("past_the_end", 2, 64, (zeros(100),), "right behind the end of the array of float32, shape"),
    ("negative", 1, 64, (FIRST, empty(64)), "4 bytes before the array"),
    ("at_null", 1, 1, (0,), "null pointer"),
    ("misaligned", 1, 15, (FIRST, empty(64)), "cudaErrorMisalignedAddress"),
    ("atomic_outside", 1, 1, (zeros(64, "i"), 64), BOUNDS),
    ("wrong_pitch", 1, (8, 8), (FIRST, empty(64), 8, 8), BOUNDS),
    ("too_little_shared", 1, 64, (FIRST, empty(64)), "128 bytes of dynamic shared memory", 128),
    ("past_static_shared", 1, 32, (FIRST, empty(64)), BOUNDS),
    ("copied_past_the_end", 1, 1, (FIRST, empty(64), 64), BOUNDS),
    ("no_barrier", 1, 64, (FIRST, empty(64)), RACE),
    ("no_barrier", 1, 64, (FIRST, empty(64)), "which thread (31, 0, 0) used"),
    ("reduction_without_barrier", 1, 64, (FIRST, empty(1)), RACE),
    ("no_second_barrier", 1, 64, (F[:256], empty(64), 256), RACE),
    ("all_write_one", 2, 1, (zeros(1, "i"),), "a thread of another block"),
    ("histogram", 2, 32, (WHOLE, zeros(8, "i"), 64), RACE),
    ("stencil_in_place", 4, 16, (FIRST, 64), RACE),
    ("last_block_without_fence", 4, 32, (FIRST, zeros(4), empty(1)), RACE),
    ("warp_without_sync", 1, 32, (RANGE, empty(32, "i")), RACE),
    ("warp_is_no_block", 1, 64, (RANGE, empty(64, "i")), RACE),
    ("volatile_warp", 1, 32, (FIRST, empty(1)), RACE),
    ("tile_is_no_block", 1, 32, (RANGE, empty(32, "i")), RACE),
    ("reset_without_barrier", 1, 64, (RANGE, empty(1, "i")), RACE),
    ("read_after_atomics", 1, 64, (zeros(1, "i"), empty(64, "i")), RACE),
    ("adds_to", 1, 64, (FIRST, empty(64)), UNWRITTEN),
    ("adds_atomically", 1, 64, (FIRST, empty(1)), UNWRITTEN),
    ("divergent", 1, 32, (empty(32),), "different barriers"),
    ("mask_without_itself", 1, 32, (empty(32, "i"),), "mask without itself"),
    ("half_shared", 1, 32, (empty(32),), "40,000 bytes of static shared memory", 16384),
    ("bounded", 1, 65, (empty(65),), "CUDA_ERROR_INVALID_VALUE"),
    ("sets", 1, 2048, (empty(2048),), "CUDA_ERROR_INVALID_VALUE"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[0])
def test_a_faulty_kernel_is_named(strict: Any, faulty: Any, fault: tuple[Any, ...]) -> None:
    name, grid, block, args, text, *shared = fault
    with pytest.raises(RuntimeError) as raised:
        launch(strict, faulty, name, grid, block, args, *(shared or [0]))
    assert text in str(raised.value)
    if text in (BOUNDS, RACE, UNWRITTEN):
        assert str(raised.value).startswith("strict: ")
        assert f"kernel '{name}', kernel.cu:" in str(raised.value)


def past_template(cp: Any) -> None:
    code = "template <class T> __global__ void past(T *x) { x[threadIdx.x + 1] = 1; }"
    kernel = cp.RawModule(code=code, name_expressions=["past<int>"]).get_function("past<int>")
    kernel((1,), (64,), (cp.zeros(64, "i"),))


def too_much_shared(cp: Any) -> None:
    code = "__shared__ float t[20000]; t[(int)*y] = 1; *y = t[1];"
    kernel = cp.RawKernel(f'extern "C" __global__ void k(float *y) {{ {code} }}', "k")
    kernel((1,), (1,), (cp.zeros(1, "f"),))


def in_part(cp: Any) -> Any:
    made = cp.empty((4, 4))
    made[0] = 1
    return made


def assigned(cp: Any) -> Any:
    made = cp.ones(5)
    made[2:] = cp.empty(3)
    return made


def elementwise(*texts: str) -> Callable[..., Any]:
    """Return a call of such a kernel with arrays that a function makes."""
    return lambda of: lambda cp: cp.ElementwiseKernel(*texts)(*of(cp))


SCATTERS = ("T x, raw int32 at", "raw T y", "y[at[i] / 2] = x")
WEIGHTED = ("T x, raw T w", "T y", "x * w[_j + 1]", "a + b", "y = a", "0")
FIRST_ELEMENT = "sum reads memory that nothing has written: element (0, 0) of an array of float64"
FAULTY_PROGRAMS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "elementwise outside": (
        elementwise("raw T x, int32 by", "T y", "y = x[i + by]")(
            lambda cp: (cp.ones(64), 1, cp.empty(64))
        ),
        BOUNDS,
    ),
    "elementwise adds": (elementwise("T x", "T y", "y += x")(lambda cp: (cp.ones(9),)), UNWRITTEN),
    "elementwise scatters": (
        elementwise(*SCATTERS)(
            lambda cp: (cp.arange(64.0), cp.arange(64, dtype="i"), cp.empty(64))
        ),
        RACE,
    ),
    "reduction outside": (
        lambda cp: cp.ReductionKernel(*WEIGHTED)(cp.ones(64), cp.ones(64)),
        BOUNDS,
    ),
    "template outside": (past_template, BOUNDS),
    "too much shared": (too_much_shared, "uses too much shared data"),
    "sum": (lambda cp: cp.empty((3, 4)).sum(), FIRST_ELEMENT),
    "in part": (lambda cp: in_part(cp) + 1, "element (1, 0)"),
    "copied": (lambda cp: cp.exp(in_part(cp).T.copy()), "element (0, 1)"),
    "converted": (lambda cp: cp.exp(in_part(cp).astype("f")), "element (1, 0)"),
    "joined": (lambda cp: cp.concatenate([cp.ones(3), cp.empty(3)]).max(), "element (3,)"),
    "assigned": (lambda cp: assigned(cp).sum(), "element (2,)"),
    "to the host": (lambda cp: cp.empty(5).get(), "a copy to the host reads"),
    "in place": (lambda cp: cp.add(cp.empty(5), 1, out=cp.empty(5)), UNWRITTEN),
    "image": (lambda cp: cupyx("scipy.ndimage").uniform_filter(cp.empty((5, 5))), UNWRITTEN),
}


@pytest.mark.parametrize("name", FAULTY_PROGRAMS)
def test_a_faulty_program_is_named(strict: Any, name: str) -> None:
    program, text = FAULTY_PROGRAMS[name]
    with pytest.raises(Exception, match=r"^strict: ") as raised:
        program(strict)
    assert text in str(raised.value)


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("second", ["reads", "writes", "kernel reads", "kernel writes"])
@pytest.mark.parametrize("first", ["function", "kernel"])
def test_streams_without_an_order_are_named(
    strict: Any, faulty: Any, first: str, second: str, blocking: bool
) -> None:
    one, two = (strict.cuda.Stream(non_blocking=not blocking) for _ in range(2))
    x, y, z = strict.ones(64, "f"), strict.zeros(64, "f"), strict.arange(64, dtype="f") + 2
    copies = faulty.get_function("copies")
    strict.cuda.Device().synchronize()
    with one:
        if first == "kernel":
            copies((1,), (64,), (x, y))
        else:
            strict.add(x, 1, out=y)
    seconds: dict[str, Callable[[], Any]] = {
        "reads": lambda: y * 2,
        "writes": lambda: x.fill(3),
        "kernel reads": lambda: copies((1,), (64,), (y, z)),
        "kernel writes": lambda: copies((1,), (64,), (z, x)),
    }
    with two, pytest.raises(RuntimeError, match="in another stream, and nothing orders the two"):
        seconds[second]()
    strict.cuda.Device().synchronize()
    assert float((y * 2 + x).sum()) > 0


def test_an_event_before_the_work_and_the_default_stream_order_nothing(strict: Any) -> None:
    one, two = (strict.cuda.Stream(non_blocking=True) for _ in range(2))
    event, y = one.record(), strict.zeros(10)
    with one:
        x = strict.zeros(10)
    two.wait_event(event)
    with two:
        refused(
            (RuntimeError, "multiply in one .* that zeros wrote", lambda: strict.multiply(x, 2)),
            (RuntimeError, "nothing orders the two", lambda: strict.multiply(y, 2)),
        )


LAST_BLOCK = (F, empty(8), empty(1), 1000)
RIGHT: list[tuple[Any, ...]] = [
    # Name, blocks, threads, arguments, results by their places, bytes of shared memory.
    ("add", 16, 64, (F, F, empty(1000), 1000), {2: 2 * F}),
    ("grid_stride", 2, 32, (F, empty(1000), 1000), {1: 2 * F}),
    ("block_sum", 16, 64, (F, zeros(1), 1000), {1: F.sum()}),
    ("warp_sums", 1, 256, (F, empty(1)), {1: F[:256].sum()}),
    ("warp_in_shared", 1, 64, (F, empty(2)), {1: F[:64].reshape(2, 32).sum(1)}),
    ("last_warp", 1, 128, (F, empty(1)), {1: F[:128].sum()}),
    ("scan", 1, 128, (WHOLE, empty(128, "i"), 128), {1: WHOLE[:128].cumsum()}, 1024),
    ("warp_scan", 1, 32, (WHOLE, empty(32, "i")), {1: WHOLE[:32].cumsum()}),
    ("transpose", (3, 2), (16, 16), (F, empty(1000), 40, 25), {1: F.reshape(25, 40).T.ravel()}),
    ("histogram", 16, 64, (WHOLE, zeros(8, "i"), 1000), {1: BINS}),
    ("shared_histogram", 3, 32, (WHOLE, zeros(8, "i"), 1000), {1: BINS}),
    ("stencil", 16, 64, (F, empty(1000), 1000), {1: np.convolve(F, np.ones(3, "f"), "same")}),
    ("matmul", (3, 3), (8, 8), (F, F, empty(576), 24), {2: (SQUARE @ SQUARE).ravel()}),
    ("double_buffer", 1, 32, (F, empty(32), 5), {1: F[:160].reshape(5, 32).sum(0)[::-1]}),
    ("last_block", 8, 32, LAST_BLOCK, {2: F.sum()}),
    ("last_block", 4, 32, LAST_BLOCK, {2: F.sum()}),
    ("last_block_plain", 8, 32, (F, empty(256), empty(1), zeros(1, "u4")), {2: 2 * F[:256].sum()}),
    ("groups", 1, 128, (F, empty(1)), {1: F[:128].sum()}),
    ("tiles_in_shared", 1, 32, (WHOLE, empty(32, "i")), {1: WHOLE[np.arange(32) ^ 7]}),
    ("votes", 1, 32, (WHOLE, empty(1, "u4")), {1: (WHOLE[:32] % 3 == 0).sum()}),
    (
        *("compacted", 1, 128, (WHOLE, zeros(128, "i"), zeros(1, "i"))),
        {2: (WHOLE[:128] % 2).sum()},
    ),
    ("same_value", 1, 256, (WHOLE, zeros(1, "i")), {1: 1}),
    ("shared_flag", 2, 64, (WHOLE, empty(64, "i")), {1: np.zeros(64)}),
    ("uniform", 1, 64, (F, empty(64)), {1: F[:64] - F[0]}),
    ("maximum", 2, 64, (abs(F), zeros(1), 1000), {1: abs(F).max()}),
    ("checked_first", 1, 64, (WHOLE, np.full(1, 9, "i")), {1: WHOLE[:64].min()}),
    ("lock", 2, 32, (zeros(1, "i"), zeros(1, "d"), D), {1: D.sum()}),
    ("queue", 3, 32, (zeros(1, "i"), RANGE, empty(128, "i"), 4), {2: RANGE + RANGE // 32}),
    (
        *("look_back", 16, 2, (WHOLE, empty(16, "i"), zeros(16, "i"), empty(16, "i"))),
        {3: np.cumsum(WHOLE[:16]) - WHOLE[:16]},
    ),
    ("columns", 1, 16, (F, empty(400), 20), {1: TURNED}, 80),
    ("bytes", 1, 64, (BYTES, empty(64, "u1"), 64), {1: BYTES[::-1]}),
    ("packed", 1, 16, (BYTES.view("u4"), empty(64, "u1")), {1: BYTES}),
    ("halves", 1, 64, (RANGE.astype("i2"), empty(64, "i2")), {1: RANGE[:64] ^ 1}),
    ("doubles", 1, 64, (abs(D), empty(64, "d")), {1: np.sqrt(abs(D))}),
    ("structures", 1, 32, (zeros(96), np.float32(2)), {0: np.zeros(96)}),
    ("padded", 1, 32, (empty(96), empty(96)), {}),
    ("vectors", 1, 16, (F, empty(64)), {1: F[:64].reshape(16, 4)[:, ::-1].ravel()}),
    ("constants", 1, 64, (F, empty(64)), {1: np.tile([1, 2, 3, 4], 16)}),
    ("globals", 1, 64, (F, empty(64)), {1: F[63::-1]}),
    ("constructed", 2, 64, (F, empty(64)), {1: F[63::-1]}),
    ("allocated", 1, 8, (F, empty(8)), {1: 2 * F[:8]}),
    ("local_arrays", 1, 16, (F, empty(64)), {1: np.outer(F[:16], [3, 4, 5, 0]).ravel()}),
    ("virtual_functions", 1, 64, (F, empty(64)), {1: F[:64] * np.tile([2, 3], 32)}),
    ("sines", 1, 64, (F, empty(64), empty(64), empty(64, "i")), {1: np.sin(F[:64]), 3: EXPONENTS}),
    ("uneven", 1, 64, (empty(100), 50), {0: np.full(100, 50)}),
    ("counted", 1, 64, (RANGE, empty(64, "i")), {1: np.full(64, 32)}),
    ("in_place", 8, 64, (F, 1000), {0: F[::-1]}),
    ("bitonic", 1, 64, (RANGE[:64][::-1].copy(),), {0: RANGE[:64]}),
    ("exchanged", 1, 64, (empty(64, "i"), WHOLE), {0: WHOLE[:64]}),
    ("scaled<float>", 16, 64, (F, np.float32(3), 1000), {0: 3 * F}),
    ("scaled<double>", 1, 64, (D, 3.0, 64), {0: 3 * D}),
    ("block_max<float, 64>", 4, 64, (F, empty(4)), {1: F[:256].reshape(4, 64).max(1)}),
    ("block_max<int, 32>", 4, 32, (WHOLE, empty(4, "i")), {1: WHOLE[:128].reshape(4, 32).max(1)}),
]


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case[0])
def test_a_right_kernel_is_not_accused(strict: Any, right: Any, case: tuple[Any, ...]) -> None:
    name, grid, block, args, results, *shared = case
    made = launch(strict, right, name, grid, block, args, *(shared or [0]))
    for place, expected in results.items():
        assert np.allclose(made[place].get(), expected, 1e-3, 1e-3)


def test_typed_kernels_are_not_accused(strict: Any) -> None:
    x = strict.asarray(F)
    both = strict.ElementwiseKernel("T x, raw T w", "T y, raw T z", "y = x + w[0]; z[i] = y")
    y, z = both(x, x, strict.empty_like(x), strict.empty_like(x))
    assert np.allclose(y.get(), F + F[0])
    assert bool((y == z).all())
    made = strict.empty((10, 20), "f")
    squares = strict.ElementwiseKernel("T x", "T y", "y = x * x")
    squares(x[:200:2].reshape(10, 10), made[:, ::2])
    squares(x[:100].reshape(10, 10).T, made[:, 1::2])
    assert np.allclose(made.get()[:, ::2], F[:200:2].reshape(10, 10) ** 2)
    norm = strict.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0")
    rows = F.reshape(10, 100)
    assert np.allclose(norm(x.reshape(10, 100), axis=1).get(), np.linalg.norm(rows, axis=1), 1e-4)


def test_what_is_written_in_parts_is_not_accused(strict: Any) -> None:
    made = strict.empty((4, 6))
    made[:2] = 1
    made[2:, :3] = made[:2, :3] * 2
    copied = made.copy()  # of a part without values, which nothing uses
    made[2:, 3:].fill(5)
    strict.multiply(made[0], 3, out=copied[3])
    chosen = strict.where(made > 4, copied, 0)[0]
    assert float(made.sum() + copied[3].sum() + chosen.sum()) == 72
    buffer = strict.empty(100, "i")
    buffer[:3] = strict.arange(3)
    assert buffer.get()[:3].tolist() == [0, 1, 2]
    assert int(buffer[:3].sum()) == 3


def test_outputs_of_functions_are_not_accused(strict: Any) -> None:
    a, out, line = strict.arange(12.0).reshape(3, 4), strict.empty((3, 4)), strict.empty(4)
    strict.add(a, 1, out=out)
    strict.sum(a, axis=0, out=line)
    strict.concatenate([out, strict.empty_like(out)])
    strict.take(a, strict.arange(2), axis=0, out=out[:2])
    matrix = strict.empty((3, 3))
    strict.matmul(a, a.T, out=matrix)
    whole, part = strict.empty(4), strict.empty(4)
    strict.modf(line, part, whole)
    assert (float(line.sum()), float(matrix[0, 0]), float(whole.sum())) == (66, 14, 66)
    drawn = strict.random.random(100)
    drawn.sort()
    assert bool((strict.diff(drawn) >= 0).all())


def test_ordered_streams_are_not_accused(strict: Any, right: Any) -> None:
    one, two = (strict.cuda.Stream(non_blocking=True) for _ in range(2))
    with one:
        made = strict.asarray(F) + 1
        event = one.record()
    two.wait_event(event)
    with two:
        made *= 2
    two.synchronize()
    assert np.allclose(made.get(), 2 * F + 2)
    first, second = strict.cuda.Stream(), strict.cuda.Stream()
    with first:
        made = strict.zeros(10) + 1
    made += 1  # in the default stream: after the first stream, and before the second
    with second:
        made += 1
    assert float(made.sum()) == 30


def test_streams_that_share_no_element_are_not_accused(strict: Any, right: Any) -> None:
    streams = [strict.cuda.Stream(non_blocking=True) for _ in range(4)]
    made, read = strict.empty(64, "f"), strict.arange(10.0)
    strict.cuda.Device().synchronize()
    found: list[Any] = []
    for at, stream in enumerate(streams):
        with stream:
            made[at::4] = at
            right.get_function("every_fourth")((1,), (16,), (made, at))
            found.append(read + 1)
    for stream in streams:
        stream.synchronize()
    assert float(made.sum()) == 192
    assert float(strict.stack(found).sum()) == 220


def test_a_server_without_strict_mode_is_named(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = cp._door.pool.current()
    welcome = {**session.server, "protocol": cp._door.wire.PROTOCOL}
    monkeypatch.setenv("GPUPOOL_STRICT", "1")
    with pytest.raises(RuntimeError, match="GPUPOOL_STRICT asks for strict mode"):
        session._heed({**welcome, "strict": False}, "1")
