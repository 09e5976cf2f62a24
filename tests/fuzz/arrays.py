"""Compare the drop-in `cupy` on an emulated GPU with NumPy, on random cases and programs.

    python tests/fuzz/arrays.py [--cases N] [--programs N] [--seed N] [--only KIND]

A case is a few lines of Python, drawn from the grammar below and run with both libraries. All
variables must agree in values, dtypes and shapes. Calls do not wait, so that wrong looks of results
and late errors are tried. A program runs 14 to 16 steps over views of the same memory.

An error on both sides is agreement. An error of the drop-in alone is "refused", one of NumPy alone
is "taken". A difference, or an error that no call deserves, is "WRONG", and shows its program.
"""

# The values that this module computes have no static type: both libraries return what they like.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import argparse
import contextlib
import math
import os
import random
import re
import socket
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "remoting" / "array_api")]

import door_kit  # noqa: E402  # pyright: ignore[reportMissingImports]

SHARES = (("ufuncs", 27), ("reductions", 12), ("indexing", 14), ("functions", 21), ("casts", 10))
KINDS = dict(SHARES, linalg=8, fft=8)
"""Kinds of cases, and the share of each."""

SHAPES = [(), (0,), (1,), (5,), (7,), (3, 4), (4, 1), (3, 3), (2, 0), (2, 3, 4), (2, 1, 3)]
DTYPES = {"ALL": "?bhiqBHIQefdFD", "REAL": "?bhiqBHIQefd", "WHOLE": "bhiqBHIQ", "INEXACT": "fdFD"}
SPECIAL = (np.nan, np.inf, -np.inf, -0.0)
SPACE = {"np": np, "nan": np.nan, "inf": np.inf}
HIDDEN = {*SPACE, "xp"}
TOLERANCE = {2: 4e-3, 4: 2e-5, 8: 1e-10}
"""By the bytes of a real part."""

INPUTS = """
a ALL mild same; b ALL mild same; c ALL mild near; o ALL mild same; x ALL any same;
y ALL any near; p ALL positive same; r ALL positive near; k WHOLE positive same;
n WHOLE mild same; m ? mild same; f efd mild same; g INEXACT mild same; t REAL mild same;
s REAL sorted 6; u REAL mild 6; d fd steps 6; v REAL mild 6; i iqhB index 4; j iq index 2x3;
l iqB index 6; e ALL mild 3x4; h ALL mild 4x3; w INEXACT mild 3x2; q INEXACT matrix 3x3;
z INEXACT matrix 2x3x3"""
VARIABLES = {row.split()[0]: row.split()[1:] for row in INPUTS.split(";")}
"""Dtypes, style and shape: that of the case, one that fits it, or a fixed one."""

