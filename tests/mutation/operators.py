"""Operators: each makes small wrong variants of a module's syntax tree.

A mutant is one change at one place. What has no behaviour is left as it is: annotations,
docstrings, texts, decorators, assertions, lines of the log and blocks for type checkers.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parents[2]
TEXT_WIDTH = 72
LOGGERS = {"log", "logger", "_log", "_logger", "logging"}

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
EXCHANGED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change at one place. ``place`` and ``variant`` find it again in a fresh tree."""

    path: str  # of the module, from the root of the repository
    function: str  # where it stands; empty at the module's level
    line: int
    lines: tuple[int, int]  # the first and the last that must run for the change to matter
    operator: str
    before: str
    after: str
    place: int
    variant: int

    @property
    def module(self) -> str:
        """The name by which the module is imported."""
        return "gpupool." + self.path.removesuffix(".py").replace("/", ".")

    @property
    def key(self) -> str:
        """The mutant's name, the same when lines move."""
        return f"{self.path} {self.function or '-'} {self.operator}: {self.before} => {self.after}"


@dataclass(frozen=True, slots=True)
class _Change:
    operator: str
    node: ast.AST  # what stands in the place afterwards


def mutants_of(path: Path) -> list[Mutant]:
    """Return all mutants of a module, in the order of the source."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: list[Mutant] = []
    for number, place in enumerate(_places(tree)):
        for variant, change in enumerate(_changes(place)):
            node = place.node
            found.append(
                Mutant(
                    path.relative_to(ROOT).as_posix(),
                    place.function,
                    getattr(node, "lineno", 0),
                    _lines(place),
                    change.operator,
                    _text(node),
                    _text(change.node),
                    number,
                    variant,
                )
            )
    return found


def mutated(mutant: Mutant) -> ast.Module:
    """Return the module's tree with the change in it."""
    tree = ast.parse((ROOT / mutant.path).read_text(encoding="utf-8"))
    place = list(_places(tree))[mutant.place]
    place.put(_changes(place)[mutant.variant].node)
    return ast.fix_missing_locations(tree)


# --- places ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """A node, with where its parent has it and in which function it stands."""

    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None
    function: str
    returns_value: bool
    statement_line: int

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def _places(tree: ast.Module) -> Iterator[_Place]:
    yield from _inside(tree, "", 0, returns_value=False)


def _inside(
    parent: ast.AST, function: str, statement_line: int, *, returns_value: bool
) -> Iterator[_Place]:
    for field, value in ast.iter_fields(parent):
        if field in {"annotation", "returns", "decorator_list", "type_params", "bases"}:
            continue
        children = cast(list[object], value) if isinstance(value, list) else [value]
        for index, child in enumerate(children):
            if not isinstance(child, ast.AST) or _has_no_behaviour(child):
                continue
            at = index if isinstance(value, list) else None
            line = child.lineno if isinstance(child, ast.stmt) else statement_line
            yield _Place(child, parent, field, at, function, returns_value, line)
            name, returns = function, returns_value
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{function}.{child.name}" if function else child.name
                returns = _returns_value(child)
            yield from _inside(child, name, line, returns_value=returns)


def _lines(place: _Place) -> tuple[int, int]:
    node = place.node
    last = int(getattr(node, "end_lineno", 0))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.body[0].lineno, last
    return place.statement_line, last


def _returns_value(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    if isinstance(node, ast.ClassDef):
        return False
    returns = node.returns
    return not (isinstance(returns, ast.Constant) and returns.value is None)


def _has_no_behaviour(node: ast.AST) -> bool:
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Constant()):  # docstrings, and the dots of protocols
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=logger))):
            return _is_logger(logger)
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Call(func=ast.Name(id="TypeVar" | "cast" | "NewType" | "ParamSpec")):
            return True
        case ast.Raise(exc=ast.Call(func=ast.Name(id="AssertionError"))):
            return True
        case _:
            return False


