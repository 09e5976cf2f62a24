"""Stands for CuPy in a worker: its runtime only notes which devices were made current."""

import os
from pathlib import Path
from typing import ClassVar

CACHE = Path(os.environ["CUPY_CACHE_DIR"])
CACHE.mkdir(exist_ok=True)  # at import, as CuPy does


class runtime:
    """``cupy.cuda.runtime``."""

    current: ClassVar[list[int]] = []

    @staticmethod
    def setDevice(ordinal: int) -> None:
        runtime.current.append(ordinal)
        (CACHE / "kernel.cubin").write_bytes(b"compiled")

    @staticmethod
    def free(pointer: int) -> None:
        assert pointer == 0


class cuda:
    """``cupy.cuda``."""

    runtime = runtime