# How the grammar keeps out of CuPy's known differences (docs/array-door.md, emulated_arithmetic):
#   the dtype of bool ** 2: no operand of STEEP with a scalar is bool
#   division by 0 or of infinity, negative powers and shifts, lcm, ldexp: CORNER and STEEP are of p
#   floats beyond a whole type's range: conversions are of p
#   infinite complex numbers: none is drawn; percentiles of NaN: they are of t
#   maximum, sort and sum of 0 and -0: signs of zeros are compared in UNARY alone
#   ties of argsort, which CuPy keeps in order: kind='stable'
#   layouts of new arrays: steps of programs copy them to a known one
#   floats of 16 bits in transforms, which NumPy scales in 16 bits: none is transformed
GRAMMAR_TEXT = """REDUCED: add add multiply maximum minimum ON: e e.T[:3,:3] h[:3] h
SQUARE: tril triu diag trace diagonal rot90 SIGN: + - * / < <= == != > >= & | ^ STEEP: // % << >> **
CASTING: 'no' 'equiv' 'safe' 'same_kind' BOOL: True False ORDER: 'C' 'F' 'A' 'K' LAYOUT: 'C' 'F'
METHOD: 'linear' 'lower' 'higher' 'midpoint' 'nearest' NORM: None 'ortho' 'forward' 'backward'
SMALL: 1 2 3 -1 0 MODE: 'full' 'same' 'valid' ONED: fft ifft irfft hfft OFREAL: rfft ihfft
MANYD: fft2 ifft2 fftn ifftn COUNT: None 2 4 7 WIDTH: 'i1' 'i2' 'i4' 'i8'
SHAPING: -1 (2,-1) (-1,3) (2,3,-1) (4,-1) (-1,1) (3,2,2)
UNARY: negative positive absolute sign rint floor ceil trunc sqrt cbrt square exp exp2 expm1 log
 log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arctanh deg2rad rad2deg
 isnan isinf isfinite signbit logical_not invert conjugate fabs modf frexp
BINARY: add subtract multiply divide maximum minimum fmax fmin equal not_equal less less_equal
 greater greater_equal logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor arctan2
 hypot copysign nextafter logaddexp logaddexp2
CORNER: floor_divide remainder mod fmod power float_power divmod left_shift right_shift gcd lcm
 ldexp heaviside true_divide
FOLD: sum prod max min any all mean var std argmax argmin cumsum cumprod
NANFOLD: nansum nanprod nanmax nanmin nanmean nanvar nanstd nanargmax nancumsum nanmedian
AT: add subtract maximum minimum bitwise_or bitwise_and bitwise_xor
ONE: unique transpose squeeze atleast_2d atleast_3d ediff1d iscomplex isreal nonzero argwhere
 flatnonzero ravel ones_like zeros_like ascontiguousarray asfortranarray real imag copy nan_to_num
 fliplr flipud size ndim shape
AXIAL: concatenate([x,b],axis=AXIS) stack([x,b],axis=AXIS) append(a,b,axis=AXIS) repeat(x,2,AXIS)
 roll(x,SMALL,axis=AXES) flip(x,axis=AXES) expand_dims(a,AXIS) diff(x,axis=AXIS) pad(a,SMALL,PAD)
 sort(x,axis=AXIS) sort(t,AXIS) take(a,i%2,axis=AXIS) ptp(t,axis=AXIS) count_nonzero(a,axis=AXES)
PAIR: kron inner outer vdot dot convolve correlate intersect1d union1d setdiff1d isin polyadd
 polysub polymul meshgrid isclose fmax add.outer
NEWS: eye(3,4,SMALL,DTYPE) full(SHAPE,SCALAR) arange(1,8,2,DTYPE) linspace(0,4,7,endpoint=BOOL)
 zeros(SHAPE,DTYPE,order='F') logspace(0,2,5) identity(3,DTYPE) tri(3,4,SMALL) indices((2,3))
 hanning(7) fft.fftfreq(7,0.5) fft.rfftfreq(6) can_cast(a.dtype,DTYPE) result_type(a,r).str
SCALAR: True 2 -3 0.5 2.5j np.float32(1.5) np.int8(3) np.uint64(7) np.bool_(1) np.complex64(1j)
 np.float64(-0.25) np.int64(-2) xp.array(3)
POSITIVE: 2 True 1.5 np.float16(3) np.uint8(3) np.int64(2) xp.array(2.5)
VALUE: POSITIVE 7 p[INDEX] xp.asarray([1,2,3,4]) xp.array(5) r
PAD: 'edge' 'reflect' 'wrap' 'constant' 'symmetric' 'maximum' 'mean'
ufuncs: xp.UNARY(x); xp.UNARY(x, out=o); xp.BINARY(x, y); xp.BINARY(x, y); xp.BINARY(x, c, out=o);
 xp.BINARY(x, SCALAR); xp.BINARY(SCALAR, x); xp.CORNER(p, r); xp.CORNER(p, POSITIVE);
 xp.CORNER(POSITIVE, r); xp.BINARY(x, y, dtype=DTYPE); xp.UNARY(p, dtype=DTYPE);
 xp.BINARY(p, r, out=a); xp.CORNER(p, r, out=o); xp.BINARY(p, r, dtype=DTYPE, casting=CASTING);
 xp.BINARY(x, c, out=x); x SIGN y; x SIGN SCALAR; SCALAR SIGN x; -x; ~x; abs(x); p STEEP r;
 (p + 0) STEEP POSITIVE; POSITIVE STEEP p; x += y; x -= SCALAR; x *= y; p /= r; p //= r;
 p %= POSITIVE; k **= 2; a &= b; a |= c; a ^= 3; k <<= 1; k >>= 2; x *= SCALAR; divmod(p, r);
 pow(k, 2); xp.clip(a, 1, 3); a.clip(0, None); xp.where(m, x, y); xp.where(m, x, SCALAR);
 a.round(SMALL); x.conj(); xp.angle(g); xp.sinc(f); xp.i0(f); xp.fix(f)
reductions: xp.FOLD(x, axis=AXIS); a.FOLD(AXIS); x.FOLD(AXES, keepdims=BOOL);
 xp.NANFOLD(x, axis=AXIS); xp.argmax(x, AXIS); xp.sum(x, axis=AXES, keepdims=BOOL);
 xp.prod(p, AXES, dtype=DTYPE); xp.min(x, axis=AXES); xp.max(x, axis=AXES, keepdims=BOOL);
 xp.add.reduce(x, AXIS); xp.cumsum(x); xp.nanmax(t, axis=AXES); x.all(); x.any(AXES);
 (p + 1).mean(AXES, dtype=DTYPE) if p.size else 0; a.var(AXES, ddof=1);
 a.std(axis=AXES, keepdims=BOOL); xp.percentile(t, [10, 50, 90], axis=AXIS, method=METHOD);
 xp.median(t, axis=AXIS); p.cumprod(AXIS); xp.quantile(t, 0.3, axis=AXIS, keepdims=BOOL);
 xp.average(f, AXIS, weights=xp.abs(f) + 1); xp.sum(p, axis=0, out=o[0]);
 xp.REDUCED.reduce(a, axis=AXIS); xp.cumsum(p, axis=AXIS, dtype=DTYPE);
 xp.add.accumulate(a, axis=AXIS); xp.REDUCED.outer(a, b); p.sum(dtype=DTYPE);
 xp.add.reduceat(a, xp.asarray([0, 1]), axis=AXIS); xp.linalg.norm(g, axis=AXIS)
indexing: x[INDEX]; a[INDEX]; x[INDEX] = 1; a[INDEX] = SCALAR; p[INDEX] = VALUE; p[INDEX] = r;
 p[INDEX] += 1; a[m]; a[m] = 3; p[m] += POSITIVE; a[m, None]; a[xp.nonzero(a)]; a[m] = p[m];
 a[..., None][INDEX]; a[INDEX][...] = 2; u[j]; u[i] = 3; e[i % 3, i % 4]; e[:, i % 4];
 e[i % 3] += 1; e[i[:, None] % 3, j[0] % 4]; e[..., j % 3]; e[1, i % 4] = 2;
 xp.AT.at(k, (0,), POSITIVE); xp.AT.at(u, i, 2); xp.AT.at(e, i % 3, 1); xp.add.at(u, l % 6, abs(v));
 a.take(i % 2, AXIS); xp.take_along_axis(e, xp.argsort(e, 1), 1); a.compress([True], axis=AXIS);
 xp.choose(i % 2, [i, i * 2]); xp.put(u, [0, 2], [3, 1]); xp.place(a, m, xp.asarray([1, 2]));
 xp.putmask(a, m, p); xp.extract(m, a); a.tolist(); a[()]; xp.fill_diagonal(e, POSITIVE);
 a.item() if a.size == 1 else 0; len(a); a.flat[:3]; list(e); e[xp.ix_([0, 2], [1, 3])];
 xp.select([m, ~m], [a, b]); a.fill(POSITIVE); a[INDEX].copy(ORDER); xp.copyto(o, p, where=m);
 p[INDEX] = r[INDEX]
functions: xp.ONE(x); xp.ONE(a); xp.clip(x, c, 3); xp.column_stack([u, v]); xp.dstack([u, v]);
 xp.array_split(u, 4); xp.lexsort(xp.stack([u, v])); xp.AXIAL; xp.AXIAL; xp.PAIR(u, v);
 xp.PAIR(u, v); xp.SQUARE(ON); xp.NEWS; xp.hstack([x, b]); xp.pad(u, (2, 1), mode=PAD);
 xp.unique(t, True, True); xp.unique(t, return_index=BOOL, return_counts=BOOL);
 xp.searchsorted(s, v, side='left'); xp.searchsorted(s, v, 'right'); xp.digitize(v, s);
 xp.einsum('ij,jk', e, h); xp.einsum('ij,ji->i', e, h); xp.tensordot(e, h, axes=1);
 xp.interp(f, d, d * 2); e @ h; u @ v; xp.histogram(u, bins=4)[0]; xp.bincount(i % 5, minlength=3);
 xp.tile(a, SMALL); xp.matmul(z, w); xp.moveaxis(a, 0, -1); xp.swapaxes(e, 0, 1);
 xp.broadcast_to(c, SHAPE); xp.ravel(a, ORDER); xp.broadcast_arrays(a, c); xp.split(u, 3);
 a.reshape(-1, order=LAYOUT); a.flatten(ORDER); xp.diag(u, SMALL); xp.vander(u);
 xp.full_like(a, POSITIVE); xp.cross(e[:, :3], h[:3]); xp.dot(e, h); xp.dot(a, xp.array(2));
 xp.convolve(u, v, MODE); xp.corrcoef(e.real); xp.gradient(d); xp.trapezoid(u); xp.diff(u, 2);
 xp.partition(u, 2)[2]; xp.argsort(x, kind='stable'); xp.allclose(x, y); xp.array_equal(x, x);
 xp.maximum.reduce(x); xp.array_equiv(a, c); xp.delete(u, SMALL); xp.delete(e, [0, 1], axis=1);
 xp.polyval(d[:3], f); xp.unwrap(d); xp.unravel_index(i % 6, (2, 3));
 xp.ravel_multi_index((j, j), (6, 6)); xp.packbits(m); xp.unpackbits(m.view('u1'));
 xp.trim_zeros(u); xp.histogram2d(u, v, 3)[0]; xp.apply_along_axis(xp.sum, 0, e); xp.cov(u, v);
 xp.tril(e, SMALL)
casts: p.astype(DTYPE); p.astype(DTYPE, order=ORDER); p.astype(DTYPE, copy=False); x.view(DTYPE);
 a.view('u1'); xp.asarray(p, DTYPE); g.real; g.imag; p.astype(DTYPE)[INDEX]; o[...] = p;
 xp.array(p, DTYPE, ndmin=3); g.real[INDEX] = 2; xp.ascontiguousarray(p, DTYPE); a.copy(ORDER);
 o[INDEX] = p; a.strides if a.size > 1 else 0; xp.array([u, v]); e.T.copy(ORDER).strides;
 (g * 1j).imag
linalg: xp.linalg.inv(z); xp.linalg.solve(q, w); xp.linalg.det(z); xp.linalg.slogdet(z);
 xp.linalg.norm(e, ord='fro'); xp.linalg.norm(z, axis=(1, 2)); xp.linalg.matrix_power(q, SMALL);
 xp.linalg.pinv(z); xp.linalg.svd(z, compute_uv=False); z @ q; q.T @ w;
 xp.linalg.eigvalsh(z @ z.conj().swapaxes(-1, -2)); xp.linalg.cholesky(q @ q.conj().T);
 xp.linalg.solve(z, z); xp.linalg.matrix_rank(q); xp.abs(xp.linalg.qr(q)[1]);
 xp.linalg.lstsq(q, w)[0]; xp.matmul(z, z, out=z)
fft: xp.fft.ONED(g, axis=AXIS, norm=NORM); xp.fft.ONED(q, COUNT, axis=AXIS, norm=NORM);
 xp.fft.MANYD(z, axes=(0, 2), norm=NORM); xp.fft.MANYD(w, (4, 5)); xp.fft.ONED(n, COUNT, AXIS);
 xp.fft.OFREAL(g.real, COUNT, AXIS, NORM); xp.fft.MANYD(z, axes=(1,), norm=NORM);
 xp.fft.rfftn(w.real, axes=(1, 0)); xp.fft.ifftshift(e, axes=1);
 xp.fft.irfftn(q, s=(3, 5), axes=(0, 1)); xp.fft.ONED(z[::-1, ::2])
steps: NEW = VV[SLICES]; NEW = VV[SLICES]; NEW = VV.T; NEW = VV.reshape(SHAPING, order=LAYOUT);
 NEW = VV.reshape(SHAPING); NEW = VV.ravel(ORDER); NEW = xp.ravel(VV); VV[INDEX] = 9;
 NEW = VV.view(WIDTH); VV[1:] = VV[:-1]; VV[:-1] += VV[1:]; VV[..., 1:] = VV[..., :-1];
 xp.add(VV, VV, out=VV); xp.add(VV[1:], 3, out=VV[:-1]); xp.subtract(VV, VV[::-1], out=VV);
 VV[VV > 2] = 5; VV[VV == VV.max()] -= 1; VV.sort(); VV.sort(axis=0); VV[...] = VV[::-1];
 VV += VV.T; VV[...] = VV.T; xp.copyto(VV, 2, where=VV > 1); NEW = VV.copy(LAYOUT); VV.fill(3);
 NEW = xp.where(VV > 1, VV, 4).copy(LAYOUT); NEW = VV.squeeze(); NEW = VV[:, None]; VV -= VV[0];
 VV[[0, -1]] = VV[[-1, 0]]; VV.ravel(ORDER)[::2] = 7; NEW = VV.flatten(ORDER); NEW = VV[::-1];
 VV.reshape(-1)[1:] = 1; NEW = VV.swapaxes(0, -1); VV[SLICES] += VV[SLICES];
 NEW = (VV + VV).copy(LAYOUT); xp.negative(VV, out=VV); NEW = VV.real; NEW = VV.imag.copy(LAYOUT);
 NEW = VV.sum(0).copy(); xp.cumsum(VV, axis=0, out=VV); NEW = VV[[1, 0]].copy(LAYOUT);
 NEW = xp.concatenate([VV, VV]).copy('F')[:6]; xp.maximum(VV, VV.T, out=VV.T); VV[...] = VV[0];
 VV[1::2] = VV[:-1:2]; NEW = xp.sort(VV, axis=None); VV[:, ::2] = 0
"""
GRAMMAR = {
    name: [part.strip() for part in parts.split(";")] if ";" in parts else parts.split()
    for name, parts in (entry.split(": ", 1) for entry in re.split(r"\s(?=\w+: )", GRAMMAR_TEXT))
}
GRAMMAR["DTYPE"] = [repr(kind) for kind in DTYPES["ALL"]]
"""Alternatives: words in capitals are replaced, the names in lower case are kinds of cases."""

