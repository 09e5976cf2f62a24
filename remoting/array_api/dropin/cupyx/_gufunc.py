"""Generalized universal functions: a function of whole arrays, applied along the other axes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from cupy._core.dispatch import make
from cupy._core.dispatch.arguments import axes_of, need, normalize_order
from cupy._core.manipulation import broadcast_to
from cupy._core.ufunc import broadcast
from cupy._door.older import zip_strict

_OPERAND = re.compile(r"\(([^()]*)\)")
_NAME = re.compile(r"(\w+)(\?|\|1)?")
_FORM = re.compile(r"(\([^()]*\)(,\([^()]*\))*)?->\([^()]*\)(,\([^()]*\))*")
SKIPPED = -1


class Dimension(NamedTuple):
    """One core dimension: its name, and whether it may be left out, or have the length 1."""

    name: str
    optional: bool
    broadcastable: bool


def _dimensions(text: str) -> tuple[Dimension, ...]:
    made: list[Dimension] = []
    for part in text.removesuffix(",").split(",") if text else []:
        found = _NAME.fullmatch(part)
        if found is None:
            raise ValueError(f"no name of a core dimension: {part!r}")
        made.append(Dimension(found[1], found[2] == "?", found[2] == "|1"))
    return tuple(made)


def parse(signature: Any) -> tuple[list[tuple[Dimension, ...]], list[tuple[Dimension, ...]]]:
    """Return the core dimensions of the inputs and of the outputs that a signature names."""
    if not isinstance(signature, str):
        raise TypeError("the signature of a generalized ufunc is a text")
    text = signature.replace(" ", "")
    if not _FORM.fullmatch(text):
        raise ValueError(f"Not a valid gufunc signature: {signature}")
    left, right = text.split("->")
    inputs = [_dimensions(part) for part in _OPERAND.findall(left)]
    outputs = [_dimensions(part) for part in _OPERAND.findall(right)]
    if any(each.broadcastable for operand in outputs for each in operand):
        raise ValueError("a core dimension of an output cannot be |1")
    return inputs, outputs


class _Loop(NamedTuple):
    inputs: tuple[np.dtype[Any], ...]
    outputs: tuple[np.dtype[Any], ...]
    function: Callable[..., Any]

    @property
    def text(self) -> str:
        return "->".join("".join(kind.char for kind in side) for side in self[:2])


class GeneralizedUFunc:
    """A function of whole arrays that is applied along the axes that its signature does not name.

    Args:
        func: takes the inputs, returns the output.
        signature: as in NumPy, such as ``(i,j),(j,k)->(i,k)``.
        name: of the function; that of ``func`` by default.
        doc: its documentation; that of ``func`` by default.
        supports_batched: whether ``func`` takes all axes at once.
        supports_out: whether it takes the keyword ``out``.
        signatures: texts such as ``dd->d``, or pairs of one and a function for those types.
        try_fastcall_func: is asked first; may return NotImplemented.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        signature: str,
        *,
        name: str | None = None,
        doc: str | None = None,
        supports_batched: bool = False,
        supports_out: bool = False,
        signatures: Any = None,
        try_fastcall_func: Any = None,
    ) -> None:
        self.__name__ = func.__name__ if name is None else name
        self.__doc__ = func.__doc__ if doc is None else doc
        self._function, self._signature = func, signature
        self._batched, self._takes_out = supports_batched, supports_out
        self._fast = try_fastcall_func
        self._inputs, self._outputs = parse(signature)
        self._names = {each.name for operand in (*self._inputs, *self._outputs) for each in operand}
        self._loops = [self._loop(each) for each in signatures or ()]

    def _loop(self, given: Any) -> _Loop:
        text, function = given if isinstance(given, tuple) else (given, self._function)
        sides = text.replace(" ", "").split("->")
        counts = (len(self._inputs), len(self._outputs))
        if len(sides) != 2 or tuple(map(len, sides)) != counts:
            raise ValueError(f"the types {text!r} are not those of {self._signature}")
        kinds = [tuple([np.dtype(letter) for letter in side]) for side in sides]
        return _Loop(kinds[0], kinds[1], function)

    # --- types ----------------------------------------------------------------------------------

    def _asked_loop(self, signature: Any) -> _Loop:
        if isinstance(signature, tuple):
            count = len(self._inputs)
            if len(signature) != count + len(self._outputs) or len(signature) == 1:
                raise TypeError(f"a type for each operand of ufunc {self.__name__} is needed")
            letters = [np.dtype(kind).char for kind in signature]
            signature = "".join(letters[:count]) + "->" + "".join(letters[count:])
        for loop in self._loops:
            of_outputs = all(kind.char == signature for kind in loop.outputs)
            if loop.text == signature or (len(signature) == 1 and of_outputs):
                return loop
        raise TypeError(
            f"No loop matching the specified signature and casting was found for {self.__name__}"
        )

    def _find_loop(self, args: list[Any], dtype: Any, casting: str, signature: Any) -> Any:
        if signature is not None:
            return self._asked_loop(signature)
        for loop in self._loops:
            if dtype is not None:
                if all(kind == dtype for kind in loop.outputs):
                    return loop
            elif all(
                np.can_cast(arg.dtype, kind, casting)  # type: ignore[arg-type]
                for arg, kind in zip(args, loop.inputs)
            ):
                return loop
        return None

    def _typed(
        self, args: list[Any], dtype: Any, casting: str, signature: Any
    ) -> tuple[list[Any], np.dtype[Any], Callable[..., Any]]:
        """Return the inputs as the loop takes them, the type of the output and the function."""
        loop = self._find_loop(args, dtype, casting, signature)
        if loop is None:
            if dtype is not None:
                return args, np.dtype(dtype), self._function
            return args, np.result_type(*[arg.dtype for arg in args]), self._function
        for at, (arg, kind) in enumerate(zip(args, loop.inputs)):
            _check_cast(arg.dtype, kind, casting, f"ufunc {self.__name__} input {at}")
        cast = [arg.astype(kind, copy=False) for arg, kind in zip(args, loop.inputs)]
        return cast, loop.outputs[0], loop.function

    # --- axes -----------------------------------------------------------------------------------

    def _axes(self, axes: Any, axis: Any, keepdims: bool) -> tuple[list[Any], list[Any], int]:
        """Return the core axes of inputs and outputs, and how many outputs keep."""
        kept = 0
        if axes is not None and axis is not None:
            raise ValueError("Only one of `axis` or `axes` keyword arguments should be given")
        if keepdims:
            counts = {len(operand) for operand in self._inputs}
            if len(counts) != 1 or any(self._outputs):
                raise ValueError(
                    "`keepdims` is for inputs with as many core dimensions, and scalar outputs"
                )
            kept = counts.pop()
        operands = [*self._inputs, *self._outputs]
        if axis is not None:
            if not isinstance(axis, int) or len(self._names) != 1:
                raise ValueError("`axis` is an integer, and for a single shared core dimension")
            made = [(axis,) if operand else () for operand in operands]
            if kept:
                made[len(self._inputs) :] = [(axis,)] * len(self._outputs)
        elif axes is None:
            made = [None] * len(operands)
        elif not isinstance(axes, list):
            raise ValueError("`axes` has to be of type list")
        else:
            made = [(each,) if isinstance(each, int) else each for each in axes]
            if len(made) == len(self._inputs) and not any(self._outputs):
                made += [None] * len(self._outputs)
        if len(made) != len(operands):
            raise ValueError("`axes` has not one entry for each operand of the signature")
        return made[: len(self._inputs)], made[len(self._inputs) :], kept

    def _order(self, at: int, axes: Any, ndim: int, count: int) -> tuple[int, ...] | None:
        """Return the order of axes that has the core ones last; None if they are there already."""
        if axes is None:
            if ndim < count:
                raise ValueError(f"Argument {at} has too few dimensions.")
            return None
        if len(axes) != count:
            raise np.exceptions.AxisError(f"argument {at} has {count} core axes, not {len(axes)}")
        core = axes_of(tuple(axes), ndim)
        if core == tuple(range(ndim - count, ndim)):
            return None
        return (*[each for each in range(ndim) if each not in core], *core)

    def _set_length(self, known: dict[str, int], at: int, each: Dimension, length: int) -> None:
        before = known.get(each.name)
        if each.broadcastable and length == 1:
            return
        if before is None:
            known[each.name] = length
        elif before != length:
            if SKIPPED in (before, length):
                raise ValueError("An optional core dimension is skipped in all inputs or in none.")
            raise ValueError(
                f"Input operand {at} has a mismatch in its core dimension {each.name} of "
                f"{self._signature}: {before} and {length}"
            )

    def _take_apart(self, args: list[Any], axes: list[Any]) -> tuple[tuple[int, ...], Any]:
        """Put the core axes of the inputs last; return the common other axes, and the lengths."""
        known: dict[str, int] = {}
        outer: list[tuple[int, ...]] = []
        for at, (arg, core, operand) in enumerate(zip_strict(args, axes, self._inputs)):
            least = sum(not each.optional for each in operand)
            count = max(least, min(arg.ndim, len(operand)))
            order = self._order(at, core, arg.ndim, count)
            made = arg if order is None else arg.transpose(order)
            places = made.ndim - count
            lengths = list(made.shape[places:])
            skipped = len(operand) - count
            shape: list[int] = []
            for each in operand:
                if each.optional and skipped:
                    skipped -= 1
                    self._set_length(known, at, each, SKIPPED)
                    shape.append(1)
                else:
                    shape.append(lengths.pop(0))
                    self._set_length(known, at, each, shape[-1])
            outer.append(made.shape[:places])
            if len(shape) != count:
                made = made.reshape((*made.shape[:places], *shape))
            args[at] = made
        common = broadcast(*outer)
        spread: Any = broadcast_to
        for at, (arg, own) in enumerate(zip_strict(args, outer)):
            if own != common:
                args[at] = spread(arg, common + arg.shape[len(own) :])
        return common, known

    def _result(self, at: int, out: Any, axes: Any, looks: Any) -> tuple[Any, Any]:
        """Return one output as the program sees it, and as the function fills it."""
        outer, known, kept, kind, order, casting = looks
        lengths = [known.get(each.name, 1) for each in self._outputs[at]]
        core = [1] * kept if kept else [each for each in lengths if each != SKIPPED]
        shape = (*outer, *core)
        moved = self._order(len(self._inputs) + at, axes, len(shape), len(core))
        back = None if moved is None else tuple(np.argsort(moved).tolist())
        seen = shape if back is None else tuple([shape[each] for each in back])
        if out is None:
            out = make.empty(seen, kind, order=order)
        else:
            if out.shape != seen:
                raise ValueError(f"Output operand {at} has shape {out.shape}, expected {seen}")
            _check_cast(kind, out.dtype, casting, f"output {at}")
        filled = out if moved is None else out.transpose(moved)
        if kept:
            filled = filled[(..., *[0] * kept)]
        elif SKIPPED in lengths:
            filled = filled.reshape((*outer, *[1 if each == SKIPPED else each for each in lengths]))
        return out, filled

    # --- the call -------------------------------------------------------------------------------

    def _apply(self, function: Any, outer: tuple[int, ...], args: Any, outs: Any) -> None:
        if outer and not self._batched:
            for at in range(outer[0]):
                parts = [arg[at] for arg in args]
                self._apply(function, outer[1:], parts, [out[at] for out in outs])
        elif self._takes_out:
            function(*args, out=outs[0] if len(outs) == 1 else tuple(outs))
        else:
            made = function(*args)
            made = made if isinstance(made, tuple) else (made,)
            for out, value in zip(outs, made):
                out[...] = value

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Apply it; ``axes``, ``axis``, ``keepdims``, ``casting`` and so on are as in NumPy."""
        if self._fast is not None:
            found = self._fast(*args, out=out, **kwargs)
            if found is not NotImplemented:
                return found
        return self._call(args, out, **kwargs)

    def _call(
        self,
        args: tuple[Any, ...],
        out: Any,
        *,
        axes: Any = None,
        axis: Any = None,
        keepdims: bool = False,
        casting: str = "same_kind",
        dtype: Any = None,
        signature: Any = None,
        order: str = "K",
    ) -> Any:
        if len(self._outputs) != 1:
            raise NotImplementedError("a generalized ufunc with several outputs is not supported")
        if len(args) != len(self._inputs):
            raise ValueError(f"{self.__name__} takes {len(self._inputs)} arrays, not {len(args)}")
        outs = out if isinstance(out, tuple) else (out,)
        if not all(each is None or isinstance(each, make.classes.ndarray) for each in outs):
            raise TypeError("`out` must be a tuple or `cupy.ndarray`")
        inputs, kind, function = self._typed(list(map(need, args)), dtype, casting, signature)
        letter = normalize_order(order)
        if letter == "A":
            letter = "F" if all(arg.flags.fnc for arg in inputs) else "C"
        letter = "F" if letter == "F" else "C"
        ins, outputs, kept = self._axes(axes, axis, keepdims)
        outer, known = self._take_apart(inputs, ins)
        looks = (outer, known, kept, kind, letter, casting)
        seen, filled = self._result(0, outs[0], outputs[0], looks)
        self._apply(function, outer, inputs, [filled])
        return seen


def _check_cast(source: Any, target: Any, casting: str, what: str) -> None:
    if not np.can_cast(source, target, casting):  # type: ignore[arg-type]
        raise TypeError(
            f"Cannot cast {what} from {source!r} to {target!r} according to the rule {casting!r}"
        )
