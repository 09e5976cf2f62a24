"""Objects of a worker's library: one table on the worker for all families, by any arguments."""

import importlib
import random
from typing import Any

import numpy as np
import pytest
from door_cases import backend, junk

from gpupool.remoting.devices import object_families, remote_objects
from gpupool.remoting.devices.base import UnsupportedError
from gpupool.remoting.devices.families import FAMILIES, FUNCTIONS, OPERATORS

scipy: Any = pytest.importorskip("scipy")

KNOTS = np.asarray([0.0, 0, 0, 0, 1, 1, 1, 1])
PLANE = np.random.RandomState(6).rand(40, 2)


@pytest.fixture
def table() -> dict[str, Any]:
    return object_families.emulated_objects(backend())


@pytest.mark.parametrize("family", FAMILIES)
def test_each_declared_name_is_in_the_library_and_in_the_drop_in(cp: Any, family: str) -> None:
    assert cp
    ours: Any = importlib.import_module(f"cupyx.scipy.{family}")
    for name, (base, members) in FAMILIES[family].items():
        made = ours.linalg.SuperLU if name == "SuperLU" else getattr(ours, name)
        assert not base or issubclass(made, getattr(ours, base))
        lacking = [
            each for each in members if not hasattr(made, "__call__" * (each == "call") or each)
        ]
        assert not lacking, name
    for path in FUNCTIONS[family]:
        module, _, name = f"cupyx.scipy.{family}.{path}".rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_but_declared_members_of_its_own_objects_is_reached(
    table: dict[str, Any], family: str
) -> None:
    objects = {
        "interpolate": scipy.interpolate.BSpline(KNOTS, KNOTS[:4], 3),
        "sparse": scipy.sparse.csr_matrix(np.eye(2)),
        "spatial": scipy.spatial.KDTree(PLANE),
    }
    own = objects.pop(family)
    for name in ("__class__", "__init__", "__reduce__", "tobsr", "_evaluate", "call_", ""):
        for what, rest in (("call", ()), ("get", ()), ("set", (1.0,))):
            with pytest.raises(AttributeError, match="no attribute"):
                table[f"{family}.{what}"](own, name, *rest)
        for what in ("function", "made", "new"):
            with pytest.raises((AttributeError, TypeError, ValueError)):
                table[f"{family}.{what}"](name, name)
    named = [type(name, (), {})() for name in ("KDTree", "csr_matrix", "BSpline")]
    others = (*named, PLANE, None, 3, "text", [own], type(own), len, *objects.values())
    for kind, (_, members) in FAMILIES[family].items():
        for name in members:
            for other in others:
                for what in ("call", "get"):
                    with pytest.raises(TypeError, match="no object of"):
                        table[f"{family}.{what}"](other, name)
        assert kind


def test_what_a_client_says_of_a_result_is_compared(table: dict[str, Any]) -> None:
    matrix = scipy.sparse.csr_matrix(np.eye(2))
    right = ("csc_matrix", [[2, 2], "<f8"])
    assert table["sparse.call"](matrix, "tocsc", _expected=right).format == "csc"
    for wrong in (("csr_matrix", [[2, 2], "<f8"]), ("csc_matrix", [[2, 3], "<f8"])):
        with pytest.raises(ValueError, match="bug of the drop-in"):
            table["sparse.call"](matrix, "tocsc", _expected=wrong)


def test_memory_is_looked_for_before_it_is_taken(table: dict[str, Any]) -> None:
    many = np.zeros((1 << 10, 2))
    with pytest.raises(MemoryError):
        table["interpolate.new"]("RBFInterpolator", many, many)
    with pytest.raises(MemoryError):
        table["sparse.function"]("eye", 1 << 40)


def test_without_scipy_an_emulated_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(remote_objects.importlib, "import_module", lacking)
    operations = object_families.emulated_objects(None)
    with pytest.raises(UnsupportedError, match="runs it by SciPy, which its server lacks"):
        operations["spatial.new"]("KDTree", PLANE)


@pytest.mark.parametrize("seed", range(6))
def test_no_arguments_end_the_session(cp: Any, seed: int) -> None:
    draw = random.Random(seed)
    modules = {name: importlib.import_module(f"cupyx.scipy.{name}") for name in FAMILIES}
    ours: Any = modules["sparse"]
    tree = modules["spatial"].KDTree(cp.asarray(PLANE))
    objects = [
        tree,
        modules["spatial"].Delaunay(cp.asarray(PLANE)),
        modules["interpolate"].BSpline(KNOTS, KNOTS[:4], 3),
        ours.eye(3, format="csr"),
        ours.coo_array(cp.eye(2)),
    ]
    session = tree._gp_session
    given = 0
    for _ in range(300):
        family = draw.choice(sorted(FAMILIES))
        what = draw.choice(["new", "call", "get", "function", "operator", "set"])
        kind = draw.choice(sorted(FAMILIES[family]))
        member = draw.choice(sorted(FAMILIES[family][kind][1]))
        drawn = [junk(draw, objects) for _ in range(draw.randrange(4))]
        args = [cp.asarray(each) if isinstance(each, np.ndarray) else each for each in drawn]
        if what == "new":
            args.insert(0, kind)
        elif what in ("call", "get", "set"):
            args = [draw.choice(objects), member, *args]
        else:
            args.insert(0, draw.choice([*OPERATORS, *FUNCTIONS[family]]))
        try:
            session.ask(f"{family}.{what}", tuple(args))
            given += 1
        except Exception:  # noqa: BLE001 - any error of a call is good, and the session's is not
            assert session.failure is None, (family, what, args)
    assert given
    assert tree.query(cp.asarray(PLANE[:2]))[1].tolist() == [0, 1]
