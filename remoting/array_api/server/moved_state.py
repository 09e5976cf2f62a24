"""The state of a session on its way from one worker to another: its parts, and their form.

Parts
    A part is a plain value, ``[kind, ...]``, sent as two transfers of a link: 8 bytes with its
    length, and its CBOR. The bytes of memory follow the part that announces them.

    ``["begin", version]``
    ``["memory", number, device, size]``  and then its bytes
    ``["arrays", [[handle, memory, offset, dtype, shape, strides], ...]]``
    ``["object", handle, kept, name, device, arguments, keywords, maker, state, size]``  and then
    the bytes of its array; ``maker`` is the handle of the module that a kernel is of, 0 for none.
    An object that is not kept is only a maker.
    ``["failed", [[handle, kind, message, details], ...]]``
    ``["device", device, limit of its pool, plans, bytes of plans]``
    ``["end", sequence]``

    Memory comes before the arrays that lie in it, and a module before its kernels. Handles are the
    client's. Values of arguments have a letter in front where they are no plain ones, so that a
    tuple stays a tuple.

Nothing of it is ever executed or unpickled. Objects are made anew by the operations that made them
first, and the receiver checks everything as it checks what a client sends.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server import array_wire
from gpupool.remoting.devices.base import Fill
from gpupool.remoting.worker.peer_links import Links

VERSION = 1
"""Of the form; workers of two versions do not send each other their state."""

OBJECTS_MAX = 1 << 20
"""Arrays and objects that one session may take along."""

SIZE_MAX = 1 << 44
"""Bytes of one piece of memory."""

ARRAYS_AT_ONCE = 256
NESTING_MAX = 6

LENGTH = struct.Struct("<Q")

MAKERS = frozenset(
    (
        "cuda.event.create",
        "cuda.stream.create",
        "kernel.ElementwiseKernel",
        "kernel.RawKernel",
        "kernel.RawModule",
        "kernel.ReductionKernel",
        "kernel.function",
        "random.generator",
        "random.state",
    )
)
"""Operations with objects that another worker can make anew."""

RECIPES_SPARE = 1024
"""Recipes of dropped objects that may be kept before they are looked for."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an object was made."""

    name: str
    device: int
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    maker: int = 0  # the handle of the module that a kernel is of


class UnmovableError(Exception):
    """A session has an object that no other worker can have; the text names it."""


def note_recipe(
    recipes: dict[int, Recipe],
    objects: Mapping[int, Any],
    made: tuple[str, int, int],
    given: tuple[tuple[Any, ...], dict[str, Any]],
    values: Sequence[Any],
) -> None:
    """Remember how an object was made.

    Args:
        recipes: of the session, by handle.
        objects: of the session; recipes of those that it has no more are dropped in time.
        made: the operation's name, the device, and the object's handle.
        given: the operation's arguments and keywords.
        values: the packed values of the call; of a kernel, the first one is its module's handle.
    """
    name, device, handle = made
    if name not in MAKERS:
        return
    arguments, keywords = given
    maker = 0
    if name == "kernel.function":
        maker, arguments = (values[0] if values else 0), arguments[1:]
        if maker not in recipes:
            return
    if len(recipes) >= RECIPES_SPARE + 2 * len(objects):
        makers = {each.maker for at, each in recipes.items() if at in objects}
        for old in [at for at in recipes if at not in objects and at not in makers]:
            del recipes[old]
    recipes[handle] = Recipe(name, device, arguments, keywords, maker)


# --- values ---------------------------------------------------------------------------------------


def told(value: Any, depth: int = 0) -> Any:
    """Return an argument as a plain value.

    Raises:
        UnmovableError: it is not one, and is not made of plain values.
    """
    given: Any = value
    kind: Any = given.__class__
    if given is None or kind in (bool, int, float, str, bytes):
        return given
    if depth < NESTING_MAX:
        if kind in (tuple, list):
            code = "t" if kind is tuple else "l"
            return [code, *(told(item, depth + 1) for item in given)]
        if kind is dict and all(type(key) is str for key in given):
            return {key: told(item, depth + 1) for key, item in given.items()}
    raise UnmovableError(f"an argument of type {kind.__name__} cannot be sent")


def read(node: Any) -> Any:
    """Return the argument that a plain value stands for.

    Raises:
        RemoteProtocolError: it has no form.
    """
    if type(node) in (dict,):
        pairs: dict[str, Any] = node
        return {key: read(item) for key, item in pairs.items()}
    if not array_wire.is_list(node):
        return node
    if not node or node[0] not in ("t", "l"):
        raise RemoteProtocolError("malformed state", why="an argument")
    items = [read(item) for item in node[1:]]
    return tuple(items) if node[0] == "t" else items


# --- transfers ------------------------------------------------------------------------------------


class Channel:
    """The parts and bytes of one departure or arrival, in order, over the link of two workers."""

    def __init__(self, links: Links, index: int) -> None:
        self._links = links
        self._index = index
        self._number = 0

    def _next(self) -> int:
        self._number += 1
        return self._number

    def send(self, part: list[Any]) -> None:
        """Send a part; raises PeerLostError."""
        data = array_wire.encode_body(part)
        if len(data) > array_wire.MAX_BODY:
            raise UnmovableError(f"a description of {len(data):,} bytes is too long")
        self.send_bytes(LENGTH.size, [memoryview(LENGTH.pack(len(data)))])
        self.send_bytes(len(data), [memoryview(data)])

    def send_bytes(self, size: int, pieces: Iterable[memoryview]) -> None:
        """Send ``size`` bytes in pieces; raises PeerLostError."""
        self._links.send(self._index, self._next(), size, pieces)

    def send_failure(self, text: str) -> None:
        """Say in place of the next transfer why there is none; raises PeerLostError."""
        self._links.send_failure(self._index, self._next(), text)

    def receive(self) -> list[Any]:
        """Return the next part.

        Raises:
            RemoteProtocolError: it is none.
            PeerLostError: the link broke.
            PeerFailedError: the other worker cannot go on.
        """
        (length,) = LENGTH.unpack(self._bytes(LENGTH.size))
        if not 0 < length <= array_wire.MAX_BODY:
            raise RemoteProtocolError("malformed state", why=f"a part of {length} bytes")
        part = array_wire.decode_body(self._bytes(length))
        if not array_wire.is_list(part) or not part or type(part[0]) is not str:
            raise RemoteProtocolError("malformed state", why="a part")
        return part

    def _bytes(self, size: int) -> bytes:
        data = bytearray(size)
        self.receive_bytes(size)(memoryview(data))
        return bytes(data)

    def receive_bytes(self, size: int) -> Fill:
        """Wait for ``size`` bytes; return their reader."""
        self._links.begin(self._index, self._next(), size)
        return lambda target: self._links.read(self._index, target)
