"""Findings of CuPy's tests: each call has the values, types and errors of CuPy now.

`make test-cupy` runs those tests; these stand for the classes of failures that it showed.
"""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
from typing import Any

import numpy as np
import pytest

GENERATORS = ("XORWOW", "MRG32k3a", "Philox4x3210")


@pytest.mark.parametrize("index", [None, (0,), True, [0]])
def test_a_flat_iterator_refuses_what_is_no_integer_and_no_slice(cp: Any, index: Any) -> None:
    a = cp.zeros((2, 3))
    with pytest.raises(IndexError, match="unsupported iterator index"):
        a.flat[index]
    with pytest.raises(IndexError, match="unsupported iterator index"):
        a.flat[index] = cp.ones(1)
    assert not a.get().any()


def test_values_are_repeated_over_all_of_a_flat_iterator(cp: Any) -> None:
    ours, theirs = cp.zeros((2, 3), order="F"), np.zeros((2, 3), order="F")
    ours.flat[...] = cp.asarray([1, 2], "i1")
    theirs.flat[...] = np.asarray([1, 2], "i1")
    assert (ours.get() == theirs).all()


@pytest.mark.parametrize("shape", [(4, 2), (4, 2, 3)])
def test_an_array_like_another_keeps_its_order_only_for_as_many_axes(cp: Any, shape: Any) -> None:
    fortran = np.zeros((2, 3, 4), order="F")
    wanted = np.empty_like(fortran, shape=shape)
    assert cp.empty_like(cp.asarray(fortran), shape=shape).strides == wanted.strides


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_index_of_an_extreme_has_the_type_asked_for(cp: Any, name: str) -> None:
    made = getattr(cp, name)(cp.asarray([[3, 1, 2]]), axis=1, dtype="i4")
    assert made.dtype == np.int32
    assert made.get().tolist() == [getattr(np, name)([3, 1, 2])]


def test_polynomials_are_evaluated_only_by_coefficients_of_one_axis(cp: Any) -> None:
    with pytest.raises(ValueError, match="1d array"):
        cp.polyval(cp.ones((2, 3)), 2)
    of_f4 = cp.polyval(cp.poly1d(cp.asarray([1, 2], "f4")), cp.poly1d(cp.asarray([1, 3], "f4")))
    assert of_f4.coeffs.dtype == np.float32


def test_a_quantile_takes_its_method_by_the_older_name(cp: Any) -> None:
    for name, at in (("percentile", 30), ("quantile", 0.3)):
        assert float(getattr(cp, name)(cp.arange(5.0), at, interpolation="lower")) == 1


# --- power series ---------------------------------------------------------------------------------


def test_power_series_have_the_values_of_numpy(cp: Any) -> None:
    x, c = np.array([[0.5, 2.0, 3.0]]), np.array([3, 1, 2, 0])
    ours, theirs = cp.polynomial.polynomial, np.polynomial.polynomial
    assert np.allclose(ours.polyval(cp.asarray(x), cp.asarray(c)).get(), theirs.polyval(x, c))
    roots = ours.polyvalfromroots(cp.asarray(x), cp.asarray(c)).get()
    assert np.allclose(roots, theirs.polyvalfromroots(x, c))
    assert np.allclose(ours.polyvander(cp.asarray(x), 3).get(), theirs.polyvander(x, 3))
    assert np.allclose(ours.polycompanion(cp.asarray(c)).get(), theirs.polycompanion(c))
    small = np.array([1.0, 2.0, 1e-9])
    trimmed = cp.polynomial.polyutils.trimcoef(cp.asarray(small), 1e-6)
    assert trimmed.get().tolist() == [1.0, 2.0]
    assert cp.polynomial.polyutils.trimseq(cp.asarray(c)).get().tolist() == [3, 1, 2]


# --- random numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATORS)
def test_raw_random_bits_follow_from_the_seed(cp: Any, name: str) -> None:
    kind = getattr(cp.random, name)
    first, again, other = kind(5).random_raw(9), kind(5).random_raw(9), kind(6).random_raw(9)
    assert first.dtype == np.int32
    assert (first.get() == again.get()).all()
    assert (first.get() != other.get()).any()
    assert kind(5).random_raw(2, output=False) is None


