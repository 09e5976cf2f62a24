"""Corners of conversions and arithmetic, as a real card with real CuPy computes them.

An emulated GPU must compute what a GPU computes, also from NaN, from infinite numbers and from
numbers beyond a type's range. This program needs CuPy alone, real or drop-in. On a real card:

    python3 tests/gpu/corners_check.py --out corners.txt

It takes a minute or two, most of it for compiling. Each line of the result is a case, a tab and the
values as JSON. The same program runs on an emulated GPU, and two results are compared by

    python3 tests/gpu/corners_check.py --compare corners.txt emulated.txt

which prints the cases that differ. `tests/testdata/corners.txt.xz` holds those of an H200 with CuPy
14.2 and CUDA 13.0.
"""

# The values that this module computes have no static type, and CuPy's drop-in has no stubs.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false

import argparse
import json
import lzma
import math
import sys
import time
import warnings
from pathlib import Path

import numpy as np

FLOATS = [
    *(0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -0.9, -1.0, -1.5, -2.5, 127.0, 128.0, 200.0, 255.0, 256.0),
    *(300.0, -128.0, -129.0, -200.0, 32767.0, 32768.0, 40000.0, 65504.0, 65536.0, 70000.0, 1e6),
    *(-32769.0, -70000.0, 2147483520.0, 2147483648.0, 3e9, 4294967040.0, 4294967296.0, 5e9),
    *(-2147483648.0, -2147483904.0, -3e9, -5e9, 9.2e18, 9223372036854775808.0, 1e19),
    *(1.8446742974197924e19, 1.8446744073709552e19, 2e19, 1e30, -9.3e18, -1e30),
    *(math.inf, -math.inf, math.nan),
]
WHOLE = "bBhHiIqQ"
SOME = "bBiIqQ"
C_NAMES = {
    "b": "signed char",
    "B": "unsigned char",
    "h": "short",
    "H": "unsigned short",
    "i": "int",
    "I": "unsigned int",
    "q": "long long",
    "Q": "unsigned long long",
    "e": "float16",
    "f": "float",
    "d": "double",
}
RAW_NAMES = C_NAMES | {"e": "half"}

found: dict[str, object] = {}


def plain(value):
    """Return numbers as JSON has them; floats as texts, since JSON has no NaN."""
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    array = np.asarray(value.get() if hasattr(value, "get") else value)
    if array.dtype.kind in "biu":
        values = array.tolist()
    else:
        digits = {"float16": 5, "float32": 9, "complex64": 9}.get(str(array.dtype), 16)
        values = [f"{each:.{digits}g}" for each in array.ravel().tolist()]
    return [str(array.dtype), values]


def case(name, function):
    """Compute a case and note its values, or the kind of its error."""
    try:
        found[name] = plain(function())
    except Exception as error:  # noqa: BLE001 - the kind is the result
        found[name] = ["error", type(error).__name__]


def conversions(cp):
    """Record the conversions of floats by each of CuPy's ways."""
    for source in "efdFD":
        x = cp.asarray(np.array(FLOATS).astype(source))
        for kind in WHOLE + "?":
            case(f"astype {source}->{kind}", lambda x=x, kind=kind: x.astype(kind))
    for source in "fd":
        x = cp.asarray(np.array(FLOATS).astype(source))
        for kind in SOME:
            ways(cp, x, f"{source}->{kind}", kind)
    for source, kind in (("d", "f"), ("d", "e"), ("f", "e"), ("D", "F")):
        x = cp.asarray(np.array([*FLOATS, 1e300, 65519.9, 65520.0, 1e-8, 6e-8, 1e-46], source))
        case(f"astype {source}->{kind}", lambda x=x, kind=kind: x.astype(kind))
    for source, values in (("q", [2**53 + 1, -(2**63), 2**63 - 1, 70000]), ("Q", [2**64 - 1])):
        x = cp.asarray(np.array(values, source))
        for kind in "efd":
            case(f"astype {source}->{kind}", lambda x=x, kind=kind: x.astype(kind))


