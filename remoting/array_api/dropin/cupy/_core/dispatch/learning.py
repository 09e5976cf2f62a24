"""Functions that only the worker can describe: a row for each, and one way to call them all.

A row is a function with CuPy's parameters. Their annotations say how an argument travels, and that
of the result says what comes back. The row's body is empty, or checks what the worker does not, or
returns the result of a special case.

The first call of a kind asks the worker, so that a wrong argument is an error of that call. A kind
is the name, the dtypes, shapes and strides of the arrays, and the values of all other arguments,
but of floats the type alone. The session remembers what the results looked like. Later calls of
that kind are sent without waiting. The worker compares each result with what was remembered, so a
wrong memory is an error and never a wrong number.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from cupy._core import convert
from cupy._core.dispatch import arguments, make
from cupy._core.dispatch.arguments import is_array, is_scalar, need
from cupy._door import judged, wire
from cupy._door.calls import Plan, plan_of
from cupy._door.meta import Meta

# Parameters. Any other travels as it is; an array of the host becomes a list.
Array = Any
"""An array of a device, and nothing else."""
Like = Any
"""An array, or a number, a list or an array of the host, from which one is made."""
Value = Any
"""A number, or something from which an array is made."""
Likes = object
"""One array, or a sequence; arrays are made from its items."""
AnyArray = Any
"""An array of a device or of NumPy, but no list."""
Operand = Any
"""An array of a device, or a number."""
Own = Any
"""An array, or an object with a method of the function's name."""
Twin = Any
"""An array. One of NumPy goes to NumPy's function."""
Scalar = Any
"""As it is, but a number or an array of NumPy becomes an array."""
Count = object
"""An integer, but none on a device."""
Counts = object
"""An integer or several, but none on a device."""
Number = object
"""A number, also one on a device, that decides the shape of the result."""
Decides = object
"""As it is; the elements of an array decide whether there is an error, so each call waits."""
Free = object
"""A number with a value that no check reads."""

# Results. Of any other the looks are remembered.
Elements = Any
"""One array that looks as the elements decide."""
Asked = Any
"""Anything; each call waits for it."""

UNKNOWN = object()
"""Stands for the result of a call of an unknown kind."""
_ARRAY = object()
"""The form of a result that is one array."""
_LATER = object()
"""The form of one array that the worker describes when it has run the call."""
_FLOAT, _INT, _FALSE, _TRUE = object(), object(), object(), object()
"""Stand in a key for a float of any value, a free integer, False and True."""
_PLAIN = (str, type(None), type, type(Ellipsis))
_FLOATS = frozenset((float,))


def rows(
    module: dict[str, object],
    prefix: str = "",
    also: str = "",
    special: object = None,
) -> dict[str, Any]:
    """Put functions in the place of a module's rows; return them by name.

    Args:
        module: its ``globals()``.
        prefix: of the operations' names, such as ``linalg.``.
        also: names of functions with the parameters of another, such as ``var:std``.
        special: says whether this thread has set something that the rows' bodies read. With it
            the worker's operations have no names for their parameters.
    """
    table = make.public(module)
    for name, _, like in (pair.partition(":") for pair in also.split()):
        table[name] = table[like]
    made = {
        name: _function(_Row(row, prefix + name, special is not None), special)
        for name, row in table.items()
    }
    module.update(made)
    return made


def _function(entry: _Row, special: Any) -> Any:
    name, free = entry.name, entry.free

    @functools.wraps(entry.row)
    def function(*args: Any, **kwargs: Any) -> Any:
        brief = short(name, args, kwargs, free)
        if not judged.linalg_raises and (special is None or not special()):
            made = recall(brief)
            if made is not UNKNOWN:
                return made
        return entry.call(args, kwargs, brief)

    function.__module__, _, own = f"cupy.{name}".rpartition(".")
    function.__name__ = function.__qualname__ = own
    return function


def short(name: str, args: Any, kwargs: Any, free: int = -1) -> tuple[Any, Any, list[Any]] | None:
    """Return session, kind and packed values of a call on arrays and plain values; else None."""
    ndarray = make.classes.ndarray
    session = None
    key: list[object] = [name, tuple(kwargs) if kwargs else None]
    values: list[Any] = []
    for arg in (*args, *kwargs.values()) if kwargs else args:
        kind = type(arg)
        items = (arg,)
        if kind is tuple or kind is list or kind is slice:
            items = _items(arg)
            key += (kind, len(items))
        for item in items:
            kind = type(item)
            if kind is ndarray:
                if session is not item._gp_session:
                    if session is not None:
                        return None
                    session = item._gp_session
                key.append(item._gp_known or item._gp_meta)
                values.append(item._gp_handle)
            elif kind is int:
                key.append(_INT if len(values) == free else item)  # each before it is one value
                values.append(item)
            elif kind is float:
                key.append(_FLOAT)
                values.append(item)
            elif kind is bool:
                key.append(_TRUE if item else _FALSE)
            elif kind in _PLAIN:
                key.append(item)
            else:
                return None
    return None if session is None else (session, tuple(key), values)


