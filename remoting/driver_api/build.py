"""Build the door's ``.so`` files and the worker's launcher, with any C compiler.

Run ``python -m gpupool.remoting.driver_api.build [FOLDER [FLAG...]]``; the flags, such as those of
a sanitizer, are for the door's library alone. The installation does the same through setup.py;
tests and editable checkouts call ``build``.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = tuple(sorted((HERE / "shim").rglob("*.c")))
# Both ends of a session have the same code for the connections of large copies.
SHARED_BY_ENDS = ("base/say.c", "base/hash.c", "wire/tls.c", "wire/lanes.c")
NATIVE = (
    *sorted((HERE / "native").glob("*.c")),
    *(HERE / "shim" / name for name in SHARED_BY_ENDS),
)
HEADERS = HERE / "shim" / "include"
HARDENING = ("-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3")
COMPILE = (
    *("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"),
    *HARDENING,
)
# Threads run in it and forks call it, so what was loaded stays, whatever a program closes.
SHARED = ("-shared", "-pthread", "-Wl,--no-undefined", "-Wl,-z,relro,-z,now,-z,noexecstack")
LINK = (*SHARED, "-Wl,-soname,libcuda.so.1", "-Wl,-z,nodelete")
LIBRARIES = ("-ldl",)
LIBRARY = "libcuda.so.1"
LAUNCHER = "gpupool_launch.so"
NVML = "libnvidia-ml.so.1"
NCCL = "libnccl.so.2"
ABSENT = {f"lib{path.stem}.so.1": path for path in sorted((HERE / "absent").glob("*.c"))}
"""Libraries of NVIDIA's driver of which there is nothing behind the door: they refuse."""


def library_dir() -> Path:
    """Return the folder that goes on the loader's path; it may not hold the library yet."""
    return HERE / "library"


def build(folder: Path, compiler: str = "", flags: tuple[str, ...] = ()) -> Path:
    """Compile the shim into ``folder``, with these flags more, and return the library.

    Raises:
        FileNotFoundError: when there is no C compiler.
        subprocess.CalledProcessError: when it fails.
    """
    compiler = (
        compiler or os.environ.get("CC", "") or shutil.which("cc") or shutil.which("gcc") or ""
    )
    if not compiler:
        raise FileNotFoundError("no C compiler was found")
    folder.mkdir(parents=True, exist_ok=True)
    _compile(compiler, folder / LAUNCHER, NATIVE, SHARED)
    sources = (*sorted((HERE / "nvml").glob("*.c")), HERE / "shim" / "base" / "json.c")
    _compile(compiler, folder / NVML, sources, (*SHARED, f"-Wl,-soname,{NVML}"))
    link = (*SHARED, f"-I{HERE / 'nccl'}", f"-Wl,-soname,{NCCL}", "-Wl,-z,nodelete")
    _compile(compiler, folder / NCCL, tuple(sorted((HERE / "nccl").glob("*.c"))), link)
    for name, source in ABSENT.items():
        _compile(compiler, folder / name, (source,), (*SHARED, f"-Wl,-soname,{name}"))
    target = folder / LIBRARY
    _compile(compiler, target, SOURCES, (*LINK, *flags))
    with contextlib.suppress(FileExistsError):
        (folder / "libcuda.so").symlink_to(LIBRARY)
    return target


def ensure() -> Path:
    """Build the C libraries into ``library_dir()`` if one is missing or older than a source.

    Raises:
        FileNotFoundError: when there is no C compiler.
        subprocess.CalledProcessError: when it fails.
    """
    made = [library_dir() / name for name in (LIBRARY, LAUNCHER, NVML, NCCL, *ABSENT)]
    folders = (HERE / name for name in ("shim", "native", "nvml", "nccl", "absent"))
    sources = [Path(__file__), *(source for folder in folders for source in folder.rglob("*.[ch]"))]
    newest = max(source.stat().st_mtime_ns for source in sources)
    if not all(path.exists() and path.stat().st_mtime_ns > newest for path in made):
        build(library_dir())
    return made[0]


def _compile(compiler: str, target: Path, sources: tuple[Path, ...], link: tuple[str, ...]) -> None:
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    names = map(str, sources)
    command = [compiler, *COMPILE, f"-I{HEADERS}", *link, "-o", str(fresh), *names, *LIBRARIES]
    subprocess.run(command, check=True)
    fresh.replace(target)  # a program that has the old one loaded keeps it


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else library_dir()
    print(build(folder, flags=tuple(sys.argv[2:])))  # noqa: T201
