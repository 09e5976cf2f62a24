"""From the text of a Python function to CUDA C++.

What is translated
    The function's source is read by `inspect` and `ast`. It is translated once for each list of
    types of arguments: numbers, arrays by their type of elements and number of dimensions. The
    result is one kernel and the device functions that it calls, as a source for `RawKernel`.

How types flow
    Each expression is a constant or a piece of C++ with a type (`_kinds`). Constants are what the
    text has, names of the closure and the module, and what is computed from those alone: Python
    computes them now, and an `if` on one takes a branch. Values have types by the loops of CuPy's
    universal functions (`_ufuncs`). A variable has the type of its first assignment; a later one
    casts within the kinds of numbers, and another type is a TypeError. Variables are declared at
    the head of the function, as zeros, because Python has no blocks.

What is refused
    Whatever is not named here raises, with the line of the program: classes, exceptions, `with`,
    nested functions, lists, slices, comparisons of three, and calls of functions of the host with
    what only the device knows. Nothing is left out in silence.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import types
import warnings
from dataclasses import dataclass
from typing import Any

from cupyx.jit import _algorithms, _prelude
from cupyx.jit._expressions import TYPES, Expressions, Names
from cupyx.jit._functions import Steps
from cupyx.jit._kinds import (
    VOID,
    Array,
    Const,
    Kind,
    Pack,
    Scalar,
    Value,
    cast,
    element,
    value_of,
)

FUNCTIONS_MAX = 100
_CONTEXT = 400
"""Characters of the program's text in an error."""

_REFUSED: dict[str, tuple[type[Exception], str]] = {
    "ClassDef": (NotImplementedError, "a kernel cannot define classes"),
    "FunctionDef": (NotImplementedError, "a kernel cannot define functions"),
    "AsyncFunctionDef": (NotImplementedError, "a kernel cannot define functions"),
    "Delete": (NotImplementedError, "a kernel cannot delete variables"),
    "AnnAssign": (NotImplementedError, "a variable of a kernel has no annotation"),
    "AsyncFor": (ValueError, "a kernel cannot wait by `async`"),
    "With": (ValueError, "a kernel has no `with`"),
    "AsyncWith": (ValueError, "a kernel has no `with`"),
    "Raise": (ValueError, "a kernel can neither raise nor catch errors"),
    "Try": (ValueError, "a kernel can neither raise nor catch errors"),
    "TryStar": (ValueError, "a kernel can neither raise nor catch errors"),
    "Import": (ValueError, "a kernel cannot import"),
    "ImportFrom": (ValueError, "a kernel cannot import"),
    "Global": (ValueError, "a kernel cannot change names outside of it"),
    "Nonlocal": (ValueError, "a kernel cannot change names outside of it"),
}


class LocatedError(Exception):
    """An error of the translation, with the line of the program."""

    def __init__(self, error: Exception, text: str) -> None:
        super().__init__(text)
        self.error = error

    def plain(self) -> Exception:
        """Return an error of the same type with the whole text."""
        try:
            made = type(self.error)(str(self))
        except TypeError:  # a type that is made of more than a text
            made = TypeError(str(self))
        return made


@dataclass(frozen=True)
class Source:
    """The text of a function."""

    name: str
    arguments: ast.arguments
    body: list[ast.stmt]
    file: str
    lines: list[str]
    shift: int  # from the numbers of `body` to those of the file
    first: int  # line of the file that `lines` begin with

    def located(self, error: Exception, node: Any) -> LocatedError:
        """Return an error with the lines of the program that it is about."""
        line = getattr(node, "lineno", self.first - self.shift) + self.shift
        end = (getattr(node, "end_lineno", None) or line - self.shift) + self.shift
        shown = self.lines[line - self.first : end - self.first + 1]
        text = "".join([f"> {each.rstrip()}\n" for each in shown])[:_CONTEXT].rstrip()
        said = str(error) if not isinstance(error, KeyError) else f"no {error}"
        return LocatedError(error, f"{said}\n\n{self.file}:{line}, in {self.name}\n{text}")


