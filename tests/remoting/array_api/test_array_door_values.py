"""Values, types, strides and views of results: NumPy's, and CuPy's where the two differ.

CuPy's own tests, those of the array API standard and public libraries showed these cases.
"""

import importlib
from collections.abc import Callable
from typing import Any

import door_calls
import numpy as np
import pytest
from door_cases import close, cupyx

INF, NAN = float("inf"), float("nan")
ORDERS: tuple[Any, ...] = ("C", "F", "A", "K")
Made = Callable[[Any], Any]


def _each_order(call: Callable[[Any, Any], Any]) -> Made:
    return lambda xp: [call(xp, order) for order in ORDERS]


def _cube(xp: Any) -> Any:
    return xp.arange(24.0).reshape(2, 3, 4)


def _power_series(xp: Any) -> Any:
    x, c, of = xp.asarray([[0.5, 2.0, 3.0]]), xp.asarray([3, 1, 2, 0]), xp.polynomial.polynomial
    return (
        of.polyval(x, c),
        of.polyvalfromroots(x, c),
        of.polyvander(x, 3),
        of.polycompanion(c),
        xp.polynomial.polyutils.trimcoef(xp.asarray([1.0, 2.0, 1e-9]), 1e-6),
        xp.polynomial.polyutils.trimseq(c),
    )


def _flat(xp: Any) -> Any:
    made = xp.zeros((2, 3), order="F")
    made.flat[...] = xp.asarray([1, 2], "i1")
    return made


SEPARATED = (slice(None), [0, 1], ..., [0, 1])

AS_NUMPY: dict[str, Made] = {
    "ravel": _each_order(lambda xp, o: _cube(xp).transpose(0, 2, 1)[:, ::-2].ravel(o)),
    "ravel of repeated axes": _each_order(
        lambda xp, o: xp.broadcast_to(xp.arange(6.0).reshape(2, 3, 1, 1), (2, 3, 1, 4)).ravel(o)
    ),
    "ravel of a repeated axis": _each_order(
        lambda xp, o: xp.broadcast_to(xp.arange(2.0).reshape(2, 1), (3, 2, 4)).ravel(o)
    ),
    "ravel in the order of memory": lambda xp: _cube(xp).transpose(1, 0, 2).ravel("K"),
    "strides of an array like another": _each_order(
        lambda xp, o: xp.empty_like(_cube(xp).swapaxes(0, 1), order=o, shape=(4, 2, 3)).strides
    ),
    "strides of one of other axes": lambda xp: [
        xp.empty_like(xp.asarray(np.zeros((2, 3, 4), order="F")), shape=shape).strides
        for shape in ((4, 2), (4, 2, 3))
    ],
    "strides of an upload": lambda xp: [
        xp.array(host, order=order).strides
        for order in (*ORDERS, "c", "f")
        for host in (np.ones((1, 3, 1)), np.arange(24).reshape(2, 3, 4))
    ],
    "all of a flat iterator": lambda xp: _flat(xp),
    "separated indices": lambda xp: xp.arange(60.0).reshape(3, 4, 5)[SEPARATED],
    "writing by them": lambda xp: _written(
        xp.zeros((3, 4, 5)), SEPARATED, xp.arange(6.0).reshape(2, 3)
    ),
    "a rounded number": lambda xp: xp.around(2.55, 1),
    "quantiles": lambda xp: xp.percentile(xp.arange(5, dtype="f8"), [20, 40.0]),
    "condition": lambda xp: xp.linalg.cond([[1.0, 0], [0, 2]]),
    "resize of a number": lambda xp: xp.resize(3, (2,)),
    "delete of nothing": lambda xp: xp.delete(xp.arange(5.0), []),
    "clip to nothing": lambda xp: xp.clip(xp.arange(5.0), None, None),
    "bins of NumPy": lambda xp: xp.histogram(xp.arange(5.0), bins=np.array([0.0, 2, 5]))[0],
    "roots": lambda xp: xp.sort(xp.roots(xp.poly1d([2, -1, -2]))),
    "element of a number": lambda xp: xp.array(3.0).take(0, axis=0),
    "choice of nothing": lambda xp: xp.random.choice(0, size=0),
    "transform over no axes": lambda xp: xp.fft.fftn(xp.ones((2, 2)), axes=()),
    "grids between arrays": lambda xp: xp.mgrid[xp.zeros(3)[:, None] : xp.ones(3)[:, None] : 4j],
    "power series": _power_series,
    "polynomials": lambda xp: (
        xp.polyval(xp.poly1d(xp.asarray([1, 2], "f4")), xp.poly1d(xp.asarray([1, 3], "f4"))).coeffs
    ),
    "numbers in pieces": lambda xp: (
        xp.piecewise(xp.arange(6).reshape(2, 3), True, xp.array([-1, 1])),
        xp.piecewise(xp.arange(6, dtype="u8"), True, xp.array([-1, 1])),
    ),
    "comparisons beyond a type": lambda xp: [
        *(xp.arange(3) > -(2**63) - 100, xp.arange(3) == 2**70, xp.arange(3, dtype="u1") < 2**70),
    ],
    "comparisons from the right": lambda xp: (
        xp.equal(2, xp.asarray([1, 2])),
        xp.not_equal(2.0, xp.asarray([1, 2])),
    ),
    "sums of small numbers": lambda xp: [
        getattr(xp.ones(3, kind), name)()
        for kind in "?bBhHiIefF"
        for name in ("sum", "prod", "cumsum", "mean", "max", "any")
        if (kind, name) not in (("?", "max"), ("F", "max"))
    ],
    "slices that run down": lambda xp: [
        xp.arange(3)[index]
        for index in (slice(-10, None, -1), slice(None, None, -1), slice(-10, -20, -2))
        for _ in range(2)
    ],
    "memory by its bounds": lambda xp: [
        [xp.may_share_memory(x, y) for y in _parts(xp)] for x in _parts(xp)
    ],
}
"""Calls with NumPy's values, types and shapes."""


