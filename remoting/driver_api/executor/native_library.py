"""The worker's library in C: argument and result types of each function."""

import ctypes
import functools
from types import SimpleNamespace
from typing import Any

from gpupool.remoting.driver_api.build import LAUNCHER, library_dir

TYPES: dict[str, Any] = {
    "-": None, "b": ctypes.c_bool, "i": ctypes.c_int, "u": ctypes.c_uint32, "l": ctypes.c_int64,
    "w": ctypes.c_uint64, "z": ctypes.c_size_t, "p": ctypes.c_void_p, "s": ctypes.c_char_p,
}  # fmt: skip

FUNCTIONS = {
    # launch.c, events.c, wait.c
    "launcher_abi": "i",
    "launcher_new": "p p",
    "launcher_function": "i p w w w w u i",
    "launcher_keep": "i p i w w",
    "launcher_end": "- p i w",
    "launcher_event": "w p w",
    "launcher_select": "- p w i",
    "launcher_share": "- p p i",
    "launcher_gate": "- p p",
    "launcher_tell": "- p p",
    "launcher_run": "z p p z z i p",
    "launcher_idle": "i p p z",
    # downloads.c
    "downloads_begin": "i p w p p",
    "downloads_take": "z p p p p",
    "downloads_sent": "- p u",
    "downloads_await": "i p",
    # turns.c
    "turns_new": "p",
    "turns_put": "i p w l w",
    "turns_get": "z p p z",
    "turns_lose": "z p p z",
    "turns_expect": "p p w",
    "turns_forget": "- p",
    "turns_callback": "- p i p",
    # lanes.c of both ends, line_tls.c, spilled.c
    "lanes_new": "p b i w",
    "lanes_encrypt": "b",
    "lanes_add": "b p i p s",
    "lanes_send": "i p p w",
    "lanes_receive": "i p p w w",
    "lanes_end": "- p",
    "line_accept": "p i p s",
    "line_receive": "l p p w l p",
    "line_send": "i p p w",
    "spilled_serve": "- i",
}
"""By name without its ``gpupool_``: the result type of a function, then its argument types."""


@functools.cache
def load() -> Any | None:
    """Return the functions, or None where the library was not built, or is older."""
    found = SimpleNamespace()
    try:
        library = ctypes.CDLL(str(library_dir() / LAUNCHER))
        for name, row in FUNCTIONS.items():
            function = library[f"gpupool_{name}"]
            function.restype, *function.argtypes = (TYPES[word] for word in row.split())
            setattr(found, name, function)
    except (OSError, AttributeError):
        return None
    return found
