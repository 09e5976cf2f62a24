"""Parts that several tables of cases share: errors of calls, packages, questions and objects."""

import contextlib
import importlib
import random
import warnings
from collections.abc import Callable, Generator, Sequence
from typing import Any

import door_kit
import numpy as np
import pytest

from gpupool.remoting.devices.emulated import EmulatedBackend

Case = tuple[type[Exception], str, Callable[[], Any]]


def refused(*cases: Case) -> None:
    """Check that each call raises its error with a text of this pattern."""
    for error, match, call in cases:
        with pytest.raises(error, match=match or None):
            call()


def cupyx(path: str) -> Any:
    """Return a package of `cupyx`, which the fixture of the drop-in has made importable."""
    return importlib.import_module(f"cupyx.{path}")


def package(path: str) -> Any:
    """Return a fixture that gives a package of `cupyx`."""

    @pytest.fixture
    def given(dropin: Any) -> Any:
        del dropin
        return cupyx(path)

    return given


@contextlib.contextmanager
def questions(session: Any, method: str = "ask") -> Generator[list[str]]:
    """List the names of the questions that the session asks in a block."""
    asked: list[str] = []
    before = getattr(session, method)
    setattr(session, method, lambda name, *a, **k: asked.append(name) or before(name, *a, **k))
    try:
        yield asked
    finally:
        delattr(session, method)


def close(ours: Any, theirs: Any, rtol: float = 1e-7, atol: float = 0.0) -> None:
    """Compare arrays of any kind, or several of them, by shape and value."""
    if isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            close(one, other, rtol, atol)
        return
    host = ours.get() if hasattr(ours, "get") else ours
    assert np.shape(host) == np.shape(theirs)
    np.testing.assert_allclose(host, theirs, rtol, atol)


def junk(draw: random.Random, others: Sequence[Any] = ()) -> Any:
    """Return an argument as no program gives it: an array of the host, one of others, anything."""
    shape = [draw.choice((0, 1, 2, 3, 5)) for _ in range(draw.randrange(4))]
    factor = draw.choice((1.0, 4.0, 0.0, np.nan, np.inf, 1e308))
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        array = np.asarray(np.random.RandomState(draw.randrange(99)).rand(*shape) * factor)
        array = array.astype(draw.choice(("f8", "f4", "c16", "i8", "i4", "u2", "?")))
    plain = [None, 0, -1, 2, 1 << 62, 0.5, float("nan"), [1, 3], (2, 2), "x", "same", "hann", True]
    return draw.choice([*[array] * (4 + len(others)), *others, *others, *plain])


def answering(name: str, value: Any) -> Any:
    """Return an object of another library: this method of it returns the value."""
    return type("Other", (), {name: lambda *_, **__: value})()


class Described:
    """An object of another library that describes an array of ours, or another one."""

    def __init__(self, array: Any, **fields: Any) -> None:
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **fields}


def backend(memory: int = 1 << 20) -> EmulatedBackend:
    """Return one emulated GPU."""
    return EmulatedBackend(door_kit.emulated(1, memory), door_kit.MemoryBudget([memory]))


class NoClient:
    """A client that records the worker's messages, and frees nothing."""

    def __init__(self) -> None:
        self.failures: list[Any] = []

    def push(self, kind: Any, body: Any) -> None:
        self.failures.append(body)

    def collect(self) -> bytes | None:
        return None

    def names(self, handle: int) -> bool:
        return False

    def free_later(self, handles: bytes) -> None:
        raise AssertionError(handles)