def _parts(xp: Any) -> list[Any]:
    a = xp.arange(6).reshape(2, 3)
    return [a[0], a[1], a[:, :2], a[:0]]


@pytest.mark.parametrize("name", AS_NUMPY)
def test_a_result_is_that_of_numpy(cp: Any, name: str) -> None:
    assert not door_calls.difference(AS_NUMPY[name](cp), AS_NUMPY[name](np))


def _table(cp: Any) -> Any:
    return cp.arange(12).reshape(4, 3)


def _written(array: Any, *changes: Any) -> Any:
    for index, value in zip(changes[::2], changes[1::2], strict=True):
        array[index] = value
    return array


def _products(cp: Any) -> Any:
    first, truth = cp.arange(6, dtype="i1").reshape(2, 3), cp.ones((3, 4), "?")
    return cp.einsum("ij,jk,kl", first, truth, cp.ones((4, 5), "?"), optimize=True)


ELEMENTS: dict[str, tuple[Any, Made]] = {
    "shortened by an array": ([[0, 1, 2], [3, 4, 5]], lambda cp: _table(cp)[: cp.asarray(2)]),
    "stepped by one": ([[0, 2], [3, 5]], lambda cp: _table(cp)[: cp.asarray(-2), :: cp.asarray(2)]),
    "shortened by a float": ([[0, 1, 2], [3, 4, 5]], lambda cp: _table(cp)[:2.0]),
    "written by slices of arrays": (
        [[0, 1, 2], [3, 4, 5], [8, 9, 7], [8, 9, 7]],
        lambda cp: _written(
            _table(cp), np.s_[cp.asarray(2) :], 7.0, np.s_[cp.asarray(2) :, :2], cp.asarray([8, 9])
        ),
    ),
    "element of an array of one": (
        [[0, 4, 0], [0, 0, 5]],
        lambda cp: _written(
            cp.zeros((2, 3)), (0, 1), cp.full(1, 4.0), (1, -1), cp.full((1, 1), 5.0)
        ),
    ),
    "index that wraps": ([1, 0], lambda cp: cp.arange(3)[[1, 3]]),
    "writing by one": ([10, 10, 2], lambda cp: _written(cp.arange(3), cp.array([1, 3]), 10)),
    "range to a product": ([0, 1, 2, 3], lambda cp: cp.arange(cp.prod(cp.asarray([2, 2])))),
    # CuPy takes such a number for an integer, whatever its type is.
    "range to a float": ([0, 1, 2], lambda cp: cp.arange(cp.asarray(2.5))),
    "range from a float": ([0.5, 1.5, 2.5], lambda cp: cp.arange(cp.asarray(0.5), 3.0)),
    "negative power": ([1, -1, 0, 0, -1], lambda cp: cp.asarray([1, -1, 2, 0, -1]) ** -1),
    "negative powers": (
        [1, 1, 0, 0, -1],
        lambda cp: cp.asarray([1, -1, 2, 0, -1]) ** cp.asarray([-2, -2, -3, -1, 3]),
    ),
    "a large number in half precision": ([0, 1], lambda cp: cp.asarray([1, INF], "f2") == 2**63),
    "truth above a large number": ([1, 1], lambda cp: cp.array([True, False]) > -(2**63)),
    "truth below one": ([1, 1], lambda cp: cp.array([True, False]) < 2**63),
    "truth beside one": ([0, 0], lambda cp: cp.array([True, False]) == 2**63 + 100),
    "products of truth values": ([[12] * 5, [48] * 5], _products),
    "sum of a number": ([3], lambda cp: cp.cumulative_sum(cp.asarray(3))),
    "index of an extreme": ([0], lambda cp: cp.argmax(cp.asarray([[3, 1]]), axis=1, dtype="i4")),
    "filled with an array": ([3, 3], lambda cp: cp.full_like(cp.ones(2, "i4"), np.array([[3.5]]))),
    "filled with NumPy's": ([3.5, 3.5], lambda cp: cp.full((2,), np.array(3.5))),
    "quantile by the older name of its method": (
        [1, 1],
        lambda cp: cp.stack(
            [
                cp.percentile(cp.arange(5.0), 30, interpolation="lower"),
                cp.quantile(cp.arange(5.0), 0.3, interpolation="lower"),
            ]
        ),
    ),
    "type of both": ([0.5], lambda cp: cp.quantile(cp.arange(3, dtype="f2"), cp.array([0.25]))),
    "strides of nothing": ([0, 0, 0], lambda cp: cp.asarray(cp.empty((1, 0, 2)).strides)),
    "strides of no rows": ([24, 8], lambda cp: cp.asarray(cp.zeros((2, 0)).reshape(0, 3).strides)),
}
"""Calls with values of CuPy, at which NumPy has others or an error."""


