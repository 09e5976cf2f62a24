"""Arithmetic of `cupyx.jit` beside NumPy: universal functions, and random expressions."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import importlib
import itertools
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import door_kit
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.properties import examples

pytestmark = pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="no C++ compiler here")


@pytest.fixture(scope="module")
def jit(cp: Any) -> Any:
    assert cp.__name__ == "cupy"
    return importlib.import_module("cupyx.jit")


FUNCTIONS = {
    "abs cos sin tan sinh tanh arctan exp expm1 exp2 cbrt square floor ceil trunc rint": "efd",
    "sqrt log log1p log2 log10 rad2deg deg2rad reciprocal sign isnan isinf isfinite signbit": "fd",
    "arcsin arccos arctanh fabs fix": "fd",
    "absolute negative invert positive square sign floor bitwise_count": "bBiIlL",
    "sin cos exp log sqrt absolute conjugate isnan isinf isfinite": "FD",
}
PAIRS = {
    "add multiply subtract true_divide maximum minimum fmax fmin": "fd",
    "arctan2 hypot copysign fmod power less equal logical_and logical_xor": "fd",
    "heaviside logaddexp logaddexp2 nextafter": "fd",
    "add multiply floor_divide remainder gcd lcm fmod left_shift right_shift": "bBiIlL",
    "bitwise_and bitwise_or bitwise_xor maximum greater_equal not_equal logical_or": "bBiIlL",
}


# NumPy 2.5 deprecates a function that CuPy has.
@pytest.mark.filterwarnings("ignore:numpy.fix is deprecated:DeprecationWarning")
@pytest.mark.parametrize("count", [1, 2])
def test_universal_functions(cp: Any, jit: Any, count: int, tmp_path: Any) -> None:
    rows = [
        (name, char)
        for names, chars in (FUNCTIONS if count == 1 else PAIRS).items()
        for name in names.split()
        for char in chars
    ]
    chars = sorted({char for _, char in rows})
    values: dict[str, Any] = {}
    for char in chars:
        whole = np.array([0, 1, 2, 5, 7, 100, 127], char)
        values[char] = whole if char in "bBiIlL" else whole / whole.dtype.type(130)
    letters = "ab"[:count]
    given = ", ".join(f"{letter}{at}" for at in range(len(chars)) for letter in letters)
    outs = ", ".join(f"o{at}" for at in range(len(rows)))
    lines = [f"def run({given}, {outs}):", "    i = jit.threadIdx.x"]
    for at, (name, char) in enumerate(rows):
        place = chars.index(char)
        args = f"a{place}[i]" + (f", b{place}[i]" if count == 2 else "")
        module = "np" if name in ("sin", "add") else "cp"
        lines.append(f"    o{at}[i] = {module}.{name}({args})")
    file = tmp_path / "functions.py"
    file.write_text("\n".join(lines) + "\n")
    space: dict[str, Any] = {"cp": cp, "jit": jit, "np": np}
    exec(compile(file.read_text(), str(file), "exec"), space)
    pairs = [(values[char], values[char][::-1].copy()) for char in chars]
    wanted: list[Any] = []
    with np.errstate(all="ignore"):
        for name, char in rows:
            args = pairs[chars.index(char)][:count]
            wanted.append(getattr(np, name)(*args))
    made = [cp.zeros(each.shape, each.dtype) for each in wanted]
    inputs = [cp.asarray(each) for pair in pairs for each in pair[:count]]
    jit.rawkernel(mode="numpy")(space["run"])[1, 7](*inputs, *made)
    for row, one, other in zip(rows, made, wanted, strict=True):
        tolerance = 2e-3 if row[1] == "e" else 1e-6
        np.testing.assert_allclose(one.get(), other, tolerance, tolerance, err_msg=str(row))


ORDER = "?bBhHiIlLfd"
"""Types in the order of C's conversions, as the mode "cuda" has them."""