def ways(cp, x, pair, kind):
    """Note one pair of types by all ways of assignment."""
    n = x.size
    index = cp.arange(n)[::-1].copy()

    def changed(function):
        y = cp.zeros(n, kind)
        function(y)
        return y

    case(f"array {pair}", lambda: cp.array(x, dtype=kind))
    case(f"full slice {pair}", lambda: changed(lambda y: y.__setitem__(slice(None), x)))
    case(f"slice {pair}", lambda: changed(lambda y: y.__setitem__(slice(0, n, 2), x[::2])))
    case(f"mask {pair}", lambda: changed(lambda y: y.__setitem__(x != 1, x[x != 1])))
    case(f"mask scalar {pair}", lambda: changed(lambda y: y.__setitem__(x != 1, x[-3])))
    case(f"index {pair}", lambda: changed(lambda y: y.__setitem__(index, x)))
    case(f"element {pair}", lambda: changed(lambda y: y.__setitem__(3, x[-1])))
    case(f"fill {pair}", lambda: changed(lambda y: y.fill(x[-3])))
    case(f"full {pair}", lambda: cp.full(2, x[-3], kind))
    case(f"copyto {pair}", lambda: changed(lambda y: cp.copyto(y, x, casting="unsafe")))
    case(
        f"copyto where {pair}",
        lambda: changed(lambda y: cp.copyto(y, x, casting="unsafe", where=x != 1)),
    )
    case(f"put {pair}", lambda: changed(lambda y: cp.put(y, index, x)))
    case(f"place {pair}", lambda: changed(lambda y: cp.place(y, x != 1, x)))
    case(f"putmask {pair}", lambda: changed(lambda y: cp.putmask(y, x != 1, x)))
    case(f"flat {pair}", lambda: changed(lambda y: y.flat.__setitem__(slice(None), x)))
    case(f"take out {pair}", lambda: changed(lambda y: cp.take(x, cp.arange(n), out=y)))
    case(f"concatenate {pair}", lambda: cp.concatenate((x, x), dtype=kind, casting="unsafe"))
    case(f"stack {pair}", lambda: cp.stack((x, x), dtype=kind, casting="unsafe"))
    case(f"add out {pair}", lambda: changed(lambda y: cp.add(x, 0, out=y, casting="unsafe")))
    case(f"add dtype {pair}", lambda: cp.add(x, x, dtype=kind, casting="unsafe"))
    case(f"negative dtype {pair}", lambda: cp.negative(x, dtype=kind, casting="unsafe"))
    case(f"rint out {pair}", lambda: changed(lambda y: cp.rint(x, out=y, casting="unsafe")))
    case(f"iadd {pair}", lambda: changed(lambda y: y.__iadd__(x)))
    for name in ("sum", "prod", "cumsum", "mean", "max"):
        x2 = cp.stack((x, x * 0 + 1))
        call = getattr(cp, name)
        axis = 0
        if name != "max":
            case(f"{name} dtype {pair}", lambda call=call, x2=x2: call(x2, axis, dtype=kind))
        case(
            f"{name} out {pair}",
            lambda call=call: changed(lambda y: call(x2, axis, out=y)),
        )
    case(f"trace dtype {pair}", lambda: cp.trace(x[-9:].reshape(3, 3), dtype=kind))
    case(f"einsum dtype {pair}", lambda: cp.einsum("i->i", x, dtype=kind))
    case(f"linspace {pair}", lambda: cp.linspace(-3e9, 3e9, 5, dtype=kind))
    case(f"arange {pair}", lambda: cp.arange(-2.5, 3.0, 1.5, dtype=kind))
    case(f"clip out {pair}", lambda: changed(lambda y: cp.clip(x, -1e30, 1e30, out=y)))
    case(f"round out {pair}", lambda: changed(lambda y: x.round(out=y)))
    case(f"add.at {pair}", lambda: changed(lambda y: cp.add.at(y, index, x)))
    case(f"scatter_add {pair}", lambda: changed(lambda y: __scatter(cp, y, index, x)))
    case(f"ascontiguousarray {pair}", lambda: cp.ascontiguousarray(x, dtype=kind))
    case(f"asfortranarray {pair}", lambda: cp.asfortranarray(x, dtype=kind))
    case(f"require {pair}", lambda: cp.require(x, dtype=kind))
    case(f"zeros_like {pair}", lambda: cp.full_like(x, x[-1], dtype=kind))
    case(f"modulus {pair}", lambda: x.astype(kind) % 10)


