"""Values in answers of the worker, which `server/array_results.py` encodes there.

A value that is no list and no dictionary stands for itself. A list begins with the letter of its
form: an array, a handle, a number, a slice, a tuple or a list.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import numpy as np

from cupy._door import arrays
from cupy._door.errors import visible

#: Types of single numbers of NumPy, by the name that the worker gives.
_NUMBERS = {np.dtype(char).str: np.dtype(char) for char in "?bBhHiIqQlLefdFD"}


def read(session: Any, node: Any, reply: Any) -> Any:
    """Return the value that a node stands for; arrays get the handles reserved for ``reply``.

    Raises:
        TypeError, ValueError, LookupError: the node has no form.
    """
    if isinstance(node, dict):
        pairs: dict[Any, Any] = node
        return {key: read(session, item, reply) for key, item in pairs.items()}
    if not isinstance(node, list):
        return node
    code: Any = node[0]
    if code == "h":
        _, index, dtype, shape, strides, device = node
        handle = reply.first + index
        return arrays.adopt(session, handle, dtype, tuple(shape), tuple(strides), device)
    if code in ("t", "l"):
        items = [read(session, item, reply) for item in node[1:]]
        return tuple(items) if code == "t" else items
    return reply if code == "w" else _rare(code, node, reply)


def _rare(code: Any, node: list[Any], reply: Any) -> Any:
    if code == "o":
        if not isinstance(node[1], int):
            raise TypeError("an object without a number")
        return reply.first + node[1]
    if code == "c":
        return complex(node[1], node[2])
    if code == "n":
        _, dtype, data = node
        if len(data) != _NUMBERS[dtype].itemsize:
            raise ValueError("a number of another size")
        return np.frombuffer(data, _NUMBERS[dtype])[0]
    if code == "s":
        _, start, stop, step = node
        return slice(start, stop, step)
    raise TypeError(f"a value of no form, {visible(code)}")
