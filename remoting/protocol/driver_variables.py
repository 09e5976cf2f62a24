"""Variables of a program's environment that the driver reads on the server, when CUDA starts.

A program may set any variable; these reach its worker, which serves no other program. The CUDA
door's library sends the same names (``remoting/driver_api/shim/wire/link.c``).
"""

import re
from collections.abc import Mapping, Sequence

ALLOWED = (
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_MAX_COPY_CONNECTIONS"),
    *("CUDA_SCALE_LAUNCH_QUEUES", "CUDA_MODULE_DATA_LOADING", "CUDA_BINARY_LOADER_THREAD_COUNT"),
    *("CUDA_GRAPHS_USE_NODE_PRIORITY", "CUDA_AUTO_BOOST", "CUDA_CACHE_DISABLE"),
    *("CUDA_DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT", "CUDA_DISABLE_PERF_BOOST"),
    *("CUDA_MODULE_LOADING", "CUDA_FORCE_PTX_JIT", "CUDA_FORCE_JIT", "CUDA_DISABLE_PTX_JIT"),
    *("CUDA_DISABLE_JIT", "CUDA_FORCE_PRELOAD_LIBRARIES", "CUDA_DEVICE_DEFAULT_STACK_SIZE_MAX"),
)
"""None of them names a file, a device or a process of the server."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Of the array door: numbers of the lease's devices on one server, as the client has read it."""

LIBRARIES = ("CUPY_TF32", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG")
"""Variables of the array door, for libraries that run on the server."""

VALUE_LENGTH_MAX = 32

_VALUE = re.compile(rf"[A-Za-z0-9_.:+-]{{1,{VALUE_LENGTH_MAX}}}", re.ASCII)
_NUMBERS = re.compile(r"[0-9]{1,3}(?:,[0-9]{1,3}){0,255}", re.ASCII)


def allowed_environment(given: Mapping[str, object]) -> dict[str, str]:
    """Return the allowed variables of ``given``, a program's environment."""
    found = ((name, given.get(name)) for name in (*ALLOWED, *LIBRARIES))
    return {n: value for n, value in found if isinstance(value, str) and _VALUE.fullmatch(value)}


def allowed_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return the same of a client's settings, which may also choose devices."""
    chosen = {VISIBLE: given[VISIBLE]} if _NUMBERS.fullmatch(given.get(VISIBLE, "")) else {}
    return allowed_environment(given) | chosen


KINDS = ("GPU-", "MIG-", "EMU-")
"""Beginnings of names: of GPUs, of their parts, and of emulated ones, which CUDA does not know."""


def visible_devices(visible: str, names: Sequence[str]) -> list[int] | None:
    """Return the numbers of the devices that a list names, in its order; None for one twice."""
    words = [word.rstrip() for word in visible.split(",")]
    kind = _kind(words[0])
    chosen: list[int] = []
    for word in words:
        at = _named(word, names) if kind else _numbered(word, len(names))
        if at is None or _kind(word) != kind:
            break
        if at in chosen:
            return None
        chosen.append(at)
    return chosen


def _kind(word: str) -> str:
    return found if (found := word[:4].upper()) in KINDS else ""


def _numbered(word: str, count: int) -> int | None:
    digits = re.match(r"\s*[+-]?[0-9]{1,9}", word)
    return int(digits[0]) if digits and 0 <= int(digits[0]) < count else None


def _named(word: str, names: Sequence[str]) -> int | None:
    fits = [at for at, name in enumerate(names) if name.lower().startswith(word.lower())]
    return fits[0] if len(fits) == 1 and len(word) > 4 else None
