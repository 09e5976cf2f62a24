"""Compile C files once for each content, not in every run and every process of a run."""

import errno
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path


def compiled(
    words: Sequence[str],
    source: Path,
    target: Path,
    headers: Iterable[Path],
    libraries: Sequence[Path] = (),
) -> None:
    """Run ``words`` for ``source`` into ``target``, or link to the cached output.

    ``headers`` are the folders of what it includes. A name in the cache is the digest of the
    compiler, the words, the source, the headers and the libraries, so that any change of them
    compiles anew.
    """
    digest = hashlib.sha256(_compiler(words[0]))
    inputs = [str(source), *map(str, libraries)]
    digest.update("\0".join([*words, *inputs]).encode())
    for path in inputs:
        digest.update(hashlib.sha256(Path(path).read_bytes()).digest())
    for folder in headers:
        digest.update(_headers(folder))
    folder = Path(tempfile.gettempdir()) / f"gpupool-objects-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    kept = folder / digest.hexdigest()
    if not kept.exists():
        # Processes that compile at once keep the first result: link(2) of a file that another
        # process replaces at that moment fails, because its last name is gone.
        with tempfile.TemporaryDirectory(dir=folder) as scratch, suppress(FileExistsError):
            fresh = Path(scratch) / "made"
            subprocess.run([*words, "-o", str(fresh), *inputs], check=True)
            kept.hardlink_to(fresh)
    try:
        # No copy: a process that another thread forks meanwhile would have it open for writing,
        # and a program that is open for writing cannot be run.
        target.hardlink_to(kept)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copy(kept, target)


@cache
def _compiler(name: str) -> bytes:
    path = Path(shutil.which(name) or name).resolve()
    status = path.stat()
    return f"{path} {status.st_size} {status.st_mtime_ns}".encode()


def _headers(folder: Path) -> bytes:
    digest = hashlib.sha256()
    for path in sorted((*folder.glob("*.h"), *folder.glob("*.inc"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.digest()
