"""bfloat16: a type of the package `ml_dtypes`, with a separate name at both ends."""

import importlib
import sys
from typing import Any

import numpy as np
import pytest
from door_cases import refused

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server import element_types

ml_dtypes: Any = pytest.importorskip("ml_dtypes", reason="pip install ml_dtypes")
BF16: Any = np.dtype(ml_dtypes.bfloat16)
VALUES = np.asarray([0.0, 1, -1, 2, 100, 0.5, -0.5, 10, -10, 3.25, 7, 0.125])


def test_both_ends_have_one_word_for_it(cp: Any) -> None:
    del cp
    dtypes: Any = importlib.import_module("cupy._door.dtypes")
    assert dtypes.told(BF16) == element_types.told(BF16) == "bfloat16"
    assert dtypes.read("bfloat16") == element_types.dtype_of("bfloat16") == BF16
    fields = np.dtype([("a", "i4"), ("b", BF16)])
    assert element_types.told(fields) == ["V", 6, False, ["a", 0, "<i4"], ["b", 4, "bfloat16"]]
    assert element_types.dtype_of(element_types.told(fields)) == fields
    for wrong in ("float8_e4m3", "bfloat", "<E2", "|E2"):
        with pytest.raises(RemoteProtocolError):
            element_types.dtype_of(wrong)
    for kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.int4):
        assert not element_types.is_sendable(np.dtype(kind))
        with pytest.raises(ValueError, match="Unsupported dtype"):
            dtypes.told(np.dtype(kind))


def agree(ours: Any, wanted: Any) -> None:
    assert ours.dtype == wanted.dtype
    np.testing.assert_allclose(ours.get().astype(float), wanted.astype(float), rtol=0.01)


UNARY = "sin exp sqrt floor negative absolute square arctan sign isnan isfinite signbit"


@pytest.mark.parametrize("name", UNARY.split())
def test_functions_of_one_array(cp: Any, name: str) -> None:
    host = abs(VALUES[-4:]).astype(BF16)
    agree(getattr(cp, name)(cp.asarray(host)), getattr(np, name)(host))


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "maximum", "hypot", "greater"])
def test_functions_of_two_operands(cp: Any, name: str) -> None:
    host, function = VALUES.astype(BF16), getattr(cp, name)
    for other in (host[::-1].copy(), np.float32(2.5), np.ones(12, "f2"), np.ones(12, "i1")):
        ours = cp.asarray(other) if isinstance(other, np.ndarray) else other
        agree(function(cp.asarray(host), ours), getattr(np, name)(host, other))
    for number in (2, 0.5):
        made = function(cp.asarray(host), number)
        assert made.dtype == (np.bool_ if name == "greater" else BF16)  # the number gives way
        assert function(number, cp.asarray(host)).dtype == made.dtype


def test_reductions_add_in_float32_and_round_once(cp: Any) -> None:
    a = cp.ones(10_000, dtype=BF16)
    assert float(a.sum()) == 9984  # the nearest one; adding in bfloat16 ends at 256
    assert float(a.mean()) == 1
    matrix = cp.ones((2, 3000), dtype=BF16)
    assert (matrix @ matrix.T).dtype == BF16
    assert (matrix @ matrix.T).get().astype(float).tolist() == [[3008] * 2] * 2
    for made in (a.sum(), a.prod(), a.max(), a.var(), a.cumsum(), cp.dot(a, a), a.sum(dtype=BF16)):
        assert made.dtype == BF16
    assert a.sum(dtype="f4").dtype == np.float32
    assert float(a.sum(dtype="f4")) == 10_000


def test_arrays_are_made_converted_indexed_and_read(cp: Any) -> None:
    host = VALUES.reshape(3, 4).astype(BF16)
    a = cp.asarray(host)
    assert a.dtype == BF16
    assert a.nbytes == 24
    assert (a.T[1:, ::2].get() == host.T[1:, ::2]).all()
    assert cp.asarray(a, "f4").get().tolist() == host.astype("f4").tolist()
    assert (a.astype("f8").astype(BF16).get() == host).all()
    assert (cp.asarray(VALUES.tolist(), dtype=BF16).get() == VALUES.astype(BF16)).all()
    assert cp.arange(4, dtype=BF16).get().tolist() == [0, 1, 2, 3]
    assert cp.zeros((2, 2), BF16).dtype == cp.full(3, 1.5, BF16).dtype == BF16
    a[1] = 7.0
    a[a > 50] = 0
    assert float(a[1, 2]) == 7
    assert float(a.max()) == 7
    assert cp.where(a > 1, a, 0).dtype == cp.concatenate([a, a]).dtype == BF16
    assert a.view("u2").dtype == np.uint16
    assert a.view("u2").view(BF16).get().tobytes() == a.get().tobytes()
    assert cp.sort(a, axis=None).dtype == (a + ml_dtypes.bfloat16(2)).dtype == BF16
    assert "bfloat16" in repr(a)
    out = cp.empty_like(a)
    assert cp.add(a, a, out=out) is out
    assert (out.get() == a.get() * 2).all()
    assert cp.clip(a, 1, 4).dtype == np.float32  # CuPy's has no bfloat16


def test_a_server_without_it_is_named_and_the_session_goes_on(cp: Any) -> None:
    [session] = cp._door.pool.sessions()
    a = cp.ones(3)
    session._handles.bfloat16 = False
    try:
        for use in (
            lambda: cp.zeros(3, ml_dtypes.bfloat16),
            lambda: cp.asarray(VALUES[:7].astype(BF16)),
            lambda: a.astype(BF16),
            lambda: a.sum(dtype=BF16, out=cp.zeros(())),
            lambda: cp.full(5, ml_dtypes.bfloat16(2)),
        ):
            refused((NotImplementedError, "ml_dtypes", use))
    finally:
        session._handles.bfloat16 = True
    assert float(a.sum()) == 3


def test_an_end_without_the_package_refuses_the_type(
    cp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cp

    def absent(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    dtypes: Any = sys.modules["cupy._door.dtypes"]
    refused(
        (RemoteProtocolError, "dtype", lambda: element_types.dtype_of("bfloat16")),
        (ValueError, "ml_dtypes", lambda: dtypes.read("bfloat16")),
    )