def __scatter(cp, y, index, x):
    import cupyx

    cupyx.scatter_add(y, index, x)


def kernels(cp):
    """Record the conversions of floats within kernels of each kind."""
    for source in "efd":
        x = cp.asarray(np.array(FLOATS).astype(source))
        lines = ["#include <cuda_fp16.h>"]
        for kind in WHOLE:
            a, b = RAW_NAMES[source], C_NAMES[kind]
            value = "__half2float(x[i])" if source == "e" else "x[i]"
            lines += [
                f'extern "C" __global__ void f_{kind}(const {a}* x, {b}* y, {b}* z, {b}* u) {{',
                "  int i = threadIdx.x;",
                f"  y[i] = ({b}){value}; z[i] = {value}; u[i] = static_cast<{b}>({value});",
                "}",
            ]
        module = cp.RawModule(code="\n".join(lines))
        for kind in WHOLE:

            def launch(kind=kind, module=module, x=x):
                made = [cp.zeros(x.size, kind) for _ in range(3)]
                module.get_function(f"f_{kind}")((1,), (x.size,), (x, *made))
                return made

            case(f"raw {source}->{kind}", launch)
    for source in "fd":
        x = cp.asarray(np.array(FLOATS).astype(source))
        for kind in SOME:
            typed_kernels(cp, x, source, kind)
        case(f"raw complex {source}", lambda x=x: raw_complex(cp, x))
    half = cp.asarray(np.array(FLOATS).astype("e"))
    for kind in "Bi":
        explicit = cp.ElementwiseKernel("T x", "U y", "y = (U)x", "explicit_half")
        case(
            f"elementwise e->{kind}",
            lambda kind=kind, k=explicit: k(half, cp.zeros(half.size, kind)),
        )
    intrinsics(cp)


def typed_kernels(cp, x, source, kind):
    """Note one pair of types by elementwise, reduction and fused kernels."""
    pair = f"{source}->{kind}"
    a, b = np.dtype(source).name, np.dtype(kind).name
    n = x.size
    implicit = cp.ElementwiseKernel(f"{a} x", f"{b} y", "y = x", f"implicit_{source}{kind}")
    case(f"elementwise implicit {pair}", lambda: implicit(x))
    if kind in "bIQ":
        explicit = cp.ElementwiseKernel("T x", "U y", "y = (U)(x * 1)", "explicit_cast")
        case(f"elementwise {pair}", lambda: explicit(x, cp.zeros(n, kind)))
        reduction = cp.ReductionKernel(
            f"{a} x", f"{b} y", f"({C_NAMES[kind]})x", "a | b", "y = a", "0", f"or_{source}{kind}"
        )
        case(f"reduction {pair}", lambda: reduction(x.reshape(n, 1), axis=1))
        case(f"fuse {pair}", lambda: cp.fuse(lambda t: (t + 0).astype(kind))(x))


def raw_complex(cp, x):
    kind = "float" if x.dtype == np.float32 else "double"
    code = f"""
    #include <cupy/complex.cuh>
    extern "C" __global__ void f(const complex<{kind}>* x, int* y, unsigned char* z) {{
      int i = threadIdx.x; y[i] = x[i].real(); z[i] = x[i].imag();
    }}"""
    made = [cp.zeros(x.size, "i"), cp.zeros(x.size, "B")]
    cp.RawKernel(code, "f")((1,), (x.size,), (x + 1j * x, *made))
    return made