WORD, VARIABLE = re.compile(r"\b[A-Z]{2,}\b"), re.compile(r"(?<![.\w'])[a-z](?![\w'(=])")
ASSIGNS = re.compile(r" (<<|>>|[^\s=!<>]*)= ")
BROKEN = ("MismatchError", "DoorError", "RuntimeError", "ConnectionLostError", "SystemError")
"""Errors of the drop-in that no call deserves."""


class Writer:
    """Draws the lines of one case, and the arrays that they use."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self.shape: tuple[int, ...] = self.rng.choice(SHAPES)
        self.names = 0

    def expanded(self, text: str, shape: tuple[int, ...], array: str = "") -> str:
        """Return a template with its words replaced; `array` is the one of this shape."""
        return WORD.sub(lambda found: self.word(found[0], shape, array), text)

    def word(self, name: str, shape: tuple[int, ...], array: str) -> str:
        """Return the text in place of a word."""
        if name in GRAMMAR:
            return self.expanded(self.rng.choice(GRAMMAR[name]), shape, array)
        if name in ("INDEX", "SLICES"):
            return self.index(shape, name == "INDEX")
        if name in ("AXIS", "AXES"):
            axis = self.rng.randrange(-len(shape), len(shape)) if shape else None
            pair = tuple(self.rng.sample(range(len(shape)), min(len(shape), 2)))
            return repr(self.rng.choice([None, axis, axis, pair] if name == "AXES" else [axis]))
        self.names += name == "NEW"
        return {"NEW": f"v{self.names}", "VV": array, "SHAPE": repr(shape)}[name]

    def index(self, shape: tuple[int, ...], lists: bool) -> str:
        """Return an index of an array."""
        parts: list[str] = []
        for size in shape[: self.rng.randint(0, len(shape))]:
            start, stop = (self.rng.choice(["", self.rng.randint(-5, 5)]) for _ in "ab")
            some = [self.rng.randrange(-size, size) for _ in "ab"] if size else [":"]
            cut = f"{start}:{stop}:{self.rng.choice(['', '', 2, -1, -2])}"
            choices = [some[0], some[0], ":", cut, cut, cut, some if lists and size else cut]
            parts.append(str(self.rng.choice(choices)))
        for extra in ("...", "None"):
            if self.rng.random() < 0.2:
                parts.insert(self.rng.randint(0, len(parts)), extra)
        return ", ".join(parts) or self.rng.choice(["...", ":" if shape else "()"])

    def numbers(self, kind: str, style: str, count: int) -> str:
        """Return a list of numbers as source."""
        low = 1 if style == "positive" else 0 if kind in "?BHIQ" or style == "index" else -4
        high = {"?": 1}.get(kind, 3 if style == "index" else 6)
        values: list[Any] = [self.rng.randint(low, high) for _ in range(count)]
        if style == "steps":
            values = [at * at + 1 for at in range(count)]
        elif kind in "efd" and style in ("mild", "any"):
            values = [value / 2 for value in values]
        elif kind in "FD":
            values = [complex(value, self.rng.randint(low, high)) for value in values]
        if style == "any" and kind not in "?FD" and self.rng.random() < 0.4:
            limits = [*SPECIAL] if kind in "efd" else [np.iinfo(kind).min, np.iinfo(kind).max]
            values = [self.rng.choice(limits) if self.rng.random() < 0.3 else v for v in values]
        return repr(sorted(values) if style == "sorted" else values)

    def array(self, kinds: str, style: str, look: str) -> str:
        """Return an array as source, in one of several layouts."""
        kind = self.rng.choice(DTYPES.get(kinds, kinds))
        size = self.shape
        if look == "near" and self.rng.random() < 0.6:
            size = tuple(size if self.rng.random() < 0.7 else 1 for size in self.shape)
        shape = size if look in ("same", "near") else tuple(map(int, look.split("x")))
        plain = style in ("matrix", "sorted", "steps") or not shape
        layout = "c" if plain else self.rng.choice("cccfsr")
        made = shape[::-1] if layout == "f" else shape
        made = (*made[:-1], made[-1] * 2) if layout == "s" else made
        suffix = {"f": ".T", "s": "[..., ::2]", "r": "[::-1]"}.get(layout, "")
        source = f"np.array({self.numbers(kind, style, math.prod(made))}, {kind!r}).reshape({made})"
        source += f" + 20 * np.eye(3, dtype={kind!r})" if style == "matrix" else ""
        return f"xp.asarray({source}){suffix}"

    def case(self, kind: str) -> tuple[str, list[str]]:
        """Return a template, and the lines of a case of it."""
        template = self.rng.choice(GRAMMAR[kind])
        last = self.expanded(template, self.shape)
        names = sorted(set(VARIABLE.findall(last)))
        arrays = [f"{name} = {self.array(*VARIABLES[name])}" for name in names]
        return template, [*arrays, last if ASSIGNS.search(last) else f"made = {last}"]

    def program(self) -> list[str]:
        """Return a program, of which NumPy accepts every step."""
        shape, kind = (
            self.rng.choice([(12,), (3, 4), (4, 4), (2, 3, 4), (24,), (5, 5), (6, 2)]),
            self.rng.choice("iqhfdFDBI"),
        )
        values = self.numbers("q", "mild", math.prod(shape))
        lines = [f"v0 = xp.asarray(np.array({values}).astype({kind!r}).reshape({shape}))"]
        space: dict[str, Any] = {**SPACE, "xp": np}
        exec(lines[0], space)
        wanted = self.rng.randint(14, 16)
        while len(lines) <= wanted:
            name = self.rng.choice([name for name in space if name[0] == "v"])
            step = self.expanded(self.rng.choice(GRAMMAR["steps"]), space[name].shape, name)
            if "view" in step and space[name].dtype.kind not in "iu":
                continue
            with contextlib.suppress(ValueError, TypeError, IndexError):
                exec(step, space)
                lines.append(step)
            if isinstance(space.get(step.split()[0]), np.generic):  # no view of memory
                del space[step.split()[0]]
                lines.pop()
        return lines


def outcome(library: Any, lines: list[str]) -> list[Any] | Exception:
    """Run lines; return the values of the variables as NumPy's arrays, or the error."""
    space = {**SPACE, "xp": library}
    try:
        exec("\n".join(lines), space)
        return [
            on_host(value) for name, value in space.items() if len(name) < 5 and name not in HIDDEN
        ]
    except Exception as error:  # noqa: BLE001 - whatever a library raises
        return error


