"""Small file systems for real servers' state directories, which can be full.

They are mounted in a mount namespace that only this process and its children see, and they end
with it. That takes the rights of root; where it fails, servers use the folder's own disk.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
from pathlib import Path

SIZE_MIB = 256
_CLONE_NEWNS = 0x00020000
_FILL = "fill"


class SmallDisks:
    """One directory for each server, each on a separate disk where that is possible."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        """Make the directories, and mount the disks; must be called before there are threads."""
        self._folders = {name: folder / name for name in names}
        for path in self._folders.values():
            path.mkdir(mode=0o711, parents=True)
        self.small = _own_namespace() and all(_mount(path) for path in self._folders.values())
        """Whether disks can be filled."""

    def folder(self, name: str) -> Path:
        """Return where the disk of a server is mounted."""
        return self._folders[name]

    def fill(self, name: str) -> None:
        """Leave a disk no room at all."""
        path = self._folders[name] / _FILL
        with path.open("ab") as file:
            size = 0
            for step in (1 << 24, 1 << 20, 1 << 16, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), size, step)
                        size += step

    def free(self, *names: str) -> None:
        """Make room again on these disks; without names, on all."""
        for name in names or self._folders:
            (self._folders[name] / _FILL).unlink(missing_ok=True)

    def close(self, *, keep: Path | None = None) -> None:
        """Unmount all disks; copy their content to ``keep`` before, if it is given."""
        self.free()
        for name, path in self._folders.items():
            if keep is not None and self.small:
                shutil.copytree(path, keep / name, symlinks=True, ignore=_ignore_sockets)
            if self.small:
                subprocess.run(["umount", "--lazy", str(path)], check=False)


def _own_namespace() -> bool:
    if os.geteuid() != 0:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        return False
    return _run("mount", "--make-rprivate", "/")


def _mount(path: Path) -> bool:
    options = f"size={SIZE_MIB}m,mode=0711"
    return _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path))


def _run(*argv: str) -> bool:
    try:
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _ignore_sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_socket()]
