"""One small call of every function that the drop-in offers, runnable with NumPy as well.

``CALLS`` maps a name to functions of the module and of arrays in it; what they return is compared
between `numpy` and the drop-in, on emulated devices in the tests and on real ones by
``tests/gpu/array_door_check.py``.
"""

# ruff: noqa: B023 - the loops bind their variable by a call of the outer lambda
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpupool.remoting.devices.operation_names import UFUNCS

Call = Callable[[Any, Any], Any]


def arrays(xp: Any) -> SimpleNamespace:
    """Return the operands of all calls."""
    flat = np.arange(24.0)
    square = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
    host = {
        "a": np.sin(flat).reshape(4, 6),
        "b": np.cos(flat).reshape(4, 6),
        "v": np.arange(6.0),
        "i": np.arange(12).reshape(3, 4),
        "j": np.array([3, 1, 2, 0]),
        "m": flat.reshape(4, 6) % 3 > 1,
        "z": (np.arange(6) + 1j * np.arange(6)[::-1]).reshape(2, 3),
        "s": square,
        "u": np.array([3, 200, 7], np.uint8),
        "n": np.array([1.0, np.nan, 3.0, np.inf]),
        "w": np.array([1.0, 2.0, 4.0, 7.0, 8.0]),
        "t": np.arange(24.0).reshape(2, 3, 4),
        "k": np.array([1, 0, 2, 1, 5, 2]),
        "p": np.abs(np.sin(flat)).reshape(4, 6) + 0.1,
        "near": np.sin(flat).reshape(4, 6) * 0.9,
        "large": np.abs(np.sin(flat)).reshape(4, 6) + 1.1,
        "bits": np.array([0, 1, 2, 0]),
    }
    return SimpleNamespace(**{key: xp.asarray(value) for key, value in host.items()})


