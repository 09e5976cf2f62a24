"""Operators and universal functions of numbers: the types by CuPy's loops, and the C++.

CuPy tries the loops of a function in order, and takes the first whose types the arguments can be
cast to: by NumPy's rule in the mode "numpy", by the order of C's types in the mode "cuda".
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from cupy._core.ufunc import UFUNCS, ufunc

from cupyx.jit._kinds import CHARS, Const, Item, Scalar, Value, cast, scalar_of

OPERATORS: dict[type, tuple[str, Callable[..., Any]]] = {
    ast.Add: ("add", operator.add),
    ast.Sub: ("subtract", operator.sub),
    ast.Mult: ("multiply", operator.mul),
    ast.Pow: ("power", operator.pow),
    ast.Div: ("true_divide", operator.truediv),
    ast.FloorDiv: ("floor_divide", operator.floordiv),
    ast.Mod: ("remainder", operator.mod),
    ast.LShift: ("left_shift", operator.lshift),
    ast.RShift: ("right_shift", operator.rshift),
    ast.BitOr: ("bitwise_or", operator.or_),
    ast.BitAnd: ("bitwise_and", operator.and_),
    ast.BitXor: ("bitwise_xor", operator.xor),
    ast.Invert: ("invert", operator.invert),
    ast.Not: ("logical_not", operator.not_),
    ast.USub: ("negative", operator.neg),
    ast.UAdd: ("positive", operator.pos),
    ast.Eq: ("equal", operator.eq),
    ast.NotEq: ("not_equal", operator.ne),
    ast.Lt: ("less", operator.lt),
    ast.LtE: ("less_equal", operator.le),
    ast.Gt: ("greater", operator.gt),
    ast.GtE: ("greater_equal", operator.ge),
    ast.And: ("logical_and", lambda a, b: a and b),
    ast.Or: ("logical_or", lambda a, b: a or b),
}
"""Operators of Python: the ufunc for values, and the function for constants."""

_SIGNS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "true_divide": "/",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "logical_and": "&&",
    "logical_or": "||",
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_OF_BOOL = {"add": "|", "multiply": "&"}
_COMPARE = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_TRUTHS = (*_COMPARE, "logical_and", "logical_or", "logical_xor", "logical_not")
_ORDER = {"less": (0, 1, ""), "greater": (1, 0, ""), "less_equal": (1, 0, "!"),
          "greater_equal": (0, 1, "!")}  # fmt: skip
"""How `before` says the order of complex numbers: which is asked for first, and whether not."""

_C_NAMES = {
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctanh": "atanh",
    "arctan2": "atan2",
    "fix": "trunc",
}
_ROUND = ("ceil", "fix", "floor", "trunc")
_OF_REAL_NUMBERS = """
arctan2 cbrt copysign exp2 expm1 fabs fmod hypot ldexp log1p log2 nextafter rint
"""
_OF_NUMBERS = """
arccos arccosh arcsin arcsinh arctan arctanh cos cosh exp log log10 sin sinh sqrt tan tanh
"""
_REAL, _ANY = frozenset(_OF_REAL_NUMBERS.split()), frozenset(_OF_NUMBERS.split())
"""Functions that C++ has: of real numbers, and of complex ones too."""

_OWN = {
    "left_shift": "shift_left",
    "right_shift": "shift_right",
    "gcd": "gcd",
    "lcm": "lcm",
    "square": "square",
    "maximum": "maximum",
    "minimum": "minimum",
    "fmax": "number_maximum",
    "fmin": "number_minimum",
}
"""Functions of the prelude, whatever the type."""

_OF_WHOLE = {
    "floor_divide": "floor_divide",
    "remainder": "remainder_of",
    "fmod": "rest",
    "power": "power",
    "reciprocal": "whole_reciprocal",
    "absolute": "magnitude",
    "sign": "sign",
    "bitwise_count": "bits",
}
_OF_REAL = {
    "remainder": "gpjit::real_remainder({0}, {1})",
    "floor_divide": "floor({0} / {1})",
    "reciprocal": "(1 / {0})",
    "absolute": "fabs({0})",
    "sign": "gpjit::sign({0})",
    "heaviside": "gpjit::step({0}, {1})",
    "logaddexp": "gpjit::log_of_sum({0}, {1})",
    "logaddexp2": "gpjit::log2_of_sum({0}, {1})",
    "isnan": "gpjit::is_nan({0})",
    "isinf": "gpjit::is_infinite({0})",
    "isfinite": "gpjit::is_finite({0})",
    "signbit": "(copysign({one}, {0}) < 0)",
    "deg2rad": "({0} * {radian})",
    "rad2deg": "({0} / {radian})",
    "power": "pow({0}, {1})",
    "float_power": "pow({0}, {1})",
}
_OF_COMPLEX = {
    "absolute": "abs({0})",
    "conjugate": "conj({0})",
    "isnan": "gpjit::is_nan({0})",
    "isinf": "gpjit::one_infinite({0})",
    "isfinite": "gpjit::both_finite({0})",
    "reciprocal": "({c}(1) / {0})",
    "power": "gpjit::complex_power({0}, {1})",
    "float_power": "gpjit::complex_power({0}, {1})",
    "logical_not": "!gpjit::truth({0})",
}
_MORE_LOOPS = {"logical_not": ["F->?", "D->?"]}
_RADIAN = 0.017453292519943295


def find(function: Any) -> ufunc | None:
    """Return CuPy's universal function for one of CuPy or NumPy."""
    if isinstance(function, ufunc):
        return function
    return UFUNCS.get(function.__name__) if isinstance(function, np.ufunc) else None