def test_a_seed_of_several_numbers_counts_as_a_whole(cp: Any) -> None:
    seeds = [np.array([1, 2]), np.array([1, 3]), 1, 1 << 80, np.random.SeedSequence(7)]
    drawn = [cp.random.XORWOW(seed).random_raw(4).get().tolist() for seed in seeds]
    assert len({tuple(each) for each in drawn}) == len(seeds)
    states = [cp.random.RandomState(np.array([1, last])).rand(4).get().tolist() for last in (2, 3)]
    assert states[0] != states[1]
    with pytest.raises(TypeError):
        cp.random.XORWOW(np.float64(0))
    with pytest.raises(TypeError, match="Seed must be an integer"):
        cp.random.RandomState(1.5)
    with pytest.raises(ValueError, match="between 0 and"):
        cp.random.RandomState(-1)


def test_a_spawned_seed_is_one_of_its_own(cp: Any) -> None:
    source = cp.random.XORWOW(7)
    spawned = source._seed_seq.spawn(2)  # as dask does it
    again = np.random.SeedSequence(7, spawn_key=(1,))
    drawn = [cp.random.XORWOW(seed).random_raw(4).tolist() for seed in (*spawned, again, 7)]
    assert drawn[1] == drawn[2]
    assert len({tuple(each) for each in drawn}) == 3
    states: Any = importlib.import_module("cupy.random._states")
    for sequence in (spawned[1], np.random.SeedSequence([1 << 40, 5], spawn_key=(3, 1 << 33))):
        same = np.random.SeedSequence(states._entropy(sequence))
        assert (same.generate_state(8) == sequence.generate_state(8)).all()


def test_a_slice_may_end_at_an_array_of_one_element(cp: Any) -> None:
    a, end = cp.arange(12).reshape(4, 3), cp.asarray(2)
    assert a[:end].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert a[: cp.asarray(-1), ::end].tolist() == [[0, 2], [3, 5], [6, 8]]
    a[end:] = 7.0
    a[end:, :end] = cp.asarray([8, 9])
    assert a.tolist() == [[0, 1, 2], [3, 4, 5], [8, 9, 7], [8, 9, 7]]
    assert a[:2.0].shape == (2, 3)  # CuPy takes it too
    with pytest.raises(TypeError, match=r"slice\.stop must be int"):
        a[: cp.arange(2)]
    with pytest.raises(TypeError, match=r"slice\.start must be int"):
        a[[1] :]


def test_generators_share_the_state_of_their_bit_generator(cp: Any) -> None:
    source = cp.random.Philox4x3210(3)
    first, second = cp.random.Generator(source), cp.random.Generator(source)
    assert first.bit_generator is source
    assert (first.random(8).get() != second.random(8).get()).any()
    first.bit_generator = cp.random.Philox4x3210(3)
    second.bit_generator = cp.random.Philox4x3210(3)
    assert (first.random(8).get() == second.random(8).get()).all()


def test_a_generator_checks_bounds_and_outputs_before_it_draws(cp: Any) -> None:
    generator = cp.random.default_rng(1)
    with pytest.raises(ValueError, match="high is out of bounds"):
        generator.integers(0, 300, dtype="u1")
    with pytest.raises(ValueError, match="low >= high"):
        generator.integers(4, 4)
    with pytest.raises(TypeError, match="wrong type"):
        generator.random(3, out=cp.zeros(3, "f4"))
    with pytest.raises(ValueError, match="size must match"):
        generator.random((2, 3), out=cp.zeros((3, 3)))
    with pytest.raises(ValueError, match="not contiguous"):
        generator.standard_normal((3, 2), out=cp.zeros((4, 6))[:3, :2])
    with pytest.raises(TypeError):
        generator.standard_normal(3, dtype="i4")
    assert generator.integers(0, (1 << 64) - 1, 5, "u8").dtype == np.uint64


# --- what the suite showed on 2026-11-23 ----------------------------------------------------------


def test_arrays_of_no_element_have_no_strides(cp: Any) -> None:
    for order in ("C", "F"):
        assert cp.empty((1, 0, 2), order=order).strides == (0, 0, 0)
    assert cp.zeros((2, 0)).reshape(0, 3).strides == (24, 8)


@pytest.mark.parametrize("order", ["C", "F", "A", "K", "c", "f"])
def test_an_array_of_the_host_gets_the_order_that_is_named(cp: Any, order: Any) -> None:
    for host in (np.ones((1, 3, 1)), np.arange(24).reshape(2, 3, 4)):
        made, wanted = cp.array(host, order=order), np.array(host, order=order)
        assert made.strides == wanted.strides
        assert (made.get() == wanted).all()


