"""Images of modules that this user's programs have sent before, by the SHA-256 of their bytes.

The host puts them into this worker's own directory before it hears of a client, and takes what is
new from there when the worker has ended (``remoting/host/kernel_cache.py``).
"""

import contextlib
import hashlib
import os
import queue
import re
import struct
import threading
from pathlib import Path

SIZE_MIN, SIZE_MAX = 32 << 10, 64 << 20
"""Smaller ones travel as fast as a question about them."""

KEPT_SIZE_MAX = 256 << 20
COUNT_MAX = 512
FINISH_TIMEOUT_S = 1.0
"""Seconds that a session's end waits for images being written; its memory stays charged."""

KNOWN = struct.Struct("<Q32s")
_NAME = re.compile(r"[0-9a-f]{64}")


class Images:
    """The images in one directory, which need not be there; None: nothing is kept."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._known: dict[bytes, int] = {}
        self._room = KEPT_SIZE_MAX
        self._new: queue.Queue[bytearray] = queue.Queue()
        self._writer: threading.Thread | None = None
        if directory is not None:
            with contextlib.suppress(OSError):
                for path in sorted(directory.iterdir())[:COUNT_MAX]:
                    if _NAME.fullmatch(path.name):
                        self._known[bytes.fromhex(path.name)] = path.stat().st_size

    @classmethod
    def of_worker(cls) -> "Images":
        """Return the image cache of this process, in the directory that its host named."""
        named = os.environ.get("GPUPOOL_IMAGES", "")
        return cls(Path(named) if named else None)

    def encoded(self) -> bytes:
        """Encode the cached images for the client: their count, each one's size and SHA-256."""
        pieces = [KNOWN.pack(size, digest) for digest, size in self._known.items()]
        return struct.pack("<Q", len(pieces)) + b"".join(pieces)

    def load(self, digest: bytes, size: int) -> bytearray | None:
        """Return an image with a zero byte behind it, or None if there is none like that."""
        if self._directory is None or self._known.get(digest) != size:
            return None
        image = bytearray(size + 1)
        try:
            with (self._directory / digest.hex()).open("rb") as file:
                return image if file.readinto(memoryview(image)[:size]) == size else None
        except OSError:
            return None

    def keep(self, image: bytearray) -> None:
        """Queue a client's image for the cache, with a zero byte behind it; return at once."""
        size = len(image) - 1
        wanted = SIZE_MIN <= size <= min(SIZE_MAX, self._room) and len(self._known) < COUNT_MAX
        if self._directory is None or not wanted:
            return
        self._room -= size
        self._new.put(image)
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, daemon=True)
            self._writer.start()

    def finish(self) -> None:
        """Wait up to ``FINISH_TIMEOUT_S`` for images that are still being written."""
        done = self._new.all_tasks_done
        with done:
            done.wait_for(lambda: self._new.unfinished_tasks == 0, FINISH_TIMEOUT_S)

    def _write(self) -> None:
        while True:
            image = memoryview(self._new.get())[:-1]
            try:
                self._write_one(image)
            finally:
                self._new.task_done()

    def _write_one(self, image: memoryview) -> None:
        assert self._directory is not None
        name = hashlib.sha256(image).hexdigest()  # of the bytes, not as announced
        temporary = self._directory / f".{name}"
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            if not (self._directory / name).exists():
                temporary.write_bytes(image)
                temporary.replace(self._directory / name)
        except OSError:
            temporary.unlink(missing_ok=True)  # a full disk: images travel anew