def on_host(value: Any) -> Any:
    """Return a result as an array of NumPy, or as a list of them."""
    if isinstance(value, tuple | list):
        return [on_host(item) for item in value]
    return value.get() if hasattr(value, "get") else np.asarray(value)


def difference(want: Any, got: Any, signs: bool) -> str:
    """Return how two results differ, or nothing."""
    if isinstance(want, list) or isinstance(got, list):
        if not isinstance(want, list) or not isinstance(got, list) or len(want) != len(got):
            return "another number of results"
        return next(filter(None, map(difference, want, got, [signs] * len(want))), "")
    if (want.dtype, want.shape) != (got.dtype, got.shape):
        return f"{got.dtype} of {got.shape} for {want.dtype} of {want.shape}"
    same = bool(np.array_equal(want, got))
    if want.dtype.kind in "fc":
        room = TOLERANCE[want.real.dtype.itemsize]
        scale = float(np.abs(want[np.isfinite(want)]).max(initial=1))
        same = np.allclose(got, want, rtol=room, atol=room * scale, equal_nan=True)
    if signs and want.dtype.kind == "f":
        zero = (want == 0) & (got == 0)
        same &= np.array_equal(np.signbit(want[zero]), np.signbit(got[zero]))
    return "" if same else f"{got.tolist()} for {want.tolist()}"


