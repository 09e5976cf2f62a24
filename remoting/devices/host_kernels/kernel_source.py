"""CUDA C++ as plain C++: replacements beyond macros, in a source after its directives.

The names of CUDA are macros, types and functions of ``include/gpupool_cuda.h``. Three things are
not: ``__global__`` says which functions are kernels, ``__shared__`` has another meaning behind
``extern``, and a kernel's parameters have types that only the compiler knows, so that each kernel
gets an entry that takes its arguments from memory.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from gpupool.remoting.devices.host_kernels.kernel_errors import CompileException

THREADS_MAX, SHARED_MAX = 1024, 48 << 10
"""Threads of a block and bytes of its shared memory, as in gpupool_grid.h."""

FILE = "kernel.cu"
"""The name of a program's source in messages."""

_BEGIN = re.compile(rf'^# \d+ "{re.escape(FILE)}"', re.MULTILINE)
_TEXTS = re.compile(r'"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'')
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)")
_MARKER = re.compile(r"^#.*$", re.MULTILINE)
"""Where a line came from; such lines also stand behind macros within a declaration."""

_EXTERN_SHARED = re.compile(r"\bextern\b[^;{}=]*?\b__shared__\b[^;{}=]*?\[\s*\]\s*;")
_DECLARED = re.compile(r"^(.*?)([A-Za-z_]\w*)\s*\[\s*\]\s*;$", re.DOTALL)
_SHARED = re.compile(r"(?:\bstatic\s+)?\b__shared__\b(?:\s+static\b)?")
_PLACES = re.compile(r'\bextern\s*"\s*"\s*\{|[{};]|\b__global__\b')
_BOUNDS = re.compile(r"\b__launch_bounds__\s*\(((?:[^()]|\([^()]*\))*)\)")
_BOUNDED = re.compile(r"\b__launch_bounds__\s*\(\s*(\d+)\b[^(]*?([A-Za-z_]\w*)\s*\(")
_NAME = re.compile(r"([A-Za-z_]\w*)\s*\(")

_INCLUDE = re.compile(r'^([ \t]*#[ \t]*include[ \t]*)[<"](?:cuda/std/)?([\w./]+)[>"]', re.MULTILINE)
_ALWAYS = """
    assert.h cassert cuda.h cuda_runtime.h cuda_runtime_api.h device_atomic_functions.h
    device_launch_parameters.h math_constants.h sm_30_intrinsics.h vector_functions.h vector_types.h
    math.h cmath stdint.h cstdint stdio.h cstdio stdlib.h cstdlib
    cupy/atomics.cuh cupy/math_constants.h cupy/hip_workaround.cuh
"""
"""Headers with names that are always there."""

_INSTEAD = {
    "cupy/cuComplex_bridge.h": "cuComplex.h",
    "cupy/float16.cuh": "cuda_fp16.h",
}
"""Headers replaced by another with their names. CUDA's of the C++ library are the compiler's
own."""


def _included(found: re.Match[str]) -> str:
    name = found[2]
    return "" if name in _ALWAYS.split() else f"{found[1]}<{_INSTEAD.get(name, name)}>"


def unit(source: str, headers: Sequence[str] = ()) -> str:
    """Return the compiler's input: CUDA's names, then the program's source."""
    names = ["gpupool_cuda.h", *(_INSTEAD.get(name, name) for name in headers)]
    lines = [f"#include <{name}>" for name in names]
    return "\n".join((*lines, f'#line 1 "{FILE}"', _INCLUDE.sub(_included, source), ""))


ENTRY, COUNT, BOUND = "gpupool_entry_{}", "gpupool_count_{}", "gpupool_bound_{}"
"""By a kernel's place: its entry, the number of its parameters, the most threads of its block."""