def intrinsics(cp):
    """Note CUDA's functions that convert, by their way of rounding."""
    kinds = {"int": "i", "uint": "I", "ll": "q", "ull": "Q"}
    small = {"short": "h", "ushort": "H"}
    lines, cases = ["#include <cuda_fp16.h>"], []
    for source, char in (("float", "f"), ("double", "d"), ("half", "e")):
        for target, kind in (kinds | (small if source == "half" else {})).items():
            for rounding in ("rn", "rz", "ru", "rd"):
                name = f"__{source}2{target}_{rounding}"
                lines.append(
                    f'extern "C" __global__ void g{name}(const {source}* x, {C_NAMES[kind]}* y) '
                    f"{{ y[threadIdx.x] = {name}(x[threadIdx.x]); }}"
                )
                cases.append((name, char, kind))
    for name, char, kind in (
        ("lroundf", "f", "q"), ("lround", "d", "q"), ("llroundf", "f", "q"), ("llrint", "d", "q"),
        ("lrintf", "f", "q"), ("llround", "d", "q"), ("llrintf", "f", "q"), ("lrint", "d", "q"),
        ("__float_as_int", "f", "i"), ("ilogbf", "f", "i"), ("ilogb", "d", "i"),
        ("__double2hiint", "d", "i"), ("__double2loint", "d", "i"), ("__saturatef", "f", "f"),
        ("__double2float_rn", "d", "f"), ("__double2float_rz", "d", "f"),
        ("__double2float_ru", "d", "f"), ("__double2float_rd", "d", "f"),
        ("__int2float_rz", "i", "f"), ("__uint2float_ru", "I", "f"), ("__ll2float_rd", "q", "f"),
        ("__ull2float_rn", "Q", "f"), ("__ll2double_rz", "q", "d"), ("__ull2double_ru", "Q", "d"),
        ("__int2double_rn", "i", "d"), ("__uint2double_rn", "I", "d"), ("__int2float_ru", "i", "f"),
        ("__uint2float_rn", "I", "f"), ("__ll2float_rn", "q", "f"), ("__ull2double_rz", "Q", "d"),
    ):  # fmt: skip
        lines.append(
            f'extern "C" __global__ void g{name}(const {RAW_NAMES[char]}* x, {C_NAMES[kind]}* y) '
            f"{{ y[threadIdx.x] = {name}(x[threadIdx.x]); }}"
        )
        cases.append((name, char, kind))
    module = cp.RawModule(code="\n".join(lines))
    try:
        module.get_function("g__float2int_rz")
        modules = dict.fromkeys(lines, module)
    except Exception:  # noqa: BLE001 - one of the names is missing; find out which
        modules = {line: cp.RawModule(code=f"{lines[0]}\n{line}") for line in lines}
    whole = np.array([0, 1, -1, 16777217, 2**31 - 1, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63)])
    for line, (name, char, kind) in zip(lines[1:], cases, strict=True):
        values = (whole if char in "iIqQ" else np.array(FLOATS)).astype(char)

        def launch(line=line, name=name, kind=kind, values=values):
            x = cp.asarray(values)
            made = cp.zeros(x.size, kind)
            modules[line].get_function(f"g{name}")((1,), (x.size,), (x, made))
            return made

        case(f"intrinsic {name}", launch)