def operate(kind: type, args: list[Item], mode: str) -> Item:
    """Return the result of an operator of Python.

    Raises:
        NotImplementedError: a kernel has no such operator.
    """
    if kind not in OPERATORS:
        raise NotImplementedError(f"a kernel has no operator {kind.__name__}")
    name, of_constants = OPERATORS[kind]
    if all(isinstance(arg, Const) for arg in args):
        return Const(of_constants(*[arg.obj for arg in args if isinstance(arg, Const)]))
    return call(UFUNCS[name], args, None, mode)


def call(function: ufunc, args: list[Item], dtype: Any, mode: str) -> Value:
    """Return the result of a universal function of numbers.

    Raises:
        TypeError: it has no loop for these types.
        NotImplementedError: it is not translated.
    """
    name = function.operation
    if len(args) != function.nin:
        raise ValueError(f"{name} takes {function.nin} arguments, and was given {len(args)}")
    inputs, output = _loop(function, [scalar_of(arg, mode) for arg in args], dtype, mode)
    if name in ("subtract", "negative") and inputs[0] == "?":
        raise TypeError(f"{name} has no meaning for truth values: use ^ or logical_not")
    made = Scalar(np.dtype(output))
    if name == "true_divide" or (name == "power" and inputs == "??"):
        inputs = output * 2
    kinds = [Scalar(np.dtype(letter)) for letter in inputs]
    values = [cast(arg, kind, "same_kind", mode) for arg, kind in zip(args, kinds)]
    codes = [value.code for value in values]
    code = _code(name, codes, kinds, made)
    small = made.letter in "biu" and made.dtype.itemsize < 4
    own = code.startswith("gpjit::") and name != "bitwise_count"
    if small and name not in _TRUTHS and not own and code not in codes:
        code = f"static_cast<{made.c}>({code})"  # C++ computes in `int`
    return Value(code, made)


def _loop(function: ufunc, given: list[Scalar], dtype: Any, mode: str) -> tuple[str, str]:
    """Return NumPy's letters of the types that a function takes and gives."""
    wanted = None if dtype is None else np.dtype(dtype)
    for text in [*function.types, *_MORE_LOOPS.get(function.operation, [])]:
        inputs, _, output = text.partition("->")
        if "V" in inputs:
            continue
        if wanted is not None:
            found = all(np.dtype(letter) == wanted for letter in output)
        else:
            found = all(_fits(kind.dtype, letter, mode) for kind, letter in zip(given, inputs))
        if found:
            if len(output) > 1:
                raise NotImplementedError(f"{function.operation} has several results")
            return inputs, output
    types = ", ".join([str(kind) for kind in given])
    raise TypeError(f"{function.operation} takes no numbers of the types {types}")


def _fits(dtype: np.dtype[Any], letter: str, mode: str) -> bool:
    if mode == "numpy":
        return np.can_cast(dtype, np.dtype(letter))
    return CHARS.find(dtype.char) <= CHARS.find(letter)


def _code(name: str, codes: list[str], kinds: list[Scalar], made: Scalar) -> str:
    letter = kinds[0].letter
    if name in _COMPARE and len({kind.letter for kind in kinds}) == 2:
        return f"(gpjit::compared({codes[0]}, {codes[1]}) {_SIGNS[name]} 0)"
    if letter == "c" and name in _ORDER:
        first, second, negated = _ORDER[name]
        return f"{negated}gpjit::before({codes[first]}, {codes[second]})"
    if name in _SIGNS:
        sign = _OF_BOOL.get(name, _SIGNS[name]) if letter == "b" else _SIGNS[name]
        return f"({codes[0]} {sign} {codes[1]})"
    if name in ("negative", "positive"):
        return f"(-{codes[0]})" if name == "negative" else codes[0]
    if name in ("invert", "logical_not") and letter != "c":
        return f"(!{codes[0]})" if letter == "b" or name == "logical_not" else f"(~{codes[0]})"
    if name == "logical_xor":
        return f"(!{codes[0]} != !{codes[1]})"
    if name in _OWN:
        return f"gpjit::{_OWN[name]}({', '.join(codes)})"
    if letter in "biu":
        if name in (*_ROUND, "conjugate") or (letter == "b" and name == "absolute"):
            return codes[0]
        if name in _OF_WHOLE:
            return f"gpjit::{_OF_WHOLE[name]}({', '.join(codes)})"
    elif name in _ANY or (letter == "f" and (name in _REAL or name in _ROUND)):
        return f"{_C_NAMES.get(name, name)}({', '.join(codes)})"
    elif letter == "f" and name == "conjugate":
        return codes[0]
    pattern = (_OF_COMPLEX if letter == "c" else _OF_REAL if letter == "f" else {}).get(name)
    if pattern is None:
        raise NotImplementedError(f"a kernel has no {name} of {kinds[0]}")
    words = {"c": made.c, "one": f"{kinds[0].c}(1)", "radian": f"{kinds[0].c}({_RADIAN!r})"}
    return pattern.format(*codes, **words)
