"""Kernels of strict mode: the compiler's flags, and the changes of its assembly.

The calls that the compiler has put before accesses, see ``include/gpupool_strict.h``, stay where a
program's source or a header of CuPy stands. Each call gets the line of the source.
"""

import platform
import re
from collections import Counter
from collections.abc import Sequence

from gpupool.remoting.devices.base import UnsupportedError
from gpupool.remoting.devices.host_kernels.kernel_errors import CompileException
from gpupool.remoting.devices.host_kernels.kernel_source import FILE, SHARED_MAX

OPTION = "-DGPUPOOL_STRICT"
"""The option of a strict library, by which it has another place among those that are kept."""

SHARED = "static thread_local"
"""Variables in shared memory lie by themselves so, and their addresses are known."""

_FLAGS = (
    *("-g1", "-fsanitize=thread", "--param=tsan-distinguish-volatile=1"),
    *("--param=tsan-instrument-func-entry-exit=0", "-fno-builtin-memset"),
    *("-fno-builtin-memcpy", "-fno-builtin-memmove"),
)
_OWN = re.compile(r"gpupool_(?:grid|threads|strict|conversions)\.h$")
_FILE = re.compile(r'\t\.file (\d+) (?:"[^"]*" )?"([^"]*)"')
_LOCATION = re.compile(r"\t\.loc (\d+) (\d+) ")
_CALL = re.compile(r"\tcall\t(\w+)")
_COPIES = re.compile(r"\b(?:memcpy|memmove)(?:@PLT)?$")
# The linker leaves shared memory in the order of this file: the first and the last variable of it.
_SHARED = '\t.section\t.tbss{0},"awT",@nobits\ngpupool_shared{1}:\n\t.zero\t8'
_PLACE = re.compile(r"\tleaq\t_ZL(?:8block(?:Dim|Idx)|7gridDim|9threadIdx)\b")
_GUARD = re.compile(r"^(_ZGV\w+|__tls_guard):$", re.MULTILINE)
_VARIABLE = re.compile(r"^\t\.type\t(_ZZ\w+), @object\n\t\.size\t\1, (\d+)$", re.MULTILINE)
_THREAD_LOCAL = re.compile(
    r"^\t\.section\t\.tbss.*?(?=^\t\.(?:section|text|data|bss)\b|\Z)", re.M | re.S
)


def flags(compiler: str) -> list[str]:
    """Return the compiler's further flags.

    Raises:
        UnsupportedError: it is not GCC, or the processor has another assembly.
    """
    if "clang" in compiler or platform.machine() != "x86_64":
        raise UnsupportedError(
            "kernels in strict mode need g++ on a server with an x86-64 processor"
        )
    return [*_FLAGS]


def amended(assembly: str, names: Sequence[str]) -> str:
    """Return the assembly with the calls of the program's own accesses, and their lines.

    Args:
        assembly: the compiler's.
        names: of the kernels, in the order of their entries.

    Raises:
        CompileException: a kernel has more shared memory than a card.
    """
    sizes = _shared_sizes(assembly, names)
    files = dict(_FILE.findall(assembly))
    mine = {number for number, name in files.items() if name == FILE}
    own = {number for number, name in files.items() if _OWN.search(name)}
    made, file, line, loaded = [_SHARED.format("", "")], "", "", ""
    for text in assembly.splitlines():
        location = _LOCATION.match(text)
        call = _CALL.match(text)
        if location:
            file = location[1]
            line = location[2] if file in mine else line
        elif text[:1].isalpha() or text[:1] == "_":  # another function begins
            line = ""
        elif call:
            hook = call[1].startswith("__tsan_") and call[1] != "__tsan_init"
            if hook and (file in own or _PLACE.match(loaded)):
                continue
            if line:
                made.append(f"\tmovl\t${line}, gpupool_line(%rip)")
            if file not in own:
                text = _COPIES.sub("gpupool_memmove", text)
                text = re.sub(r"\bmemset(?:@PLT)?$", "gpupool_memset", text)
        if not location and "%rdi" in text:
            loaded = text
        made.append(text)
    return "\n".join((*made, *sizes, ""))


SHARED_NAME = "gpupool_shared_{}"
"""By a kernel's place: the bytes of its static shared memory."""


def _shared_sizes(assembly: str, names: Sequence[str]) -> list[str]:
    """Return variables that say how much static shared memory each kernel has by itself.

    Before them: where guards stand, which say whether a variable was constructed.
    """
    sizes: Counter[str] = Counter()
    for section in _THREAD_LOCAL.findall(assembly):
        for name, size in _VARIABLE.findall(section):
            sizes[name.rpartition("E")[0]] += int(size)
    for name, size in sizes.items():
        if size > SHARED_MAX:
            raise CompileException(
                f"strict: ptxas error: Entry function {name[3:]!r} uses too much shared data "
                f"({size:#x} bytes, {SHARED_MAX:#x} max)"
            )
    made = [_SHARED.format(".end", "_end"), "\t.data", "\t.align\t8", "gpupool_guards:"]
    for section in _THREAD_LOCAL.findall(assembly):
        made += [f"\t.quad\t{guard}@dtpoff" for guard in _GUARD.findall(section)]
    made.append("\t.quad\t-1")
    for place, name in enumerate(names):
        symbol = re.compile(rf"_ZZ{len(name)}{re.escape(name)}(?:\W|[A-Z]|$)")
        size = max((size for found, size in sizes.items() if symbol.match(found)), default=0)
        label = SHARED_NAME.format(place)
        made += [f"\t.globl\t{label}", f"{label}:", f"\t.long\t{size}"]
    return made