@pytest.mark.parametrize("name", ELEMENTS)
def test_a_result_is_that_of_cupy(cp: Any, name: str) -> None:
    wanted, call = ELEMENTS[name]
    assert call(cp).tolist() == wanted


DTYPES: list[tuple[str, Made]] = [
    ("f8", lambda cp: cp.einsum("ii->i", cp.ones((2, 2)), dtype="f4")),  # as a view has it
    ("i4", lambda cp: cp.linalg.pinv(cp.empty((2, 0, 3), "i4"))),
    ("f8", lambda cp: cp.linalg.pinv(cp.empty((0, 2, 3), "i4"))),
    ("f4", lambda cp: cp.quantile(cp.arange(5, dtype="f2"), cp.array([0.25], "f4"))),
    ("i4", lambda cp: cp.argmin(cp.asarray([[3, 1, 2]]), axis=1, dtype="i4")),
    ("i4", lambda cp: cp.nanargmax(cp.ones(3), dtype="i4")),
    ("f2", lambda cp: cp.fft.irfft(cp.ones(4, "f2"))),
    ("f2", lambda cp: cp.fft.hfft(cp.ones(4, "f2"))),
    ("f2", lambda cp: cp.fft.irfftn(cp.ones((4, 4), "f2"), axes=(0,))),
    ("f4", lambda cp: cp.fft.irfftn(cp.ones((4, 4), "f2"))),
    ("f4", lambda cp: cp.average(np.ones(3, "f"), weights=np.ones(3, "f"))),
    ("c8", lambda cp: cp.average(np.ones(3, "f"), weights=np.ones(3, "F"))),
]