CHARS = {"numpy": "?bBhHiIlLfd", "cuda": "?bBhHiIlfd"}
ARITHMETIC = ("+", "-", "*", "/", "//", "%", "&", "|", "^", "<<", ">>")
COMPARE = ("<", "<=", ">", ">=", "==", "!=")
CASTS = ("int8", "uint16", "int32", "uint32", "int64", "float32", "float64")
SIZE = 16
numbers = itertools.count()


@dataclass(frozen=True)
class Tree:
    """An expression: its text, and what NumPy computes of the columns that it names."""

    text: str
    value: Any

    @property
    def constant(self) -> bool:
        """Whether Python computes it, by its own rules."""
        return self.value.ndim == 0


def columns(seed: int, chars: str) -> dict[str, Any]:
    """Return arrays of all types, with the ends of their ranges among small numbers."""
    random = np.random.default_rng(seed)
    made: dict[str, Any] = {}
    for char in chars:
        dtype = np.dtype(char)
        if dtype.kind == "b":
            made["q"] = random.random(SIZE) < 0.5
            continue
        column = random.integers(0, 9, SIZE).astype(dtype)
        if dtype.kind == "f":
            column = (column - dtype.type(4)) / dtype.type(4)
            column[:3] = np.inf, np.nan, -0.0
        else:
            limits = np.iinfo(dtype)
            column[:3] = limits.min, limits.max, limits.max // 3
            column[3:8] -= dtype.type(4) if dtype.kind == "i" else dtype.type(0)
        made[char] = random.permutation(column)
    return made


def common(mode: str, values: list[Any], kinds: str) -> list[Any]:
    """Return values in the types in which the operator takes them."""
    chars = [value.dtype.char for value in values]
    if mode == "numpy":
        return values
    widest = max(chars, key=ORDER.index)
    if (kinds == "compare" and widest not in "?fd") or (kinds == "divide" and widest not in "fd"):
        widest = "l"
    if kinds == "whole" and widest == "?":
        widest = "b"
    return [value.astype(widest) for value in values]


def computed(mode: str, sign: str, left: Any, right: Any) -> Any:
    """Return what a kernel computes by an operator; None where it refuses the types."""
    whole = sign in ("//", "%", "<<", ">>")
    kinds = "compare" if sign in COMPARE else "whole" if whole else "divide" if sign == "/" else ""
    values = common(mode, [left, right], kinds)
    floats = np.result_type(*values).kind == "f"
    if sign in ("//", "%") and floats:  # CuPy's formulas, which are others than NumPy's
        if {value.dtype.kind for value in values} & set("biu") and mode == "numpy":
            values = [value.astype(np.result_type(*values)) for value in values]
        low = np.floor(values[0] / values[1])
        return low if sign == "//" else values[0] - low * values[1]
    try:
        return eval(f"a {sign} b", {"a": values[0], "b": values[1]})
    except TypeError:
        return None


def grown(random: Random, mode: str, table: dict[str, Any], depth: int) -> Tree:
    """Return an expression over the columns."""
    form = random.randrange(10) if depth else 9
    if form < 6:
        sign = random.choice((*ARITHMETIC, *COMPARE))
        left, right = grown(random, mode, table, depth - 1), grown(random, mode, table, depth - 1)
        if left.constant and right.constant:
            return left
        value = computed(mode, sign, left.value, right.value)
        return left if value is None else Tree(f"({left.text} {sign} {right.text})", value)
    if form == 9:
        if random.random() < 0.3:
            return constant(mode, random.choice([0, 1, 3, 7, -2, 2.5, True]))
        name = random.choice(sorted(table))
        return Tree(name, table[name])
    inner = grown(random, mode, table, depth - 1)
    if inner.constant:
        return inner
    if form == 6:
        kind = random.choice(CASTS)
        if inner.value.dtype.kind == "f" and not kind.startswith("float"):
            return inner  # what C makes of infinity is not said
        return Tree(f"np.{kind}({inner.text})", inner.value.astype(kind))
    if form == 7:
        if inner.value.dtype.kind == "b":
            return Tree(f"(not {inner.text})", ~inner.value)
        return Tree(f"(-{inner.text})", -inner.value)
    other = grown(random, mode, table, depth - 1)
    one, two = common(mode, [inner.value, other.value], "")
    # Of 0 and -0 it is the first one; NumPy's is either.
    second = ((one < two) | (two != two)) & (one == one)
    largest = np.where(second, *np.broadcast_arrays(two, one)).astype(np.maximum(one, two).dtype)
    return Tree(f"max({inner.text}, {other.text})", largest)


