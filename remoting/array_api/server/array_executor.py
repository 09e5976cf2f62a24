"""Runs the calls of one session against a backend: handles, checks, failures, memory.

Order
    One thread runs all records, in the order in which the client queued them. `Executor.sequence`
    counts calls, questions and transfers, as the client does. A failure is reported under it.

The results of calls, their failures and memory: `session_calls`.
"""

import struct
from collections.abc import Callable
from typing import Any

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server import array_wire
from gpupool.remoting.array_api.server.array_exchange import Exchange
from gpupool.remoting.array_api.server.array_results import (
    Answer,
    DependsOnFailureError,
    Download,
    decode_meta,
)
from gpupool.remoting.array_api.server.fused_groups import Groups
from gpupool.remoting.array_api.server.session_calls import Calls, Client
from gpupool.remoting.array_api.server.shared_memory import Slots
from gpupool.remoting.array_api.server.templates import Template, compile_template
from gpupool.remoting.devices.base import Backend
from gpupool.remoting.worker.peer_links import Links

_U32 = struct.Struct("<I")
_OF_OBJECTS = ("sparse.", "interpolate.", "spatial.")
"""Operations with answers that may name objects by handles: their client gives them a class."""


class Executor(Calls):
    """Reads the records of one session, and runs its calls."""

    def __init__(
        self,
        backend: Backend,
        client: Client,
        log: Callable[[str], None],
        links: Links | None = None,
    ) -> None:
        super().__init__(backend, client, log)
        self.slots = Slots(self)
        self._groups = Groups(self)
        self._exchange = None if links is None else Exchange(self, links)
        table = {**backend.operations(), **self._own_operations()}
        if self._exchange is not None:
            table |= self._exchange.operations()
        self.names = sorted(table)
        self.functions = [table[name] for name in self.names]

    def be_strict(self) -> bool:
        """Begin strict mode, before the first call; False if the devices have none."""
        watched = self.backend.be_strict()
        if watched is not None:
            self.functions = list(map(watched, self.names, self.functions))
        return watched is not None

    def _own_operations(self) -> dict[str, Callable[..., Any]]:
        return {
            "door.sync": self.backend.synchronize,
            "door.get": Download,
            "door.same": _same,
            "door.stats": lambda: [self.sequence, len(self.objects), sum(self.conformed.values())],
            "door.touch": _touch,
            "door.fill": self.slots.fill,
            "door.fetch": self.slots.fetch,
        }

    # --- a run of records -----------------------------------------------------------------------

    def run(self, body: memoryview, *, ask: bool) -> tuple[Any, Answer] | None:
        """Execute a run of records; with ``ask`` return the last call's result, and its answer.

        Raises:
            RemoteProtocolError: the records are malformed; the session must end.
            Exception: with ``ask``, the error of the last call.
        """
        position, end = 0, len(body)
        self.body, self.at = body, 0
        templates = self.templates
        unpack, free = _U32.unpack_from, array_wire.FREE_RECORD.unpack_from
        try:
            while position < end:
                code = unpack(body, position)[0]
                template = templates.get(code)
                if template is None:
                    if code == array_wire.FREE:  # as frequent as calls are
                        self.free(free(body, position)[1])
                        position += array_wire.FREE_RECORD.size
                    else:
                        position = self._control(code, body, position)
                    continue
                values = template.layout.unpack_from(body, position)
                position += template.layout.size
                self.sequence += 1
                self.at = position
                if ask and position >= end:
                    return self._answer(template, values)
                self.call(template, values)
        except struct.error as error:
            raise RemoteProtocolError("malformed record", why=str(error)) from error
        if ask:
            raise RemoteProtocolError("malformed frame", why="a question without a call")
        return None

    def _control(self, code: int, body: memoryview, position: int) -> int:
        if code == array_wire.CONTEXT:
            _, device, stream = array_wire.CONTEXT_RECORD.unpack_from(body, position)
            self._use(device, stream)
            return position + array_wire.CONTEXT_RECORD.size
        if code in (array_wire.TEMPLATE, array_wire.META):
            _, length = array_wire.SIZED_RECORD.unpack_from(body, position)
            start = position + array_wire.SIZED_RECORD.size
            if start + length > len(body):
                raise RemoteProtocolError("malformed record", why="cut short")
            value = array_wire.decode_body(body[start : start + length])
            if code == array_wire.TEMPLATE:
                number, template = compile_template(value, self.names, self.functions)
                self.templates[number] = template
            else:
                number, meta = decode_meta(value)
                self.metas[number] = meta
            return start + length
        if code == array_wire.INLINE_PUT:
            return self._inline_put(body, position)
        if code == array_wire.GROUP:
            self.at = position
            return self._groups.run(body, position)
        if code in (array_wire.SEND, array_wire.RECEIVE) and self._exchange is not None:
            return self._transfer(self._exchange, code, body, position)
        if code == array_wire.RESET:
            self.templates.clear()
            self.metas.clear()
            return position + 4
        raise RemoteProtocolError("unknown record", why=str(code))

    def _use(self, device: int, stream: int) -> None:
        if device >= len(self.backend.describe_devices()):
            raise RemoteProtocolError("unknown device", why=str(device))
        self.backend.use(device, self.objects.get(stream) if stream else None)
        self.device = device

    def _inline_put(self, body: memoryview, position: int) -> int:
        _, handle, number, length = array_wire.PUT_RECORD.unpack_from(body, position)
        start = position + array_wire.PUT_RECORD.size
        if start + length > len(body):
            raise RemoteProtocolError("malformed record", why="cut short")
        data = body[start : start + length]

        def fill(target: memoryview) -> None:
            target[:] = data

        self.put(handle, number, length, fill)
        return start + length

    def _transfer(self, exchange: Exchange, code: int, body: memoryview, position: int) -> int:
        self.sequence += 1  # it has a place in the program, as a call has
        if code == array_wire.SEND:
            _, index, transfer, handle = array_wire.SEND_RECORD.unpack_from(body, position)
            self.at = position + array_wire.SEND_RECORD.size
            exchange.send(index, transfer, handle)
            return self.at
        record = array_wire.RECEIVE_RECORD.unpack_from(body, position)
        _, index, transfer, handle, number, existing = record
        self.at = position + array_wire.RECEIVE_RECORD.size
        meta = self.metas.get(number)
        if meta is None:
            raise RemoteProtocolError("malformed transfer", why=f"meta {number}")
        exchange.receive(index, transfer, handle, number, meta.nbytes, existing=existing != 0)
        return self.at

    # --- questions ------------------------------------------------------------------------------

    def _answer(self, template: Template, values: tuple[Any, ...]) -> tuple[Any, Answer]:
        outputs = template.outputs
        first = values[1 + outputs]
        try:
            arguments, keywords = template.build(values, self)
            value = self.retried(template.function, arguments, keywords)
        except DependsOnFailureError as error:
            raise error.__cause__ or error from None
        objects = template.name.startswith(_OF_OBJECTS)
        answer = Answer(self.backend, self.store, self.free, first=first, objects=objects)
        return value, answer


def _same(value: Any) -> Any:
    return value


def _touch(value: Any) -> None:
    """Do nothing: finding the argument raises the error of the call that should have made it."""