@pytest.mark.parametrize(("kind", "call"), DTYPES)
def test_a_result_has_the_type_of_cupy(cp: Any, kind: str, call: Made) -> None:
    made = call(cp)
    assert made.dtype == np.dtype(kind) == made.get().dtype


# --- views ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_ravel_of_what_is_not_contiguous_is_a_copy(cp: Any, order: str) -> None:
    a = cp.arange(10)
    flat = a[::2].ravel(order)
    assert flat.flags.c_contiguous
    flat[...] = -1
    assert a.tolist() == list(range(10))


SUBSCRIPTS = "ii->i ij->ji ji ...ij->...ji ii...->i... ij ...->... j...i ij...->ij"


@pytest.mark.parametrize("subscripts", SUBSCRIPTS.split())
def test_einsum_of_one_operand_is_a_view(cp: Any, subscripts: str) -> None:
    both = np.arange(4.0).reshape(2, 2), cp.arange(4.0).reshape(2, 2)
    wanted, made = (np.einsum(subscripts, both[0]), cp.einsum(subscripts, both[1]))
    assert made.base is both[1].base
    assert made.tolist() == wanted.tolist()
    wanted[...] = made[...] = 9
    assert both[1].tolist() == both[0].tolist()


VIEWS: list[Callable[[Any, Any], Any]] = [
    lambda cp, a: a.diagonal(),
    lambda cp, a: cp.broadcast_to(a, (2, 3, 3)),
    lambda cp, a: cp.broadcast_arrays(a, a[None])[1],
    lambda cp, a: cp.lib.stride_tricks.sliding_window_view(a, 2, 0),
    lambda cp, a: cp.lib.stride_tricks.as_strided(a, (2, 2), (8, 8)),
    lambda cp, a: cp.diagonal(a, 1)[:-1],
]


@pytest.mark.parametrize("view", VIEWS)
def test_writes_go_through_every_view(cp: Any, view: Any) -> None:
    a = cp.zeros((3, 3))
    view(cp, a)[...] = 1
    cp.cuda.Device().synchronize()
    assert a.any()


def test_a_result_has_the_class_and_the_attributes_of_its_operand(cp: Any) -> None:
    class Tagged(cp.ndarray):
        tag: Any

        def __array_finalize__(self, obj: Any) -> None:
            self.tag = getattr(obj, "tag", None)

    plain, tagged = cp.arange(3.0), cp.arange(3.0).view(Tagged)
    tagged.tag = "x"
    for made in (
        *(cp.sin(tagged), tagged + 1, plain + tagged, cp.add(plain, tagged), tagged * tagged),
        *(tagged[1:], tagged[1], tagged.T, tagged[1:], tagged[1], tagged.T),
    ):
        assert type(made) is Tagged
        assert made.tag == "x"
    assert type(plain + plain) is type(plain.T) is cp.ndarray
    assert plain[1:2][0].base is plain[1].base is plain


# --- division, powers and complex numbers on a GPU ------------------------------------------------


def _same(found: Any, wanted: list[Any]) -> None:
    found = np.asarray(found)
    expected = np.asarray(wanted, found.dtype)
    np.testing.assert_array_equal(found, expected)
    if found.dtype.kind == "f":
        numbers = ~np.isnan(expected)
        assert (np.signbit(found) == np.signbit(expected))[numbers].all()