def whole_arithmetic(cp):
    """Note whole numbers at the ends of their types."""
    for kind in "bBiqQ":
        info = np.iinfo(kind)
        few = {0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 65, info.max, info.min, info.max - 1}
        few |= {-1, -2, -7, -64} if info.min else set()
        values = np.array(sorted(few), kind)
        x, y = (cp.asarray(each.ravel().copy()) for each in np.meshgrid(values, values))
        for name in (
            *("floor_divide", "remainder", "divmod", "fmod", "true_divide", "left_shift"),
            *("right_shift", "power", "gcd", "lcm", "add", "multiply", "subtract", "maximum"),
        ):
            call = getattr(cp, name)
            case(f"{name} {kind}{kind}", lambda call=call, x=x, y=y: call(x, y))
        for name in ("abs", "negative", "sign", "reciprocal", "invert", "square", "sqrt", "rint"):
            call = getattr(cp, name)
            case(f"{name} {kind}", lambda call=call, v=values: call(cp.asarray(v)))
        for name in ("sum", "prod", "cumsum", "cumprod", "mean", "var", "ptp", "argmax", "median"):
            call = getattr(cp, name)
            case(f"{name} {kind}", lambda call=call, v=values: call(cp.asarray(v)))
        for name in ("sum", "prod", "cumsum"):
            call = getattr(cp, name)
            case(f"{name} {kind} small", lambda c=call, v=values, k=kind: c(cp.asarray(v), dtype=k))
        case(f"dot {kind}", lambda v=values: cp.dot(cp.asarray(v), cp.asarray(v)))
        case(f"matmul {kind}", lambda v=values: cp.asarray(v[:4].reshape(2, 2)) @ cp.asarray(v[:2]))
    for kinds, a, b in (
        ("Qq", [2, 1, 0, 2**64 - 1, 3], [-2, -1, -1, -1, 3]),
        ("qQ", [2, -1, 0, -(2**63), 3], [2, 3, 2**64 - 1, 1, 3]),
        ("iI", [-1, 2, -(2**31)], [2, 2**32 - 1, 31]),
        ("bB", [-1, 2, -128], [2, 255, 31]),
        ("?q", [1, 0, 1], [-1, -1, 70]),
        ("qb", [2, -3, 2**40], [-1, 70, 3]),
    ):
        x, y = cp.asarray(np.array(a, kinds[0])), cp.asarray(np.array(b, kinds[1]))
        for name in ("power", "floor_divide", "remainder", "fmod", "left_shift", "maximum", "gcd"):
            call = getattr(cp, name)
            case(f"{name} {kinds}", lambda call=call, x=x, y=y: call(x, y))
    i = cp.asarray(np.array([0, 2, -3, 7], "i"))
    for number in (-1, 0, 2, -2, 40, 2.5):
        for name in ("power", "left_shift", "floor_divide", "remainder"):
            call = getattr(cp, name)
            case(f"{name} i {number}", lambda call=call, n=number: call(i, n))
            case(f"{name} {number} i", lambda call=call, n=number: call(n, i))
    case("power dtype d of whole", lambda: cp.power(i, -2, dtype="d"))
    case("power f whole", lambda: cp.power(i.astype("f"), i))
    case("ipower", lambda: i.copy().__ipow__(3))


ONE = (
    *("sign", "absolute", "negative", "rint", "floor", "ceil", "trunc", "fix", "sqrt", "cbrt"),
    *("square", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin"),
    *("cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh"),
    *("arctanh", "sinc", "i0", "isnan", "isinf", "isfinite", "signbit", "frexp", "modf"),
    *("deg2rad", "rad2deg", "nan_to_num", "around", "logical_not", "angle", "conj", "unwrap"),
)
TWO = (
    *("add", "subtract", "multiply", "true_divide", "floor_divide", "remainder", "fmod", "divmod"),
    *("power", "float_power", "maximum", "minimum", "fmax", "fmin", "heaviside", "nextafter"),
    *("copysign", "logaddexp", "logaddexp2", "hypot", "arctan2", "equal", "less", "isclose"),
    *("logical_and",),
)


def float_arithmetic(cp):
    """Note floats that are infinite, tiny or no numbers."""
    numbers = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.0, 1e5, -1e5, 1e30, 1e-30]
    numbers += [math.inf, -math.inf, math.nan, 2.0, -7.0, 1e-40]
    for kind in "efd":
        values = np.array(numbers).astype(kind)
        one = cp.asarray(values)
        x, y = values[:, None], values[None, ::2]
        x, y = (cp.asarray(each.copy()) for each in np.broadcast_arrays(x, y))
        for name in ONE:
            case(f"{name} {kind}", lambda name=name, one=one: getattr(cp, name)(one))
        for name in TWO:
            if kind != "e" or name in ("floor_divide", "remainder", "power", "maximum", "add"):
                case(f"{name} {kind}{kind}", lambda n=name, x=x, y=y: getattr(cp, n)(x, y))
        powers = cp.asarray(np.array([0, 1, -1, 2, 1000, -1000, 2**31 - 1, -(2**31)], "i"))
        case(f"ldexp {kind}", lambda x=one, p=powers: cp.ldexp(x[:, None], p))
        reductions(cp, one, kind)
    big = cp.asarray(np.array([1e22, 1e300, 1.7e308, 1e5, 3.1415926535]))
    for name in ("sin", "cos", "tan"):
        case(f"{name} huge", lambda name=name: getattr(cp, name)(big))
        case(f"{name} huge f", lambda name=name: getattr(cp, name)(big[3:].astype("f")))
    half = cp.asarray(np.array([2048, 1, 1, 1, 65504, 65504, -65504, 0.1, 0.2], "e"))
    for name in ("sum", "cumsum", "mean", "prod", "var", "max"):
        case(f"{name} half", lambda name=name: getattr(cp, name)(half))
    case("half many", lambda: cp.full(5000, 1.001, "e").sum())
    case("half chain", lambda: (half * half - half * half) / half)
    case("half isum", lambda: half.copy().__iadd__(half))
    case("half dot", lambda: cp.dot(half[:4], half[:4]))
    for decimals in (-2, -1, 1, 2):
        v = cp.asarray(np.array([0.5, 1.5, 2.5, 0.25, 0.35, 125.0, 15.0, 25.0, 1234.565]))
        case(f"around {decimals}", lambda d=decimals: cp.around(v, d))
        case(f"around f {decimals}", lambda d=decimals: cp.around(v.astype("f"), d))
        case(f"around i {decimals}", lambda d=decimals: cp.around(v.astype("i"), d))


