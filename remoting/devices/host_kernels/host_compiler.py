"""Runs a C++ compiler for the kernels of emulated GPUs, within limits.

The worker starts the compiler in its own confinement, in a folder of its private directory that
is removed afterwards. What comes out is loaded into the worker and is a program's native code
there. So it is for processes alone that say so: see ``permit``. A compiler has a limit of processor
time, of real time, of memory and of the size of its files, and a worker keeps so many libraries
and no more. A library is a file in the folder of the user's compiled kernels too, which the host
carries from one worker of a user to the next (``remoting/host/kernel_cache.py``).
"""

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpupool.remoting.devices.base import UnsupportedError
from gpupool.remoting.devices.host_kernels import kernel_source, strict_source
from gpupool.remoting.devices.host_kernels.host_library import Library
from gpupool.remoting.devices.host_kernels.kernel_errors import CompileException
from gpupool.remoting.devices.sources import LOG_MAX

COMPILERS = ("g++", "clang++", "c++")
INCLUDE = Path(__file__).resolve().parent / "include"

CPU_S, WALL_S = 30, 60
MEMORY_MAX = 2 << 30
"""Addresses that a compiler may have; kernels of a thousand lines take a tenth of it."""

FILE_MAX = 64 << 20
"""Characters of a compiler's messages that a program gets."""

LIBRARIES_MAX, LIBRARY_BYTES_MAX = 1024, 512 << 20
"""Limits of one worker's cache; it serves one session."""

_FLAGS = (
    *("-O1", "-fPIC", "-Wall", "-pipe", "-U_FORTIFY_SOURCE", "-fno-exceptions", "-fno-rtti"),
    *("-fno-strict-aliasing", "-fwrapv", "-ffp-contract=off", "-fno-math-errno"),
    # The last: shared memory of a template's kernel is not that of its namesake in another library.
    *("-fno-threadsafe-statics", "-fmax-errors=20", "-fno-gnu-unique"),
)
_CLANG_FLAGS = {"-fmax-errors=20": "-ferror-limit=20", "-fno-gnu-unique": "-fno-rtti"}

# As gpupool_conversions.h says: GCC on x86 asks it, and a conversion takes what it answers.
_CHECKED = ("-fsanitize=float-cast-overflow", "-mno-red-zone")
_CONVERSION = re.compile(r"^\tcvtts[sd]2si([lq])\t.*, (%\w+)$", re.MULTILINE)
_AMENDED = r"""\g<0>
\tpushfq
\tcmp\1\tgpupool_wrong(%rip), \2
\tcmove\1\tgpupool_right(%rip), \2
\tmovq\t$0, gpupool_wrong(%rip)
\tmovq\t$0, gpupool_right(%rip)
\tpopfq"""

# A GPU divides by 0 as well: all bits of quotient and remainder are set then. A processor traps.
_DIVISION = re.compile(r"^\t(i?)div([bwlq])\t(.*)$", re.MULTILINE)
_REGISTERS = {"b": "al ah", "w": "ax dx", "l": "eax edx", "q": "rax rdx"}


def _divided(found: re.Match[str]) -> str:
    size, by = found[2], found[3]
    quotient, rest = _REGISTERS[size].split()
    negative = f"\tcmp{size}\t$-1, {by}\n\tje\t2f\n" if found[1] else ""
    return (
        f"\tcmp{size}\t$0, {by}\n\tje\t1f\n{negative}{found[0]}\n\tjmp\t3f\n"
        f"1:\tmov{size}\t$-1, %{quotient}\n\tmov{size}\t$-1, %{rest}\n\tjmp\t3f\n"
        f"2:\tneg{size}\t%{quotient}\n\tmov{size}\t$0, %{rest}\n3:"
    )


NO_COMPILER = (
    "kernels from source need a C++ compiler on the machine of an emulated GPU, and it has none: "
    "install g++ there (Debian: apt install g++), or clang++, on its PATH"
)


@dataclass(frozen=True, slots=True)
class Compiled:
    """Result of compiling a source."""

    library: Library
    log: str  # of the compiler
    names: tuple[str, ...]  # of its kernels; their places are the numbers of their entries


_refusal: list[str] = ["this process is no worker of emulated GPUs"]
_folders: list[Path] = []


