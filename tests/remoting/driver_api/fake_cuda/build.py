"""Build the fake libcuda.so.1 with gcc, once for each content of its sources."""

import contextlib
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLAGS = ("-std=c11", "-O1", "-g", "-fPIC", "-fvisibility=hidden", "-pthread")
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers")
LINK = ("-shared", "-Wl,-soname,libcuda.so.1", "-Wl,-z,defs", "-ldl", "-lm")


def sources() -> list[Path]:
    return sorted(HERE.glob("*.c"))


def fingerprint() -> str:
    digest = hashlib.sha256()
    for path in (*sources(), *sorted(HERE.glob("*.h")), HERE / "exports.inc", Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def build(cache: Path | None = None, extra: tuple[str, ...] = ()) -> Path:
    """Give the path of libcuda.so.1, compiled when the cache holds none of these sources.

    Beside it lies libcuda.so, which some programs look for. The folder's name tells the sources
    apart, so that processes which build at once cannot spoil each other's result.
    """
    root = cache or Path(tempfile.gettempdir()) / f"gpupool-fake-cuda-{os.getuid()}"
    folder = root / "-".join([fingerprint(), *(option.lstrip("-") for option in extra)])
    library = folder / "libcuda.so.1"
    if library.exists():
        return library
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / "libcuda.so.1"
        command = ["gcc", *FLAGS, *WARNINGS, *extra, *map(str, sources()), *LINK, "-o", str(made)]
        subprocess.run(command, check=True)
        with contextlib.suppress(FileExistsError):
            (folder / "libcuda.so").symlink_to("libcuda.so.1")
        made.replace(library)
    return library


if __name__ == "__main__":
    print(build())
