"""The objects of one session, and the calls that make them: checks, failures, memory.

Results
    The client has inferred the type, shape and strides of nearly every result before the call
    left. A result of another type or shape is a `MismatchError`, never a wrong array. One of other
    strides is copied to the inferred ones, except where it must share its argument's memory.

Failures
    A call that fails is reported once, in a FAILED frame. Its results become `Failed`. Every call
    that uses one fails without a report. A malformed record raises `RemoteProtocolError`, which
    ends the session.

Memory
    When a call runs out of memory, the client is asked for the handles that it dropped. They are
    freed unless a record that has been read and not run may use them. The call then runs once
    more.
"""

from collections.abc import Callable
from typing import Any, Protocol

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server import array_wire
from gpupool.remoting.array_api.server.array_results import (
    DependsOnFailureError,
    Failed,
    Meta,
    MismatchError,
    array_of,
    describe_error,
    same_layout,
)
from gpupool.remoting.array_api.server.element_types import need_sendable, told
from gpupool.remoting.array_api.server.moved_state import Recipe, note_recipe
from gpupool.remoting.array_api.server.templates import Template
from gpupool.remoting.devices.base import Backend, Fill

HANDLES_MAX = 1 << 24
_SMALL = 1 << 20  # bytes, of which there is no need to ask first whether they have room
_VIEWS = frozenset(
    {
        *("broadcast_to", "door.same", "ndarray.as_strided", "ndarray.diagonal"),
        *("ndarray.field", "ndarray.getitem", "ndarray.imag", "ndarray.real"),
        *("ndarray.reshape_view", "ndarray.squeeze", "ndarray.swapaxes"),
        *("ndarray.transpose", "ndarray.view"),
    }
)
"""Operations with a result that shares its argument's memory, so that a copy would be another
array."""


class Client(Protocol):
    """The connection, as the executor uses it."""

    def push(self, kind: array_wire.Kind, body: Any) -> None:
        """Send a frame that answers no question."""
        ...

    def collect(self) -> bytes | None:
        """Ask the client for the handles that it dropped; return them packed, or None."""
        ...

    def names(self, handle: int) -> bool:
        """Say whether a frame that has been read and not run may use ``handle``."""
        ...

    def free_later(self, handles: bytes) -> None:
        """Free packed handles once everything that was read before has been run."""
        ...