def _items(arg: Any) -> Any:
    """Return the leaves of a sequence or slice, in the order in which a call packs them."""
    if type(arg) is slice:
        return arg.start, arg.stop, arg.step
    if slice not in map(type, arg):
        return arg
    made: list[object] = []
    for item in arg:
        made += (slice, item.start, item.stop, item.step) if type(item) is slice else (item,)
    return made


def recall(brief: Any) -> Any:
    """Send a call of a known kind, and return its result; `UNKNOWN` if the kind is not known."""
    if brief is None:
        return UNKNOWN
    session, kind, values = brief
    found = session.judged.known.get(kind)
    return UNKNOWN if found is None else _send(session, found[0], values + found[2], found[1])


def keep(brief: Any, name: str, args: Any, kwargs: Any, *metas: Any) -> None:
    """Remember a call that the client describes by itself, for `recall`."""
    if brief is not None:
        plan, values = plan_of(brief[0].plans, name, args, kwargs, metas, brief[0])
        form = _LATER if metas == (wire.META_UNKNOWN,) else _ARRAY if metas else None
        _keep(brief, plan, values, form)


def _keep(brief: Any, plan: Plan, values: list[Any], form: object) -> None:
    session, kind, given = brief
    arrays = sum([type(each) is Meta for each in kind])
    same = str(plan.packer.format).count("Q") == 1 + arrays  # none of the arguments became one
    if same and values[: len(given)] == given:  # defaults may follow
        session.judged.accept(kind, (plan, form, values[len(given) :]))


class _Row:
    """One function: the ways of its arguments, and the form of its result."""

    def __init__(self, row: Any, name: str, by_place: bool) -> None:
        code = row.__code__
        self.row, self.name, self.own = row, name, name.rpartition(".")[2]
        self.places = code.co_varnames[: code.co_argcount]
        self.kinds = row.__annotations__
        rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount :]
        self.rest = self.kinds.get(rest[0], "") if code.co_flags & 4 else ""
        self.result = self.kinds.get("return", "")
        forms = {"list[ndarray]": list, "tuple[ndarray, ...]": tuple}
        self.form = forms.get(self.result)
        kinds = [self.kinds.get(place) for place in self.places]
        self.free = kinds.index("Free") if "Free" in kinds else -1
        self.is_twin = "Twin" in kinds
        owner = "Twin" if self.is_twin else "Own"
        self.owner = kinds.index(owner) if owner in kinds else len(kinds)
        self.defaults = dict(zip(reversed(self.places), reversed(row.__defaults__ or ())))
        self.by_place = by_place

    def call(self, args: Any, kwargs: Any, brief: Any) -> Any:
        """Run a call that is not remembered in its short form."""
        at = self.owner
        if at < len(args) and not is_array(args[at]):
            owner = args[at]
            if self.is_twin:
                if isinstance(owner, (np.ndarray, np.generic)):
                    return getattr(np, self.own)(*args, **kwargs)
            elif hasattr(owner, self.own) and not hasattr(owner, "__cupy_get_ndarray__"):
                return getattr(owner, self.own)(*args[:at], *args[at + 1 :], **kwargs)
        made = tuple([self._travelling(at, arg) for at, arg in enumerate(args)])
        named = {key: _travelling(self.kinds.get(key), key, arg) for key, arg in kwargs.items()}
        special = self.row(*made, **named)
        if special is not None:
            return special
        if any(x is not y for x, y in zip((*args, *kwargs.values()), (*made, *named.values()))):
            brief = None
        if self.by_place:
            given = {**self.defaults, **dict(zip(self.places, made)), **named}
            made, named = tuple([given[at] for at in self.places]), {}
        out = named.get("out", dict(zip(self.places, made)).get("out"))
        if out is not None:
            need(out, "out")
        elif self.result == "Elements" and not self._decided(made, named):
            return make.lazy(self.name, made, named)
        result = self._run(made, named, brief)
        return result if out is None else out

    def _travelling(self, at: int, arg: object) -> Any:
        if at >= len(self.places):
            return _travelling(self.rest, "a", arg)
        name = self.places[at]
        if arg is None and name not in self.defaults and self.kinds.get(name) in _ARRAYS:
            return need(arg, name)
        return _travelling(self.kinds.get(name), name, arg)

    def _decided(self, args: Any, kwargs: Any) -> bool:
        """Say whether an array decides by its elements that there is an error."""
        given = {**dict(zip(self.places, args)), **kwargs}
        return any(self.kinds.get(at) == "Decides" and is_array(x) for at, x in given.items())

    def _run(self, args: Any, kwargs: Any, brief: object) -> Any:
        session = make.session_of(*args, *kwargs.values())
        kind = judged.EACH
        if self.result != "Asked" and not self._decided(args, kwargs):
            kind = judged.kind_of(self.name, args, kwargs, free=_FLOATS)
        found = session.judged.known.get(kind)
        if found is not None:
            plan, values = plan_of(session.plans, self.name, args, kwargs, found[0], session)
            return _send(session, plan, values, found[1])
        try:
            answer = session.ask(self.name, args, kwargs, own_error=True)
        except Exception as error:
            session.raise_cause(error)
            raise
        made, metas, form = self._read(answer)
        if not session.warn() and metas is not None and kind is not judged.EACH:
            plan, values = plan_of(session.plans, self.name, args, kwargs, metas, session)
            session.judged.accept(kind, (metas, form))
            if brief is not None:
                _keep(brief, plan, values, form)
        return made

    def _read(self, answer: object) -> tuple[Any, Any, Any]:
        """Return the result of an answer, and its looks and form, or None if it has others."""
        if answer is None:
            return None, (), None
        if not isinstance(answer, (tuple, list)):
            made = answer if self.result == "Asked" else convert.asarray(answer)
            return made, (made._gp_meta,) if is_array(made) else None, _ARRAY
        parts = [convert.asarray(x) if isinstance(x, np.generic) else x for x in answer]
        form = self.form or type(answer)
        metas = tuple([x._gp_meta for x in parts]) if all(map(is_array, parts)) else None
        made = _formed(form, parts)
        return made, metas if metas and 1 < len(metas) <= _RESULTS_MAX else None, form


