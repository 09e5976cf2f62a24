"""`copyto`: copies into an array, also from another server."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy._core.dispatch import across, arguments, make
from cupy._core.dispatch.arguments import is_array, need
from cupy._door import state


def copyto(dst: object, src: object, casting: str = "same_kind", where: object = None) -> None:
    """Copy values into an array, broadcasting."""
    target = need(dst, "dst")
    with state.on(target._gp_device):
        _copy_to(target, src, casting, where)


def _cast_scalar(value: object, kind: np.dtype, casting: str) -> Any:
    """Return a number of the host as the target's type, where NumPy's rule allows; else as it is.

    A number of NumPy has a type that the rule judges; a number of Python fits where NumPy says so.
    """
    if type(value) in (bool, int, float, complex):
        held = np.empty((), kind)
        np.copyto(held, value, casting=casting)  # type: ignore[arg-type]
        return held[()]
    if not isinstance(value, np.generic):
        return arguments.operand(value)
    if not np.can_cast(value.dtype, kind, casting):  # type: ignore[arg-type]
        raise TypeError(f"Cannot cast {value.dtype} to {kind} in {casting} casting mode")
    return value.astype(kind)


def _copy_to(target: Any, src: Any, casting: str, where: object) -> None:
    if isinstance(src, np.ndarray):
        if src.size != 1:
            raise ValueError("non-scalar numpy.ndarray cannot be used for copyto")
        src = src.reshape(())[()]
    source = _cast_scalar(src, target.dtype, casting)
    if is_array(source) and not np.can_cast(source.dtype, target.dtype, casting):  # type: ignore[arg-type]
        raise TypeError(f"Cannot cast {source.dtype} to {target.dtype} in {casting} casting mode")
    if is_array(source) and source._gp_session is not target._gp_session:
        if where is None and across.fill(target, source):
            return
        source = across.bring(source, target)
    keywords: dict[str, Any] = {}
    if where is not None:
        keywords["where"] = arguments.operand(where)
    if casting != "same_kind":
        keywords["casting"] = casting
    make.in_place("copyto", (target, source), keywords)
