"""Templates: the constant part of a call, decoded once into a function that builds arguments."""

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server import array_wire
from gpupool.remoting.array_api.server.direct_calls import Direct, direct_call
from gpupool.remoting.array_api.server.element_types import dtype_of
from gpupool.remoting.devices.operation_names import UFUNCS

Builder = Callable[[Iterator[Any], Callable[[int], Any]], Any]
"""Makes one argument from the packed values, and from a function that finds handles."""

MAX_NODES = 8192
MAX_OUTPUTS = 32
SCALAR_MAX = 4096
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


@dataclass(frozen=True, slots=True)
class Template:
    """A call but for its handles and numbers."""

    name: str
    function: Callable[..., Any]
    outputs: int
    layout: struct.Struct
    only_handles: bool
    arguments: tuple[Builder, ...]
    keywords: tuple[tuple[str, Builder], ...]
    handles: tuple[int, ...]
    """The places of all handles in a record's values."""
    plain: tuple[Any, ...] | None
    """The places of the arguments, constants in tuples; None if one is made of several values."""
    direct: Direct | None
    """The call as one function, if it makes one array and changes none, or changes one."""

    def build(
        self, values: tuple[Any, ...], find: Callable[[int], Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of one call; ``values`` follow its handle in the record."""
        if self.only_handles:
            return [find(value) for value in values], {}
        source = iter(values)
        arguments = [make(source, find) for make in self.arguments]
        return arguments, {key: make(source, find) for key, make in self.keywords}


def _number(value: float) -> float:
    """Return a number as CuPy looks for it: ``cupyx.scipy.ndimage`` asks ``cval is numpy.nan``."""
    return np.nan if math.isnan(value) else value


class _Compiler:
    def __init__(self) -> None:
        self.layout: list[str] = []
        self.nodes = 0

    def compile(self, node: Any, depth: int = 0) -> Builder:
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > array_wire.MAX_DEPTH:
            raise RemoteProtocolError("malformed template", why="too many or too deep arguments")
        if isinstance(node, _CONSTANTS):
            return lambda values, find: node
        if isinstance(node, str):
            return self._leaf(node)
        if not array_wire.is_list(node) or not node or not isinstance(node[0], str):
            raise RemoteProtocolError("malformed template", why=f"node {str(node)[:40]}")
        items: list[Any] = node[1:]
        return self._branch(node[0], items, depth)

    def _leaf(self, code: str) -> Builder:
        if code == "h":
            self.layout.append("Q")
            return lambda values, find: find(next(values))
        if code == "i":
            self.layout.append("q")
            return lambda values, find: next(values)
        if code == "f":
            self.layout.append("d")
            return lambda values, find: _number(next(values))
        if code == "c":
            self.layout.append("dd")
            return lambda values, find: complex(next(values), next(values))
        if code == "e":
            return lambda values, find: Ellipsis
        raise RemoteProtocolError("malformed template", why=f"leaf {code[:40]}")

    def _branch(self, code: str, items: list[Any], depth: int) -> Builder:
        if code in ("t", "l", "s"):
            made = [self.compile(item, depth + 1) for item in items]
            if code == "t":
                return lambda values, find: tuple([make(values, find) for make in made])
            if code == "l":
                return lambda values, find: [make(values, find) for make in made]
            if len(made) != 3:
                raise RemoteProtocolError("malformed template", why="a slice has three parts")
            return lambda values, find: slice(*[make(values, find) for make in made])
        if code == "m":
            pairs = [self.pair(item, depth) for item in items]
            return lambda values, find: {key: make(values, find) for key, make in pairs}
        if len(items) != 1:
            raise RemoteProtocolError("malformed template", why=f"node {code[:40]}")
        (item,) = items
        if code == "q" and isinstance(item, str):
            return lambda values, find: item
        if code == "b" and isinstance(item, bytes):
            return lambda values, find: item
        if code in ("d", "n"):
            dtype = dtype_of(item)
            if code == "d":
                return lambda values, find: dtype
            if dtype.itemsize > SCALAR_MAX:
                raise RemoteProtocolError("malformed template", why=f"a scalar of {dtype}")
            self.layout.append(f"{dtype.itemsize}s")
            return lambda values, find: np.frombuffer(next(values), dtype)[0]
        raise RemoteProtocolError("malformed template", why=f"node {code[:40]}")

    def pair(self, item: Any, depth: int) -> tuple[str, Builder]:
        if not array_wire.is_list(item) or len(item) != 2 or not isinstance(item[0], str):
            raise RemoteProtocolError("malformed template", why="keywords are pairs")
        pair: list[Any] = item
        return pair[0], self.compile(pair[1], depth + 1)


def _places(outputs: int, layout: list[str], nodes: list[Any], made: tuple[Builder, ...]) -> Any:
    """Return the places of all handles in a record's values, and those of plain arguments."""
    handles: list[int] = []
    place = 2 + outputs  # after the number of the template, the metas and the handle
    for piece in layout:
        if piece == "Q":
            handles.append(place)
        place += 2 if piece == "dd" else 1
    plain: list[Any] = []
    place = 2 + outputs
    for node, make in zip(nodes, made, strict=True):
        if isinstance(node, str) and node in ("h", "i", "f"):
            plain.append(place)
            place += 1
        elif isinstance(node, _CONSTANTS) or (array_wire.is_list(node) and node[0] in ("d", "q")):
            plain.append((make(iter(()), int),))
        else:
            return tuple(handles), None
    return tuple(handles), tuple(plain)


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
    compiler = _Compiler()
    nodes: list[Any] = arguments
    pairs: list[Any] = keywords
    made = tuple([compiler.compile(node) for node in nodes])
    named = tuple([compiler.pair(pair, 0) for pair in pairs])
    layout = struct.Struct(f"<I{outputs}IQ" + "".join(compiler.layout))
    only_handles = not named and all(node == "h" for node in nodes)
    handles, plain = _places(outputs, compiler.layout, nodes, made)
    direct: Direct | None = None
    if outputs < 2 and names[operation] in (_PURE if outputs else _IN_PLACE):
        direct = direct_call(functions[operation], outputs, nodes, pairs)
    return number, Template(
        names[operation],
        functions[operation],
        outputs,
        layout,
        only_handles,
        made,
        named,
        handles,
        plain,
        direct,
    )
