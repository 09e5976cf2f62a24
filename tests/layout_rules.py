"""The rules of the project's layout, as pure functions over names; test_layout.py applies them.

A module is named by its path from the root, such as ``remoting/host/supervisor``; a package is the
folder that a module lies in. An edge is one import: the module that imports, and what it imports.
"""

import ast
import functools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Edge = tuple[str, str]


@dataclass(frozen=True)
class Floors:
    """The floors of one folder, the lowest first: its sub-folders, and modules at its top.

    An import leads to a lower floor or stays in its room. ``.`` stands for the modules at the top
    that no floor names. A room is one of the names; rooms of one floor do not import each other.
    """

    folder: str
    floors: tuple[tuple[str, ...], ...]

    def violations(self, edges: Iterable[Edge]) -> list[str]:
        """Return the edges that lead upwards or sideways, and rooms that stand on no floor."""
        height = {room: at for at, floor in enumerate(self.floors) for room in floor}
        found: list[str] = []
        for importer, imported in edges:
            rooms = [self._room(each, height) for each in (importer, imported)]
            if None in rooms or rooms[0] == rooms[1]:
                continue
            if unknown := [room for room in rooms if room not in height]:
                found.append(f"{self.folder}/{unknown[0]} stands on no floor")
            elif height[str(rooms[0])] <= height[str(rooms[1])]:
                found.append(f"{importer} imports {imported}, which is not below it")
        return found

    def _room(self, module: str, height: Mapping[str, int]) -> str | None:
        first, _, rest = module.partition("/")
        if first != self.folder or not rest:
            return None  # of another folder, which the rules between folders judge
        room, _, inner = rest.partition("/")
        return room if inner or room in height else "."


@dataclass(frozen=True)
class Apart:
    """Folders of which the first must not import the others."""

    importer: str
    imported: tuple[str, ...]

    def violations(self, edges: Iterable[Edge]) -> list[str]:
        """Return the edges from the one to the others."""
        return [
            f"{importer} imports {imported}, and {self.importer} must not"
            for importer, imported in edges
            if _lies_in(importer, self.importer)
            and any(_lies_in(imported, each) for each in self.imported)
        ]


def _lies_in(module: str, folder: str) -> bool:
    return module == folder or module.startswith(f"{folder}/")


def forbidden(
    rules: Iterable[Floors | Apart], edges: Collection[Edge], excused: Collection[Edge] = ()
) -> list[str]:
    """Return violations of the rules, and the excused edges that exist no more."""
    judged = [edge for edge in edges if edge not in excused]
    found = [text for rule in rules for text in rule.violations(judged)]
    stale = [f"no excuse is needed for {a} -> {b}" for a, b in excused if (a, b) not in edges]
    return found + stale


def crowded(modules: Iterable[str], most: int) -> list[str]:
    """Return the packages that have more than ``most`` modules."""
    count = Counter(module.rpartition("/")[0] for module in modules)
    return [
        f"{folder} has {n} modules, more than {most}" for folder, n in count.items() if n > most
    ]


def namesakes(modules: Iterable[str], excused: Collection[str]) -> list[str]:
    """Return the stems that several modules have, and the excused ones that one has at most."""
    count = Counter(module.rpartition("/")[2] for module in modules)
    found = [f"{n} modules are called {stem}" for stem, n in count.items() if n > 1]
    found = [text for text in found if text.rpartition(" ")[2] not in excused]
    return found + [f"no two modules are called {stem}" for stem in excused if count[stem] < 2]


def too_long(
    sizes: Mapping[str, int], most: int, excused: Collection[str], of: str = "lines"
) -> list[str]:
    """Return names with more than ``most`` lines, and excused names that need no excuse."""
    long = {name for name, lines in sizes.items() if lines > most}
    found = [f"{name} has {sizes[name]} {of}, more than {most}" for name in long - {*excused}]
    stale = [f"{name} needs no excuse any more: strike it from the list" for name in excused]
    return sorted(found) + [
        text for name, text in zip(excused, stale, strict=True) if name not in long
    ]


# One file after the other is asked for all that is in it.
_parsed = functools.lru_cache(maxsize=1)(ast.parse)


def imports_of(source: str, *, typing_too: bool = True) -> frozenset[tuple[str, str]]:
    """Return each imported module with the name that is taken from it, which may be empty.

    Without ``typing_too``, imports below ``if TYPE_CHECKING`` are left out.

    Raises:
        ValueError: on a relative import.
    """
    found: set[tuple[str, str]] = set()
    todo: list[ast.AST] = [_parsed(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and not typing_too and _is_type_checking(node.test):
            todo += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError("relative import")
            found |= {(node.module or "", alias.name) for alias in node.names}
        todo += _parts(node)
    return frozenset(found)


def _parts(node: ast.AST) -> list[ast.AST]:
    """Return a node's children but expressions: no import and no named function is in one."""
    return [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    todo = [node]
    while todo:
        yield (each := todo.pop())
        todo += _parts(each)


def _targets(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the targets of assignments in a function, and their parts."""
    for each in _statements(function):
        of_one: list[Any] = [getattr(each, name, None) for name in ("target", "optional_vars")]
        for target in (*getattr(each, "targets", ()), *of_one):
            yield from ast.walk(target) if target else ()


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def function_sizes(source: str) -> dict[str, int]:
    """Return each function's number of lines, by its name within its enclosing scopes."""
    sizes: dict[str, int] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in _parts(node):
            name = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}.{child.name}" if prefix else child.name
                if not isinstance(child, ast.ClassDef):
                    sizes[name] = (child.end_lineno or child.lineno) - child.lineno + 1
            visit(child, name)

    visit(_parsed(source), "")
    return sizes


def class_sizes(source: str) -> dict[str, tuple[int, int]]:
    """Return how many parameters each class's constructor has, and how many attributes it has.

    Plain data is left out: a record has the fields that it has. So are the attributes of a base
    of others, which are named as Python mangles private names.
    """
    sizes: dict[str, tuple[int, int]] = {}
    for each in _statements(_parsed(source)):
        if not isinstance(each, ast.ClassDef) or _is_plain_data(each):
            continue
        fields = {ast.unparse(part.target) for part in each.body if isinstance(part, ast.AnnAssign)}
        methods = [
            part for part in each.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        stored = {
            node.attr
            for method in methods
            for node in _targets(method)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if isinstance(node.value, ast.Name) and node.value.id == "self"
        }
        made = [method.args for method in methods if method.name == "__init__"]
        parameters = [len(args.posonlyargs + args.args + args.kwonlyargs) - 1 for args in made]
        own = {name for name in fields | stored if not re.match("_[A-Z][A-Za-z]*__", name)}
        sizes[each.name] = (max(parameters, default=0), len(own))
    return sizes


def _is_plain_data(made: ast.ClassDef) -> bool:
    how = " ".join(map(ast.unparse, [*made.decorator_list, *made.bases]))
    return "frozen=True" in how or how == "TypedDict"
