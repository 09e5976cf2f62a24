"""A session's whole state in another worker: sent, refused and nonsensical data."""

from typing import Any

import door_kit
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_kit import REFUSED, Handle, PipeLinks, Worker, moved
from tests.properties import examples

from gpupool.remoting.array_api.server import array_wire, moved_state
from gpupool.remoting.array_api.server.array_results import DependsOnFailureError
from gpupool.remoting.array_api.server.element_types import DTYPES
from gpupool.remoting.array_api.server.kernel_state import keeps_state
from gpupool.remoting.array_api.server.moved_state import Channel, UnmovableError
from gpupool.remoting.devices.host_kernels import host_compiler

H = Handle
STRUCTURE = np.dtype({"names": ["a", "b"], "formats": ["<i4", ("<f8", (2,))], "offsets": [0, 8]})
DATES = np.dtype("<M8[ns]")


@pytest.fixture
def old() -> Worker:
    return Worker(PipeLinks())


# --- arrays ---------------------------------------------------------------------------------------


def test_arrays_of_every_type_are_the_same_bytes(old: Worker) -> None:
    kinds = [*DTYPES.values(), STRUCTURE, DATES]
    data = np.random.default_rng(3).integers(0, 255, 24 * 64, np.uint8)
    sent = [np.frombuffer(data[: 24 * kind.itemsize].tobytes(), kind) for kind in kinds]
    handles = [old.put(each.reshape(4, 6)) for each in sent]
    empty, single = old.put(np.zeros((3, 0, 2))), old.put(np.array(2.5))
    new = moved(old)
    for handle, each in zip(handles, sent, strict=True):
        found = new.array(handle)
        assert found.dtype == each.dtype
        # As bytes, because NumPy leaves out what is between the fields of a structure.
        assert np.array_equal(found.view(np.uint8), old.array(handle).view(np.uint8))
        if each.dtype.names is None:
            assert old.array(handle).tobytes() == each.tobytes(), "a departure changes nothing"
    assert new.array(empty).shape == (3, 0, 2)
    assert new.array(single)[()] == 2.5


def test_views_share_the_memory_of_their_base_and_of_a_base_that_was_dropped(old: Worker) -> None:
    base = old.put(np.arange(60.0).reshape(6, 10))
    rows = old.call("ndarray.getitem", H(base), (slice(1, 5, 2),))
    back = old.call("ndarray.getitem", H(rows), (slice(None), slice(None, None, -1)))
    turned = old.call("ndarray.transpose", H(base))
    words = old.call("ndarray.view", H(base), np.dtype(np.int64))
    own = old.call("ndarray.copy", H(rows), "F")
    hidden = old.put(np.arange(8.0))
    only = old.call("ndarray.getitem", H(hidden), (slice(2, None),))
    old.free(hidden)
    before = {each: old.array(each).copy() for each in (base, rows, back, turned, words, own, only)}
    new = moved(old)
    for handle, values in before.items():
        assert new.array(handle).strides == old.array(handle).strides
        assert np.array_equal(new.array(handle), values)
    new.call("ndarray.fill", H(base), 7, meta=array_wire.META_UNKNOWN)
    for view in (rows, back, turned):
        assert (new.array(view) == 7).all()
    assert np.array_equal(new.array(own), before[own])
    assert np.array_equal(old.array(base), before[base])


def test_memory_is_counted_as_before_and_given_back_with_the_last_view(old: Worker) -> None:
    base = old.put(np.zeros(1 << 20, np.uint8))
    view = old.call("ndarray.getitem", H(base), (slice(5, 9),))
    old.use(1)
    other = old.put(np.zeros(3000, np.uint8))
    new = moved(old)
    assert [pool.used for pool in new.backend.pools] == [1 << 20, 3072]
    assert new.backend.device_of(new.array(other)) == 1
    new.free(base)
    assert new.backend.pools[0].used == 1 << 20
    new.free(view)
    assert new.backend.pools[0].used == 0


def test_many_arrays_take_several_parts(old: Worker) -> None:
    handles = [old.put(np.array([at])) for at in range(2 * moved_state.ARRAYS_AT_ONCE + 1)]
    new = moved(old)
    assert [int(new.array(each)[0]) for each in handles] == list(range(len(handles)))


STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), st.integers(-3, 3)), max_size=12)


@settings(max_examples=examples(100), deadline=None)
@given(STEPS, st.sampled_from(["<f8", "<i2", "<c16", "|b1"]))
def test_any_views_of_views_stay_what_they_are(
    steps: list[tuple[int, int, int]], kind: str
) -> None:
    old = Worker(PipeLinks())
    handles = [old.put(np.arange(24).astype(kind).reshape(2, 3, 4))]
    for what, which, number in steps:
        source = handles[which % len(handles)]
        array = old.array(source)
        if what == 0:
            handles.append(old.call("ndarray.transpose", H(source)))
        elif what == 1 and array.ndim:
            step = number or -1
            handles.append(old.call("ndarray.getitem", H(source), (slice(None, None, step),)))
        elif what == 2:
            handles.append(old.call("ndarray.copy", H(source), "K"))
        elif what == 3:
            handles.append(old.call("ndarray.real", H(source)))
        elif what == 4 and len(handles) > 1:
            old.free(handles.pop(which % len(handles)))
        else:
            handles.append(old.call("broadcast_to", H(source), (2, *array.shape)))
    assert old.client.failures == []
    new = moved(old)
    for handle in handles:
        mine, theirs = old.array(handle), new.array(handle)
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert np.array_equal(mine, theirs)
        for other in handles:
            shares = np.shares_memory(mine, old.array(other))
            assert shares == np.shares_memory(theirs, new.array(other))


# --- objects --------------------------------------------------------------------------------------


def test_generators_go_on_where_they_were(old: Worker) -> None:
    state = old.make("random.state", 12, 100)
    bits = old.make("random.generator", "XORWOW", [3, 4, 5])
    for name, source in (("random.normal", state), ("generator.random", bits)):
        arguments = (0.0, 1.0) if name == "random.normal" else ()
        old.call(name, H(source), (3,), np.dtype(np.float64), *arguments)
    new = moved(old)
    again = moved(new)
    for worker in (new, again):
        for name, source in (("random.standard_normal", state), ("generator.random", bits)):
            drawn = worker.call(name, H(source), (5,), np.dtype(np.float64))
            if worker is new:
                assert np.array_equal(
                    new.array(drawn),
                    old.array(old.call(name, H(source), (5,), np.dtype(np.float64))),
                )
    assert [len(each.client.failures) for each in (old, new, again)] == [0, 0, 0]


def test_streams_events_and_the_time_between_these(old: Worker) -> None:
    stream = old.make("cuda.stream.create", False, None)
    first, last = (old.make("cuda.event.create", False, False) for _ in range(2))
    find = old.executor.find
    find(first).time -= 0.25
    new = moved(old)
    between = new.question("cuda.event.elapsed", new.executor.find(first), new.executor.find(last))
    assert 240 < between < 300
    assert new.executor.find(stream) is not old.executor.find(stream)


SCALE = """
extern "C" __global__ void scale(double *a, double by, int n) {
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < n) a[i] *= by;
}
"""


@pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="needs a C++ compiler")
def test_kernels_are_made_from_their_source_also_of_a_module_that_was_dropped(old: Worker) -> None:
    host_compiler.permit()
    raw = old.make("kernel.RawKernel", SCALE, "scale", [], False, False)
    module = old.make("kernel.RawModule", SCALE, [], False, False, None)
    kernel = old.make("kernel.function", H(module), "scale")
    old.free(module)
    typed = old.make("kernel.ElementwiseKernel", "T x", "T y", "y = 2 * x", "twice", preamble="")
    a = old.put(np.arange(4.0))
    new = moved(moved(old))
    for handle in (raw, kernel):
        new.make("kernel.launch_raw", H(handle), (1,), (32,), (H(a), 3.0, 4))
    twice = new.call("kernel.launch", H(typed), H(a))
    assert new.client.failures == []
    assert np.array_equal(new.array(twice), np.arange(4.0) * 18)


