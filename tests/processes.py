"""The marker ``process``: of tests that start processes, which ``make quick`` leaves out.

A test has it if code that is reached from it and its fixtures, by the names in them, names one of
``STARTERS``. What no name leads to is marked by hand: a test of the default run that starts one
fails without, unless a worker in a thread of it runs a compiler.
"""

import functools
import platform
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

ROOT = str(Path(__file__).parents[1])
STARTERS = {"subprocess", "run_process", "open_process", "fork", "forkpty", "posix_spawn"}
HARMLESS: dict[int, object] = {}
"""Objects that reach no starter of processes, by id."""

STARTED: list[object] = []
"""The commands that the running test has started."""


def pytest_configure() -> None:
    """Note each started process, but for the one by which Python learns its machine."""
    platform.processor()
    start: Any = subprocess.Popen.__init__

    @functools.wraps(start)
    def noted(*args: Any, **named: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            STARTED.append(args[1:] or named)
        start(*args, **named)

    subprocess.Popen.__init__ = noted


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests, before those that are left out are left out."""
    for item in items:
        if isinstance(item, pytest.Function):
            fixtures = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009
            test: Any = item.obj
            test = getattr(getattr(test, "hypothesis", None), "inner_test", test)
            if any(map(starts, [test, *(one.func for each in fixtures for one in each)])):
                item.add_marker("process")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Find a marker that is missing."""
    result = yield
    started = STARTED.copy()
    STARTED.clear()
    if started and not any(map(item.get_closest_marker, ("process", "slow", "long", "gpu"))):
        pytest.fail(f"it starts {started[0]}, and lacks the marker process", pytrace=False)
    return result


@functools.cache
def starts(function: object) -> bool:
    """Return whether code of ours that is reached from a function names a starter."""
    seen: dict[int, Any] = {}
    todo: list[Any] = [function]
    while todo:
        each = todo.pop()
        home = str(getattr(each, "__module__", ""))
        if id(each) in seen or id(each) in HARMLESS or not is_ours(home):
            continue
        seen[id(each)] = each
        inner = getattr(each, "__wrapped__", getattr(each, "__func__", each))
        if isinstance(each, type):
            todo += (*vars(each).values(), *each.__bases__)
        elif isinstance(code := getattr(inner, "__code__", None), CodeType):
            names = {*names_in(code)}
            if names & STARTERS:
                return True
            found = [inner.__globals__.get(name) for name in names]
            modules = [vars(one) for one in found if isinstance(one, ModuleType)]
            todo += found + [module.get(name) for module in modules for name in names]
        else:
            todo += [type(each), *getattr(each, "__dict__", {}).values()]
    HARMLESS.update(seen)
    return False


@functools.cache
def is_ours(module: str) -> bool:
    """Return whether a module is none of Python or of a package."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return file.startswith(ROOT) and "site-packages" not in file


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that code and the functions in it look up."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from names_in(each)
