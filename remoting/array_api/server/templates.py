"""Templates: the constant part of a call, made into a function of a record's values once.

A template's arguments are a tree of constants and of places in its records. Walking that tree at
each call takes longer than most operations on small arrays. So the tree becomes the text of a
function of a record's values and of the objects behind handles::

    ["h", ["t", ["s", "i", "i", None], 2]]  ->  f(o[v[3]], (slice(v[4], v[5], k0), k1))

The text has this module's words, numbers that it has counted, and names of keywords that match
`KEYWORD`. All else that a client sends reaches the function as an argument, `k0` and so on.
"""

import keyword
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server import array_wire
from gpupool.remoting.array_api.server.element_types import dtype_of
from gpupool.remoting.devices.operation_names import UFUNCS

MAX_NODES = 8192
MAX_OUTPUTS = 32
SCALAR_MAX = 4096
KEYWORD = re.compile(r"[a-z][a-z_]{0,31}")
TEXTS_MAX, TEXT_MAX = 1024, 1024
"""Texts with cached functions, which templates of one form share, and the characters of each."""

_FEW = 8
"""Handles or numbers in a row of which each has words of the text."""

_CONSTANTS = (bool, int, type(None))
# They write into no array, so a call that failed can be made once more.
_PURE = frozenset(
    {
        *(*UFUNCS, "all", "any", "dot", "matmul", "max", "mean", "min", "prod", "sum", "where"),
        *("argmax", "argmin", "argsort", "broadcast_to", "concatenate", "cumsum", "std", "var"),
        *("door.arange", "door.empty", "door.zeros", "einsum", "full", "take", "tensordot"),
        *("ndarray.astype", "ndarray.copy", "ndarray.diagonal", "ndarray.flatten", "ndarray.imag"),
        *("ndarray.getitem", "ndarray.real", "ndarray.reshape", "ndarray.reshape_view"),
        *("ndarray.squeeze", "ndarray.swapaxes", "ndarray.transpose"),
    }
)
# Without a result they write into an array. What one of them refuses it refuses before it writes.
_IN_PLACE = frozenset({*UFUNCS, "copyto", "ndarray.fill", "ndarray.setitem"})


class Objects(Protocol):
    """The objects behind handles."""

    def __getitem__(self, handle: int, /) -> Any:
        """Return an object."""
        ...


Given = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a call by place and by name."""


@dataclass(frozen=True, slots=True)
class Template:
    """A call but for its handles and numbers."""

    name: str
    function: Callable[..., Any]
    outputs: int
    layout: struct.Struct
    build: Callable[[tuple[Any, ...], Objects], Given]
    """Makes the arguments of one call, from a record's values and the objects behind handles."""
    keywords: tuple[str, ...]
    handles: tuple[int, ...]
    """The places of all handles in a record's values."""
    plain: tuple[Any, ...] | None
    """The places of the arguments, constants in tuples; None if one is made of several values."""
    direct: Callable[[tuple[Any, ...], Objects], Any] | None
    """The call itself, made of the same, if it makes one array and changes none, or changes one."""


@dataclass(frozen=True, slots=True)
class _Constant:
    value: Any


class _Writer:
    """The text of one template's arguments."""

    def __init__(self, place: int) -> None:
        self.layout = ""
        self.constants: list[Any] = []
        self.handles: list[int] = []
        self._place = place
        self._nodes = 0

    def made(self, node: Any, depth: int = 0) -> str | _Constant:
        """Return the text of an argument, or the constant that it is."""
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > array_wire.MAX_DEPTH:
            raise RemoteProtocolError("malformed template", why="too many or too deep arguments")
        if isinstance(node, _CONSTANTS):
            return _Constant(node)
        if isinstance(node, str):
            return self._leaf(node)
        if not array_wire.is_list(node) or not node or not isinstance(node[0], str):
            raise RemoteProtocolError("malformed template", why=f"node {str(node)[:40]}")
        return self._branch(node[0], node[1:], depth)

    def text(self, node: Any, depth: int = 0) -> str:
        """Return the text of an argument."""
        return self.named(self.made(node, depth))

    def named(self, made: str | _Constant) -> str:
        """Return a text, or the name of a constant."""
        if isinstance(made, str):
            return made
        self.constants.append(made.value)
        return f"k{len(self.constants) - 1}"

    def _next(self, layout: str) -> str:
        self.layout += layout
        self._place += 1
        return f"v[{self._place - 1}]"

    def _leaves(self, items: list[Any]) -> str:
        """Return the text of many handles or many whole numbers, which is short; else none."""
        count = len(items)
        if (
            not _FEW < count <= MAX_NODES
            or items[0] not in ("h", "i")
            or items.count(items[0]) < count
        ):
            return ""
        first = self._place
        self._nodes += count
        self._place += count
        self.layout += {"h": "Q", "i": "q"}[items[0]] * count
        if items[0] == "i":
            return f"v[{first}:{first + count}]"
        self.handles += range(first, first + count)
        return f"[o[h] for h in v[{first}:{first + count}]]"

    def _leaf(self, code: str) -> str | _Constant:
        match code:
            case "h":
                self.handles.append(self._place)
                return f"o[{self._next('Q')}]"
            case "i":
                return self._next("q")
            case "f":  # NaN as CuPy looks for it: ``cupyx.scipy.ndimage`` asks ``cval is nan``
                value = self._next("d")
                return f"({value} if {value} == {value} else nan)"
            case "c":
                return f"complex({self._next('d')}, {self._next('d')})"
            case "e":
                return _Constant(Ellipsis)
            case _:
                raise RemoteProtocolError("malformed template", why=f"leaf {code[:40]}")

    def _branch(self, code: str, items: list[Any], depth: int) -> str | _Constant:
        if code in ("t", "s"):
            if code == "s" and len(items) != 3:
                raise RemoteProtocolError("malformed template", why="a slice has three parts")
            if code == "t" and (leaves := self._leaves(items)):
                return f"(*{leaves},)"
            parts = [self.made(item, depth + 1) for item in items]
            constants = [each.value for each in parts if isinstance(each, _Constant)]
            if len(constants) == len(parts):
                return _Constant(tuple(constants) if code == "t" else slice(*constants))
            words = "".join([f"{self.named(each)}, " for each in parts])
            return f"({words})" if code == "t" else f"slice({words})"
        if code == "l":  # another list in each call
            if leaves := self._leaves(items):
                return f"[*{leaves}]"
            return "[" + ", ".join([self.text(item, depth + 1) for item in items]) + "]"
        if code == "m":
            pairs = [(name, self.text(value, depth + 1)) for name, value in map(_pair, items)]
            words = ", ".join([f"{self.named(_Constant(name))}: {value}" for name, value in pairs])
            return "{" + words + "}"
        item = items[0] if len(items) == 1 else None
        if (code == "q" and isinstance(item, str)) or (code == "b" and isinstance(item, bytes)):
            return _Constant(item)
        if code in ("d", "n") and len(items) == 1:
            dtype = dtype_of(item)
            if code == "d":
                return _Constant(dtype)
            if dtype.itemsize > SCALAR_MAX:
                raise RemoteProtocolError("malformed template", why=f"a scalar of {dtype}")
            return f"number({self._next(f'{dtype.itemsize}s')}, {self.named(_Constant(dtype))})"
        raise RemoteProtocolError("malformed template", why=f"node {code[:40]}")


