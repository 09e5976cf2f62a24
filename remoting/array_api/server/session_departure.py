"""The worker that a session leaves: it sends all that the session has, and keeps it.

Its client decides afterwards where it goes on. So a departure that fails has changed nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server import array_wire, moved_state
from gpupool.remoting.array_api.server.array_results import Failed, describe_error
from gpupool.remoting.array_api.server.element_types import told
from gpupool.remoting.array_api.server.kernel_state import keeps_state
from gpupool.remoting.array_api.server.moved_state import (
    ARRAYS_AT_ONCE,
    OBJECTS_MAX,
    VERSION,
    Channel,
    UnmovableError,
)
from gpupool.remoting.array_api.server.session_calls import Calls
from gpupool.remoting.devices.base import UnsupportedError

_TEXT_MAX = 1000
_PART_MAX = array_wire.MAX_BODY // 4


@dataclass(slots=True)
class Plan:
    """All that a session has, in the form in which it leaves."""

    # By address: number, device, and an array of the bytes.
    memories: dict[int, tuple[int, int, Any]] = field(
        default_factory=dict[int, tuple[int, int, Any]]
    )
    arrays: list[list[Any]] = field(default_factory=list[list[Any]])
    objects: list[list[Any]] = field(default_factory=list[list[Any]])
    states: dict[int, Any] = field(default_factory=dict[int, Any])  # arrays, by object's handle
    failed: list[list[Any]] = field(default_factory=list[list[Any]])

    @property
    def size(self) -> int:
        """Return the bytes of all memory."""
        return sum(data.nbytes for _, _, data in self.memories.values())


def plan_departure(session: Calls) -> Plan:
    """Return the plan of the state that a session's move takes along.

    Raises:
        UnmovableError: it has what no other worker can have.
    """
    if len(session.objects) > OBJECTS_MAX:
        raise UnmovableError(f"it has more than {OBJECTS_MAX:,} arrays and objects")
    session.backend.synchronize()  # what was computed wrongly is told here, and not sent
    plan = Plan()
    objects: dict[int, Any] = {}
    for handle, value in session.objects.items():
        if type(value) is Failed:
            kind, message, details = describe_error("call", value.error)
            number = details if type(details) is int else None
            plan.failed.append([handle, kind, message[:_TEXT_MAX], number])
        elif session.backend.is_array(value):
            _plan_array(session, plan, handle, value)
        else:
            objects[handle] = value
    _plan_objects(session, plan, objects)
    return plan


def _plan_array(session: Calls, plan: Plan, handle: int, array: Any) -> None:
    number, offset = 0, 0
    if array.size:
        try:
            key, data, offset = session.backend.memory_of(array)
        except UnsupportedError as error:
            raise UnmovableError(str(error)) from error
        known = plan.memories.get(key)
        if known is None:
            device = session.backend.device_of(array)
            known = plan.memories[key] = (len(plan.memories) + 1, device, data)
        number = known[0]
    looks = [told(array.dtype), list(array.shape), list(array.strides)]
    plan.arrays.append([handle, number, offset, *looks])


def _plan_objects(session: Calls, plan: Plan, objects: dict[int, Any]) -> None:
    recipes = session.recipes
    makers: set[int] = set()
    for handle, value in objects.items():
        recipe = recipes.get(handle)
        if recipe is None:
            kind: Any = value.__class__
            raise UnmovableError(f"it has an object of type {kind.__name__}, which cannot be sent")
        if recipe.maker and recipe.maker not in makers:
            makers.add(recipe.maker)
            if recipe.maker not in objects:
                plan.objects.append(_object(session, recipe.maker, kept=False, state=[]))
    # A module has an earlier handle than its kernels.
    for handle in sorted(objects):
        value = objects[handle]
        try:
            state, array = session.backend.state_of(value)
        except UnsupportedError as error:
            raise UnmovableError(str(error)) from error
        entry = _object(session, handle, kept=True, state=state)
        if array is not None:
            plan.states[handle] = array
            entry[-1] = int(array.nbytes)
        plan.objects.append(entry)


def _object(session: Calls, handle: int, *, kept: bool, state: list[Any]) -> list[Any]:
    recipe = session.recipes[handle]
    texts = list(_texts((recipe.arguments, recipe.keywords)))
    if recipe.name.startswith("kernel.") and keeps_state(texts, texts):
        raise UnmovableError(
            "one of its kernels has variables that outlive a launch, which cannot be sent"
        )
    arguments = moved_state.told(recipe.arguments)
    keywords = moved_state.told(dict(recipe.keywords))
    made = [recipe.name, recipe.device, arguments, keywords, recipe.maker]
    return ["object", handle, kept, *made, moved_state.told(tuple(state)), 0]


def _texts(value: Any) -> Iterator[str]:
    kind = value.__class__
    if kind is str:
        yield value
    elif kind in (dict, list, tuple):
        for item in value.values() if kind is dict else value:
            yield from _texts(item)


class Departure:
    """Sends a session's objects to another worker, which makes them anew."""

    def __init__(self, session: Calls, channel: Channel) -> None:
        self._session = session
        self._channel = channel

    def run(self) -> int:
        """Send everything; return the bytes of its memory.

        Raises:
            UnmovableError: it has what no other worker can have. The other worker is told.
            PeerLostError: the link broke.
        """
        try:
            plan = plan_departure(self._session)
            self._send(plan)
        except RemoteProtocolError:
            raise
        except UnmovableError as error:
            self._channel.send_failure(str(error))
            raise
        finally:
            self._session.backend.use(self._session.device, None)
        return plan.size

    def _send(self, plan: Plan) -> None:
        channel, backend = self._channel, self._session.backend
        channel.send(["begin", VERSION])
        for number, device, data in plan.memories.values():
            channel.send(["memory", number, device, int(data.nbytes)])
            self._send_array(device, data)
        self._send_many("arrays", plan.arrays)
        for entry in plan.objects:
            channel.send(entry)
            array = plan.states.get(entry[1])
            if array is not None:
                self._send_array(entry[4], array)
        self._send_many("failed", plan.failed)
        for device in range(len(backend.describe_devices())):
            backend.use(device, None)
            operations = self._session.operations()
            limit = int(operations["cuda.pool.numbers"]()[2])
            plans, _, plan_bytes, _ = operations["fft.cache.numbers"]()
            channel.send(["device", device, limit, int(plans), int(plan_bytes)])
        channel.send(["end", self._session.sequence])

    def _send_array(self, device: int, array: Any) -> None:
        backend = self._session.backend
        backend.use(device, None)
        self._channel.send_bytes(int(array.nbytes), backend.download(array, "C"))

    def _send_many(self, kind: str, entries: list[list[Any]]) -> None:
        """Send entries in parts that are not too long."""
        batch: list[list[Any]] = []
        size = 0
        for entry in entries:
            length = len(array_wire.encode_body(entry))
            if batch and (len(batch) >= ARRAYS_AT_ONCE or size + length > _PART_MAX):
                self._channel.send([kind, batch])
                batch, size = [], 0
            batch.append(entry)
            size += length
        if batch:
            self._channel.send([kind, batch])