def source_of(function: Any) -> Source:
    """Return the text of a function or a lambda.

    Raises:
        ValueError: it is no function of Python, or one of several lambdas of one line.
        RuntimeError: its text is nowhere to be read.
    """
    if not isinstance(function, types.FunctionType):
        raise ValueError("a kernel is made of a function of Python, by `def` or `lambda`")
    try:
        lines, first = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function) or function.__code__.co_filename
    except (OSError, TypeError) as error:
        raise RuntimeError(
            f"the source of {function.__name__!r} cannot be read ({error}): a kernel is "
            "translated from its text, so write it in a file or a notebook"
        ) from None
    if function.__name__ == "<lambda>":
        return _of_lambda(function, file, lines, first)
    text = "".join(lines)
    indented = lines[0][:1].isspace()
    node = ast.parse(f"if 1:\n{text}" if indented else text).body[0]
    if indented and isinstance(node, ast.If):
        node = node.body[0]
    if not isinstance(node, ast.FunctionDef):
        raise NotImplementedError(f"Not supported: {type(node).__name__} as a kernel")
    for each in node.decorator_list:
        told = ast.unparse(each)
        if not any(word in told for word in ("rawkernel", "vectorize")):
            warnings.warn(f"the decorator {told} has no effect on a kernel", RuntimeWarning, 2)
    shift = first - (2 if indented else 1)
    return Source(node.name, node.args, node.body, file, lines, shift, first)


def _of_lambda(function: Any, file: str, lines: list[str], first: int) -> Source:
    """Return the text of a lambda, which is looked for in its whole file."""
    tree = ast.parse("".join(linecache.getlines(file)))
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Lambda)
        and first <= node.lineno < first + len(lines)
        and tuple([each.arg for each in node.args.args]) == names
    ]
    if len(found) != 1:
        raise ValueError("there are several lambdas in these lines: write the kernel by `def`")
    body: list[ast.stmt] = [ast.copy_location(ast.Return(found[0].body), found[0].body)]
    return Source("lambda", found[0].args, body, file, lines, 0, first)