def _is_logger(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in LOGGERS
        case _:
            return False


# --- changes --------------------------------------------------------------------------------------


def _changes(place: _Place) -> list[_Change]:
    node = place.node
    if isinstance(node, ast.stmt):
        return list(_of_statement(place, node))
    if isinstance(node, ast.expr):
        changes = list(_of_expression(place, node))
        if place.field == "test" or (place.field == "ifs"):
            changes += _forced(place, node)
        return changes
    return []


def _forced(place: _Place, node: ast.expr) -> list[_Change]:
    """Return a condition that is always true, and one that never is; no loop without an end."""
    values = (False,) if isinstance(place.parent, ast.While) else (True, False)
    return [
        _Change("condition forced", ast.Constant(value))
        for value in values
        if not isinstance(node, ast.Constant)
    ]


def _of_expression(place: _Place, node: ast.expr) -> Iterator[_Change]:
    match node:
        case ast.Compare():
            for index, each in enumerate(node.ops):
                for other in COMPARISONS[type(each)]:
                    changed = copy.deepcopy(node)
                    changed.ops[index] = other()
                    yield _Change("comparison", changed)
        case ast.BoolOp():
            changed = copy.deepcopy(node)
            changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield _Change("and/or", changed)
        case ast.UnaryOp(op=ast.Not()):
            yield _Change("not", copy.deepcopy(node.operand))
        case ast.BinOp() if type(node.op) in ARITHMETIC and not _is_text_or_type(place, node):
            changed = copy.deepcopy(node)
            changed.op = ARITHMETIC[type(node.op)]()
            yield _Change("arithmetic", changed)
        case ast.Constant(value=bool() as truth):
            yield _Change("constant", ast.Constant(not truth))
        case ast.Constant(value=int() | float() as number):
            yield _Change("constant", ast.Constant(number + 1))
            yield _Change("constant", ast.Constant(number - 1))
        case ast.Call(func=ast.Name(id=name)) if name in EXCHANGED:
            changed = copy.deepcopy(node)
            changed.func = ast.Name(EXCHANGED[name], ast.Load())
            yield _Change("min/max", changed)
        case _:
            return


def _is_text_or_type(place: _Place, node: ast.BinOp) -> bool:
    """Say whether the operands are texts, or types in an alias at the module's level."""
    for side in (node.left, node.right):
        if isinstance(side, ast.JoinedStr | ast.List | ast.Tuple):
            return True
        if isinstance(side, ast.Constant) and isinstance(side.value, str | bytes | None):
            return True
    union = isinstance(node.op, ast.BitOr)
    checked = isinstance(place.parent, ast.Call) and place.field == "args"
    return union and (not place.function or checked)


def _of_statement(place: _Place, node: ast.stmt) -> Iterator[_Change]:
    match node:
        case ast.AugAssign() if type(node.op) in ARITHMETIC:
            changed = copy.deepcopy(node)
            changed.op = ARITHMETIC[type(node.op)]()
            yield _Change("arithmetic", changed)
            yield _Change("deleted", ast.Pass())
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.Delete():
            if place.function:
                yield _Change("deleted", ast.Pass())
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) if place.function:
            yield _Change("deleted", ast.Pass())
        case ast.Break():
            yield _Change("break/continue", ast.Continue())
        case ast.Continue():
            yield _Change("break/continue", ast.Break())
            yield _Change("deleted", ast.Pass())
        case ast.Return(value=None):
            yield _Change("deleted", ast.Pass())
        case ast.Return(value=ast.expr() as value) if place.returns_value:
            if not (isinstance(value, ast.Constant) and value.value is None):
                yield _Change("return None", ast.Return(ast.Constant(None)))
        case ast.FunctionDef() | ast.AsyncFunctionDef() if not _returns_value(node):
            body = [each for each in node.body if not _has_no_behaviour(each)]
            if len(body) > 1:
                changed = copy.deepcopy(node)
                changed.body = [ast.Return(None)]
                yield _Change("return at once", changed)
        case _:
            return


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        empty = len(node.body) == 1 and isinstance(node.body[0], ast.Return)
        return f"def {node.name}: {'return' if empty else '...'}"
    text = " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())
    return text if len(text) <= TEXT_WIDTH else f"{text[: TEXT_WIDTH - 3]}..."
