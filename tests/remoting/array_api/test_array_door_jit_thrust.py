"""`cupyx.jit.thrust` and `cupyx.jit.cub`: algorithms of a thread, sums of a warp and of a block.

Results are compared with Python's and NumPy's own, on rows that are contiguous and rows that are
not. Each kernel is compiled once, which takes some 0.1 s, so a test puts several things into one.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
import itertools
import re
from collections import Counter
from typing import Any

import door_kit
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="no C++ compiler here")

ROWS, LENGTH = 24, 67
"""So that sorted runs of several sizes are merged, and the last one is short."""


@pytest.fixture(scope="module")
def jit(cp: Any) -> Any:
    """Give `cupyx.jit`, which a look at `cupyx` imports."""
    assert cp.__name__ == "cupy"
    return importlib.import_module("cupyx").jit


def numbers(seed: int, top: int = 12, dtype: Any = np.int32) -> Any:
    """Return rows of small numbers, of which many are equal."""
    return np.random.default_rng(seed).integers(0, top, (ROWS, LENGTH)).astype(dtype)


def on_device(cp: Any, rows: Any, order: str) -> Any:
    """Return rows on the device, each of them with one stride or a larger one."""
    if order != "apart":
        return cp.asarray(np.asfortranarray(rows) if order == "F" else rows)
    made = cp.zeros((ROWS, 2 * rows.shape[1]), rows.dtype)
    made[:, ::2] = cp.asarray(rows)
    return made[:, ::2]


def same(made: Any, wanted: Any) -> None:
    """Compare an array of the device with one of NumPy."""
    np.testing.assert_array_equal(made.get(), wanted)


@pytest.mark.parametrize("order", ["C", "F", "apart"])
def test_sorts_are_stable_and_take_values_along(cp: Any, jit: Any, order: str) -> None:
    @jit.rawkernel()
    def sorts(x: Any, y: Any, keys: Any, values: Any) -> None:
        i = jit.threadIdx.x
        jit.thrust.sort(jit.thrust.seq, x[i].begin(), x[i].end())
        row = y[i]
        jit.thrust.stable_sort(jit.thrust.device, row.begin() + 3, row.end() - 2)
        key = keys[i]
        jit.thrust.sort_by_key(jit.thrust.seq, key.begin(), key.end(), values[i].begin())

    x, y, keys = numbers(1, 1000), numbers(2).astype(np.float32), numbers(3, 5)
    values = np.tile(np.arange(LENGTH), (ROWS, 1))
    device = [on_device(cp, each, order) for each in (x, y, keys, values)]
    sorts((1,), (ROWS,), tuple(device))
    same(device[0], np.sort(x, axis=1))
    y[:, 3:-2] = np.sort(y[:, 3:-2], axis=1)
    same(device[1], y)
    at = np.argsort(keys, axis=1, kind="stable")
    same(device[2], np.take_along_axis(keys, at, axis=1))
    same(device[3], at)


def test_sorts_of_every_small_length(cp: Any, jit: Any) -> None:
    @jit.rawkernel()
    def sorts(x: Any, at: Any) -> None:
        i = jit.threadIdx.x
        begin = x[i].begin()
        jit.thrust.stable_sort_by_key(jit.thrust.seq, begin, begin + (i + 1) * 4, at[i].begin())

    x, at = numbers(4, 9), np.tile(np.arange(LENGTH), (ROWS, 1))
    device = [cp.asarray(x), cp.asarray(at)]
    sorts[1, 16](*device)
    for i in range(16):
        order = np.argsort(x[i, : 4 * i + 4], kind="stable")
        at[i, : 4 * i + 4], x[i, : 4 * i + 4] = order, x[i][order]
    same(device[0], x)
    same(device[1], at)


@pytest.mark.parametrize("order", ["C", "apart"])
def test_searches_in_sorted_rows(cp: Any, jit: Any, order: str) -> None:
    @jit.rawkernel()
    def search(x: Any, value: Any, out: Any, found: Any, many: Any) -> None:
        i = jit.threadIdx.x
        row = x[i]
        begin, end = row.begin(), row.end()
        wanted = value[i]
        out[i, 0] = jit.thrust.lower_bound(jit.thrust.seq, begin, end, wanted) - begin
        out[i, 1] = jit.thrust.upper_bound(jit.thrust.seq, begin, end, wanted) - begin
        low, high = jit.thrust.equal_range(jit.thrust.device, begin, end, wanted)
        out[i, 2] = high - low
        out[i, 3] = jit.thrust.binary_search(jit.thrust.seq, begin, end, wanted)
        ask = value.begin()
        seq = jit.thrust.seq
        jit.thrust.lower_bound(seq, begin, end, ask, value.end(), many[0, i].begin())
        jit.thrust.upper_bound(seq, begin, end, ask, value.end(), many[1, i].begin())
        last = jit.thrust.binary_search(seq, begin, end, ask, value.end(), found[i].begin())
        out[i, 4] = last - found[i].begin()

    x = np.sort(numbers(5, 20), axis=1)
    value = np.arange(ROWS, dtype=np.int32) - 1
    out, found = cp.zeros((ROWS, 5), np.int64), cp.zeros((ROWS, ROWS), bool)
    many = cp.zeros((2, ROWS, ROWS), np.int32)
    search[1, ROWS](on_device(cp, x, order), cp.asarray(value), out, found, many)
    low = np.array([[np.searchsorted(row, each) for each in value] for row in x])
    high = np.array([[np.searchsorted(row, each, "right") for each in value] for row in x])
    same(many, [low, high])
    same(found, high > low)
    mine = np.arange(ROWS)
    wanted = np.stack([low[mine, mine], high[mine, mine]], axis=1)
    wide = wanted[:, 1] - wanted[:, 0]
    same(out, np.column_stack([wanted, wide, wide > 0, np.full(ROWS, ROWS)]))


@pytest.mark.parametrize("order", ["C", "apart"])
def test_looks_and_changes(cp: Any, jit: Any, order: str) -> None:
    @jit.rawkernel()
    def change(x: Any, y: Any, z: Any, told: Any) -> None:
        i = jit.threadIdx.x
        a, b, c = x[i], y[i], z[i]
        seq = jit.thrust.seq
        told[i, 0] = jit.thrust.count(seq, a.begin(), a.end(), 3)
        told[i, 1] = jit.thrust.find(seq, a.begin(), a.end(), i) - a.begin()
        told[i, 2] = jit.thrust.equal(seq, a.begin(), a.end(), b.begin())
        pair = jit.thrust.mismatch(seq, a.begin(), a.end(), b.begin())
        told[i, 3] = pair[0] - a.begin() + (pair[1] - b.begin())
        told[i, 4] = jit.thrust.is_sorted(seq, a.begin(), a.end())
        told[i, 5] = jit.thrust.is_sorted_until(seq, a.begin(), a.end()) - a.begin()
        told[i, 6] = jit.thrust.remove_copy(seq, a.begin(), a.end(), c.begin(), 3) - c.begin()
        jit.thrust.swap_ranges(seq, a.begin(), a.end(), b.begin())
        jit.thrust.reverse(seq, a.begin(), a.end())
        jit.thrust.replace(seq, b.begin(), b.end(), 3, 30)
        told[i, 7] = jit.thrust.remove(seq, b.begin(), b.end(), 4) - b.begin()

    x, y = numbers(6), numbers(6)
    x[3], y[5, 7] = np.arange(LENGTH), 99
    device = [on_device(cp, each, order) for each in (x, y, np.full_like(x, -1))]
    told = cp.zeros((ROWS, 8), np.int64)
    change[1, ROWS](*device, told)
    for i in range(ROWS):
        a, b = x[i].tolist(), y[i].tolist()
        until = next((j for j in range(1, LENGTH) if a[j] < a[j - 1]), LENGTH)
        differ = next((j for j in range(LENGTH) if a[j] != b[j]), LENGTH)
        left = [each for each in a if each != 3]
        kept = [30 if each == 3 else each for each in a if each != 4]
        place = a.index(i) if i in a else LENGTH
        wanted = [a.count(3), place, a == b, 2 * differ, until == LENGTH, until, len(left)]
        assert told[i].get().tolist() == [*wanted, len(kept)]
        same(device[0][i], b[::-1])
        same(device[1][i, : len(kept)], kept)
        same(device[2][i], left + [-1] * (LENGTH - len(left)))


def test_copies_and_sequences(cp: Any, jit: Any) -> None:
    @jit.rawkernel()
    def copies(x: Any, index: Any, out: Any) -> None:
        i = jit.threadIdx.x
        a = x[i]
        seq = jit.thrust.seq
        jit.thrust.copy(seq, a.begin(), a.end(), out[0, i].begin())
        jit.thrust.reverse_copy(seq, a.begin(), a.end(), out[1, i].begin())
        jit.thrust.replace_copy(seq, a.begin(), a.end(), out[2, i].begin(), 3, 30)
        jit.thrust.gather(seq, index.begin(), index.end(), a.begin(), out[3, i].begin())
        jit.thrust.scatter(seq, a.begin(), a.end(), index.begin(), out[4, i].begin())
        jit.thrust.fill(seq, out[5, i].begin(), out[5, i].end(), i)
        jit.thrust.sequence(seq, out[6, i].begin(), out[6, i].end())
        jit.thrust.sequence(seq, out[7, i].begin(), out[7, i].end(), 5)
        jit.thrust.sequence(seq, out[8, i].begin(), out[8, i].end(), 5, step=-2)
        jit.thrust.copy(
            seq,
            jit.thrust.make_counting_iterator(7),
            jit.thrust.make_counting_iterator(7) + 9,
            out[9, i].begin(),
        )
        same = jit.thrust.make_constant_iterator(4)
        jit.thrust.copy(seq, same, same + 2, out[9, i].begin() + 9)

    x = numbers(7)
    index = np.random.default_rng(8).permutation(LENGTH)
    out = cp.zeros((10, ROWS, LENGTH), np.int32)
    copies[1, ROWS](cp.asarray(x), cp.asarray(index), out)
    scattered = np.zeros_like(x)
    scattered[:, index] = x
    line = np.arange(LENGTH)
    last = np.zeros(LENGTH, np.int32)
    last[:11] = [*range(7, 16), 4, 4]
    rows = [
        *(x, x[:, ::-1], np.where(x == 3, 30, x), x[:, index], scattered),
        np.tile(np.arange(ROWS)[:, None], (1, LENGTH)),
        *[np.tile(each, (ROWS, 1)) for each in (line, line + 5, 5 - 2 * line, last)],
    ]
    for made, wanted in zip(out, rows, strict=True):
        same(made, wanted)


@pytest.mark.parametrize("dtype", ["int32", "float16", "complex64"])
def test_sums(cp: Any, jit: Any, dtype: str) -> None:
    @jit.rawkernel()
    def sums(x: Any, y: Any, key: Any, out: Any, told: Any) -> None:
        i = jit.threadIdx.x
        a, b, k = x[i], y[i], key[i]
        seq = jit.thrust.seq
        told[i, 0] = jit.thrust.reduce(seq, a.begin(), a.end())
        told[i, 1] = jit.thrust.reduce(seq, a.begin(), a.end(), init=b[0])
        told[i, 2] = jit.thrust.inner_product(seq, a.begin(), a.end(), b.begin(), a[0])
        jit.thrust.adjacent_difference(seq, a.begin(), a.end(), out[0, i].begin())
        jit.thrust.inclusive_scan(seq, a.begin(), a.end(), out[1, i].begin())
        jit.thrust.exclusive_scan(seq, a.begin(), a.end(), out[2, i].begin())
        jit.thrust.exclusive_scan(seq, a.begin(), a.end(), out[3, i].begin(), b[0])
        jit.thrust.inclusive_scan_by_key(seq, k.begin(), k.end(), a.begin(), out[4, i].begin())
        jit.thrust.exclusive_scan_by_key(
            seq, k.begin(), k.end(), a.begin(), out[5, i].begin(), b[0]
        )

    x, y, key = (numbers(seed, 3, dtype) for seed in (9, 10, 11))
    out, told = cp.zeros((6, ROWS, LENGTH), dtype), cp.zeros((ROWS, 3), dtype)
    sums[1, ROWS](cp.asarray(x), cp.asarray(y), cp.asarray(key), out, told)
    total = x.sum(axis=1)
    same(told, np.stack([total, total + y[:, 0], (x * y).sum(axis=1) + x[:, 0]], axis=1))
    running = np.cumsum(x, axis=1)
    same(out[0], np.diff(x, axis=1, prepend=0))
    same(out[1], running)
    same(out[2], running - x)
    same(out[3], running - x + y[:, :1])
    for i in range(ROWS):
        for _, part in itertools.groupby(range(LENGTH), key[i].__getitem__):
            group = list(part)
            running = np.cumsum(x[i, group])
            same(out[4, i, group], running)
            same(out[5, i, group], running - x[i, group] + y[i, 0])


def test_groups_of_equal_keys(cp: Any, jit: Any) -> None:
    @jit.rawkernel()
    def groups(key: Any, value: Any, keys: Any, sums: Any, told: Any) -> None:
        i = jit.threadIdx.x
        k, v = key[i], value[i]
        end_k, end_v = jit.thrust.reduce_by_key(
            jit.thrust.seq, k.begin(), k.end(), v.begin(), keys[i].begin(), sums[i].begin()
        )
        told[i, 0] = end_k - keys[i].begin()
        told[i, 1] = end_v - sums[i].begin()
        last_k, last_v = jit.thrust.unique_by_key(jit.thrust.seq, k.begin(), k.end(), v.begin())
        told[i, 2] = last_k - k.begin()
        told[i, 3] = last_v - v.begin()
        told[i, 4] = jit.thrust.unique(jit.thrust.seq, v.begin(), last_v) - v.begin()

    key, value = numbers(12, 3), numbers(13, 3)
    made = [cp.asarray(key), cp.asarray(value), *(cp.zeros_like(cp.asarray(key)) for _ in "ab")]
    told = cp.zeros((ROWS, 5), np.int32)
    groups[1, ROWS](*made, told)
    for i in range(ROWS):
        parts = [list(part) for _, part in itertools.groupby(range(LENGTH), key[i].__getitem__)]
        first = [part[0] for part in parts]
        kept = [int(value[i, j]) for j in first]
        short = [each for each, _ in itertools.groupby(kept)]
        count = len(parts)
        assert told[i].get().tolist() == [count] * 4 + [len(short)]
        same(made[0][i, :count], key[i, first])
        same(made[2][i, :count], key[i, first])
        same(made[3][i, :count], [value[i, part].sum() for part in parts])
        same(made[1][i, : len(short)], short)


SETS = ("set_difference", "set_intersection", "set_symmetric_difference", "set_union")


@pytest.mark.parametrize("name", SETS)
def test_sets_of_sorted_rows(cp: Any, jit: Any, name: str) -> None:
    operate, by_key = getattr(jit.thrust, name), getattr(jit.thrust, f"{name}_by_key")
    one_sided = name == "set_intersection"

    @jit.rawkernel()
    def sets(x: Any, y: Any, out: Any, vx: Any, vy: Any, values: Any, told: Any) -> None:
        i = jit.threadIdx.x
        a, b, k, v = x[i], y[i], out[i], values[i]
        seq = jit.thrust.seq
        end = operate(seq, a.begin(), a.end(), b.begin(), b.end(), k.begin())
        told[i, 0] = end - k.begin()
        left, right = a.begin(), b.begin()
        left_end, right_end = a.end(), b.end()
        u, w, keys, made = vx[i].begin(), vy[i].begin(), k.begin(), v.begin()
        if one_sided:
            pair = by_key(seq, left, left_end, right, right_end, u, keys, made)
        else:
            pair = by_key(seq, left, left_end, right, right_end, u, w, keys, made)
        told[i, 1] = pair[0] - k.begin()
        told[i, 2] = pair[1] - v.begin()

    x, y = np.sort(numbers(14, 30), axis=1), np.sort(numbers(15, 40)[:, :40], axis=1)
    count = x.shape[1] + y.shape[1]
    out, values = cp.zeros((ROWS, count), np.int32), cp.zeros((ROWS, count), np.int32)
    told = cp.zeros((ROWS, 3), np.int32)
    first, second = cp.full(x.shape, 1, np.int32), cp.full(y.shape, 2, np.int32)
    sets[1, ROWS](cp.asarray(x), cp.asarray(y), out, first, second, values, told)
    for i in range(ROWS):
        a, b = Counter(x[i].tolist()), Counter(y[i].tolist())
        both = a & b
        one, other = {
            "set_difference": (a - b, Counter[int]()),
            "set_intersection": (both, Counter[int]()),
            "set_symmetric_difference": (a - b, b - a),
            "set_union": (a, b - a),
        }[name]
        wanted = sorted((one + other).elements())
        assert told[i].get().tolist() == [len(wanted)] * 3
        same(out[i, : len(wanted)], wanted)
        of_first = Counter(
            out[i, : len(wanted)].get()[values[i, : len(wanted)].get() == 1].tolist()
        )
        assert of_first == one


def test_shared_memory_is_a_row(cp: Any, jit: Any) -> None:
    @jit.rawkernel()
    def shared(x: Any, y: Any) -> None:
        i = jit.threadIdx.x
        held = jit.shared_memory(np.int32, 32)
        held[i] = x[i]
        jit.syncthreads()
        if i == 0:
            jit.thrust.sort(jit.thrust.seq, held, held + 32)
        jit.syncthreads()
        y[i] = held[i] * 100 + jit.thrust.count(jit.thrust.seq, held, held + 32, x[i])

    x = numbers(16)[0, :32]
    y = cp.zeros(32, np.int32)
    shared[1, 32](cp.asarray(x), y)
    same(y, np.sort(x) * 100 + np.array([(x == each).sum() for each in x]))


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "uint64", "complex128"])
def test_reductions_of_a_warp_and_a_block(cp: Any, jit: Any, dtype: str) -> None:
    threads = 80  # the last warp is not whole

    @jit.rawkernel()
    def reduce(x: Any, warps: Any, blocks: Any) -> None:
        i, j = jit.blockIdx.x, jit.threadIdx.x
        WarpReduce = jit.cub.WarpReduce[dtype]
        BlockReduce = jit.cub.BlockReduce[dtype, threads]
        warp_memory = jit.shared_memory(WarpReduce.TempStorage, 1)
        block_memory = jit.shared_memory(dtype=BlockReduce.TempStorage, size=3)
        value = x[i, j]
        in_warp = WarpReduce(warp_memory[0])
        if j < 64:
            total = in_warp.Sum(value)
            if j % 32 == 0:
                warps[i, j // 32] = total
        all_sum = BlockReduce(block_memory[0]).Sum(value)
        least = BlockReduce(block_memory[1]).Reduce(value, jit.cub.Min())
        most = BlockReduce(block_memory[2]).Reduce(value, jit.cub.Max())
        if j == 0:
            blocks[i, 0] = all_sum
            blocks[i, 1] = least
            blocks[i, 2] = most

    x = numbers(17, 10).astype(dtype)[:4, :1] + (np.arange(threads) % 7).astype(dtype)
    warps, blocks = cp.zeros((4, 2), dtype), cp.zeros((4, 3), dtype)
    reduce[4, threads](cp.asarray(x), warps, blocks)
    same(warps, x[:, :64].reshape(4, 2, 32).sum(axis=2, dtype=dtype))
    wide = x.sum(axis=1, dtype=dtype)
    same(blocks, np.stack([wide, x.min(axis=1), x.max(axis=1)], axis=1))


def test_numbers_are_added_in_the_order_of_cub(cp: Any, jit: Any) -> None:
    """Neighbours first, then pairs of neighbours: so the last bits are those of CUB."""

    @jit.rawkernel()
    def add(x: Any, y: Any) -> None:
        memory = jit.shared_memory(jit.cub.WarpReduce[np.float32].TempStorage, 1)
        total = jit.cub.WarpReduce[np.float32](memory[0]).Sum(x[jit.threadIdx.x])
        if jit.laneid() == 0:
            y[0] = total

    x = np.random.default_rng(18).random(32, np.float32)
    y = cp.zeros(1, np.float32)
    add[1, 32](cp.asarray(x), y)
    wanted = x
    while wanted.size > 1:
        wanted = wanted[::2] + wanted[1::2]
    same(y, wanted)


WRONG = [
    ("thrust.sort(x.begin(), x.end())", TypeError, "missing the argument 'last'"),
    ("thrust.sort(x, x.begin(), x.end())", TypeError, "takes a policy first"),
    ("thrust.sort(thrust.host, x.begin(), x.end())", TypeError, "cannot work on the host"),
    ("thrust.sort(seq, plane.begin(), x.end())", NotImplementedError, "take one row, as x[i]"),
    ("thrust.sort(seq, x, x.end())", TypeError, "`first` is an iterator, as begin()"),
    ("thrust.sort(seq, x.begin(), whole.end())", TypeError, "must have the same type"),
    ("thrust.sort(seq, x.begin(), x.end(), 1)", NotImplementedError, "comp option is not"),
    ("thrust.fill(seq, x.begin(), x.end(), x)", TypeError, "`value` is a number"),
    ("thrust.copy(seq, x.begin(), x.end(), whole.begin())", TypeError, "float32 is needed"),
    ("thrust.copy(seq, count, count, count)", TypeError, "`result` is assigned to, which a Count"),
    ("thrust.lower_bound(seq, x.begin(), x.end(), 1)", TypeError, "float32 is needed"),
    ("thrust.lower_bound(seq, x.begin(), x.end())", TypeError, "missing the argument 'value'"),
    ("thrust.sequence(seq, x.begin(), x.end(), step=1)", TypeError, "taken with `init` only"),
    ("thrust.sequence(seq, x.begin(), x.end(), 1, 2.5)", TypeError, "must have the same type"),
    ("thrust.make_counting_iterator(x)", TypeError, "takes a number"),
    ("thrust.make_constant_iterator(1, 2)", NotImplementedError, "index_type"),
    ("thrust.nothing", AttributeError, "nothing"),
    ("x.begin(1)", TypeError, "begin"),
    ("count.nothing", AttributeError, "Unknown attribute: nothing"),
    ("x.begin() + x.end()", TypeError, "Add has no meaning"),
    ("cub.WarpReduce[int](x[0])", TypeError, "an element of shared_memory"),
    ("cub.WarpReduce(x[0])", TypeError, "without its type, as in WarpReduce[dtype]"),
    ("cub.WarpReduce['U3']", TypeError, "a kernel has no numbers of the type"),
    ("cub.BlockReduce[int]", TypeError, "BlockReduce[dtype, threads]"),
    ("cub.BlockReduce[int, 1.5]", TypeError, "whole number"),
    ("cub.BlockReduce[int, 0]", ValueError, "1 to 1024 threads"),
    ("cub.WarpReduce[numpy.float32](memory[0]).Sum(1)", TypeError, "takes float32 here"),
    ("cub.WarpReduce[numpy.float32](memory[0]).Reduce(x[0], max)", TypeError, "cub.Sum()"),
    ("cub.WarpReduce[numpy.float32](memory[0]).Nothing()", AttributeError, "Nothing"),
    ("cub.WarpReduce[numpy.float64](memory[0])", TypeError, "its TempStorage"),
]


@pytest.mark.parametrize(("text", "error", "match"), WRONG)
def test_errors_name_the_line(
    cp: Any, jit: Any, tmp_path: Any, text: str, error: type[Exception], match: str
) -> None:
    module = tmp_path / "wrong.py"
    module.write_text(
        "import numpy\nfrom cupyx import jit\nfrom cupyx.jit import cub, thrust\n"
        "seq = thrust.seq\n@jit.rawkernel()\ndef wrong(x, whole, plane):\n"
        "    count = thrust.make_counting_iterator(3)\n"
        "    memory = jit.shared_memory(cub.WarpReduce[numpy.float32].TempStorage, 1)\n"
        f"    {text}\n"
    )
    names: dict[str, Any] = {}
    exec(compile(module.read_text(), str(module), "exec"), names)
    x, whole = cp.zeros(3, np.float32), cp.zeros(3, np.int32)
    with pytest.raises(error, match=re.escape(match)) as caught:
        names["wrong"][1, 1](x, whole, cp.zeros((3, 3), np.float32))
    assert "wrong.py:9" in str(caught.value)
    assert text.split("(")[0] in str(caught.value)


def test_python_cannot_call_them(jit: Any) -> None:
    for function in (jit.thrust.sort, jit.cub.Sum, jit.cub.WarpReduce[int]):
        with pytest.raises(RuntimeError, match="is for the text of a kernel"):
            function()
