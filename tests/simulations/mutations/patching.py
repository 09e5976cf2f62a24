"""Patches: attributes and command handlers that are replaced while a broken build runs."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from gpupool.pool.model.commands import Command
from gpupool.pool.model.results import Step
from gpupool.pool.model.state import PoolState
from gpupool.pool.transitions.apply import HANDLERS


@contextmanager
def patched(owner: Any, name: str, replacement: object) -> Generator[None]:
    """Replace an attribute of a class or module for a while."""
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def patched_handler(
    command: type[Command], handler: Callable[[PoolState, Any], Step]
) -> Generator[None]:
    """Apply one kind of command by another function for a while."""
    original = HANDLERS[command]
    HANDLERS[command] = handler
    try:
        yield
    finally:
        HANDLERS[command] = original