def test_limits_of_pools_and_plans_are_kept(old: Worker) -> None:
    old.use(1)
    old.question("cuda.pool.set_limit", 1 << 20)
    old.question("fft.cache.set_size", 3)
    new = moved(old)
    new.use(1)
    assert new.question("cuda.pool.numbers")[2] == 1 << 20
    assert new.question("fft.cache.numbers")[0] == 3
    new.use(0)
    assert new.question("cuda.pool.numbers")[2] == 0


def test_what_failed_stays_failed_with_its_reason(old: Worker) -> None:
    matrix = old.put(np.nan * np.eye(3))
    bad = old.call("linalg.pinv", H(matrix))
    worse = old.call("add", H(bad), 1)
    assert len(old.client.failures) == 1, "it was told before"
    new = moved(old)
    new.call("add", H(bad), 1)
    new.call("add", H(worse), 1)
    assert new.client.failures == []
    with pytest.raises(DependsOnFailureError) as raised:
        new.executor.find(bad)
    assert type(raised.value.__cause__).__name__ == "LinAlgError"
    assert "did not converge" in str(raised.value.__cause__)


# --- what is refused ------------------------------------------------------------------------------


def test_an_object_that_cannot_be_made_anew_is_named(old: Worker) -> None:
    data = old.put(np.eye(3))
    old.executor.store(900, object())
    assert old.question("peer.prepare", None, 1) == (
        "it has an object of type object, which cannot be sent"
    )
    with pytest.raises(UnmovableError, match="of type object"):
        old.question("peer.depart", 1)
    with pytest.raises(REFUSED, match="of type object"):
        Worker(old.links).question("peer.arrive", 0)
    assert np.array_equal(old.array(data), np.eye(3))


KEEPING = [
    "__device__ int count;",
    "__device__ float4 table[8] = {};",
    "__device__ __align__(16) float4 table[8];",
    "__constant__ float weights[9];",
    "__managed__ int total;",
    "__global__ void f() { static int calls; ++calls; }",
    "#define EACH __device__\nEACH int count;",
    'asm(".global .u32 count;");',
    "template <int N> __device__ int slots[N];",
    "__device__ \\\n int count;",
]
PASSING = [
    SCALE,
    "__device__ int square(int a) { return a * a; }",
    "static __device__ __forceinline__ float f(float a);",
    "#define DEVICE __device__ __forceinline__\nDEVICE int f(int a) { return a; }",
    "struct S { int a; __device__ S &operator=(const S &b); __device__ int operator[](int i); };",
    '__global__ void f() { __shared__ int all[32]; static_assert(1, ""); }',
    "// __device__ int count;\n/* static int a; */ __global__ void f() {}",
    "template <class T> __device__ T most(T a, T b) { return a < b ? b : a; }",
    "auto f = [=] __device__ (int i) { return i; };",
    "__global__ void f() { constexpr int n = 3; static constexpr int m = 4; }",
    "__global__ void __launch_bounds__(256, 2) f(int *a) { a[0] = static_cast<int>(2); }",
]


@pytest.mark.parametrize("source", KEEPING)
def test_kernels_with_variables_are_refused(old: Worker, source: str) -> None:
    assert keeps_state([source])
    old.make("kernel.RawModule", source, [], False, False, None)
    assert old.client.failures == []
    assert "variables that outlive a launch" in old.question("peer.prepare", None, 1)


@pytest.mark.parametrize("source", PASSING)
def test_other_kernels_are_not(source: str) -> None:
    assert not keeps_state([source])


def test_a_partition_without_room_gives_an_error_of_memory(old: Worker) -> None:
    old.put(np.zeros(3 << 20, np.uint8))
    old.question("peer.depart", 1)
    new = Worker(old.links, memory=2 << 20)
    # As another error, by which the executor does not run it again.
    with pytest.raises(UnmovableError, match="Out of memory allocating 3,145,728 bytes"):
        new.question("peer.arrive", 0)


# --- nonsense -------------------------------------------------------------------------------------


def arrive(*parts: list[Any], after: bytes = b"", begin: bool = True) -> Worker:
    """Return a worker that was sent these parts, and bytes after the last of them but one."""
    links = PipeLinks()
    channel = Channel(links, 1)
    if begin:
        channel.send(["begin", moved_state.VERSION])
    for part in parts:
        channel.send(part)
        if part[0] == "memory" and after:
            channel.send_bytes(len(after), [memoryview(after)])
    new = Worker(links)
    new.question("peer.arrive", 0)
    return new