class Calls:
    """The objects, templates and metas behind the numbers of one session, and its calls.

    `Executor` reads the records; its parts for groups, transfers and shared memory use this.
    """

    def __init__(self, backend: Backend, client: Client, log: Callable[[str], None]) -> None:
        self.backend = backend
        self.client = client
        self.log = log
        self.objects: dict[int, Any] = {}
        self.recipes: dict[int, Recipe] = {}
        self.templates: dict[int, Template] = {}
        self.metas: dict[int, Meta] = {}
        self.names: list[str] = []
        self.functions: list[Callable[..., Any]] = []
        self.sequence: int = 0
        self.device = 0
        """The current one."""
        self.failures = 0  # handles that stand for results of failed calls
        self.conformed: dict[str, int] = {}
        self.described: list[Any] = []
        self.body = memoryview(b"")  # the records being run, and how far they have been
        self.at = 0
        self._dropped = b""  # handles that the client dropped, and that waiting calls may name

    def operations(self) -> dict[str, Callable[..., Any]]:
        """Return the operations that a client may call, by name."""
        return dict(zip(self.names, self.functions, strict=True))

    # --- handles --------------------------------------------------------------------------------

    def find(self, handle: int) -> Any:
        """Return the object behind a handle.

        Raises:
            DependsOnFailureError: the call that should have made it failed.
            RemoteProtocolError: the client never made it.
        """
        try:
            value = self.objects[handle]
        except KeyError:
            raise RemoteProtocolError("unknown handle", why=str(handle)) from None
        if type(value) is Failed:
            raise DependsOnFailureError from value.error
        return value

    __getitem__ = find  # for `Template.build`

    def store(self, handle: int, value: Any) -> None:
        """Keep an object under a new handle."""
        if handle in self.objects or not handle:
            raise RemoteProtocolError("handle already in use", why=str(handle))
        if len(self.objects) >= HANDLES_MAX:
            raise RemoteProtocolError("too many live arrays", why=f"{HANDLES_MAX:,}")
        self.objects[handle] = value

    # --- arrays from bytes ----------------------------------------------------------------------

    def _meta_of(self, number: int, nbytes: int) -> Meta:
        meta = self.metas.get(number)
        if meta is None or meta.nbytes != nbytes:
            raise RemoteProtocolError("malformed array", why=f"meta {number}, {nbytes} bytes")
        return meta

    def put(self, handle: int, number: int, nbytes: int, fill: Fill) -> bool:
        """Make an array from the client's bytes; False if there was no room for it.

        ``fill`` has not been called then, and the caller must skip the bytes.
        """
        meta = self._meta_of(number, nbytes)
        try:
            array = self.retried(self.new, (meta,), {})
        except Exception as error:  # noqa: BLE001 - every failure is reported to the client
            self.fail("upload", (handle,), error)
            return False
        if nbytes:
            self.backend.upload(array, fill)
        self.store(handle, array)
        return True

    def put_into(self, handle: int, number: int, nbytes: int, fill: Fill) -> bool:
        """Fill an existing dense array with the client's bytes; False if it never came to be."""
        meta = self._meta_of(number, nbytes)
        try:
            array = self.find(handle)
        except RemoteProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - every failure is reported to the client
            self.fail("upload", (), error)
            return False
        dense = self.backend.is_array(array) and array.flags.forc
        if not dense or array.shape != meta.shape or array.dtype != meta.dtype:
            raise RemoteProtocolError("malformed array", why=f"handle {handle} does not fit")
        if nbytes:
            self.backend.upload(array, fill)
        return True

    def new(self, meta: Meta) -> Any:
        """Return a new array, with its memory accounted for."""
        self.backend.expect(meta.nbytes)
        return self.backend.adopt(self.backend.empty(meta.dtype, meta.shape, meta.strides))

    def free(self, handle: int) -> None:
        """Forget a handle. The memory goes with the last view of it."""
        if type(self.objects.pop(handle, None)) is Failed:
            self.failures -= 1

    # --- calls ----------------------------------------------------------------------------------

    def call(self, template: Template, values: tuple[Any, ...]) -> None:
        """Run one call of the record ``values``, and store its results or report its failure."""
        outputs = template.outputs
        first = values[1 + outputs]
        try:
            direct = template.direct
            if direct and not self.failures and self._call_shortly(template, direct, values):
                return
            arguments, keywords = template.build(values, self)
            if outputs == 1:
                meta = self.metas.get(values[1])
                if meta is not None and template.name not in _VIEWS:
                    result = self.retried(template.function, arguments, keywords, meta.nbytes)
                else:
                    result = self.retried(template.function, arguments, keywords)
                self.keep(template.name, first, values[1], meta, result)
                if values[1] == array_wire.META_OBJECT:
                    made, given = (template.name, self.device, first), (arguments, keywords)
                    note_recipe(self.recipes, self.objects, made, given, values[3:])
            else:
                results = self.retried(template.function, arguments, keywords)
                if outputs:
                    self._keep_many(template, first, values, results)
        except RemoteProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - every failure is reported to the client
            self.fail(template.name, range(first, first + outputs), error)

    def _call_shortly(self, template: Template, direct: Any, values: tuple[Any, ...]) -> bool:
        """Run a call as nearly all are: arrays and numbers in, and one small array out or none.

        False, and nothing has changed, if it is another one, or if its function failed. An error of
        a result that does not look as inferred is raised.
        """
        objects, backend = self.objects, self.backend
        if not template.outputs:
            try:
                direct(values, objects)
            except Exception:  # noqa: BLE001 - the long way fails too, or finds memory
                return False
            return True
        number, handle = values[1], values[2]
        meta = self.metas.get(number)
        if meta is None or meta.nbytes > _SMALL or not handle or handle in objects:
            return False
        if len(objects) >= HANDLES_MAX:
            return False
        try:
            value = direct(values, objects)
            fits = type(value) is backend.array_type and value.dtype == meta.dtype
            if fits and value.shape == meta.shape and value.strides == meta.strides:
                objects[handle] = backend.adopt(value)
                return True
            value = self._adopted(value)
        except Exception:  # noqa: BLE001 - the long way fails too and reports it, or finds memory
            return False
        self.keep(template.name, handle, number, meta, value)
        return True

    def _keep_many(self, template: Template, first: int, values: Any, results: Any) -> None:
        if len(results) != template.outputs:
            raise MismatchError(f"{template.name} gave {len(results)} results")
        for index, result in enumerate(results):
            number = values[1 + index]
            self.keep(template.name, first + index, number, self.metas.get(number), result)

    def retried(self, function: Any, arguments: Any, keywords: Any, nbytes: int = 0) -> Any:
        """Call; if memory runs out, free unused objects of both sides and call once more."""
        backend = self.backend
        try:
            if nbytes > _SMALL:
                backend.expect(nbytes)
            value = function(*arguments, **keywords)
            return backend.adopt(value) if backend.is_array(value) else self._adopted(value)
        except Exception as error:
            if not backend.is_out_of_memory(error):
                raise
        freed = self.client.collect() or b""
        self._free_unneeded(freed + self._dropped)
        backend.reclaim()
        if nbytes:
            backend.expect(nbytes)
        return self._adopted(function(*arguments, **keywords))

    def _free_unneeded(self, freed: bytes) -> None:
        """Free the handles that the client dropped, except those that waiting calls make or use."""
        rest = bytes(self.body[self.at :])
        later: list[bytes] = []
        for start in range(0, len(freed), 8):
            packed = freed[start : start + 8]
            handle = int.from_bytes(packed, "little")
            if packed in rest or self.client.names(handle):
                later.append(packed)
            else:
                self.free(handle)
        if later and freed != self._dropped:
            self.client.free_later(b"".join(later))
        # Those calls may have run by the next time that memory runs out.
        self._dropped = b"".join(later)

    def _adopted(self, value: Any) -> Any:
        backend = self.backend
        if backend.is_array(value):
            return backend.adopt(value)
        parts: Any = value
        if type(value) is list:
            return [self._adopted(item) for item in parts]
        if issubclass(type(value), tuple):  # a named one of linalg, too
            return tuple([self._adopted(item) for item in parts])
        if type(value) is dict:
            return {key: self._adopted(item) for key, item in parts.items()}
        return value

    def keep(self, name: str, handle: int, number: int, meta: Meta | None, value: Any) -> None:
        """Store one result, if it looks as the client has inferred."""
        if number != array_wire.META_OBJECT and not self.backend.is_array(value):
            value = self.backend.adopt(array_of(value))
        if meta is not None:
            if value.dtype != meta.dtype or value.shape != meta.shape:
                raise MismatchError(
                    f"{name} gave {value.dtype} {value.shape}, but the client inferred "
                    f"{meta.dtype} {meta.shape}; this is a bug of the drop-in, please report it"
                )
            if value.strides != meta.strides and not same_layout(value, meta):
                value = self._conformed(name, value, meta)
        elif number == array_wire.META_UNKNOWN:
            need_sendable(value.dtype)
            looks = [told(value.dtype), list(value.shape), list(value.strides)]
            self.described.append([handle, *looks])
        elif number != array_wire.META_OBJECT:
            raise RemoteProtocolError("unknown meta", why=str(number))
        self.store(handle, value)

    def _conformed(self, name: str, value: Any, meta: Meta) -> Any:
        if name in _VIEWS:
            raise MismatchError(
                f"{name} gave strides {value.strides}, but the client inferred {meta.strides}; "
                "this is a bug of the drop-in, please report it"
            )
        if name not in self.conformed:
            self.log(f"{name}: results are copied from strides {value.strides} to {meta.strides}")
        self.conformed[name] = self.conformed.get(name, 0) + 1
        return self.backend.adopt(self.backend.conform(value, meta.strides))

    def fail_silently(self, handle: int, error: BaseException) -> None:
        """Store a failure as a result: calls that use it fail, and nothing is reported now."""
        self.store(handle, Failed(error))
        self.failures += 1

    def fail(self, name: str, handles: Any, error: BaseException) -> None:
        """Report a failed call; calls that use its results will fail."""
        for handle in handles:
            self.fail_silently(handle, error)
        if not isinstance(error, DependsOnFailureError):
            kind, message, details = describe_error(name, error)
            self.client.push(array_wire.Kind.FAILED, [self.sequence, kind, message, details])