def permit(folder: Path | None = None) -> None:
    """Let this process compile kernels and run them: it holds data of the program alone.

    Args:
        folder: of the kernels that the user's earlier workers compiled, which takes new ones.
    """
    _refusal.clear()
    _folders[:] = [] if folder is None else [folder]


def refuse(reason: str) -> None:
    """Keep this process from compiling kernels; the reason is an error's text."""
    _refusal[:] = [reason]


def find() -> str:
    """Return the path of a compiler that this process may use.

    Raises:
        UnsupportedError: there is none, or it may use none.
    """
    if _refusal:
        raise UnsupportedError(
            f"kernels from source are not compiled for this emulated GPU: {_refusal[0]}"
        )
    if sys.platform != "linux":
        raise UnsupportedError("kernels from source on emulated GPUs need a server with Linux")
    for name in COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return path
    raise UnsupportedError(NO_COMPILER)


class _Libraries:
    """The libraries of this process, by the hash of their source."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.found: dict[str, Compiled] = {}
        self.size = 0

    def room(self) -> None:
        """Raise if no further library may be kept."""
        if len(self.found) >= LIBRARIES_MAX or self.size >= LIBRARY_BYTES_MAX:
            raise UnsupportedError(
                f"a session on an emulated GPU keeps {LIBRARIES_MAX:,} compiled kernels at most"
            )


_libraries = _Libraries()


def compiled(
    source: str, options: Sequence[str], names: Sequence[str] = (), *, every: bool = True
) -> Compiled:
    """Return the library of a source, compiled now or before.

    Args:
        source: C++ with CUDA's names, as `kernel_source.unit` makes it.
        options: for the compiler, of those that `sources.check_options` lets pass.
        names: expressions for kernels, beside those that the source names.
        every: whether kernels of the source are looked for.

    Raises:
        CompileException: it is no such source.
        UnsupportedError: it cannot be compiled here.
    """
    compiler = find()
    texts = (_surroundings(compiler), source, *options, str(every), *names)
    key = hashlib.sha256("\0".join(texts).encode(errors="surrogateescape")).hexdigest()
    with _libraries.lock:
        if key not in _libraries.found:
            _libraries.room()
            made, size = _kept(key) or _made(
                key, compiler, source, _translated(options), list(names), every=every
            )
            _libraries.found[key] = made
            _libraries.size += size
        return _libraries.found[key]


_LONG = {"--define-macro=": "-D", "--undefine-macro=": "-U", "--std=": "-std="}
_STANDARD = re.compile(r"-std=c\+\+[23]\d")
"""A newer standard than C++17, which our own headers need."""


def _translated(options: Sequence[str]) -> list[str]:
    """Return those options that mean something to a C++ compiler."""
    made = ["-std=c++17"]
    for option in options:
        long = next((long for long in _LONG if option.startswith(long)), "")
        short = _LONG.get(long, "") + option.removeprefix(long)
        if short.startswith(("-D", "-U")) or _STANDARD.fullmatch(short):
            made.append(short)
    return made


@functools.cache
def _surroundings(compiler: str) -> str:
    """Return a hash of all that a library depends on beside its source: compiler and headers."""
    path, found = os.path.realpath(compiler), os.stat(compiler)
    made = hashlib.sha256(f"{path} {found.st_size} {found.st_mtime_ns}".encode())
    for part in sorted(INCLUDE.parent.rglob("*.[chp]*")):
        if part.is_file() and part.suffix != ".pyc":
            made.update(part.read_bytes())
    return made.hexdigest()


def _kept(key: str) -> tuple[Compiled, int] | None:
    """Return a library that an earlier worker of this user compiled; None if there is none."""
    for folder in _folders:
        path = folder / f"{key}.so"
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            about = folder.stat()
            if about.st_uid != os.geteuid() or about.st_mode & 0o022:
                continue  # another user may have written what is there
            told = json.loads(path.read_bytes().rpartition(b"\n")[2])
            made = Compiled(Library(path), str(told["log"]), tuple(map(str, told["names"])))
            return made, path.stat().st_size
    return None


def _keep(key: str, library: Path, made: Compiled) -> None:
    """Keep a library for later workers; its log and names stand in a line behind it."""
    told = json.dumps({"log": made.log, "names": made.names}).encode()
    for folder in _folders:
        with contextlib.suppress(OSError):  # it is compiled again then
            folder.mkdir(mode=0o700, exist_ok=True)
            # Several workers may write here: each has its own file until that is whole.
            with tempfile.NamedTemporaryFile(prefix="tmp", dir=folder, delete=False) as unfinished:
                unfinished.write(library.read_bytes() + b"\n" + told)
            os.rename(unfinished.name, folder / f"{key}.so")


def _made(
    key: str, compiler: str, source: str, options: list[str], names: list[str], *, every: bool
) -> tuple[Compiled, int]:
    folder = Path(tempfile.mkdtemp(prefix="kernel-"))
    try:
        (folder / "kernel.in").write_text(source, encoding="utf-8", errors="surrogateescape")
        clang = "clang" in compiler
        checked = not clang and platform.machine() == "x86_64"
        if checked:
            options = ["-DGPUPOOL_CONVERSIONS", *options]
        first = ["-E", "-x", "c++", *options, f"-I{INCLUDE}", "-o", "kernel.ii", "kernel.in"]
        _run(compiler, first, folder)
        expanded = (folder / "kernel.ii").read_text("utf-8", errors="surrogateescape")
        strict = strict_source.OPTION in options
        shared = strict_source.SHARED if strict else "static"
        text = kernel_source.plain(expanded, names, every=every, shared=shared)
        (folder / "kernel.ii").write_text(text, encoding="utf-8", errors="surrogateescape")
        standard = [option for option in options if option.startswith("-std=")]
        flags = [_CLANG_FLAGS.get(flag, flag) for flag in _FLAGS] if clang else [*_FLAGS]
        flags += [*standard, *(_CHECKED if checked else ())]
        flags += strict_source.flags(compiler) if strict else []
        log = _run(compiler, [*flags, "-S", "-x", "c++-cpp-output", "kernel.ii"], folder)
        if checked:
            assembly = folder / "kernel.s"
            text = _DIVISION.sub(_divided, assembly.read_text("latin-1"))
            text = strict_source.amended(text, names) if strict else text
            assembly.write_text(_CONVERSION.sub(_AMENDED, text), "latin-1")
        _run(compiler, ["-shared", "kernel.s", "-o", "kernel.so", "-lm"], folder)
        library = folder / "kernel.so"
        try:
            made = Compiled(Library(library), log, tuple(names))
            _keep(key, library, made)
            return made, library.stat().st_size
        except OSError as error:  # a function that is declared only, or another C library
            text = str(error).replace(f"{folder}/", "")
            raise CompileException(f"what was compiled cannot be loaded: {text}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(compiler: str, arguments: list[str], folder: Path) -> str:
    """Run the compiler in a folder; return its messages.

    Raises:
        CompileException: with its messages, or with the limit that it reached.
    """
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _limited(), "sh", compiler, *arguments],
            cwd=folder,
            env={"PATH": os.environ.get("PATH", os.defpath), "TMPDIR": ".", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            process_group=0,
        )
        try:
            status = process.wait(WALL_S)
        except subprocess.TimeoutExpired:
            raise CompileException(f"the compiler took more than {WALL_S} s") from None
        finally:
            # The compiler has processes of its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    with log.open(encoding="utf-8", errors="replace") as said:
        text = said.read(LOG_MAX).replace(f"{INCLUDE}/", "")  # where gpupool is installed
    if status != 0:
        raise CompileException(
            text.strip()
            or f"the compiler ended with {status}; it has {CPU_S} s and {MEMORY_MAX >> 20:,} MiB"
        )
    return text


def _limited() -> str:
    """Return a shell's text that sets the limits and becomes its arguments."""
    lines: list[str] = []
    wanted = (
        ("-t", resource.RLIMIT_CPU, CPU_S, 1),
        ("-v", resource.RLIMIT_AS, MEMORY_MAX, 1024),
        ("-f", resource.RLIMIT_FSIZE, FILE_MAX, 512),
    )
    for letter, kind, most, unit in wanted:
        _soft, hard = resource.getrlimit(kind)
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        lines.append(f"ulimit {letter} {allowed // unit}")
    return "\n".join([*lines, 'exec "$@"'])