MEMORY: list[Any] = ["memory", 1, 0, 16]
END: list[Any] = ["end", 4]
CREATE = "cuda.stream.create"
STREAM: list[Any] = ["object", 5, True, CREATE, 0, ["t", False, None], {}, 0, ["t", 0.5], 0]


def with_changes(part: list[Any], at: int, value: Any) -> list[Any]:
    return [*part[:at], value, *part[at + 1 :]]


def test_parts_of_the_right_form_are_taken() -> None:
    entry = [9, 1, 8, "<i4", [2], [4]]
    new = arrive(MEMORY, ["arrays", [entry]], STREAM, END, after=bytes(range(16)))
    assert new.array(9).tobytes() == bytes(range(8, 16))
    assert new.executor.sequence == 4


@pytest.mark.parametrize(
    "parts",
    [
        [["nothing"]],
        *([["memory", *rest]] for rest in ([1, 7, 16], [1, 0, -1], [1, 0, 1 << 60], [True, 0, 16])),
        [MEMORY, MEMORY],
        *(
            [MEMORY, ["arrays", [entry]]]
            for entry in (
                [9, 1, 8, "<i4", [3], [4]],
                [9, 1, 0, "<i4", [2], [-4]],
                [9, 1, 0, "<i4", [-2], [4]],
                [9, 2, 0, "<i4", [2], [4]],
                [9, 1, -4, "<i4", [2], [4]],
                [9, 1, 0, "|O", [2], [8]],
                [0, 1, 0, "<i4", [2], [4]],
                [9, 0, 0, "<i4", [2], [4]],
                [9, 1, 0],
            )
        ),
        [MEMORY, ["arrays", [[9, 1, 0, "<i4", [2], [4]]] * 2]],
        [["arrays", 7]],
        *([with_changes(STREAM, 3, name)] for name in ("kernel.module", "door.memory")),
        *([with_changes(STREAM, at, 3 + 2 * (at == 4))] for at in (4, 5, 7)),
        *([with_changes(STREAM, at, value)] for at, value in ((5, ["x", 1]), (6, ["t"]), (9, 100))),
        [with_changes(STREAM, 3, "kernel.function")],
        [STREAM, STREAM],
        *(
            [["failed", [[9, *rest]]]]
            for rest in (["no name", "x", None], ["ValueError", 3, None], ["ValueError", "x", "y"])
        ),
        *([["device", *rest, 16, -1]] for rest in ([0, -1], [9, 0])),
        *([["end", *rest]] for rest in ([], [-1])),
        [["begin", 1]],
    ],
)
def test_nonsense_is_refused(parts: list[list[Any]]) -> None:
    with pytest.raises(REFUSED):
        arrive(*parts, END, after=bytes(16))


def test_another_version_and_a_session_that_has_arrays_are_refused(old: Worker) -> None:
    with pytest.raises(REFUSED, match="malformed state"):
        arrive(["begin", moved_state.VERSION + 1], END, begin=False)
    old.question("peer.depart", 1)
    busy = Worker(old.links)
    busy.put(np.zeros(1))
    with pytest.raises(REFUSED, match="takes in no other"):
        busy.question("peer.arrive", 0)


def test_a_state_of_a_generator_that_is_none_is_refused() -> None:
    made = ["object", 5, True, "random.state", 0, ["t", 1, 100], {}, 0]
    for state in (["t"], ["t", b"x", 0, 0, 0.0], ["t", bytes(624 * 4), 625, 0, 0.0]):
        with pytest.raises(REFUSED, match="no state of a RandomState"):
            arrive([*made, state, 0], END)


def test_a_link_that_breaks_in_the_middle_is_told(old: Worker) -> None:
    old.put(np.zeros(1000))
    old.question("peer.depart", 1)
    whole = list(old.links.sent)
    for count in range(len(whole)):
        old.links.sent.clear()
        old.links.sent.extend(whole[:count])
        with pytest.raises(REFUSED):
            Worker(old.links).question("peer.arrive", 0)
