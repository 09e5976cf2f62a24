"""The worker to which a session goes: it rebuilds another worker's objects.

Everything is checked as what a client sends: handles are new, memory fits the partition, arrays
lie in their memory, and objects are made by the operations that made them first.
"""

import re
from typing import Any

import numpy as np

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server import array_wire, moved_state
from gpupool.remoting.array_api.server.array_results import Meta, decode_meta
from gpupool.remoting.array_api.server.moved_state import (
    MAKERS,
    OBJECTS_MAX,
    SIZE_MAX,
    VERSION,
    Channel,
    Recipe,
)
from gpupool.remoting.array_api.server.session_calls import Calls

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_HANDLE_MAX = (1 << 64) - 1
_BYTE = np.dtype(np.uint8)


def _malformed(why: str) -> RemoteProtocolError:
    return RemoteProtocolError("malformed state", why=why)


def _number(value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise _malformed("a number")
    return value


def _entries(part: list[Any], length: int) -> list[list[Any]]:
    if len(part) != 2 or not array_wire.is_list(part[1]):
        raise _malformed(part[0])
    entries: list[Any] = part[1]
    if not all(array_wire.is_list(entry) and len(entry) == length for entry in entries):
        raise _malformed(part[0])
    return entries


class Arrival:
    """Makes the arrays and objects of a session anew, in a worker that has none."""

    def __init__(self, session: Calls, channel: Channel) -> None:
        self._session = session
        self._channel = channel
        self._operations = session.operations()
        self._memories: dict[int, Any] = {}
        self._makers: dict[int, Any] = {}
        self._count = 0
        self._devices = len(session.backend.describe_devices())

    def run(self) -> int:
        """Receive everything; return the number of the session's latest call.

        Raises:
            RemoteProtocolError: the other worker sends what has no form.
            PeerLostError: the link broke.
            PeerFailedError: the other worker cannot send it.
            Exception: something could not be made here, such as for lack of memory.
        """
        if self._session.objects:
            raise RemoteProtocolError("a session that has arrays takes in no other one's")
        try:
            part = self._channel.receive()
            if part != ["begin", VERSION]:
                raise _malformed("another version")
            while (part := self._channel.receive())[0] != "end":
                self._take(part)
            if len(part) != 2:
                raise _malformed("end")
            return _number(part[1], 0, _HANDLE_MAX)
        finally:
            self._session.backend.use(self._session.device, None)
            self._memories.clear()
            self._makers.clear()

    def _take(self, part: list[Any]) -> None:
        kind = part[0]
        if kind == "memory" and len(part) == 4:
            self._memory(*part[1:])
        elif kind == "arrays":
            for entry in _entries(part, 6):
                self._array(*entry)
        elif kind == "object" and len(part) == 10:
            self._object(part[1:])
        elif kind == "failed":
            for entry in _entries(part, 4):
                self._failed(*entry)
        elif kind == "device" and len(part) == 5:
            self._device(*part[1:])
        else:
            raise _malformed(f"a part {kind[:40]!r}")

    def _one_more(self) -> None:
        self._count += 1
        if self._count > OBJECTS_MAX:
            raise _malformed("too many arrays and objects")

    # --- memory and arrays ------------------------------------------------------------------------

    def _memory(self, number: Any, device: Any, size: Any) -> None:
        number, size = _number(number, 1, OBJECTS_MAX), _number(size, 1, SIZE_MAX)
        self._use(device)
        if number in self._memories:
            raise _malformed("memory that is there")
        array = self._session.new(Meta(_BYTE, (size,), (1,), size))
        self._session.backend.upload(array, self._channel.receive_bytes(size))
        self._memories[number] = array

    def _use(self, device: Any) -> None:
        self._session.backend.use(_number(device, 0, self._devices - 1), None)

    def _array(
        self, handle: Any, number: Any, offset: Any, dtype: Any, shape: Any, strides: Any
    ) -> None:
        self._one_more()
        handle = _number(handle, 1, _HANDLE_MAX)
        _, meta = decode_meta([array_wire.FIRST_META, dtype, shape, strides])
        if number == 0:
            if meta.nbytes:
                raise _malformed("an array without memory")
            array = self._session.new(meta)
        else:
            memory = self._memories.get(_number(number, 1, OBJECTS_MAX))
            if memory is None:
                raise _malformed("an array in no memory")
            offset = _number(offset, 0, SIZE_MAX)
            place = self._operations["door.memory"]
            try:
                array = place(memory, offset, meta.shape, meta.dtype, meta.strides)
            except ValueError as error:
                raise _malformed(f"an array outside of its memory ({error})") from error
            array = self._session.backend.adopt(array)
        self._session.store(handle, array)

    # --- objects ----------------------------------------------------------------------------------

    def _object(self, entry: list[Any]) -> None:
        handle, kept, name, device, arguments, keywords, maker, state, size = entry
        self._one_more()
        handle = _number(handle, 1, _HANDLE_MAX)
        if name not in MAKERS or type(kept) is not bool or handle in self._makers:
            raise _malformed("an object")
        given, named = moved_state.read(arguments), moved_state.read(keywords)
        found, size = moved_state.read(state), _number(size, 0, SIZE_MAX)
        if [type(part) for part in (given, named, found)] != [tuple, dict, tuple]:
            raise _malformed("an object")
        maker = _number(maker, 0, _HANDLE_MAX)
        if (name == "kernel.function") != bool(maker) or (maker and maker not in self._makers):
            raise _malformed("a kernel of no module")
        self._use(device)
        whole = (self._makers[maker], *given) if maker else given
        made = self._operations[name](*whole, **named)
        backend = self._session.backend
        try:
            backend.set_state(made, list(found))
        except ValueError as error:
            raise _malformed(str(error)) from error
        _, array = backend.state_of(made)
        if size != (0 if array is None else array.nbytes):
            raise _malformed("an object's state")
        if array is not None:
            backend.upload(array, self._channel.receive_bytes(size))
        self._makers[handle] = made
        self._session.recipes[handle] = Recipe(name, device, given, named, maker)
        if kept:
            self._session.store(handle, made)

    def _failed(self, handle: Any, kind: Any, message: Any, details: Any) -> None:
        self._one_more()
        if type(kind) is not str or not _NAME.fullmatch(kind) or type(message) is not str:
            raise _malformed("a failure")
        if details is not None:
            details = _number(details, -(1 << 31), 1 << 31)
        made = type(kind, (Exception,), {"status": details})(message)
        self._session.fail_silently(_number(handle, 1, _HANDLE_MAX), made)

    # --- settings ---------------------------------------------------------------------------------

    def _device(self, device: Any, limit: Any, plans: Any, plan_bytes: Any) -> None:
        self._use(device)
        limit = _number(limit, 0, SIZE_MAX)
        if limit:
            self._operations["cuda.pool.set_limit"](limit)
        current = self._operations["fft.cache.numbers"]()
        for name, wanted, has in (("size", plans, current[0]), ("memsize", plan_bytes, current[2])):
            if _number(wanted, -1, SIZE_MAX) != has:
                self._operations[f"fft.cache.set_{name}"](wanted)
