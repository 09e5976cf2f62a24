"""Callbacks of transforms: CUDA C++ for each element that cuFFT reads or writes."""

from __future__ import annotations

import re
import threading
import warnings
from typing import Any

from cupy._core.dispatch import make
from cupy._core.kernels.raw_kernels import Compiled, checked
from cupy._door.meta import Meta
from cupy.cuda.memory import MemoryPointer

_LOAD = re.compile(r"__device__[^;{}]*?\b([A-Za-z_]\w*)\s*\(\s*(?:const\s+)?void\s*\*")
_POINTER = re.compile(r"\bd_(?:load|store)CallbackPtr\s*=\s*&?\s*([A-Za-z_]\w*)")


class _Local(threading.local):
    def __init__(self) -> None:
        self.manager: Any = None


_local = _Local()


def get_current_callback_manager() -> Any:
    """Return the callbacks of the innermost ``with`` of this thread, or None."""
    return _local.manager


def _name_of(code: str | None, name: str | None, what: str) -> str | None:
    """Return the name of a callback's function; it follows from the source where none is given."""
    if code is None or name is not None:
        return name
    for pattern in (_POINTER, _LOAD):
        found = pattern.search(code)
        if found is not None:
            return found[1]
    raise ValueError(f"the name of the {what} callback is not clear: give cb_{what}_name")


class set_cufft_callbacks:
    """Transforms in a block with this call a function for each element, before and after."""

    identity = "jit"

    def __init__(
        self,
        cb_load: str | None = None,
        cb_store: str | None = None,
        *,
        cb_load_aux_arr: Any = None,
        cb_store_aux_arr: Any = None,
        cb_load_name: str | None = None,
        cb_store_name: str | None = None,
        cb_load_data: Any = None,
        cb_store_data: Any = None,
        cb_ver: str = "legacy",
        nvrtc_options: tuple[str, ...] = (),
    ) -> None:
        if cb_ver not in ("legacy", "jit"):
            raise ValueError('cb_ver must be "legacy" or "jit"')
        if cb_load_aux_arr is not None or cb_store_aux_arr is not None:
            warnings.warn(
                "passing an array as cb_load_aux_arr or cb_store_aux_arr is deprecated: pass "
                "arr.data as cb_load_data or cb_store_data",
                DeprecationWarning,
                stacklevel=2,
            )
        if cb_ver == "legacy":
            warnings.warn(
                'Using the legacy callback is considered deprecated; use cb_ver="jit"',
                DeprecationWarning,
                stacklevel=2,
            )
        if nvrtc_options:
            raise NotImplementedError("options for NVRTC with a callback are not supported")
        self.cb_load, self.cb_store = cb_load, cb_store
        self.cb_load_data = _data(cb_load_data, cb_load_aux_arr, "load")
        self.cb_store_data = _data(cb_store_data, cb_store_aux_arr, "store")
        if not cb_load and not cb_store:
            raise ValueError("need to specify either cb_load or cb_store, or both")
        parts: list[Any] = []
        pairs = ((cb_load, cb_load_name, "load"), (cb_store, cb_store_name, "store"))
        for code, name, what in pairs:
            data: Any = self.cb_load_data if what == "load" else self.cb_store_data
            if data is not None and not code:
                raise ValueError(f"cb_{what}_data is given without cb_{what}")
            source = checked(code) if code else None
            parts += [source, _name_of(source, name, what), None]
            parts[-1] = None if data is None else data._bytes(1)
        self._compiled = Compiled("fft.callbacks", tuple(parts), {})
        self._outer: list[Any] = []

    def __enter__(self) -> set_cufft_callbacks:
        self._outer.append(_local.manager)
        _local.manager = self
        return self

    def __exit__(self, *_error: object) -> None:
        _local.manager = self._outer.pop()

    def transform(self, name: str, args: tuple[Any, ...], meta: Meta) -> Any:
        """Return a transform with these callbacks."""
        session = args[0]._gp_session
        kernel = self._compiled.in_session(session)
        return make.forward("fft.with_callbacks", (kernel, name, *args), {}, meta)


def _data(pointer: Any, array: Any, what: str) -> Any:
    if array is not None and pointer is not None:
        raise ValueError(f"only use cb_{what}_data and not cb_{what}_aux_arr")
    if array is not None:
        pointer = array.data
    if pointer is not None and not isinstance(pointer, MemoryPointer):
        raise TypeError(f"cb_{what}_data must be a MemoryPointer")
    return pointer


def forward(name: str, args: tuple[Any, ...], meta: Meta) -> Any:
    """Send a transform, with the callbacks of this thread if it has some."""
    if _local.manager is not None:
        return _local.manager.transform(name, args, meta)
    return make.forward(f"fft.{name}", args, {}, meta)