class Unit:
    """One kernel and the functions that it calls."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.cooperative = False
        self._codes: list[str] = []
        self._gp_known: dict[Any, tuple[str, Kind] | None] = {}
        self._count = 0

    def fresh(self, prefix: str) -> str:
        """Return a name that the kernel does not have yet."""
        self._count += 1
        return f"{prefix}{self._count}"

    def function(
        self, function: Any, kinds: tuple[Kind, ...], result: Kind | None = None
    ) -> tuple[str, Kind]:
        """Translate a function for types of arguments; return its name and the result's type.

        Raises:
            ValueError: it calls itself, or there are too many functions.
        """
        key = (function, kinds)
        if key in self._gp_known:
            found = self._gp_known[key]
            if found is None:
                raise ValueError("a device function cannot call itself")
            return found
        if len(self._gp_known) >= FUNCTIONS_MAX:
            raise ValueError(f"a kernel calls more than {FUNCTIONS_MAX} functions")
        self._gp_known[key] = None
        # As in CuPy the text is that below decorators, of which a warning tells.
        below: Any = inspect.unwrap(function) if callable(function) else function
        source = source_of(below)
        body = Body(self, source, Names(below), result)
        prefix = "jit_" if result is not None else f"device_{len(self._gp_known)}_"
        name = _c_name(prefix, source.name)
        try:
            code = body.code(name, kinds)
        except LocatedError:
            raise
        except Exception as error:
            raise source.located(error, body.at) from error
        self._codes.append(code)
        made = self._gp_known[key] = (name, body.result or VOID)
        return made

    def text(self) -> str:
        """Return the source of the kernel."""
        code = "\n".join(self._codes)
        head = _prelude.HALF if "__half" in code else ""
        head += _prelude.COMPLEX if "thrust::" in code else ""
        head += _prelude.GROUPS if self.cooperative else ""
        head += f"#define GPJIT_COOPERATIVE {int(self.cooperative)}\n"
        tail = ""
        if "gpjit::rows::" in code:
            tail += (_algorithms.HALF if "__half" in code else "") + _algorithms.ALGORITHMS
        tail += _algorithms.REDUCTIONS if "gpjit::cub::" in code else ""
        return f"{head}{_prelude.TEXT}{tail}\n{code}"


def _c_name(prefix: str, name: str) -> str:
    """Return a name of C++; no other name of Python begins with a digit."""
    return prefix + (name if name.isascii() else f"0{name.encode().hex()}")


def _inner(lines: list[str]) -> list[str]:
    return ["  " + line for line in lines]


class Body(Expressions):
    """The translation of one function's statements."""

    def __init__(self, unit: Unit, source: Source, names: Names, result: Kind | None) -> None:
        super().__init__(unit, names)
        self._source = source
        self._kernel = result is not None
        self.result = result

    def code(self, name: str, kinds: tuple[Kind, ...]) -> str:
        """Return the function in C++."""
        parameters, begin = self._parameters(kinds)
        lines = self._block(self._source.body, top=True)
        result = self.result or VOID
        head = 'extern "C" __global__' if self._kernel else "__device__"
        if result != VOID:
            # Where no `return` of the text is reached.
            lines.append(f"{{ {result.c} nothing{{}}; return nothing; }}")
        body = _inner([*begin, *self.declarations, *lines])
        return "\n".join([f"{head} {result.c} {name}({', '.join(parameters)}) {{", *body, "}", ""])

    def _parameters(self, kinds: tuple[Kind, ...]) -> tuple[list[str], list[str]]:
        """Return the parameters, and the views that are made of a kernel's."""
        given = self._source.arguments
        for wrong, what in (
            (given.vararg, "`*args`"),
            (given.kwonlyargs, "a keyword-only argument"),
            (given.kwarg, "`**kwargs`"),
            (given.defaults, "a default value"),
        ):
            if wrong:
                raise NotImplementedError(f"{what} is not possible in a kernel")
        names = [each.arg for each in (*given.posonlyargs, *given.args)]
        if len(names) != len(kinds):
            raise TypeError(
                f"{self._source.name}() takes {len(names)} positional arguments but "
                f"{len(kinds)} were given."
            )
        parameters: list[str] = []
        begin: list[str] = []
        for name, kind in zip(names, kinds):
            own = _c_name("v_", name)
            self.variables[name] = Value(own, kind, own)
            if not self._kernel or not isinstance(kind, Array):
                parameters.append(f"{kind.c} {own}")
                continue
            lengths = [_c_name(f"n{at}_", name) for at in range(kind.ndim)]
            steps = [_c_name(f"s{at}_", name) for at in range(kind.ndim)]
            pointer = _c_name("p_", name)
            parameters.append(f"{kind.element.stored} *{pointer}")
            parameters += [f"long long {each}" for each in (*lengths, *steps)]
            shape, strides = ", ".join(lengths) or "0", ", ".join(steps) or "0"
            begin.append(f"{kind.c} {own} = {{{pointer}, {{{shape}}}, {{{strides}}}}};")
        return parameters, begin

    def _block(self, statements: list[ast.stmt], *, top: bool) -> list[str]:
        made: list[str] = []
        for each in statements:
            self.at = each
            refused = _REFUSED.get(type(each).__name__)
            if refused is not None:
                raise refused[0](refused[1])
            translate: Any = getattr(self, f"_on_{type(each).__name__}", None)
            if translate is None:
                raise NotImplementedError(f"Not supported: {type(each).__name__}")
            made += translate(each, top)
        return made

    def _on_Pass(self, _node: ast.Pass, _top: bool) -> list[str]:
        return []

    def _on_Break(self, _node: ast.Break, _top: bool) -> list[str]:
        return ["break;"]

    def _on_Continue(self, _node: ast.Continue, _top: bool) -> list[str]:
        return ["continue;"]

    def _on_Expr(self, node: ast.Expr, _top: bool) -> list[str]:
        made = self.expression(node.value)
        return [f"{made.code};"] if isinstance(made, Value) and made.code else []

    def _on_Assert(self, node: ast.Assert, _top: bool) -> list[str]:
        made = self.expression(node.test)
        if not isinstance(made, Const):
            raise NotImplementedError("a kernel can only assert constants")
        if not made.obj:
            raise AssertionError("a kernel's assertion of constants does not hold")
        return []

    def _on_Return(self, node: ast.Return, _top: bool) -> list[str]:
        made = self.expression(node.value)
        nothing = isinstance(made, Const) and made.obj is None
        value = Value("", VOID) if nothing else value_of(made, self.mode)
        if self.result is None:
            self.result = value.kind
        elif self.result != value.kind:
            raise ValueError(f"the function returns {self.result} and {value.kind}")
        return ["return;" if nothing else f"return {value.code};"]

    def _on_If(self, node: ast.If, top: bool) -> list[str]:
        condition = self.condition(node.test)
        if isinstance(condition, Const):
            return self._block(node.body if condition.obj else node.orelse, top=top)
        body = _inner(self._block(node.body, top=False))
        other = _inner(self._block(node.orelse, top=False))
        tail = ["} else {", *other, "}"] if other else ["}"]
        return [f"if ({condition.code}) {{", *body, *tail]

    def _on_While(self, node: ast.While, _top: bool) -> list[str]:
        if node.orelse:
            raise NotImplementedError("a `while` has no `else` in a kernel")
        condition = self.condition(node.test)
        code = str(bool(condition.obj)).lower() if isinstance(condition, Const) else condition.code
        return [f"while ({code}) {{", *_inner(self._block(node.body, top=False)), "}"]

    def _on_For(self, node: ast.For, _top: bool) -> list[str]:
        if node.orelse:
            raise NotImplementedError("a `for` has no `else` in a kernel")
        if not isinstance(node.target, ast.Name):
            raise NotImplementedError("a loop counts one variable")
        steps = self.expression(node.iter)
        if not isinstance(steps, Steps):
            raise NotImplementedError("a `for` in a kernel needs a range")
        counter = self.variables.get(node.target.id)
        if isinstance(counter, Const):
            raise TypeError("the variable of a loop is a constant")
        if counter is None:
            counter = self._variable(node.target.id, steps.kind)
        elif counter.kind != steps.kind:
            raise TypeError(
                f"`{node.target.id}` is {counter.kind}, and the range counts in {steps.kind}"
            )
        body = self._block(node.body, top=False)
        at, stop, step = [self.fresh(prefix) for prefix in ("at_", "stop_", "step_")]
        begin = ", ".join(
            f"{name} = {code}"
            for name, code in ((at, steps.start), (stop, steps.stop), (step, steps.step))
        )
        up, down = f"{at} < {stop}", f"{at} > {stop}"
        ends = {True: up, False: down, None: f"{step} > 0 ? {up} : {step} < 0 && {down}"}
        head = f"for (long long {begin}; {ends[steps.rises]}; {at} += {step}) {{"
        turn = f"{counter.place} = static_cast<{steps.kind.c}>({at});"
        count = "" if steps.unroll is True else f"({steps.unroll})"
        pragma = [] if steps.unroll is None else [f"#pragma unroll{count}"]
        return [*pragma, head, *_inner([turn, *body]), "}"]

    def _on_Assign(self, node: ast.Assign, top: bool) -> list[str]:
        if len(node.targets) != 1:
            raise NotImplementedError("an assignment to several variables at once")
        made = self.expression(node.value)
        target = node.targets[0]
        if isinstance(target, ast.Name) and self._is_name_only(made):
            return self._named(target.id, made, top)
        # A constant has its own type first: 0.1 has 32 bits in the mode "cuda", as in CuPy.
        return self._assigned(target, value_of(made, self.mode))

    @staticmethod
    def _is_name_only(made: Any) -> bool:
        """Say whether a value has no variable in C++: what is no number, or a group."""
        if isinstance(made, Const):
            return not isinstance(made.obj, TYPES)
        return not isinstance(made, Value) or hasattr(made.kind, "method")

    def _named(self, name: str, made: Any, top: bool) -> list[str]:
        if not top:
            raise TypeError(
                "a name for what is no number can only be given outside of branches and loops"
            )
        before = self.variables.get(name)
        if isinstance(before, Value) and before.place:
            raise TypeError(
                f"`{name}` is a variable, and cannot become a name for what is no number"
            )
        if isinstance(made, Steps):
            raise TypeError("range is for a loop only")
        self.variables[name] = made
        return []

    def _variable(self, name: str, kind: Kind) -> Value:
        own = _c_name("v_", name)
        self.declare(f"{kind.c} {own}{{}};")
        made = self.variables[name] = Value(own, kind, own)
        return made

    def _assigned(self, target: ast.expr, made: Value) -> list[str]:
        if isinstance(target, ast.Name):
            variable = self.variables.get(target.id)
            if variable is None:
                variable = self._variable(target.id, made.kind)
            return [self._stored(variable, made, target.id)]
        if isinstance(target, ast.Subscript):
            place = self.expression(target)
            if not isinstance(place, Value) or not isinstance(place.kind, Scalar):
                raise TypeError("only an element of an array can be assigned to")
            return [self._stored(place, made, ast.unparse(target))]
        if isinstance(target, ast.Tuple):
            return self._unpacked(target, made)
        raise NotImplementedError(f"an assignment to {ast.unparse(target)}")

    def _stored(self, variable: Any, made: Value, name: str) -> str:
        if not isinstance(variable, Value) or not variable.place:
            raise TypeError(f"`{name}` is a constant, and cannot be assigned to")
        if isinstance(made.kind, Scalar) and isinstance(variable.kind, Scalar):
            made = cast(made, variable.kind, "same_kind", self.mode)
        elif made.kind != variable.kind:
            raise TypeError(f"`{name}` is {variable.kind}, and cannot become {made.kind}")
        return f"{variable.place} = {made.code};"

    def _unpacked(self, target: ast.Tuple, made: Value) -> list[str]:
        if not isinstance(made.kind, Pack):
            raise ValueError(f"a value of {made.kind} cannot be unpacked")
        count, size = len(made.kind.items), len(target.elts)
        if count != size:
            many = "too many" if count > size else "not enough"
            raise ValueError(f"{many} values to unpack (expected {size})")
        held = self.fresh("items_")
        lines = [f"{made.kind.c} {held} = {made.code};"]
        for at, each in enumerate(target.elts):
            lines += self._assigned(each, self.part(Value(held, made.kind), at))
        return ["{", *_inner(lines), "}"]

    def _on_AugAssign(self, node: ast.AugAssign, _top: bool) -> list[str]:
        change = self.value(node.value)
        target = self.expression(node.target)
        if not isinstance(target, Value) or not target.place or not isinstance(target.kind, Scalar):
            raise TypeError(f"{ast.unparse(node.target)} is no variable or element of numbers")
        held = self.fresh("place_")
        place = element(held, target.kind)
        stored = target.kind.stored if isinstance(node.target, ast.Subscript) else target.kind.c
        if stored == target.kind.c:
            place = Value(held, target.kind, held)
        made = self.operate(type(node.op), place, change)
        code = cast(made, target.kind, "same_kind", self.mode).code
        return [f"{{ {stored} &{held} = {target.place}; {held} = {code}; }}"]