def constant(mode: str, number: Any) -> Tree:
    """Return a name of the module, which has the type that the mode gives its number."""
    wide = {"numpy": {int: "l", float: "d"}, "cuda": {int: "i", float: "f"}}[mode]
    name = f"c{number}".replace("-", "m").replace(".", "_")
    return Tree(name, np.array(number, wide.get(type(number), "?")))


def written(folder: Path, names: list[str], trees: list[Tree]) -> dict[str, Any]:
    """Write a kernel that computes all expressions, each by a function; return its names."""
    given = ", ".join(names)
    lines = ["c0, c1, c3, c7, cm2, c2_5, cTrue = 0, 1, 3, 7, -2, 2.5, True"]
    for at, tree in enumerate(trees):
        lines += ["@rawkernel(device=True)", f"def e{at}({given}):", f"    return {tree.text}"]
    outs = ", ".join(f"o{at}" for at in range(len(trees)))
    lines += ["@rawkernel()", f"def run({given}, {outs}):", "    at = jit.threadIdx.x"]
    values = ", ".join(f"{name}[at]" for name in names)
    lines += [f"    o{at}[at] = e{at}({values})" for at in range(len(trees))]
    file = folder / f"expressions{next(numbers)}.py"
    file.write_text("\n".join(lines) + "\n")
    jit = importlib.import_module("cupyx.jit")
    mode = folder.name
    space: dict[str, Any] = {"np": np, "jit": jit}
    space["rawkernel"] = lambda device=False: jit.rawkernel(mode=mode, device=device)
    exec(compile(file.read_text(), str(file), "exec"), space)
    return space