def _pair(item: Any) -> tuple[str, Any]:
    if not array_wire.is_list(item) or len(item) != 2 or not isinstance(item[0], str):
        raise RemoteProtocolError("malformed template", why="keywords are pairs")
    return item[0], item[1]


def _plain(node: Any, made: str | _Constant) -> Any:
    """Return the place of a plain argument, a constant in a tuple, or None for another one."""
    if isinstance(made, _Constant):
        return (made.value,)
    place = re.search(r"\d+", made)
    return int(place[0]) if place and node in ("h", "i", "f") else None


def _keyword(writer: _Writer, name: str, value: str) -> str:
    if KEYWORD.fullmatch(name) and not keyword.iskeyword(name):
        return f"{name}={value}"
    return f"**{{{writer.named(_Constant(name))}: {value}}}"


def compile_template(
    body: Any, names: list[str], functions: list[Callable[..., Any]]
) -> tuple[int, Template]:
    """Return the id and the template that one TEMPLATE record defines.

    Raises:
        RemoteProtocolError: it is not of the form
            ``[id, operation, outputs, [arguments], [[keyword, argument]]]``.
    """
    if not array_wire.is_list(body) or len(body) != 5:
        raise RemoteProtocolError("malformed template")
    number, operation, outputs, arguments, keywords = body
    if type(number) is not int or not array_wire.FIRST_TEMPLATE <= number < (
        array_wire.FIRST_TEMPLATE + array_wire.MAX_TEMPLATES
    ):
        raise RemoteProtocolError("malformed template", why=f"id {number!r}")
    if type(operation) is not int or not 0 <= operation < len(functions):
        raise RemoteProtocolError("unknown operation", why=repr(operation))
    if type(outputs) is not int or not 0 <= outputs <= MAX_OUTPUTS:
        raise RemoteProtocolError("malformed template", why=f"{outputs!r} outputs")
    if not array_wire.is_list(arguments) or not array_wire.is_list(keywords):
        raise RemoteProtocolError("malformed template")
    writer = _Writer(2 + outputs)  # after the number of the template, the metas and the handle
    made = [writer.made(node) for node in arguments]
    plain = tuple([_plain(node, each) for node, each in zip(arguments, made, strict=True)])
    by_place = len(writer.handles)
    pairs = list(map(_pair, keywords))
    if len(dict(pairs)) < len(pairs):
        raise RemoteProtocolError("malformed template", why="one keyword twice")
    words = [writer.named(each) for each in made]
    words += [_keyword(writer, name, writer.text(node, 1)) for name, node in pairs]
    factory = _factory("".join([f", k{each}" for each in range(len(writer.constants))]), words)
    # With a result, keywords have no arrays: one may be ``out``, and a call that fails is repeated.
    has_room = outputs == 1 and len(writer.handles) == by_place
    short = names[operation] in (_PURE if has_room else () if outputs else _IN_PLACE)
    return number, Template(
        name=names[operation],
        function=functions[operation],
        outputs=outputs,
        layout=struct.Struct(f"<I{outputs}IQ{writer.layout}"),
        build=factory(_given, *writer.constants),
        keywords=tuple([name for name, _ in pairs]),
        handles=tuple(writer.handles),
        plain=None if None in plain else plain,
        direct=factory(functions[operation], *writer.constants) if short else None,
    )


def _given(*args: Any, **kwargs: Any) -> Given:
    return args, kwargs


def _number(packed: bytes, dtype: np.dtype[Any]) -> Any:
    return np.frombuffer(packed, dtype)[0]


_WORDS: dict[str, Any] = {"slice": slice, "complex": complex, "number": _number, "nan": np.nan}


def _factory(constants: str, words: list[str]) -> Callable[..., Any]:
    text = f"lambda f{constants}: lambda v, o: f({', '.join(words)})"
    return (_made if len(text) <= TEXT_MAX else _made.__wrapped__)(text)


@lru_cache(TEXTS_MAX)
def _made(text: str) -> Callable[..., Any]:
    return eval(text, {"__builtins__": {}, **_WORDS})  # noqa: S307 - no word is a client's
