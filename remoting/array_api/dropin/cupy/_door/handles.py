"""Numbers that both ends know: handles of arrays, templates of calls, metas of results.

This side gives every number, so it never waits for one. A record that defines a template or a
meta stands in the batch before the first record that uses it. The worker forgets both kinds at a
RESET record; `Handles.epoch` then changes, and every plan registers again at its next call.

The caller of every method holds the sender's lock.
"""

from __future__ import annotations

import itertools
import struct
from typing import Any

from cupy._door import cbor, dtypes, wire
from cupy._door.calls import Plan
from cupy._door.meta import Meta
from cupy._door.transport.sender import Sender

_U32 = struct.Struct("<I")
_U32S = tuple(struct.Struct(f"<{count}I") for count in range(34))


class Handles:
    """The numbers of one session."""

    def __init__(self, sender: Sender, first_device: int) -> None:
        # No two servers have one in common, since handles of streams name them to the program.
        self.counter = itertools.count((first_device << 40) + 1)
        #: Changes when the worker forgets all templates and metas.
        self.epoch: object = object()
        #: Whether the worker knows other element types than numbers.
        self.structures = False
        self._sender = sender
        self._templates: dict[Any, int] = {}
        self._metas: dict[Meta, int] = {}

    def reserve(self, count: int) -> int:
        """Return the first of ``count`` consecutive new handles."""
        if count == 0:
            return 0
        first = next(self.counter)
        for _ in range(count - 1):
            next(self.counter)
        return first

    def begin_anew(self) -> None:
        """Know no template and no meta, because another worker goes on."""
        self._templates, self._metas = {}, {}
        self.epoch = object()

    def register(self, plan: Plan, operation: int) -> bytes:
        """Return the prefix of a plan's calls, after the definitions that it needs."""
        if len(self._templates) >= wire.MAX_TEMPLATES or len(self._metas) >= wire.MAX_METAS - 64:
            record, epoch = _U32.pack(wire.RESET), object()
            # No calls in these lines, as below.
            self._sender.parts += (record,)
            self._templates, self._metas = {}, {}
            self.epoch = epoch
        key = (plan.name, plan.nodes, plan.keywords, plan.outputs)
        template = self._templates.get(key)
        if template is None:
            body = (operation, plan.outputs, plan.nodes, plan.keywords)
            template = self._define(wire.TEMPLATE, wire.FIRST_TEMPLATE, self._templates, key, body)
        metas = [self.meta(meta) for meta in plan.metas]
        prefix = _U32S[1 + len(metas)].pack(template, *metas)
        plan.wire = (self.epoch, prefix)
        return prefix

    def meta(self, meta: Meta | int) -> int:
        """Return the number of a meta, after its definition if it is new."""
        if isinstance(meta, int):
            return meta
        found = self._metas.get(meta)
        if found is None:
            kind = dtypes.told(meta.dtype)
            if meta.dtype.char not in wire.DTYPES and not self.structures:
                raise NotImplementedError(
                    f"arrays of {meta.dtype} need a newer gpupool on the server of this GPU"
                )
            body = (kind, meta.shape, meta.strides)
            found = self._define(wire.META, wire.FIRST_META, self._metas, meta, body)
        return found

    def _define(
        self, code: int, first: int, known: dict[Any, int], key: Any, body: tuple[Any, ...]
    ) -> int:
        """Queue the definition of the next number from ``first`` on; return the number."""
        while True:
            if key in known:
                return known[key]
            number = first + len(known)
            data = cbor.encode([number, *body])
            record = wire.SIZED_RECORD.pack(code, len(data)) + data
            size = len(record)
            if first + len(known) == number:  # else a destructor of garbage has defined one
                break
        sender = self._sender
        # No calls in these lines, so no signal's exception comes between them: the worker hears
        # of every number that is known here.
        known[key] = number
        sender.parts += (record,)
        sender.size += size
        return number