@pytest.mark.parametrize("mode", ["numpy", "cuda"])
def test_expressions_have_the_types_and_values_of_the_mode(
    cp: Any, jit: Any, mode: str, tmp_path: Path
) -> None:
    unit_of = importlib.import_module("cupyx.jit._translation").Unit
    kinds = importlib.import_module("cupyx.jit._kinds")
    (tmp_path / mode).mkdir()
    assert jit.rawkernel

    # A failure names its expression, and to shrink one would compile hundreds of kernels.
    @settings(max_examples=examples(80) // 4, phases=(Phase.explicit, Phase.generate))
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        table, random = columns(seed, CHARS[mode]), Random(seed)
        names = list(table)
        with np.errstate(all="ignore"):
            trees = [grown(random, mode, table, 3) for _ in range(12)]
        trees = [tree for tree in trees if tree.value.dtype != np.float16]
        space = written(tmp_path / mode, names, trees)
        types = tuple(kinds.Scalar(column.dtype) for column in table.values())
        for at, tree in enumerate(trees):
            _, kind = unit_of(mode).function(space[f"e{at}"].function, types)
            assert kind.dtype == tree.value.dtype, tree.text
        made = [cp.zeros(SIZE, tree.value.dtype) for tree in trees]
        space["run"][1, SIZE](*[cp.asarray(column) for column in table.values()], *made)
        for tree, one in zip(trees, made, strict=True):
            wanted = np.broadcast_to(tree.value, SIZE)
            np.testing.assert_array_equal(one.get(), wanted, err_msg=tree.text)

    check()


class Program:
    """A random text of statements over whole numbers, which Python runs as it is."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.lines = ["def run(x, y):", "    a, b, c, i, j, k = x[0], x[1], x[2], 0, 0, 0"]
        self.left = 40  # statements
        self.block(1, loops=0)
        self.lines.append("    y[0], y[1], y[2], y[3], y[4], y[5] = a, b, c, i, j, k")

    def number(self, depth: int = 2) -> str:
        """Return an expression without side effects, whose value is small."""
        if not depth or self.random.random() < 0.3:
            return self.random.choice([*"abcijk", "x[b % 3]", "y[a % 6]", "2", "7"])
        one, other = self.number(depth - 1), self.number(depth - 1)
        forms = (
            *(f"({one} + {other})", f"({one} - {other})", f"({one} * {other} % 97)"),
            *(f"({one} // (({other}) % 5 + 1))", f"min({one}, {other})", f"(~{one})"),
            f"({one} if {self.truth(depth - 1)} else {other})",
        )
        return self.random.choice(forms)

    def truth(self, depth: int = 1) -> str:
        """Return a condition."""
        if not depth:
            sign = self.random.choice(COMPARE)
            return f"{self.random.choice('abcijk')} {sign} {self.number(0)}"
        forms = (
            *(f"({self.truth(depth - 1)} and {self.truth(depth - 1)})", self.truth(0)),
            *(f"({self.truth(depth - 1)} or not {self.truth(depth - 1)})", self.number(1)),
        )
        return self.random.choice(forms)

    def block(self, depth: int, loops: int) -> None:
        """Write statements; a loop is at most three deep, and turns a few times."""
        indent = "    " * depth
        for _ in range(self.random.randint(1, 4)):
            self.left -= 1
            form = self.random.randrange(8 if self.left > 0 and depth < 5 else 4)
            name, number = self.random.choice("abc"), self.number()
            if form < 2:
                self.lines.append(f"{indent}{name} = {number} % 1009")
            elif form == 2:
                self.lines.append(f"{indent}{name}, y[{name} % 6] = y[1] % 89, {name}")
            elif form == 3:
                sign = self.random.choice(["+", "-", "*", "//", "%", "&", "|", "^"])
                self.lines.append(f"{indent}y[{number} % 6] {sign}= {self.number(0)} % 7 + 1")
                self.lines.append(f"{indent}y[0] %= 1009")
            elif form < 6 or loops == 3:
                self.lines.append(f"{indent}if {self.truth()}:")
                self.block(depth + 1, loops)
                if self.random.random() < 0.5:
                    self.lines.append(f"{indent}elif {self.truth()}:")
                    self.block(depth + 1, loops)
                if self.random.random() < 0.5:
                    self.lines.append(f"{indent}else:")
                    self.block(depth + 1, loops)
            else:
                self.loop(indent, depth, loops)

    def loop(self, indent: str, depth: int, loops: int) -> None:
        """Write a loop over a range, which may end early."""
        counter, step = (
            "ijk"[loops],
            self.random.choice(["1", "2", "-1", "-3", "a % 3 + 1", "b % 2 - 2"]),
        )
        begin, end = self.random.choice([("0", "b % 6"), ("c % 5", "-2"), ("a % 4", "7")])
        self.lines.append(f"{indent}for {counter} in range({begin}, {end}, {step}):")
        word = self.random.choice(["break", "continue", "pass"])
        self.block(depth + 1, loops + 1)
        self.lines += [f"{indent}    if {self.truth()}:", f"{indent}        {word}"]
        self.block(depth + 1, loops + 1)


def test_programs_do_what_python_does(cp: Any, jit: Any, tmp_path: Path) -> None:
    @settings(max_examples=examples(80) // 4, phases=(Phase.explicit, Phase.generate))
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        text = "\n".join([*Program(seed).lines, ""])
        file = tmp_path / f"program{next(numbers)}.py"
        file.write_text(text)
        space: dict[str, Any] = {}
        exec(compile(text, str(file), "exec"), space)
        x, y = [seed % 1009, seed // 7 % 1009, seed // 5 % 1009], [1, 2, 3, 4, 5, 6]
        made = cp.asarray(y)
        space["run"](x, y)
        jit.rawkernel(mode="numpy")(space["run"])[1, 1](cp.asarray(x), made)
        assert made.tolist() == y, text

    check()