@pytest.mark.parametrize("kind", ["e", "f", "d"])
def test_quotients_of_infinite_numbers_are_rounded_down_as_on_a_gpu(cp: Any, kind: str) -> None:
    x = cp.asarray([INF, -INF, INF, 3.0, -3.0, 7.0, INF], kind)
    y = cp.asarray([2.0, 2.0, -2.0, -INF, INF, 2.0, INF], kind)
    wanted = [INF, -INF, -INF, -0.0, -0.0, 3.0, NAN]
    whole, rest = cp.divmod(x, y)
    for made in (x // y, whole):
        _same(made.get(), wanted)
        assert made.dtype == kind
    _same(rest[5:6].get(), [1.0])
    _same((x // 2)[:3].get(), [INF, -INF, INF])
    _same((2 // y)[3:5].get(), [-0.0, 0.0])
    x //= y
    _same(x.get(), wanted)
    for made in (y % x[1], cp.remainder(y, x[1]), cp.divmod(y, x[1])[1]):
        assert np.isnan(made.get()).all()


def test_only_the_chosen_quotients_are_written(cp: Any) -> None:
    x, y = cp.asarray([INF, INF, 5.0]), cp.asarray([1.0, 1.0, 2.0])
    out = cp.full(3, 9.0)
    cp.floor_divide(x, y, out=out, _where=cp.asarray([True, False, True]))
    assert out.tolist() == [INF, 9.0, 2.0]
    powers, one = cp.full(2, 9), cp.asarray([1, 1])
    cp.power(one, -one, out=powers, _where=cp.asarray([True, False]))
    assert powers.tolist() == [1, 9]
    whole, rest = cp.zeros(3), cp.zeros(3)
    cp.divmod(x, y, whole, rest)
    _same(whole.get(), [INF, INF, 2.0])
    _same(rest.get(), [NAN, NAN, 1.0])


@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 2, 0), (2, 1, 0)])
def test_quotients_of_infinite_numbers_have_the_order_of_a_sum(cp: Any, axes: Any) -> None:
    x = cp.asarray(np.full((2, 3, 4), INF)).transpose(axes)
    for made, sum_ in ((x // 2, x + 2), (2 % x, 2 + x), (cp.expm1(x + 0j), x + 0j)):
        assert made.get().shape == x.shape  # the worker has compared its strides by now
        assert made.strides == sum_.strides


@pytest.mark.parametrize("kind", ["F", "D"])
def test_complex_exponentials_less_one_keep_infinite_parts(cp: Any, kind: str) -> None:
    x = np.asarray([complex(INF, 0), complex(NAN, 0), complex(-INF, NAN), -0.0 + 0j, 1 + 2j], kind)
    made = cp.expm1(cp.asarray(x)).get()
    assert made.dtype == kind
    _same(made.real, [INF, NAN, -1.0, 0.0, np.real(np.exp(x[4])) - 1])
    assert made.imag[[0, 1, 3]].tolist() == [0.0, 0.0, 0.0]
    out = cp.zeros(5, "D")
    cp.expm1(cp.asarray(x), out=out)
    _same(out.get().real, made.real.tolist())


@pytest.mark.parametrize(("kind", "made"), [("f", "F"), ("d", "D"), ("i", "D"), ("F", "F")])
def test_eigenvalues_of_any_matrix_are_complex(cp: Any, kind: str, made: str) -> None:
    host = np.asarray([[[2, 1], [0, 3]], [[1, 0], [0, 1]]], kind)
    values, vectors = cp.linalg.eig(cp.asarray(host))
    alone = cp.linalg.eigvals(cp.asarray(host))
    assert values.dtype.char == vectors.dtype.char == alone.dtype.char == made
    assert np.allclose(host @ vectors.get(), vectors.get() * values.get()[:, None])
    assert np.allclose(np.sort(alone.get().real, axis=1), [[2, 3], [1, 1]])
    values, vectors = cp.linalg.eig(cp.zeros((0, 3, 3), "f"))  # those of no matrix are real
    assert (values.shape, values.dtype, vectors.shape) == ((0, 3), np.float32, (0, 3, 3))


def test_the_type_of_the_loop_decides_about_powers(cp: Any) -> None:
    two = cp.array(2, "u8")
    assert float(two ** cp.array(-2, "i8")) == 0.25
    assert float(cp.power(cp.array(2), -2, dtype="d")) == 0.25
    assert int(cp.array(2) ** cp.array(-2)) == 0


@pytest.mark.parametrize("name", ["irfft", "irfft2", "irfftn", "hfft"])
def test_an_inverse_transform_of_nothing_is_zeros(cp: Any, name: str) -> None:
    transform, many = getattr(cp.fft, name), name[-1] in "2n"
    for length in range(2, 9):
        cp.full(length, 7.5)  # its memory may be used again
        made = transform(cp.zeros((2, 0), "F"), (2, length) if many else length)
        assert made.tolist() == [[0] * length] * 2
    assert transform(cp.zeros((0, 2, 3)), (2, 4) if many else 4).size == 0


# --- other libraries ------------------------------------------------------------------------------


class Priority:
    """An object that computes with arrays by its own methods."""

    __array_priority__ = 200

    def __radd__(self, other: Any) -> str:
        return "theirs"


def test_other_libraries_protocols(cp: Any) -> None:
    array = cp.arange(4.0)
    described = array.__cuda_array_interface__
    assert (described["shape"], described["data"][0]) == ((4,), array.data.ptr)
    assert array + Priority() == "theirs"
    assert (array == None).tolist() == [False] * 4  # noqa: E711 - the comparison is the test


@pytest.mark.filterwarnings("ignore")
def test_scipys_universal_functions_take_our_arrays(cp: Any) -> None:
    special: Any = pytest.importorskip("scipy.special")
    named = [
        (name, getattr(special, name, None)) for name in sorted(cupyx("scipy.special").__all__)
    ]
    tried = [(name, function) for name, function in named if isinstance(function, np.ufunc)]
    assert len(tried) > 80
    host = np.linspace(0.1, 0.9, 5)
    for name, function in tried:
        wanted = function(*[host] * function.nin)
        made = function(*[cp.asarray(host)] * function.nin)
        try:
            close(made, wanted, 1e-5, 1e-8)
        except AssertionError as error:
            raise AssertionError(name) from error


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


# --- the rest -------------------------------------------------------------------------------------


def test_lost_imaginary_parts_and_few_samples_are_warned_of(cp: Any) -> None:
    a, lost = cp.ones(2, "D"), np.exceptions.ComplexWarning
    calls: list[tuple[Any, Made]] = [
        (lost, lambda cp: cp.add(a, a, out=cp.zeros(2), casting="unsafe")),
        (lost, lambda cp: cp.concatenate([a, a], dtype="f8", casting="unsafe")),
        (lost, lambda cp: a.sum(dtype="f8")),
        (RuntimeWarning, lambda cp: cp.cov(cp.ones((2, 3)), ddof=3)),
    ]
    for warning, call in calls:
        with pytest.warns(warning):
            call(cp)


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


def test_the_centres_of_any_number_of_labels(cp: Any) -> None:
    scipy: Any = pytest.importorskip("scipy.ndimage")
    of: Any = importlib.import_module("cupyx.scipy.ndimage").center_of_mass
    image = np.random.default_rng(1).random((30, 40))
    labels, index = np.arange(1200).reshape(30, 40) // 10, np.arange(120)
    found = of(cp.asarray(image), cp.asarray(labels), cp.asarray(index))
    assert type(found) is list
    wanted = scipy.center_of_mass(image, labels, index)
    close(cp.stack(found), np.asarray(wanted))
    one = of(cp.asarray(image))
    assert type(one) is tuple
    close(list(one), list(scipy.center_of_mass(image)))
    close(list(of(cp.asarray(image), cp.asarray(labels), 3)), list(wanted[3]))
    with pytest.raises(IndexError):
        of(cp.asarray(True))