@pytest.mark.parametrize("order", ["C", "F", "A", "K"])
@pytest.mark.parametrize("shape", [(3, 2, 4), (2, 3, 1, 4)])
def test_ravel_of_axes_that_repeat(cp: Any, order: Any, shape: Any) -> None:
    host = np.arange(2.0).reshape(2, 1) if len(shape) == 3 else np.arange(6.0).reshape(2, 3, 1, 1)
    wanted = np.broadcast_to(host, shape).ravel(order)
    made = cp.broadcast_to(cp.asarray(host), shape).ravel(order)
    assert made.get().tolist() == wanted.tolist()


def test_a_result_has_the_class_and_the_attributes_of_its_operand(cp: Any) -> None:
    class Tagged(cp.ndarray):  # pyright: ignore
        tag: Any

        def __array_finalize__(self, obj: Any) -> None:
            self.tag = getattr(obj, "tag", None)

    plain, tagged = cp.arange(3.0), cp.arange(3.0).view(Tagged)
    tagged.tag = "x"
    for made in (
        cp.sin(tagged),
        tagged + 1,
        plain + tagged,
        cp.add(plain, tagged),
        tagged * tagged,
    ):
        assert type(made) is Tagged
        assert made.tag == "x"
    assert type(plain + plain) is cp.ndarray


def test_lost_imaginary_parts_are_warned_of(cp: Any) -> None:
    a = cp.ones(2, "D")
    with pytest.warns(np.exceptions.ComplexWarning):
        cp.add(a, a, out=cp.zeros(2), casting="unsafe")
    with pytest.warns(np.exceptions.ComplexWarning):
        cp.concatenate([a, a], dtype="f8", casting="unsafe")


def test_negative_powers_of_integers_are_those_of_a_gpu(cp: Any) -> None:
    a = cp.asarray([1, -1, 2, 0, -1])
    assert (a**-1).get().tolist() == [1, -1, 0, 0, -1]
    assert cp.power(a, cp.asarray([-2, -2, -3, -1, 3])).get().tolist() == [1, 1, 0, 0, -1]
    cp.power(a, -1, out=a)
    assert a.get().tolist() == [1, -1, 0, 0, -1]


def test_products_of_truth_values_are_counted_in_the_type_of_the_sum(cp: Any) -> None:
    operands = [np.arange(6, dtype="i1").reshape(2, 3), np.ones((3, 4), "?"), np.ones((4, 5), "?")]
    made = cp.einsum("ij,jk,kl", *map(cp.asarray, operands), optimize=True)
    wanted = np.einsum("ij,jk,kl", *[each.astype("i1") for each in operands])
    assert made.get().tolist() == wanted.tolist()


def test_a_seed_in_the_environment_is_used(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPY_SEED", "6")
    cp.random.reset_states()
    first = cp.random.uniform(size=4).get()
    cp.random.reset_states()
    assert (cp.random.uniform(size=4).get() == first).all()
    monkeypatch.delenv("CUPY_SEED")
    cp.random.reset_states()


def test_grids_between_arrays_of_the_device(cp: Any) -> None:
    def made(xp: Any) -> Any:
        return xp.mgrid[xp.zeros(3)[:, None] : xp.ones(3)[:, None] : 4j]

    assert (made(cp).get() == made(np)).all()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda cp, a: cp.empty(None), TypeError),
        (lambda cp, a: cp.empty(1.5), TypeError),
        (lambda cp, a: a.reshape(-1, order="K"), ValueError),
        (lambda cp, a: a.reshape(-1, copy="no"), ValueError),
        (lambda cp, a: a.fill(cp.ones(1)), ValueError),
        (lambda cp, a: a.view(type=np.ndarray), ValueError),
        (lambda cp, a: a.get(out=np.empty((3, 3), "i8")[:, 0]), RuntimeError),
        (lambda cp, a: cp.ndarray((2, 3), strides=(8, 800)), ValueError),
        (lambda cp, a: cp.ndarray((2, 3), strides=(-8, 8)), ValueError),
        (lambda cp, a: cp.poly1d(a) ** 2.0, TypeError),
        (lambda cp, a: cp.pad(a, []), TypeError),
        (lambda cp, a: cp.pad(a, 1.5), TypeError),
        (lambda cp, a: cp.pad(a, 1, lambda *_: None), TypeError),
        (lambda cp, a: cp.piecewise(a, [a < 1], [lambda x: x]), NotImplementedError),
        (lambda cp, a: cp.repeat(a, cp.ones(2, "i4")), ValueError),
        (lambda cp, a: cp.delete(a, [True, False]), ValueError),
        (lambda cp, a: cp.put(a, cp.arange(1), 1, mode="none"), ValueError),
        (lambda cp, a: cp.einsum(), ValueError),
        (lambda cp, a: cp.roll(a, 1, axis="0"), TypeError),
        (lambda cp, a: cp.lib.stride_tricks.sliding_window_view(a, 9, writeable=True), Exception),
    ],
)
def test_what_cupy_refuses_is_refused(cp: Any, call: Any, error: Any) -> None:
    a = cp.arange(3)
    with pytest.raises(error):
        call(cp, a)
    assert a.get().tolist() == [0, 1, 2]


