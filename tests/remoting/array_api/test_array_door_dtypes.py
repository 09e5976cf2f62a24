"""Structures, bytes and dates as elements: both ends name the same types, and refuse others."""

import contextlib
from typing import Any

import cbor2
import numpy as np
import pytest
from door_cases import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server import element_types

PLAIN = st.sampled_from(["?", "i1", "<u2", "<i4", "<f8", "<c16", "S3", "U2", "V5", "M8[ns]", "m8"])
FORMS = st.recursive(
    PLAIN,
    lambda inner: st.lists(
        st.tuples(inner, st.sampled_from([(), (2,), (3, 1)])), min_size=1, max_size=4
    ).map(lambda fields: [(f"f{at}", *each) for at, each in enumerate(fields)]),
    max_leaves=8,
)


@given(FORMS.filter(lambda form: isinstance(form, list)), st.booleans())
@settings(deadline=None)
def test_both_ends_name_a_structure_alike(dropin: Any, form: Any, align: bool) -> None:
    dtype = np.dtype(form, align=align)
    told = cbor2.loads(dropin._door.cbor.encode(dropin._door.dtypes.told(dtype)))
    assert element_types.dtype_of(told) == dtype
    back = dropin._door.cbor.decode(cbor2.dumps(element_types.told(dtype)))
    assert dropin._door.dtypes.read(back) == dtype


JUNK = st.recursive(
    st.none() | st.integers(-3, 40) | st.sampled_from(["V", "<f8", "|V4", "x", "O", "|O8"]),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=12,
)


@given(JUNK | JUNK.map(lambda junk: ["V", 16, False, junk]))
@settings(max_examples=examples(400), deadline=None)
def test_a_type_is_read_or_refused_by_both_ends(dropin: Any, value: Any) -> None:
    with contextlib.suppress(RemoteProtocolError):
        assert element_types.dtype_of(value).itemsize > 0
    with contextlib.suppress(ValueError, TypeError, LookupError):
        assert not dropin._door.dtypes.read(value).hasobject


FORBIDDEN: list[Any] = [
    *("|O8", "<i3", "|V0", "|V9999999999", "<M8[parsec]"),
    ">f8",  # the other order of bytes
    "|S4",  # text, outside of a structure
    ["V", 8, False],  # no field
    *(["V", 8, False, ["a", at, kind]] for at, kind in ((4, "<f8"), (-4, "<f4"), (0, "|O8"))),
    ["V", 8, False, ["a", 0, "<f4"], ["a", 4, "<f4"]],  # a name twice
    ["V", 8, True, ["a", 1, "<f4"]],  # not aligned as it says
    ["V", 1 << 40, False, ["a", 0, "<f4"]],
    ["V", 8, False, ["a", 0, "|u1", 1 << 29, 1 << 29]],
    ["V", 8, False, ["n" * 300, 0, "<f8"]],
    ["V", 4, False, *[[f"f{at}", 0, "|u1"] for at in range(2000)]],
    ["V", 8, 1, ["a", 0, "<f8"]],
]


@pytest.mark.parametrize("value", FORBIDDEN)
def test_types_that_no_client_may_name(value: Any) -> None:
    refused((RemoteProtocolError, "", lambda: element_types.dtype_of(value)))


def test_a_structure_nested_too_deeply_is_refused_here_and_there(dropin: Any) -> None:
    form: Any = np.dtype("f8")
    for _ in range(7):
        form = np.dtype([("a", form)])
    refused(
        (ValueError, "nested", lambda: dropin._door.dtypes.told(form)),
        (RemoteProtocolError, "", lambda: element_types.dtype_of(element_types.told(form))),
    )


def test_structures_are_kept_cut_and_compared(cp: Any) -> None:
    host = np.array([(1, 2.5), (3, -1.0), (1, 2.5)], dtype="i8,f8")
    array = cp.array(host)
    assert array.dtype == host.dtype
    assert (array.get() == host).all()
    assert array["f1"].get().tolist() == [2.5, -1.0, 2.5]
    assert array["f1"].strides == (16,)
    array["f0"] = cp.arange(3)
    array["f1"][1:] += 1
    assert array.get().tolist() == [(0, 2.5), (1, 0.0), (2, 3.5)]
    assert (array == array[:1]).get().tolist() == [True, False, False]
    assert (cp.full(2, host[1], host.dtype).get() == host[1]).all()
    assert array[["f1"]].get().tolist() == [(2.5,), (0.0,), (3.5,)]
    assert array.astype("f4,f4").get()["f1"].tolist() == [2.5, 0.0, 3.5]


def test_what_a_gpu_cannot_do_with_structures_is_an_error_at_once(cp: Any) -> None:
    odd = cp.zeros(3, "?,f8")
    refused(
        (ValueError, "aligned", lambda: odd["f1"]),
        (ValueError, "aligned to 8", lambda: odd.fill(1)),
        (ValueError, "no field", lambda: odd["f9"]),
        (TypeError, "Wrong type", lambda: cp.zeros(3, "i8,f8") + 1),
        (TypeError, "Cannot compare", lambda: cp.zeros(3, "i8,f8") == cp.zeros(3)),
        (ValueError, "references", lambda: cp.array(np.array([(1, None)], dtype="i8,O"))),
    )


def test_memory_is_viewed_as_dates_and_back(cp: Any) -> None:
    days = cp.arange(3).view("M8[D]")
    assert days.get().tolist() == np.arange(3).view("M8[D]").tolist()
    assert days.view("i8").sum() == 3
    with pytest.raises(ValueError, match="Unsupported dtype"):
        cp.array(np.array(["2020-01-01"], dtype="M8[D]"))


def test_a_server_that_is_older_says_so(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session = cp._door.pool.current()
    monkeypatch.setattr(session._handles, "structures", False)
    with pytest.raises(NotImplementedError, match="newer gpupool"):
        cp.zeros(3, "i8,f8,i8")