def reductions(cp, x, kind):
    """Note reductions, sorts and searches of NaN and of both zeros."""
    for name in (
        *("max", "min", "argmax", "argmin", "nanmax", "nanmin", "nanargmax", "nanargmin", "sum"),
        *("nansum", "cumsum", "nancumsum", "prod", "mean", "nanmean", "median", "nanmedian"),
        *("ptp", "any", "all", "sort", "argsort", "unique", "count_nonzero", "diff", "var"),
    ):
        case(f"{name} {kind}", lambda name=name: getattr(cp, name)(x))
    case(f"partition {kind}", lambda: cp.sort(cp.partition(x, 5)[:6]))
    case(f"percentile {kind}", lambda: cp.percentile(x, 30))
    case(f"searchsorted {kind}", lambda: cp.searchsorted(cp.sort(x[:14]), x))
    case(f"digitize {kind}", lambda: cp.digitize(x, cp.asarray(np.array([0, 1, 2.0], x.dtype))))
    case(f"histogram {kind}", lambda: cp.histogram(x[:10], 4)[0])
    case(f"histogram range {kind}", lambda: cp.histogram(x, 4, (-1, 3))[0])
    case(f"interp {kind}", lambda: cp.interp(x, cp.arange(3.0), cp.arange(3.0)))
    case(f"bincount {kind}", lambda: cp.bincount(cp.arange(20) % 3, x))
    case(f"clip {kind}", lambda: cp.clip(x, -1, 1))
    case(f"clip nan {kind}", lambda: cp.clip(x, math.nan, 1))
    case(f"where {kind}", lambda: cp.where(x, 1, 2))
    case(f"nonzero {kind}", lambda: cp.nonzero(x)[0])
    case(f"floor to index {kind}", lambda: cp.arange(10)[(x * 2).astype("q")])


def complex_arithmetic(cp):
    """Note complex numbers at branch cuts, at 0 and at infinity."""
    parts = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e200, 0.5]
    for kind in "FD":
        values = np.array([complex(a, b) for a in parts for b in parts]).astype(kind)
        z = cp.asarray(values)
        for name in (
            *("sqrt", "log", "log10", "log2", "log1p", "exp", "exp2", "expm1", "sin", "cos", "tan"),
            *("arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh"),
            *("arctanh", "absolute", "angle", "conj", "square", "reciprocal", "sign", "rint"),
            *("isnan", "isinf", "isfinite", "negative", "nan_to_num", "around"),
        ):
            case(f"{name} {kind}", lambda name=name, z=z: getattr(cp, name)(z))
        few = z[::5]
        x, y = few[:, None], few[None]
        for name in ("multiply", "true_divide", "power", "maximum", "less", "add", "equal"):
            case(f"{name} {kind}{kind}", lambda name=name, x=x, y=y: getattr(cp, name)(x, y))
        for name in ("sort", "max", "min", "argmax", "sum", "prod", "mean", "var", "cumsum"):
            case(f"{name} {kind}", lambda name=name, z=z: getattr(cp, name)(z))


