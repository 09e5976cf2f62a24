"""Stands for CuPy in a worker: its runtime only notes which devices were made current."""

from typing import ClassVar


class runtime:
    """``cupy.cuda.runtime``."""

    current: ClassVar[list[int]] = []

    @staticmethod
    def setDevice(ordinal: int) -> None:
        runtime.current.append(ordinal)

    @staticmethod
    def free(pointer: int) -> None:
        assert pointer == 0


class cuda:
    """``cupy.cuda``."""

    runtime = runtime
