"""Calls of a template as one function each, made from text: no loop builds the arguments.

A template's arguments are a tree of constants and of places in its records. Walking that tree at
each call takes longer than most operations on small arrays. So the tree becomes the text of a
function of a record's values and of the objects behind handles, once::

    ["h", ["t", ["s", "i", "i", None], 2]]  ->  f(o[v[3]], (slice(v[4], v[5], k0), k1))

The text has this module's words, numbers that it has counted, and names of keywords that match
`KEYWORD`. All else that a client sends reaches the function as an argument, `k0` and so on.
"""

import keyword
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gpupool.remoting.array_api.server import array_wire
from gpupool.remoting.array_api.server.element_types import dtype_of

Direct = Callable[[tuple[Any, ...], dict[int, Any]], Any]
"""Makes one call, from a record's values and the objects behind handles."""

KEYWORD = re.compile(r"[a-z][a-z_]{0,31}")
NODES_MAX, DEPTH_MAX = 64, 8
TEXTS_MAX = 1024
"""Texts with cached functions; templates of one form share them."""


class _NotHereError(Exception):
    """A template that the longer way serves."""


@dataclass(frozen=True, slots=True)
class _Constant:
    value: Any


class _Writer:
    """The text of one template's arguments."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.constants: list[Any] = []
        self.nodes = 0

    def text(self, node: Any, depth: int = 0) -> str:
        return self._named(self._made(node, depth))

    def _next(self, count: int = 1) -> str:
        first = self.place
        self.place += count
        return ", ".join([f"v[{first + each}]" for each in range(count)])

    def _made(self, node: Any, depth: int) -> str | _Constant:
        self.nodes += 1
        if self.nodes > NODES_MAX or depth > DEPTH_MAX:
            raise _NotHereError
        if not isinstance(node, str):
            if array_wire.is_list(node):
                return self._branch(node[0], node[1:], depth + 1)
            return _Constant(node)
        match node:
            case "h":
                return f"o[{self._next()}]"
            case "c":
                return f"complex({self._next(2)})"
            case "e":
                return _Constant(Ellipsis)
            case _:  # a whole number or one with a fraction
                return self._next()

    def _branch(self, code: str, items: list[Any], depth: int) -> str | _Constant:
        match code:
            case "t" | "s":
                parts = [self._made(item, depth) for item in items]
                constants = [each.value for each in parts if isinstance(each, _Constant)]
                if len(constants) == len(parts):
                    return _Constant(tuple(constants) if code == "t" else slice(*constants))
                words = "".join(f"{self._named(each)}, " for each in parts)
                return f"({words})" if code == "t" else f"slice({words})"
            case "l":  # another list in each call
                return "[" + ", ".join([self.text(item, depth) for item in items]) + "]"
            case "q" | "b":
                return _Constant(items[0])
            case "d":
                return _Constant(dtype_of(items[0]))
            case "n":
                self.constants.append(dtype_of(items[0]))
                return f"number({self._next()}, k{len(self.constants) - 1})"
            case _:
                raise _NotHereError

    def _named(self, made: str | _Constant) -> str:
        if isinstance(made, str):
            return made
        self.constants.append(made.value)
        return f"k{len(self.constants) - 1}"


def direct_call(
    function: Callable[..., Any], outputs: int, arguments: list[Any], keywords: Sequence[Any]
) -> Direct | None:
    """Return the function of a template that was compiled before, or None if it has another form.

    With a result, keywords have no arrays: ``out`` is one of them, and a call that failed is made
    again.
    """
    writer = _Writer(2 + outputs)  # after the number of the template, the metas and the handle
    try:
        words = [writer.text(node) for node in arguments]
        for name, node in keywords:
            if (
                not KEYWORD.fullmatch(name)
                or keyword.iskeyword(name)
                or (outputs and _has_handle(node))
            ):
                return None
            words.append(f"{name}={writer.text(node)}")
        names = "".join([f", k{each}" for each in range(len(writer.constants))])
        factory = _factory(f"lambda f{names}: lambda v, o: f({', '.join(words)})")
    except (_NotHereError, SyntaxError):  # one keyword twice
        return None
    made: Direct = factory(function, *writer.constants)
    return made


def _has_handle(node: Any) -> bool:
    if isinstance(node, str):
        return node == "h"
    return array_wire.is_list(node) and any(_has_handle(each) for each in node[1:])


def _number(packed: bytes, dtype: np.dtype[Any]) -> Any:
    return np.frombuffer(packed, dtype)[0]


_WORDS: dict[str, Any] = {"__builtins__": {}, "slice": slice, "complex": complex, "number": _number}


@lru_cache(TEXTS_MAX)
def _factory(text: str) -> Callable[..., Direct]:
    made: Callable[..., Direct] = eval(text, dict(_WORDS))  # noqa: S307 - no word is a client's
    return made