def views(cp):
    """Note whether writes through views reach the array."""

    def written(shape, view):
        a = cp.zeros(shape)
        view(a)[...] = 1
        return a

    case("view diagonal", lambda: written((3, 3), lambda a: a.diagonal()))
    case("view cp.diagonal", lambda: written((3, 3), lambda a: cp.diagonal(a, 1)))
    case("view diag", lambda: written((3, 3), cp.diag))
    case("view broadcast_to", lambda: written(1, lambda a: cp.broadcast_to(a, (3,))))
    case("view broadcast_arrays", lambda: written((3, 1), lambda a: cp.broadcast_arrays(a, a.T)[0]))
    case("view real", lambda: written(3, lambda a: a.real))
    case("view imag", lambda: written(3, lambda a: a.imag))
    case("view sliding", lambda: written(5, lambda a: window(cp, a)))
    case("view einsum", lambda: written((3, 3), lambda a: cp.einsum("ii->i", a)))
    case("view atleast", lambda: written((), cp.atleast_2d))
    case("view ravel", lambda: written((2, 2), cp.ravel))
    case("view expand", lambda: written(3, lambda a: cp.broadcast_to(a[None], (2, 3))))
    case("view meshgrid", lambda: written(3, lambda a: cp.meshgrid(a, a, copy=False)[0]))


def window(cp, a):
    return cp.lib.stride_tricks.sliding_window_view(a, 2)


def same(a, b, rtol=None):
    """Say whether two results agree; floats may differ in their last places."""
    if isinstance(a, list) and isinstance(b, list):
        if len(a) == 2 and len(b) == 2 and isinstance(a[0], str) and a[0] == b[0]:
            rtol = {"float16": 2e-3, "float32": 1e-5, "complex64": 1e-5}.get(a[0], 1e-11)
            return same(a[1], b[1], rtol)
        return len(a) == len(b) and all(same(*pair, rtol) for pair in zip(a, b, strict=True))
    if isinstance(a, str) and isinstance(b, str) and a != b:
        try:
            x, y = complex(a), complex(b)
        except ValueError:
            return False
        pairs = ((x.real, y.real), (x.imag, y.imag))
        return all(
            str(u) == str(v) or (u and v and math.isclose(u, v, rel_tol=rtol or 0, abs_tol=0))
            for u, v in pairs
        )
    return a == b


def read(path):
    """Return the cases of a file; lines that are none are left out."""
    data = Path(path).read_bytes()
    text = (lzma.decompress(data) if str(path).endswith(".xz") else data).decode()
    lines = text.splitlines()
    return {line.split("\t")[0]: json.loads(line.split("\t")[1]) for line in lines if "\t" in line}


def different(real, emulated):
    """Yield the cases that differ."""
    for name, a in real.items():
        if name in emulated and not same(a, emulated[name]):
            yield name, a, emulated[name]


def compare(first, second):
    """Print how two files differ."""
    real, emulated = read(first), read(second)
    total = 0
    for name, a, b in different(real, emulated):
        total += 1
        print(name)
        if len(a) == 2 and isinstance(a[1], list) and a[0] == b[0] and len(a[1]) == len(b[1]):
            places = [
                i for i, pair in enumerate(zip(a[1], b[1], strict=True)) if not same(*pair, 1e-5)
            ]
            print("   ", [(i, a[1][i], b[1][i]) for i in places[:8]], len(places))
        else:
            print("   ", str(a)[:300], "\n   ", str(b)[:300])
    missing = set(real) ^ set(emulated)
    print(f"{total} of {len(real)} cases differ; in one file only: {sorted(missing)[:20]}")
    return int(bool(total or missing))


def compute(cp):
    """Compute all cases."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    parts = (views, conversions, kernels, whole_arithmetic, float_arithmetic, complex_arithmetic)
    for part in parts:
        begun = time.perf_counter()
        part(cp)
        print(f"{part.__name__}: {time.perf_counter() - begun:.1f} s", file=sys.stderr, flush=True)
    return found


def main():
    """Compute, or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", help="the file for the results; else they are printed")
    parser.add_argument("--compare", nargs=2, help="files of two results")
    options = parser.parse_args()
    if options.compare:
        return compare(*options.compare)
    import cupy

    compute(cupy)
    text = "".join(f"{name}\t{json.dumps(value)}\n" for name, value in found.items())
    if options.out:
        Path(options.out).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