_LEAVES_MAX = 64
"""Elements of an argument that travel one by one; more are an array."""
_ARRAYS = frozenset(("AnyArray", "Array", "Like", "Operand", "Own", "Twin"))
_RESULTS_MAX = 32
"""Results that one call may have."""


def _travelling(kind: object, name: str, value: Any) -> Any:
    """Return an argument as it travels to a parameter of a kind; TypeError if it cannot."""
    if kind == "bool":
        return bool(value)
    if value is None:
        return value
    if kind == "Count" or (is_array(value) and (kind in ("int", "Counts") or name == "axis")):
        return arguments.integer(value)
    if kind == "Counts":
        return arguments.plain(tuple(value) if hasattr(value, "__next__") else value)
    if kind == "Number" and hasattr(value, "item"):
        value = value.item()
    if is_array(value):
        return value
    if name == "axis" and isinstance(value, bool):
        return int(value)
    if kind in ("Array", "Own", "Twin") or (kind == "AnyArray" and not hasattr(value, "__array__")):
        return need(value, name)
    if kind in ("Like", "AnyArray") or (kind == "Value" and not is_scalar(value)):
        return convert.asarray(value)
    if kind == "Operand":
        return convert.asarray(arguments.operand(value))
    if kind == "Number" and isinstance(value, float):
        return int(value) if value.is_integer() else np.float64(value)  # known by its value
    if kind == "Scalar" and isinstance(value, (int, float, complex, np.generic, np.ndarray)):
        return convert.asarray(value)
    if kind == "Likes":
        return tuple([convert.asarray(each) for each in value])
    if isinstance(value, np.ndarray):
        keeps = kind != "Decides" or value.dtype.char in "?dlqD"  # the types of Python's numbers
        is_list = value.size <= _LEAVES_MAX and keeps
        value = value.tolist() if is_list else convert.asarray(value)
    if isinstance(value, (list, tuple)):
        if len(value) > _LEAVES_MAX:
            return convert.asarray(value)
        made = [_travelling(kind, "", item) for item in value]
        return made if isinstance(value, list) and name not in ("axis", "axes") else tuple(made)
    return convert.array(value) if hasattr(value, "__cupy_get_ndarray__") else value


def _formed(form: Any, parts: list[Any]) -> Any:
    return parts if form is list else tuple(parts) if form is tuple else form(*parts)


def _send(session: Any, plan: Plan, values: list[Any], form: object) -> Any:
    """Send a call of a known kind; return its results."""
    if form is _LATER:
        array = make.result(session, 0, None, 0)
        array._gp_device = session.emit(plan, session.expect(plan, values, array))
        return array
    count = plan.outputs
    handle = next(session.handles) if count == 1 else session.reserve(count) if count else 0
    device = session.emit(plan, plan.packer.pack(handle, *values))
    if form is _ARRAY:
        return make.plain(session, handle, plan.metas[0], device)
    if form is None:
        return None
    parts = [make.plain(session, handle + at, meta, device) for at, meta in enumerate(plan.metas)]
    return _formed(form, parts)
