"""What `cupyx.jit` refuses: at the call, with CuPy's type of error and the program's line."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import functools
import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import door_kit
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not door_kit.HAS_COMPILER, reason="no C++ compiler here")


@pytest.fixture(scope="module")
def jit(cp: Any) -> Any:
    assert cp.__name__ == "cupy"
    return importlib.import_module("cupyx.jit")


Case = tuple[str, type[Exception], str]

STATEMENTS: list[Case] = [
    ("def g(): pass", NotImplementedError, "cannot define functions"),
    ("class C: pass", NotImplementedError, "cannot define classes"),
    ("del x", NotImplementedError, "delete variables"),
    ("y: int = 3", NotImplementedError, "annotation"),
    ("with x: pass", ValueError, "has no `with`"),
    ("raise ValueError", ValueError, "neither raise nor catch"),
    ("import os", ValueError, "cannot import"),
    ("global z", ValueError, "names outside of it"),
    ("match n:\n  case 1: pass", NotImplementedError, "Match"),
    ("a = b = 1", NotImplementedError, "several variables"),
    ("x.shape = n", NotImplementedError, "an assignment to x.shape"),
    ("[a, b] = (1, 2)", NotImplementedError, "assignment to"),
    ("a, b = n", ValueError, "cannot be unpacked"),
    ("a, b = x.shape", ValueError, "not enough values to unpack"),
    ("a, = (n, n)", ValueError, "too many values to unpack"),
    ("a, *b = (n, n)", NotImplementedError, r"assignment to \*b"),
    ("for i in x: pass", NotImplementedError, "needs a range"),
    ("for i, j in range(3): pass", NotImplementedError, "counts one variable"),
    ("for n in range(3): pass\nelse: pass", NotImplementedError, "`for` has no `else`"),
    ("while n: pass\nelse: pass", NotImplementedError, "`while` has no `else`"),
    ("for i in range(0, 3, 0): pass", ValueError, "must not be zero"),
    ("for i in range(2.5): pass", TypeError, "a range has whole numbers"),
    ("for i in range(): pass", TypeError, "1 to 3 arguments, got 0"),
    ("for i in jit.range(n, unroll=2): pass", TypeError, "bounds and `unroll` are constants"),
    ("for i in jit.range(3, unroll=2.5): pass", TypeError, "unroll must be an integer"),
    ("for i in jit.range(3, turns=2): pass", TypeError, "unexpected keyword"),
    (
        "i = 1.5\nfor i in range(n): pass",
        TypeError,
        "`i` is float32, and the range counts in int32",
    ),
    (
        "kind = cp.float32\nfor kind in range(n): pass",
        TypeError,
        "variable of a loop is a constant",
    ),
    ("t = range(3)", TypeError, "range is for a loop only"),
    ("assert n", NotImplementedError, "only assert constants"),
    ("assert 1 == 2", AssertionError, "does not hold"),
    ("y = 1\ny = 2.5", TypeError, "Cannot cast from float32 to int32"),
    ("y = 1.5\ny = x", TypeError, "`y` is float32, and cannot become array"),
    ("n = cp.float32", TypeError, "`n` is a variable, and cannot"),
    ("if n:\n  kind = cp.float32", TypeError, "outside of branches and loops"),
    ("kind = cp.float32\nkind = 3", TypeError, "`kind` is a constant"),
    ("x[0] = x[0, 0]", IndexError, "2 dimensions, and the array has 1"),
    ("x[0] = 1j", TypeError, "Cannot cast from complex64 to float32"),
    ("plane[0] = plane[1]", TypeError, "only an element"),
    ("plane[0] += 1", TypeError, "no variable or element"),
    ("n += 0.5", TypeError, "Cannot cast from float32 to int32"),
    ("kind = cp.float32\nkind += 1", TypeError, "nothing that a kernel|no variable or element"),
    ("unknown += 1", NameError, "Unbound name: unknown"),
    ("y = later\nlater = 1", NameError, "Unbound name: later"),
    ("return n", ValueError, "the function returns nothing and int32"),
    ("y = jit.syncthreads()", TypeError, "no value"),
    ("if jit.syncthreads(): pass", TypeError, "no condition"),
    ("if x: pass", TypeError, "a number is needed"),
    ("while 1j * n: pass", TypeError, "neither true nor false"),
]
EXPRESSIONS: list[Case] = [
    ("1 < n < 3", NotImplementedError, "join comparisons by `and`"),
    ("n is None", NotImplementedError, "operator Is"),
    ("n in (1, 2)", NotImplementedError, "operator In"),
    ("n @ n", NotImplementedError, "operator MatMult"),
    ("x + 1", TypeError, "a number is needed"),
    ("'a' + n", NotImplementedError, "'a' is no number"),
    ("[n]", ValueError, r"Not supported: \[n\]"),
    ("{n: 1}", ValueError, "Not supported"),
    ("f'{n}'", ValueError, "Not supported"),
    ("lambda: n", ValueError, "Not supported"),
    ("x[0:2]", ValueError, "Not supported"),
    ("x[...]", TypeError, "nothing that a kernel can compute with"),
    ("x[None]", TypeError, "nothing that a kernel can compute with"),
    ("x[1.5]", TypeError, "whole number, and this is float32"),
    ("x[n > 2]", TypeError, "whole number, and this is bool"),
    ("x[x]", TypeError, "an array is no index"),
    ("x[-1]", IndexError, "-1 is negative"),
    ("plane[n, -2]", IndexError, "-2 is negative"),
    ("zero[0]", TypeError, "without dimensions"),
    ("n[0]", TypeError, "int32 is not subscriptable"),
    ("HOST[n]", TypeError, "ndarray is not subscriptable"),
    ("HOST[3]", IndexError, "out of bounds"),
    ("(n, n)[n]", TypeError, "index of a tuple must be a constant"),
    ("(n, n)[2]", IndexError, "the index 2 of a tuple of 2"),
    ("x.dtype", AttributeError, "Unknown attribute: dtype"),
    ("n.real", AttributeError, "Unknown attribute: real"),
    ("jit.threadIdx.w", AttributeError, "Unknown attribute: w"),
    ("cp.nothing", AttributeError, "nothing"),
    ("n()", TypeError, "cannot call a value"),
    ("abs(n)", TypeError, "cannot call 'abs'"),
    ("print(n)", TypeError, "cannot call 'print'"),
    ("plain(n)", TypeError, "cannot call 'plain'"),
    ("plain(*(n, n))", NotImplementedError, r"\*args"),
    ("plain(**HOST)", NotImplementedError, r"\*\*kwargs"),
    ("kernel(x)", TypeError, "cannot call the kernel 'kernel'"),
    ("device(n, n)", TypeError, r"device\(\) takes 1 positional arguments but 2 were given"),
    ("device(value=n)", TypeError, "no keyword arguments"),
    ("device(plain)", TypeError, "nothing that a kernel can compute with"),
    ("endless(n)", ValueError, "cannot call itself"),
    (" + ".join(["deep(0)(n)"] * 101), ValueError, "more than 100 functions"),
    ("deep(1000)(n)", RecursionError, "maximum recursion"),
    ("mixed(n)", ValueError, "returns int32 and float32"),
    ("half_empty(n)", ValueError, "returns int32 and nothing"),
    ("cp.float32(n, n)", TypeError, "takes one argument"),
    ("cp.add(n)", ValueError, "add takes 2 arguments, and was given 1"),
    ("cp.add(n, n, out=n)", TypeError, "is no keyword of add"),
    ("cp.add(n, n, dtype='U3')", TypeError, "takes no numbers of the types|no numbers of the type"),
    ("cp.divmod(n, n)", NotImplementedError, "several results"),
    ("cp.sinc(1.5)", NotImplementedError, "has no sinc of"),
    ("cp.sin(x)", TypeError, "a number is needed"),
    ("(n > 1) - (n > 2)", TypeError, "truth values"),
    ("-(n > 1)", TypeError, "truth values"),
    ("1.5 & n", TypeError, "takes no numbers of the types float32, int32"),
    ("1.5 if n else n", TypeError, "Cannot cast from float32 to int32"),
    ("cp.int64(1) if n else n", TypeError, "one branch gives int64, and the other int32"),
    ("min(n)", TypeError, "two numbers or more"),
    ("len(n)", TypeError, "arrays and tuples"),
    ("len(zero)", TypeError, "has no length"),
    ("jit.grid(n)", TypeError, "ndim must be a constant"),
    ("jit.grid(4)", ValueError, "1, 2 or 3 dimensions"),
    ("jit.grid('abc')", TypeError, "ndim must be a whole number"),
    ("jit.syncthreads(1)", TypeError, "takes 0 to 0 arguments"),
    ("jit.syncwarp(mask=1 << 32)", ValueError, "more than the 32 threads"),
    ("jit.syncwarp(3)", TypeError, "takes 0 to 0"),
    ("jit.shfl_sync(n, n, 0)", TypeError, "mask must be a whole number"),
    ("jit.shfl_sync(-1, n, 0)", ValueError, "more than the 32 threads"),
    ("jit.shfl_sync(1, n, 0, width=3)", ValueError, "width must be 2, 4"),
    ("jit.shfl_sync(1, n > 1, 0)", TypeError, "no numbers of the type bool"),
    ("jit.shfl_sync(1, x, 0)", TypeError, "no numbers of the type array"),
    ("jit.shared_memory('f4', n)", TypeError, "size must be a constant"),
    ("jit.shared_memory('f4', 2.5)", TypeError, "size of shared memory"),
    ("jit.shared_memory('f4', 0)", ValueError, "at least 1"),
    ("jit.shared_memory('U4', 1)", TypeError, "no numbers of the type"),
    ("jit.shared_memory('f4', 2) * 2", TypeError, "Mult has no meaning for shared memory"),
    ("jit.atomic_add(n, 0, 1)", TypeError, "changes an element of an array"),
    ("jit.atomic_and(x, 0, 1)", TypeError, "`atomic_and` has no numbers of the type float32"),
    ("jit.atomic_add(plane, 0, 1)", TypeError, "no numbers of the type array"),
    ("jit.atomic_add(whole, 0, 1.5)", TypeError, "Cannot cast from float32 to int32"),
    ("jit.atomic_add(x, 0)", TypeError, "missing the argument 'value'"),
    ("jit.atomic_add(x, 0, 1, array=x)", TypeError, "multiple values"),
    ("jit.atomic_add(x, 0, 1, 2)", TypeError, "takes 0 to 3"),
    ("jit.cg.sync(n)", ValueError, "no group of threads"),
    ("jit.cg.wait(jit.cg.this_grid())", NotImplementedError, "threads of a block"),
    ("jit.cg.this_grid().nothing()", AttributeError, "Unknown attribute: nothing"),
    ("device(jit.cg.this_grid())", TypeError, "group of threads can only be"),
]


def functions(jit: Any) -> dict[str, Any]:
    """Return what the cases call."""

    @jit.rawkernel(device=True)
    def device(value: Any) -> Any:
        return value

    @jit.rawkernel(device=True)
    def endless(value: Any) -> Any:
        return endless(value)

    @jit.rawkernel(device=True)
    def mixed(value: Any) -> Any:
        if value > 2:
            return value
        return 2.5

    @jit.rawkernel(device=True)
    def half_empty(value: Any) -> Any:
        if value > 2:
            return value
        return None

    @jit.rawkernel()
    def kernel(_x: Any) -> None:
        pass

    def deep(count: int) -> Any:
        @jit.rawkernel(device=True)
        def level(value: Any) -> Any:
            return value if count == 0 else deep(count - 1)(value)

        return level

    def plain(value: Any) -> Any:
        return value

    return {**locals(), "plain": plain, "np": np, "HOST": np.arange(3)}


def run(cp: Any, jit: Any, tmp_path: Path, text: str) -> None:
    """Launch a kernel of this text."""
    lines = "\n".join("    " + line for line in text.splitlines())
    file = tmp_path / "program.py"
    file.write_text(f"def run(x, plane, zero, whole, n):\n    pass\n{lines}\n")
    space = {**functions(jit), "cp": cp}
    exec(compile(file.read_text(), str(file), "exec"), space)
    arrays = cp.zeros(3, "f4"), cp.zeros((3, 3)), cp.zeros(()), cp.zeros(3, "i4")
    jit.rawkernel()(space["run"])((1,), (1,), (*arrays, 3))


@pytest.mark.parametrize(("text", "kind", "said"), STATEMENTS)
def test_a_statement_is_refused_with_its_line(
    cp: Any, jit: Any, tmp_path: Path, text: str, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said) as caught:
        run(cp, jit, tmp_path, text)
    assert f"{tmp_path}/program.py:" in str(caught.value)
    assert "in run\n>     " in str(caught.value)


@pytest.mark.parametrize(("text", "kind", "said"), EXPRESSIONS)
def test_an_expression_is_refused_with_its_line(
    cp: Any, jit: Any, tmp_path: Path, text: str, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said) as caught:
        run(cp, jit, tmp_path, f"result = ({text})")
    assert ".py:" in str(caught.value)
    assert "\n> " in str(caught.value)


def test_functions_whose_text_cannot_be_translated(cp: Any, jit: Any, tmp_path: Path) -> None:
    space: dict[str, Any] = {}
    exec("def hidden(): pass", space)
    with pytest.raises(RuntimeError, match="write it in a file or a notebook"):
        jit.rawkernel()(space["hidden"])[1, 1]()
    with pytest.raises(ValueError, match="by `def` or `lambda`"):
        jit.rawkernel()(print)[1, 1]()
    pair = [jit.rawkernel()(lambda: None), jit.rawkernel()(lambda: None)]
    with pytest.raises(ValueError, match="several lambdas"):
        pair[0][1, 1]()
    signatures = ("*args", "*, a", "**a", "a=1")
    for at, signature in enumerate(signatures):
        file = tmp_path / f"signature{at}.py"
        file.write_text(f"def run({signature}): pass\n")
        exec(compile(file.read_text(), str(file), "exec"), space)
        with pytest.raises(NotImplementedError, match="is not possible in a kernel"):
            jit.rawkernel()(space["run"])[1, 1]()

    def decorated(function: Callable[[Any], None]) -> Callable[[Any], None]:
        text = "not seen"
        return functools.wraps(function)(lambda _x: print(text))

    value = 4

    @decorated
    def told(x: Any) -> None:
        x[0] = value

    x = cp.zeros(1)
    with pytest.warns(RuntimeWarning, match="decorator decorated has no effect"):
        jit.rawkernel()(told)((1,), (1,), (each for each in [x]))
    assert x.tolist() == [4]


def test_arguments_that_are_refused(cp: Any, jit: Any) -> None:
    @jit.rawkernel()
    def run(x: Any) -> None:
        pass

    for wrong in (np.zeros(3), None, [1], np.zeros(()), object()):
        with pytest.raises(TypeError, match="arrays of the device and numbers"):
            run[1, 1](wrong)
    with pytest.raises(NotImplementedError, match="'text' is no number"):
        run[1, 1]("text")
    with pytest.raises(TypeError, match="no numbers of the type"):
        run[1, 1](cp.zeros(3, np.dtype([("a", "i4")])))
    with pytest.raises(TypeError, match=r"takes 1 positional arguments but 2"):
        run[1, 1](1, 2)
    with pytest.raises(OverflowError):
        run[1, 1](2**64)
    with pytest.raises(ValueError, match="mode 'c' is none of"):
        jit.rawkernel(mode="c")
    shape = (1,) * 60

    @jit.rawkernel()
    def many(a: Any, b: Any, c: Any, d: Any, e: Any) -> None:
        pass

    with pytest.raises(ValueError, match="4,840 bytes of a kernel's 4,096"):
        many[1, 1](*[cp.zeros(shape)] * 5)


def test_python_cannot_call_what_is_for_kernels(jit: Any) -> None:
    names = [name for name in dir(jit) if name[0] != "_" and callable(getattr(jit, name))]
    assert len(names) > 20
    for name in set(names) - {"rawkernel", "cg"}:
        with pytest.raises(RuntimeError, match="for the text of a kernel"):
            getattr(jit, name)(1)
        assert repr(getattr(jit, name)) == f"<function {name} of cupyx.jit>"
    with pytest.raises(RuntimeError, match="for the text of a kernel"):
        jit.cg.this_grid()


def test_codes_and_warnings(cp: Any, jit: Any) -> None:
    @jit.rawkernel()
    def run(x: Any, z: Any) -> None:
        for i in jit.range(3, unroll=-1):
            x[i] = z

    with pytest.warns(UserWarning, match="before the first launch"):
        assert run.cached_codes == {}
    x = cp.zeros(3)
    with pytest.warns(UserWarning, match="cannot be unrolled -1 times"):
        run[1, 1](x, 2)
    assert "unroll" not in run.cached_code
    with pytest.warns(np.exceptions.ComplexWarning, match="discards the imaginary part"):
        jit.rawkernel()(real_part)[1, 1](x, 2 + 3j)
    assert x.tolist() == [2, 2, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run[1, 1](x, 2.0)
    with pytest.warns(UserWarning, match="several types"):
        assert "jit_run" in run.cached_code


def real_part(x: Any, z: Any) -> None:
    """Keep the real part of a number."""
    x[0] = float(z)
