"""Marks and ranges for CUDA's profilers, which are on the server: the calls do nothing."""

available = False


def MarkC(message: str, color: int = 0) -> None:
    """Do nothing."""


def Mark(message: str, id_color: int = -1) -> None:
    """Do nothing."""


def RangePushC(message: str, color: int = 0) -> None:
    """Do nothing."""


def RangePush(message: str, id_color: int = -1) -> None:
    """Do nothing."""


def RangePop() -> None:
    """Do nothing."""