def plain(expanded: str, names: list[str], *, every: bool = True, shared: str = "static") -> str:
    """Return plain C++ for a source after its directives have been carried out.

    Args:
        expanded: the source.
        names: expressions for kernels, as ``scale<float>``; those of the source are added to them,
            and the place of each is the number of its entry.
        every: whether kernels of the source are looked for.
        shared: the storage class in the place of ``__shared__``.

    Raises:
        CompileException: kernels launch kernels.
    """
    found = _BEGIN.search(expanded)
    start = found.start() if found else 0
    head, body = expanded[:start], expanded[start:]
    masked = _masked(body)
    if "<<<" in masked:
        raise CompileException(
            f"{FILE}: a kernel that launches kernels (<<<...>>>) needs a real GPU"
        )
    if every:
        names += [name for name in kernels(_BOUNDS.sub("", masked)) if name not in names]
    body = _EXTERN_SHARED.sub(_dynamic, body)
    body = re.sub(r"\b__global__\b", "", _SHARED.sub(shared, body))
    bounds = {name: min(int(most), THREADS_MAX) for most, name in _BOUNDED.findall(masked)}
    return head + _BOUNDS.sub("", body) + entries(names, bounds)


def entries(names: Sequence[str], bounds: Mapping[str, int]) -> str:
    """Return functions that call kernels with arguments in memory; `bounds` are of launches."""
    # The 3 says that the compiler is not to warn of it.
    lines = ['\n# 1 "the list of kernels" 3', 'extern "C" {']
    for place, name in enumerate(names):
        lines += [
            f"extern const int {COUNT.format(place)} = gpupool::parameters(&{name});",
            f"extern const int {BOUND.format(place)} = {bounds.get(name, THREADS_MAX)};",
            f"void {ENTRY.format(place)}(void **arguments) {{",
            f"  gpupool::call(&{name}, arguments);",
            "}",
        ]
    return "\n".join((*lines, "}", ""))


def kernels(masked: str) -> list[str]:
    """Return the names of kernels that have a plain name: no templates, none in a namespace.

    Args:
        masked: a source without the contents of its texts.
    """
    outer: list[bool] = []  # for each open brace, whether it only says that names are C's
    found: Counter[str] = Counter()
    begun = 0
    for place in _PLACES.finditer(masked):
        text = place[0]
        if text == "__global__":
            declared = masked[begun : place.start()]
            if all(outer) and not re.search(r"\btemplate\b", declared):
                name, defined = _declared_name(masked[place.end() :])
                if name:
                    found[name] += defined
            continue
        begun = place.end()
        if text == "}":
            del outer[-1:]
        elif text != ";":
            outer.append(text != "{")
    return [name for name, definitions in found.items() if definitions <= 1]


def _declared_name(rest: str) -> tuple[str, int]:
    """Return the name of the function that is declared here, and 1 if it is defined."""
    end = re.search(r"[;{]", rest)
    if end is None:
        return "", 0
    found = _NAME.search(_ATTRIBUTE.sub(" ", _MARKER.sub(" ", rest[: end.start()])))
    return (found[1] if found else ""), int(end[0] == "{")


def _masked(text: str) -> str:
    """Return a source without the contents of its texts, each as long as before."""
    return _TEXTS.sub(lambda found: found[0][0] + " " * (len(found[0]) - 2) + found[0][-1], text)


def _dynamic(found: re.Match[str]) -> str:
    """Return a pointer in place of an array of dynamic shared memory."""
    text = _ATTRIBUTE.sub(" ", _MARKER.sub(" ", found[0]))
    words = re.sub(r"\b(?:extern|__shared__|static)\b", " ", text)
    declared = _DECLARED.match(words.strip())
    if declared is None:
        return found[0]
    kind, name = " ".join(declared[1].split()), declared[2]
    memory = f"reinterpret_cast<{kind} *>(gpupool::dynamic_shared)"
    marker = "\n".join(["", *_MARKER.findall(found[0])[-1:], ""]) if "\n" in found[0] else ""
    return f"{kind} *const {name} = {memory};{marker}"