class Fuzzer:
    """Runs cases on both sides, and counts their outcomes."""

    def __init__(self) -> None:
        os.environ.update(door_kit.AS_ON_REAL_GPUS)
        sys.path.insert(0, str(door_kit.DROPIN))
        import cupy  # pyright: ignore[reportMissingImports]

        self.cupy: Any = cupy
        self.counts: Counter[tuple[str, str]] = Counter()
        self.apart: Counter[tuple[str, str, str]] = Counter()
        self.open()

    def open(self) -> None:
        """Start a worker of an emulated GPU in a thread, in place of one that there was."""
        self.cupy._door.pool.reset()
        ours, theirs = socket.socketpair()
        door_kit.start_worker(theirs, door_kit.emulated(1, 512 * door_kit.MIB))
        self.cupy._door.pool.attach(ours)

    def run(self, kind: str, template: str, lines: list[str]) -> None:
        """Compare one case."""
        want, got = outcome(np, lines), outcome(self.cupy, lines)
        if isinstance(got, Exception):
            self.calm()
            said = "both refuse" if isinstance(want, Exception) else "refused"
            said = "WRONG" if type(got).__name__ in BROKEN else said
            text = f"{type(got).__name__}: {got}".splitlines()[0][:90]
        elif isinstance(want, Exception):
            said, text = "taken", type(want).__name__
        else:
            text = difference(want, got, "UNARY" in template)
            said = "WRONG" if text else "agree"
        self.counts[kind, said] += 1
        if said in ("refused", "taken"):
            self.apart[said, template, text] += 1
        if said == "WRONG":
            program = ["import numpy as np", "from numpy import inf, nan", "import cupy as xp"]
            print(f"WRONG: {template}: {text[:300]}", *program, *lines, sep="\n    ", flush=True)

    def calm(self) -> None:
        """Let errors pass that nobody has waited for; open another session if this one ended."""
        for _ in range(3):
            with contextlib.suppress(Exception):
                self.cupy.cuda.Device().synchronize()
                return
            self.cupy._door.state.reset()
        self.open()

    def fuzz(self, cases: int, programs: int, seed: int, only: str | None = None) -> int:
        """Run random cases and programs; print the counts, and return how many were wrong."""
        began, kinds = time.monotonic(), [*KINDS]
        with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
            for number in range(0 if only == "programs" else cases):
                writer = Writer(f"{seed} {number}")
                kind = only or writer.rng.choices(kinds, [*KINDS.values()])[0]
                self.run(kind, *writer.case(kind))
            for number in range(programs if only in (None, "programs") else 0):
                self.run("programs", "program", Writer(f"{seed} p{number}").program())
        for (said, template, text), count in self.apart.most_common():
            print(f"{said:8} {count:5} {template}: {text}")
        outcomes = ("agree", "both refuse", "refused", "taken", "WRONG")
        print(f"{'kind':12}", *(f"{name:>12}" for name in outcomes))
        for kind in dict.fromkeys(kind for kind, _ in self.counts):
            print(f"{kind:12}", *(f"{self.counts[kind, name]:12}" for name in outcomes))
        print(f"{sum(self.counts.values())} in {time.monotonic() - began:.0f} s")
        return sum(count for (_, said), count in self.counts.items() if said == "WRONG")


def main() -> None:
    """Parse the arguments; exit with 1 if a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--only", choices=(*KINDS, "programs"))
    given = parser.parse_args()
    print(f"seed {given.seed}")
    sys.exit(bool(Fuzzer().fuzz(given.cases, given.programs, given.seed, given.only)))


if __name__ == "__main__":
    main()