def test_lists_that_are_no_index(cp: Any) -> None:
    a = cp.zeros((2, 3, 4))
    for index in ([[1, 1], 1], [[1], slice(1, 2)]):
        with pytest.raises(ValueError, match="inhomogeneous"):
            a[index]
    with pytest.raises(IndexError, match="arrays used as indices must be of integer"):
        a[np.array(["1", "2"])]
    assert a[[]].shape == (0, 3, 4)
    assert a[[], [1]].shape == (0, 4)
    assert a[[cp.asarray([1, 0])]].shape == (1, 2, 3, 4)


def test_numbers_beyond_int64_compare_with_truth_values(cp: Any) -> None:
    a = cp.array([True, False])
    assert (a < 2**63).get().all()
    assert (a > -(2**63)).get().all()
    assert not (a == 2**63 + 100).get().any()
    half = cp.asarray([1, np.inf], "f2")
    assert (half == 2**63).get().tolist() == [False, True]  # as large a number is infinite there


def test_scans_and_gradients_check_what_they_are_given(cp: Any) -> None:
    assert cp.cumulative_sum(cp.asarray(3)).get().tolist() == [3]
    with pytest.raises(ValueError, match="distances"):
        cp.gradient(cp.ones((2, 3)), 1, cp.arange(4))
    with pytest.raises(ValueError, match="not None"):
        cp.random.poisson(None)
    with pytest.warns(np.exceptions.ComplexWarning):
        cp.ones(2, "D").sum(dtype="f8")


def test_what_the_suite_showed_of_files_and_statistics(cp: Any, tmp_path: Any) -> None:
    a = cp.arange(6).reshape(2, 3)
    (tmp_path / "a").write_bytes(a.dumps())
    assert cp.load(tmp_path / "a", allow_pickle=True).get().tolist() == a.get().tolist()
    assert cp.piecewise(a.astype("u8"), True, cp.array([-1, 1])).get()[0, 0] == 2**64 - 1
    made = cp.piecewise(a, True, cp.array([-1, 1]))
    numpy: Any = np
    assert made.get().tolist() == numpy.piecewise(a.get(), True, [-1, 1]).tolist()
    with pytest.warns(RuntimeWarning, match="Degrees of freedom"):
        cp.cov(a.astype(float), ddof=3)
    with pytest.raises(ValueError, match="2-dimensional"):
        cp.linalg.matrix_transpose(cp.arange(3))


def test_an_element_takes_an_array_of_one_element(cp: Any) -> None:
    a = cp.zeros((2, 3))
    a[0, 1] = cp.full(1, 4.0)
    a[1, -1] = cp.full((1, 1), 5.0)
    assert a.tolist() == [[0, 4, 0], [0, 0, 5]]


def test_a_range_takes_numbers_on_the_device(cp: Any) -> None:
    made = cp.arange(cp.prod(cp.asarray([2, 3])))
    assert (made.dtype, made.tolist()) == (np.int64, [0, 1, 2, 3, 4, 5])
    # CuPy takes such a number for an integer, whatever its type is.
    assert cp.arange(cp.asarray(2.5)).tolist() == [0, 1, 2]
    assert cp.arange(cp.asarray(0.5), 3.0).tolist() == [0.5, 1.5, 2.5]


def test_arrays_of_the_gpu_keep_their_type_where_a_scalar_has_its_smallest(cp: Any) -> None:
    scalar, array = cp.array(-1.0), cp.zeros((1, 2), "i2")
    nested: list[Any] = [array, (array, array), [[scalar, scalar]]]
    found = [cp.min_scalar_type(each) for each in (scalar, [scalar, scalar], *nested)]
    assert found == [np.float64, np.float64, np.int16, np.int16, np.float64]
    assert cp.min_scalar_type(-129) == np.int16
    assert cp.min_scalar_type(np.zeros(2, "i4")) == np.int32


@pytest.mark.parametrize(("order", "letter"), [("", "C"), (None, "C"), ("FORTRAN", "F")])
def test_an_order_may_be_left_out_or_written_out(cp: Any, order: Any, letter: str) -> None:
    flags = cp.ndarray((2, 3), order=order).flags
    assert (flags.c_contiguous, flags.f_contiguous) == (letter == "C", letter == "F")