def changed(source: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy after a change in place."""
    copy = source.copy()
    change(copy)
    return copy


def named(name: str, *operands: str) -> Call:
    """Return a call of one function with these operands."""

    def call(xp: Any, d: Any) -> Any:
        for part in name.split("."):
            xp = getattr(xp, part)
        return xp(*[getattr(d, each) for each in operands])

    return call


BY_OPERANDS = {
    "a": "absolute arctan ceil clip conj cos cosh degrees exp exp2 expm1 fabs fix floor frexp i0"
    " isfinite isinf isnan logical_not modf negative positive radians rint sign signbit sin"
    " sinc sinh square tan tanh trunc asfortranarray corrcoef cov"
    " flipud fliplr atleast_3d linalg.matrix_transpose"
    " fft.fft fft.ifft fft.rfft fft.ihfft fft.fft2 fft.ifft2 fft.rfft2 fft.fftn fft.ifftn fft.rfftn"
    " fft.fftshift fft.ifftshift",
    "near": "arcsin arccos arctanh",
    "large": "arccosh",
    "p": "log log10 log1p log2 sqrt cbrt reciprocal",
    "n": "isposinf",
    "z": "imag real angle iscomplex iscomplexobj fft.irfft fft.hfft fft.irfft2 fft.irfftn",
    "v": "diagflat atleast_2d asarray_chkfinite array_repr array_str array2string",
    "w": "ediff1d cumulative_prod",
    "s": "linalg.cholesky linalg.inv linalg.det linalg.eigvalsh linalg.pinv linalg.cond"
    " linalg.matrix_rank",
    "t": "matrix_transpose ndim shape",
    "i": "invert bitwise_count",
    "m": "nonzero argwhere flatnonzero",
    "u": "unpackbits",
    "a b": "add allclose arctan2 copysign equal fmax fmin fmod floor_divide"
    " greater greater_equal hypot inner less less_equal logaddexp logaddexp2 logical_and logical_or"
    " logical_xor maximum minimum multiply nextafter not_equal remainder subtract true_divide"
    " heaviside",
    "a v": "broadcast_arrays",
    "p b": "power",
    "p k": "ldexp",
    "i bits": "bitwise_and bitwise_or bitwise_xor left_shift right_shift",
    "i j": "gcd lcm isin",
    "k j": "intersect1d setdiff1d setxor1d union1d",
    "v w": "append digitize outer",
    "w v": "polyadd polysub polyval",
    "w w": "polymul",
    "s s": "linalg.matmul",
    "s v": "kron",
    "z z": "vdot",
    "m a": "extract",
    "u a": "result_type",
}
"""Functions by their operands, of which `arrays` has the values."""

REDUCED = "all any max min ptp sum prod mean var std median argmax argmin"
WITHOUT_NAN = "nanmax nanmin nansum nanprod nanmean nanvar nanstd nanargmax nanargmin nanmedian"

CALLS: dict[str, Call] = {
    **{name: named(name, *(["a", "b"] if getattr(getattr(np, name, None), "nin", 1) == 2 else "a"))
       for name in UFUNCS},
    **{name: named(name, *operands.split())
       for operands, names in BY_OPERANDS.items() for name in names.split()},
    # creation
    "zeros": lambda xp, d: xp.zeros((2, 3), "f"),
    "ones": lambda xp, d: xp.ones((2, 3), "i", "F"),
    "full": lambda xp, d: xp.full((2, 2), 7.5),
    "eye": lambda xp, d: xp.eye(3, 4, 1),
    "empty": lambda xp, d: xp.empty((2, 3)) * 0 == 0,
    "identity": lambda xp, d: xp.identity(3),
    "empty_like": lambda xp, d: xp.empty_like(d.i).shape,
    "zeros_like": lambda xp, d: xp.zeros_like(d.t.T),
    "ones_like": lambda xp, d: xp.ones_like(d.a, dtype="f"),
    "full_like": lambda xp, d: xp.full_like(d.i, 3),
    "arange": lambda xp, d: (xp.arange(5), xp.arange(1, 2, 0.25), xp.arange(9, 2, -3, "f")),
    "linspace": lambda xp, d: (xp.linspace(0, 1, 7), xp.linspace(1, 2, 4, False)),
    "logspace": lambda xp, d: xp.logspace(0, 2, 5),
    "tri": lambda xp, d: xp.tri(3, 4, 1),
    "tril": lambda xp, d: xp.tril(d.a, -1),
    "triu": lambda xp, d: xp.triu(d.t, 1),
    "diag": lambda xp, d: (xp.diag(d.v, 1), xp.diag(d.a)),
    "vander": lambda xp, d: xp.vander(d.w, 3),
    "meshgrid": lambda xp, d: xp.meshgrid(d.v, d.w),
    "indices": lambda xp, d: xp.indices((2, 3)),
    **{name: (lambda name: lambda xp, d: getattr(xp, name)(7))(name)
       for name in ("bartlett", "blackman", "hamming", "hanning")},
    "kaiser": lambda xp, d: xp.kaiser(7, 3.0),
    # manipulation
    "reshape": lambda xp, d: (xp.reshape(d.t.T, -1), xp.reshape(d.a, (3, 8), order="F")),
    "ravel": lambda xp, d: (xp.ravel(d.t.T), xp.ravel(d.t, "F")),
    "transpose": lambda xp, d: xp.transpose(d.t, (2, 0, 1)),
    "permute_dims": lambda xp, d: xp.permute_dims(d.t, (1, 2, 0)),
    "swapaxes": lambda xp, d: xp.swapaxes(d.t, 0, 2),
    "moveaxis": lambda xp, d: xp.moveaxis(d.t, 0, -1),
    "rollaxis": lambda xp, d: xp.rollaxis(d.t, 2),
    "squeeze": lambda xp, d: xp.squeeze(d.t[:1]),
    "expand_dims": lambda xp, d: xp.expand_dims(d.a, (0, 2)),
    "broadcast_to": lambda xp, d: xp.broadcast_to(d.v, (3, 6)),
    "atleast_1d": lambda xp, d: xp.atleast_1d(d.v[0]),
    "concatenate": lambda xp, d: (xp.concatenate([d.a, d.b]), xp.concatenate([d.a, d.v], None)),
    "concat": lambda xp, d: xp.concat([d.a, d.b], axis=1),
    "stack": lambda xp, d: xp.stack([d.a, d.b], -1),
    "vstack": lambda xp, d: xp.vstack([d.v, d.v]),
    "hstack": lambda xp, d: xp.hstack([d.v, d.w]),
    "dstack": lambda xp, d: xp.dstack([d.a, d.b]),
    "column_stack": lambda xp, d: xp.column_stack([d.v, d.v]),
    "array_split": lambda xp, d: xp.array_split(d.a, 4, 1),
    "split": lambda xp, d: xp.split(d.a, [1, 3]),
    "hsplit": lambda xp, d: xp.hsplit(d.a, 2),
    "vsplit": lambda xp, d: xp.vsplit(d.a, 2),
    "dsplit": lambda xp, d: xp.dsplit(d.t, 2),
    "flip": lambda xp, d: (xp.flip(d.a), xp.flip(d.t, 1)),
    "rot90": lambda xp, d: [xp.rot90(d.a, k) for k in range(4)],
    "roll": lambda xp, d: (xp.roll(d.a, 2), xp.roll(d.a, (1, 2), (0, 1))),
    "tile": lambda xp, d: xp.tile(d.v, (2, 2)),
    "repeat": lambda xp, d: (xp.repeat(d.a, 2, 1), xp.repeat(d.v, [1, 0, 2, 0, 1, 3])),
    "resize": lambda xp, d: xp.resize(d.v, (3, 4)),
    "delete": lambda xp, d: (xp.delete(d.v, 2), xp.delete(d.a, [0, 2], 1)),
    "trim_zeros": lambda xp, d: xp.trim_zeros(d.v - 0),
    "pad": lambda xp, d: (xp.pad(d.a, 1), xp.pad(d.v, (2, 1), "edge"), xp.pad(d.v, 2, "reflect")),
    "require": lambda xp, d: xp.require(d.a, "f", ["F"]),
    # products
    "matmul": lambda xp, d: (xp.matmul(d.a, d.b.T), d.t @ d.t.transpose(0, 2, 1), d.a @ d.v),
    "dot": lambda xp, d: (xp.dot(d.a, d.b.T), xp.dot(d.v, d.v), xp.dot(d.a, d.v)),
    "tensordot": lambda xp, d: (xp.tensordot(d.a, d.b), xp.tensordot(d.t, d.t, ([1], [1]))),
    "trace": lambda xp, d: xp.trace(d.a, 1),
    "cross": lambda xp, d: xp.cross(d.s, d.s[::-1]),
    "einsum": lambda xp, d: (
        xp.einsum("ij,kj->ik", d.a, d.b),
        xp.einsum("ii", d.s),
        xp.einsum("i...->...", d.t),
    ),
    # reductions
    **{name: (lambda name: lambda xp, d: (
        getattr(xp, name)(d.a),
        getattr(xp, name)(d.t, axis=1),
        getattr(xp, name)(d.i, axis=0, keepdims=True),
    ))(name) for name in REDUCED.split()},
    **{name: (lambda name: lambda xp, d: (getattr(xp, name)(d.n), getattr(xp, name)(d.a, axis=0)))(
        name
    ) for name in WITHOUT_NAN.split()},
    **{name: (lambda name: lambda xp, d: (getattr(xp, name)(d.a), getattr(xp, name)(d.i, axis=1)))(
        name
    ) for name in ("cumsum", "cumprod", "nancumsum", "nancumprod")},
    "count_nonzero": lambda xp, d: (xp.count_nonzero(d.m), xp.count_nonzero(d.i, axis=0)),
    "percentile": lambda xp, d: (
        xp.percentile(d.a, 30),
        xp.percentile(d.a, xp.asarray([10, 50]), axis=0),
    ),
    "quantile": lambda xp, d: xp.quantile(d.a, 0.25, axis=1),
    "average": lambda xp, d: (xp.average(d.a, axis=0), xp.average(d.v, weights=d.v)),
    # elementwise functions
    "float_power": lambda xp, d: xp.float_power(d.p, 2),
    "clip": lambda xp, d: (xp.clip(d.a, -0.5, 0.5), xp.clip(d.i, None, 5)),
    "around": lambda xp, d: xp.around(d.a, 1),
    "round": lambda xp, d: xp.round(d.a, 2),
    "where": lambda xp, d: (xp.where(d.m, d.a, d.b), xp.where(d.a > 0, 1.0, d.b), xp.where(d.m)),
    "isneginf": lambda xp, d: xp.isneginf(-d.n),
    "isreal": lambda xp, d: xp.isreal(d.z),
    "isclose": lambda xp, d: xp.isclose(d.a, d.a + 1e-9),
    "array_equal": lambda xp, d: (xp.array_equal(d.a, d.a), xp.array_equal(d.a, d.v)),
    "array_equiv": lambda xp, d: xp.array_equiv(d.v, d.v[None]),
    "nan_to_num": lambda xp, d: xp.nan_to_num(d.n, posinf=9.0),
    "real_if_close": lambda xp, d: xp.real_if_close(d.z * 0 + 1),
    # sorting and searching
    "sort": lambda xp, d: (xp.sort(d.a), xp.sort(d.a, 0), xp.sort(d.a, None)),
    "argsort": lambda xp, d: (xp.argsort(d.a), xp.argsort(d.v, None)),
    "partition": lambda xp, d: xp.partition(d.v, 3)[3],
    "argpartition": lambda xp, d: d.v[xp.argpartition(d.v, 3)[3]],
    "lexsort": lambda xp, d: xp.lexsort(xp.stack([d.v, -d.v])),
    "searchsorted": lambda xp, d: (xp.searchsorted(d.w, d.v), xp.searchsorted(d.w, d.a, "right")),
    "sort_complex": lambda xp, d: xp.sort_complex(d.z.ravel()),
    # indexing
    "take": lambda xp, d: (xp.take(d.a, d.j, axis=1), xp.take(d.i, d.j.reshape(2, 2))),
    "take_along_axis": lambda xp, d: xp.take_along_axis(d.a, xp.argsort(d.a, 1), 1),
    "put": lambda xp, d: changed(d.v, lambda c: xp.put(c, d.j, -1.0)),
    "put_along_axis": lambda xp, d: changed(
        d.i, lambda c: xp.put_along_axis(c, d.i[:, :1] % 4, 99, 1)
    ),
    "putmask": lambda xp, d: changed(d.a, lambda c: xp.putmask(c, d.m, d.b)),
    "place": lambda xp, d: changed(d.a, lambda c: xp.place(c, d.m, d.v)),
    "copyto": lambda xp, d: changed(d.a, lambda c: xp.copyto(c, d.v)),
    "fill_diagonal": lambda xp, d: changed(d.s, lambda c: xp.fill_diagonal(c, 5)),
    "choose": lambda xp, d: xp.choose(d.j, xp.stack([d.j * 10, d.j * 20, d.j * 30, d.j * 40])),
    "select": lambda xp, d: xp.select([d.a > 0.5, d.a < 0], [d.a, d.b], 7.0),
    "compress": lambda xp, d: xp.compress(d.j > 0, d.a, axis=0),
    "diagonal": lambda xp, d: xp.diagonal(d.t, 0, 1, 2),
    "unravel_index": lambda xp, d: xp.unravel_index(d.j, (2, 2)),
    "ravel_multi_index": lambda xp, d: xp.ravel_multi_index((d.j, d.j), (4, 4)),
    # the rest
    "diff": lambda xp, d: (xp.diff(d.a), xp.diff(d.w, 2), xp.diff(d.a, axis=0)),
    "gradient": lambda xp, d: (xp.gradient(d.v), xp.gradient(d.a)),
    "unique": lambda xp, d: (xp.unique(d.k), xp.unique(d.k, return_counts=True)),
    "bincount": lambda xp, d: (xp.bincount(d.k), xp.bincount(d.k, d.v, 9)),
    "piecewise": lambda xp, d: xp.piecewise(d.v, [d.v < 2, d.v >= 2], [-1.0, 1.0]),
    "apply_along_axis": lambda xp, d: xp.apply_along_axis(lambda x: x.sum(), 1, d.a),
    "convolve": lambda xp, d: (xp.convolve(d.v, d.w), xp.convolve(d.v, d.w, "same")),
    "correlate": lambda xp, d: xp.correlate(d.v, d.w, "full"),
    "interp": lambda xp, d: xp.interp(d.v, d.w, d.w * 2),
    "histogram": lambda xp, d: xp.histogram(d.a.ravel(), 5),
    "histogram2d": lambda xp, d: xp.histogram2d(d.v, d.v, 3),
    "histogramdd": lambda xp, d: xp.histogramdd(d.a[:, :2], 3)[0],
    "packbits": lambda xp, d: xp.packbits(d.m.ravel()),
    "trapezoid": lambda xp, d: (xp.trapezoid(d.w), xp.trapezoid(d.a, dx=0.5)),
    "unwrap": lambda xp, d: xp.unwrap(d.w * 3),
    "poly": lambda xp, d: xp.poly(d.w[:3]),
    "polyfit": lambda xp, d: xp.polyfit(d.v, d.v * 2 + 1, 1),
    "roots": lambda xp, d: xp.sort(xp.roots(xp.asarray([1.0, -3.0, 2.0])).real),
    "may_share_memory": lambda xp, d: [xp.may_share_memory(d.a, x) for x in (d.a[1:], d.b)],
    "shares_memory": lambda xp, d: xp.shares_memory(d.a[::2], d.a[1::2]),
    "poly1d": lambda xp, d: (xp.poly1d(d.w)(2.0), (xp.poly1d(d.w) * xp.poly1d(d.w)).coeffs),
    # helpers
    "asarray": lambda xp, d: xp.asarray([[1, 2], [3, 4]]),
    "asanyarray": lambda xp, d: xp.asanyarray((1.5, 2)),
    "array": lambda xp, d: (xp.array([1, 2], "f", ndmin=2), xp.array([d.v, d.v])),
    "ascontiguousarray": lambda xp, d: xp.ascontiguousarray(d.a.T),
    "copy": lambda xp, d: xp.copy(d.a.T),
    "astype": lambda xp, d: xp.astype(d.a, "f4"),
    "frombuffer": lambda xp, d: xp.frombuffer(b"12345678", "u1"),
    "fromfunction": lambda xp, d: xp.fromfunction(lambda x, y: x + y, (2, 3)),
    "fromiter": lambda xp, d: xp.fromiter(range(4), "f8"),
    "fromstring": lambda xp, d: xp.fromstring("1 2 3", sep=" "),
    "size": lambda xp, d: xp.size(d.t, 1),
    "isscalar": lambda xp, d: (xp.isscalar(3), xp.isscalar(d.a)),
    "isfortran": lambda xp, d: (xp.isfortran(d.a), xp.isfortran(d.a.T)),
    "isrealobj": lambda xp, d: xp.isrealobj(d.z),
    "can_cast": lambda xp, d: xp.can_cast("i4", "f4"),
    "min_scalar_type": lambda xp, d: xp.min_scalar_type(300),
    "common_type": lambda xp, d: xp.common_type(d.a, d.z).__name__,
    "r_": lambda xp, d: xp.r_[d.v, 1, d.w],
    "c_": lambda xp, d: xp.c_[d.v, d.v],
    "mgrid": lambda xp, d: xp.mgrid[0:3, 1:2:4j],
    "ogrid": lambda xp, d: xp.ogrid[0:3, 0:2],
    "broadcast": lambda xp, d: xp.broadcast(d.a, d.v).shape,
    "ix_": lambda xp, d: d.a[xp.ix_(d.j, d.j)],
    "diag_indices": lambda xp, d: xp.diag_indices(3),
    "mask_indices": lambda xp, d: xp.mask_indices(3, xp.triu),
    "tril_indices": lambda xp, d: xp.tril_indices(3),
    "triu_indices": lambda xp, d: xp.triu_indices(3, 1),
    **{name: (lambda name: lambda xp, d: d.s[getattr(xp, name)(d.s)])(name)
       for name in ("diag_indices_from", "tril_indices_from", "triu_indices_from")},
    **{name: (lambda name: lambda xp, d: list(getattr(xp, name)(d.k)))(name)
       for name in ("unique_all", "unique_counts", "unique_inverse")},
    "unique_values": lambda xp, d: xp.sort(xp.unique_values(d.k)),
    "cumulative_sum": lambda xp, d: xp.cumulative_sum(d.v, include_initial=True),
    "base_repr": lambda xp, d: xp.base_repr(10, 3),
    "binary_repr": lambda xp, d: xp.binary_repr(10),
    "format_float_positional": lambda xp, d: xp.format_float_positional(1.5),
    "format_float_scientific": lambda xp, d: xp.format_float_scientific(1.5),
    "s_": lambda xp, d: d.a[xp.s_[1:3]],
    "index_exp": lambda xp, d: d.a[xp.index_exp[1:3, ::2]],
    # linalg and fft
    "linalg.slogdet": lambda xp, d: tuple(xp.linalg.slogdet(d.s)),
    "linalg.eigh": lambda xp, d: xp.linalg.eigh(d.s)[0],
    "linalg.eig": lambda xp, d: xp.sort(xp.linalg.eig(d.s)[0].real),
    "linalg.eigvals": lambda xp, d: xp.sort(xp.linalg.eigvals(d.s).real),
    "linalg.qr": lambda xp, d: [abs(each) for each in xp.linalg.qr(d.a)],
    "linalg.svd": lambda xp, d: (xp.linalg.svd(d.a)[1], xp.linalg.svd(d.a, False)[0].shape),
    "linalg.solve": lambda xp, d: (xp.linalg.solve(d.s, d.s[0]), xp.linalg.solve(d.s, d.s)),
    "linalg.lstsq": lambda xp, d: xp.linalg.lstsq(d.a[:, :3], d.a[:, 3], rcond=None)[0],
    "linalg.norm": lambda xp, d: (xp.linalg.norm(d.a, axis=1), xp.linalg.norm(d.v, 1)),
    "linalg.matrix_power": lambda xp, d: xp.linalg.matrix_power(d.s, 3),
    "linalg.tensorinv": lambda xp, d: xp.linalg.tensorinv(d.s, 1),
    "linalg.tensorsolve": lambda xp, d: xp.linalg.tensorsolve(d.s, d.s[0]),
    "linalg.cross": lambda xp, d: xp.linalg.cross(d.s, d.s[::-1]),
    "fft.fftfreq": lambda xp, d: xp.fft.fftfreq(5, 0.1),
    "fft.rfftfreq": lambda xp, d: xp.fft.rfftfreq(6),
}  # fmt: skip

REDUCING = "all any sum prod mean var std max min argmax argmin cumsum cumprod"

# Of the methods that functions call, `test_array_door_spellings.py` has a list.
METHODS: dict[str, Call] = {
    **{name: (lambda name: lambda xp, d: (getattr(d.a, name)(), getattr(d.t, name)(1)))(name)
       for name in REDUCING.split()},
    "astype": lambda xp, d: d.a.astype("f4"),
    "byteswap": lambda xp, d: d.i.byteswap(),
    "conj": lambda xp, d: (d.z.conj(), d.z.conjugate()),
    "dot": lambda xp, d: d.a.dot(d.v),
    "fill": lambda xp, d: changed(d.a, lambda c: c.fill(3)),
    "flatten": lambda xp, d: (d.a.T.flatten(), d.a.flatten("F")),
    "item": lambda xp, d: d.v[2].item(),
    "nonzero": lambda xp, d: d.m.nonzero(),
    "partition": lambda xp, d: changed(d.v, lambda c: c.partition(2))[2],
    "reshape": lambda xp, d: d.a.reshape(2, -1),
    "sort": lambda xp, d: changed(d.a, lambda c: c.sort(0)),
    "tobytes": lambda xp, d: d.u.tobytes(),
    "tolist": lambda xp, d: d.i.tolist(),
    "transpose": lambda xp, d: d.t.transpose(1, 2, 0),
    "view": lambda xp, d: d.i.view("u1")[0],
    "parts": lambda xp, d: (d.z.real, d.z.imag, d.a.imag),
    "turned": lambda xp, d: (d.t.T, d.t.mT),
    "elements": lambda xp, d: (d.a.flat[3], list(d.a), len(d.a)),
    "numbers": lambda xp, d: (float(d.v[3]), int(d.i[1, 2]), complex(d.z[0, 0]), bool(d.v[1] > 0)),
    "texts": lambda xp, d: (f"{d.v[2]:.2f}", str(d.i), repr(d.v)),
    "arithmetic": lambda xp, d: (
        *(d.a + d.b, 2 - d.a, d.a / 3, 1 / d.p, d.i // 2, 7 // (d.i + 1), d.i % 3),
        *(d.a**2, d.p**0.5, 2**d.i, -d.a, +d.a, abs(d.a), list(divmod(d.i, 5))),
    ),
    "bits": lambda xp, d: (~d.i, d.i << 1, d.i >> 1, d.i & 3, d.i | 4, d.i ^ 5),
    "comparisons": lambda xp, d: (d.a < d.b, d.a >= 0, d.i == 3, d.i != 3),
    "inplace": lambda xp, d: (
        changed(d.a, lambda c: c.__iadd__(1)),
        changed(d.a, lambda c: c.__imul__(d.b)),
        changed(d.a, lambda c: c.__itruediv__(2)),
        changed(d.i, lambda c: c.__ilshift__(1)),
        changed(d.a, lambda c: c.__setitem__((slice(None), 1), 9)),
        changed(d.a, lambda c: c.__setitem__(d.m, 0)),
    ),
}  # fmt: skip

DISTRIBUTIONS: dict[tuple[float, ...], str] = {
    (): "standard_cauchy standard_exponential standard_normal",
    (0.5,): "geometric logseries",
    (2.0,): "exponential pareto power rayleigh weibull zipf",
    (3.0,): "chisquare poisson standard_gamma standard_t",
    (0.0, 1.0): "gumbel laplace logistic lognormal normal uniform vonmises",
    (1.0, 1.0): "wald",
    (1.0, 2.0): "beta",
    (2.0, 1.0): "gamma",
    (3.0, 1.0): "noncentral_chisquare",
    (3.0, 4.0): "f",
    (3.0, 4.0, 1.0): "noncentral_f",
    (0.0, 0.5, 1.0): "triangular",
    (10, 0.5): "binomial",
    (5, 0.5): "negative_binomial",
    (5, 5, 3): "hypergeometric",
}
"""Distributions by their parameters."""

DRAWS: dict[str, Call] = {
    **{name: (lambda name, given: lambda r, d: getattr(r, name)(*given, size=(5, 10)))(name, given)
       for given, names in DISTRIBUTIONS.items() for name in names.split()},
    "dirichlet": lambda r, d: r.dirichlet([1.0, 2.0, 3.0], 5),
    "multivariate_normal": lambda r, d: r.multivariate_normal([0.0, 1.0], [[1.0, 0], [0, 1.0]], 5),
    "random_sample": lambda r, d: r.random_sample((3, 4)),
    "rand": lambda r, d: r.rand(3, 4),
    "randn": lambda r, d: r.randn(3, 4),
    "randint": lambda r, d: r.randint(0, 9, (3, 4)),
    "choice": lambda r, d: r.choice(10, 5),
    "permutation": lambda r, d: r.permutation(7),
}  # fmt: skip


def flatten(value: Any) -> list[Any]:
    """Return all arrays and scalars of a result in order."""
    if isinstance(value, (list, tuple)):
        items: Any = value
        return [leaf for item in items for leaf in flatten(item)]
    return [value]


def difference(ours: Any, theirs: Any) -> str:
    """Return the difference of a result, '' if there is none."""
    left, right = flatten(ours), flatten(theirs)
    if len(left) != len(right):
        return f"{len(left)} results, not {len(right)}"
    for a, b in zip(left, right, strict=True):
        host = a.get() if hasattr(a, "get") else a
        if not isinstance(b, (np.ndarray, np.generic)):
            if not (host == b):  # noqa: SIM201 - a NaN is not itself
                return f"{host!r} is not {b!r}"
            continue
        wanted = np.asarray(b)
        if np.shape(host) != wanted.shape:
            return f"shape {np.shape(host)}, not {wanted.shape}"
        if np.asarray(host).dtype != wanted.dtype and hasattr(a, "get"):
            return f"dtype {np.asarray(host).dtype}, not {wanted.dtype}"
        if not np.allclose(host, wanted, rtol=1e-6, atol=1e-9, equal_nan=True):
            return f"{host} is not {wanted}"
    return ""
