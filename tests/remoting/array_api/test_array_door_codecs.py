"""Both ends of every format of the array door, and their handling of rubbish."""

import contextlib
import math
import socket
from typing import Any

import cbor2
import door_kit
import numpy as np
import pytest
from door_cases import NoClient, backend, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from session_kit import Handle, PipeLinks, Worker
from tests.properties import examples

from gpupool.pool.errors import RemoteProtocolError
from gpupool.remoting.array_api.server import array_wire
from gpupool.remoting.array_api.server.array_executor import Executor
from gpupool.remoting.array_api.server.serve import Session, serve
from gpupool.remoting.array_api.server.templates import compile_template

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 64), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(PLAIN)
@settings(deadline=None)
def test_each_end_reads_the_others_cbor(dropin: Any, value: Any) -> None:
    data = dropin._door.cbor.encode(value)
    assert cbor2.loads(data) == value
    assert array_wire.decode_body(data) == value
    assert dropin._door.cbor.decode(array_wire.encode_body(value)) == value


def test_special_floats_survive(dropin: Any) -> None:
    for value in (math.inf, -math.inf, -0.0, 1e300, math.nan):
        made = dropin._door.cbor.decode(array_wire.encode_body(value))
        assert repr(made) == repr(array_wire.decode_body(dropin._door.cbor.encode(value)))
        assert repr(made) == repr(value)


@given(st.binary(max_size=60))
@settings(max_examples=examples(500), deadline=None)
def test_rubbish_is_one_kind_of_error_to_both_ends(dropin: Any, data: bytes) -> None:
    with contextlib.suppress(dropin._door.cbor.CborError):
        # Whatever is accepted is plain.
        assert dropin._door.cbor.encode(dropin._door.cbor.decode(data)) is not None
    with contextlib.suppress(RemoteProtocolError):
        array_wire.check_plain(array_wire.decode_body(data), 0)


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x01",  # something left over
        b"\x82\x01",  # cut short
        b"\xa2\x61a\x01\x61a\x02",  # a key twice
        b"\xa1\x01\x02",  # a key that is a number
        b"\x9f\xff",  # indefinite length
        b"\xc1\x00",  # a tag
        b"\xc2\x49\x01" + bytes(8),  # a big number
        b"\x81" * 40 + b"\x01",  # too deep
        b"\x61\xff",  # text that is not UTF-8
        b"",
    ],
)
def test_both_decoders_refuse_what_the_protocol_does_not_use(dropin: Any, data: bytes) -> None:
    refused(
        (dropin._door.cbor.CborError, "", lambda: dropin._door.cbor.decode(data)),
        (RemoteProtocolError, "", lambda: array_wire.decode_body(data)),
    )


def test_both_ends_have_the_same_constants(dropin: Any) -> None:
    theirs = dropin._door.wire
    for name in dir(theirs):
        if not name.isupper() or name in ("DTYPES",):
            continue
        ours: Any = getattr(array_wire, name, None)
        if ours is None:
            ours = array_wire.Kind[name]
        mine = getattr(theirs, name)
        if hasattr(mine, "format"):
            assert (mine.format, mine.size) == (ours.format, ours.size), name
        else:
            assert mine == ours, name
    assert theirs.DTYPES == array_wire.DTYPES
    assert {kind.name for kind in array_wire.Kind} <= set(dir(theirs))


@given(st.binary(min_size=array_wire.HEADER.size, max_size=array_wire.HEADER.size))
@settings(deadline=None)
def test_a_header_is_decoded_or_refused(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        header = array_wire.decode_header(data)
        assert header.length <= array_wire.MAX_BODY
        assert header.bulk <= array_wire.MAX_BULK


def test_limits_of_a_header() -> None:
    for fields in (
        (array_wire.MAX_BODY + 1, 2, 0, 0, 0, 0, 0),
        (0, 4, 0, 0, 0, 0, array_wire.MAX_BULK + 1),
        (0, 2, 0, 0, 0, 0, 1),  # bulk bytes where none belong
        (0, 16, 0, 0, 0, 0, 0),  # a frame of the other direction
        (0, 2, 1, 0, 0, 0, 0),
    ):
        with pytest.raises(RemoteProtocolError):
            array_wire.decode_header(array_wire.HEADER.pack(*fields))


NODES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from(["h", "i", "f", "c", "e", "x"])
    | st.binary(max_size=3),
    lambda inner: (
        st.tuples(
            st.sampled_from(["t", "l", "s", "m", "q", "b", "d", "n", "z"]),
            st.lists(inner, max_size=3),
        ).map(lambda pair: [pair[0], *pair[1]])
        | st.just(["d", "<f8"])
        | st.just(["n", "<f4"])
        | st.just(["q", "text"])
    ),
    max_leaves=8,
)


@given(
    PLAIN
    | st.tuples(
        st.integers(16, 20),
        st.integers(0, 2),
        st.integers(0, 40),
        st.lists(NODES, max_size=3),
        st.lists(NODES, max_size=2),
    ).map(list)
)
@settings(max_examples=examples(300), deadline=None)
def test_templates_are_compiled_or_refused(body: Any) -> None:
    with contextlib.suppress(RemoteProtocolError):
        number, template = compile_template(body, ["a", "b"], [max, min])
        assert number >= array_wire.FIRST_TEMPLATE
        assert template.name in ("a", "b")


@pytest.mark.parametrize(
    "node",
    [["s"], ["s", 1, 2], ["s", 1, 2, 3, 4], ["q"], ["q", 1], ["b", "x"], ["d", "O"], "x", []],
)
def test_arguments_of_no_form_are_refused(node: Any) -> None:
    refused(
        (RemoteProtocolError, "", lambda: compile_template([16, 0, 1, [node], []], ["a"], [max]))
    )


LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["h", "i", "f", "c", "e"])
WELL_FORMED = st.recursive(
    LEAVES | st.sampled_from([["d", "<f8"], ["n", "<f4"], ["q", "text"], ["b", b"bytes"]]),
    lambda inner: (
        st.tuples(st.sampled_from("tl"), st.sampled_from("hi"), st.integers(7, 12)).map(
            lambda many: [many[0], *many[1] * many[2]]
        )
        | st.lists(inner, max_size=3).map(lambda items: ["t", *items])
        | st.lists(inner, max_size=3).map(lambda items: ["l", *items])
        | st.lists(inner, min_size=3, max_size=3).map(lambda items: ["s", *items])
    ),
    max_leaves=8,
)


@given(
    st.lists(WELL_FORMED, max_size=4),
    st.lists(st.tuples(st.sampled_from(["axis", "order", "lambda", "x y", "axis"]), WELL_FORMED)),
    st.binary(min_size=800, max_size=800),
)
@settings(max_examples=examples(400), deadline=None)
def test_a_direct_call_has_the_arguments_of_the_long_way(
    arguments: Any, keywords: Any, data: bytes
) -> None:
    def called(*args: Any, **kwargs: Any) -> str:
        return repr((args, kwargs))

    pairs = [list(pair) for pair in dict(keywords).items()]
    _, template = compile_template([16, 0, 1, arguments, pairs], ["sum"], [called])
    values = template.layout.unpack_from(data.ljust(template.layout.size, b"\x01"))
    objects = {value: f"object {value}" for value in values if isinstance(value, int)}
    args, kwargs = template.build(values, objects)
    assert (len(args), list(kwargs)) == (len(arguments), list(dict(keywords)))
    assert (template.direct is None) == ("'h'" in repr(pairs))
    if template.direct is not None:
        assert template.direct(values, objects) == called(*args, **kwargs)


def test_the_text_of_a_call_has_no_word_of_a_client() -> None:
    def built(arguments: Any, keywords: Any, *values: Any) -> Any:
        _, template = compile_template([16, 0, 1, arguments, keywords], ["a"], [max])
        return template.build((16, 0, 1, *values), {7: "object"})

    for name in ("x=1, y", "__import__", "lambda", "ﬁ", "a" * 33, "Axis", ""):
        assert built(["h"], [[name, "i"]], 7, 5) == (("object",), {name: 5})
    assert built([["q", "__import__('os')"], ["b", b"x"]], [])[0] == ("__import__('os')", b"x")
    assert built([], [["m", ["m", ["k0", "i"], ["v", "h"]]]], 3, 7)[1]["m"] == {
        "k0": 3,
        "v": "object",
    }
    with pytest.raises(RemoteProtocolError, match="twice"):
        built(["h"], [["axis", 1], ["axis", 2]])


def test_nan_arrives_as_the_one_that_cupy_looks_for() -> None:
    """``cupyx.scipy.ndimage`` asks ``cval is numpy.nan``, and writes it into a kernel otherwise."""
    _, template = compile_template([16, 0, 1, ["f"], []], ["a"], [max])
    (argument,), _ = template.build((16, 0, 1, float("nan")), {})
    assert argument is np.nan


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 3, 4, 5, 16, 17]), st.binary(max_size=40)), max_size=6
    )
)
@settings(max_examples=examples(300), deadline=None)
def test_records_that_begin_well_are_run_or_refused(records: list[tuple[int, bytes]]) -> None:
    made = Executor(backend(door_kit.MIB), NoClient(), lambda line: None)
    template = array_wire.encode_body([16, made.names.index("add"), 1, ["h", "h"], []])
    made.run(
        memoryview(array_wire.SIZED_RECORD.pack(array_wire.TEMPLATE, len(template)) + template),
        ask=False,
    )
    body = b"".join(code.to_bytes(4, "little") + rest for code, rest in records)
    with contextlib.suppress(RemoteProtocolError):
        made.run(memoryview(body), ask=False)


def test_a_result_has_the_strides_that_the_client_inferred() -> None:
    worker, turned = Worker(PipeLinks()), {"meta": array_wire.FIRST_META + 1}
    array = Handle(worker.put(np.ones((3, 2))))
    worker.put(np.ones((3, 2), order="F"))  # what the client inferred of the calls below
    assert worker.array(worker.call("negative", array, **turned)).strides == (8, 24)
    part = (slice(None), slice(None))
    view = worker.call("ndarray.getitem", array, part, **turned)
    assert "inferred (8, 24)" in str(worker.client.failures)
    assert worker.executor.failures == 1
    worker.free(view)  # calls take the short way again
    assert worker.executor.failures == 0


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_a_connection_of_rubbish_ends_with_one_line(data: bytes, greeted: bool) -> None:
    lines: list[str] = []
    hello = array_wire.encode_body({"protocol": array_wire.PROTOCOL})
    start = array_wire.HEADER.pack(len(hello), 1, 0, 0, 0, 0, 0) + hello if greeted else b""
    budget = door_kit.MemoryBudget([door_kit.MIB])
    stream: Any = door_kit.PlayedStream(start + data, 7)
    serve(stream, door_kit.emulated(1, door_kit.MIB), budget, lines.append)
    assert len(lines) <= 1
    assert budget.used == [0]


def test_a_frame_in_small_pieces_is_read_whole() -> None:
    hello = array_wire.encode_body({"protocol": array_wire.PROTOCOL})
    data = array_wire.HEADER.pack(len(hello), 1, 0, 0, 9, 0, 0) + hello
    stream: Any = door_kit.PlayedStream(data, 7)
    Session(stream, backend(), lambda line: None).greet()
    length, kind, _, _, request, _, bulk = array_wire.HEADER.unpack(
        stream.sent[: array_wire.HEADER.size]
    )
    assert (kind, request, bulk) == (array_wire.Kind.REPLY, 9, 0)
    welcome = array_wire.decode_body(stream.sent[array_wire.HEADER.size :])
    assert length == len(stream.sent) - array_wire.HEADER.size
    assert "add" in welcome["operations"]


def test_the_dropin_ends_a_session_on_a_malformed_frame(dropin: Any) -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(array_wire.HEADER.pack(3, 17, 0, 0, 0, 0, 0) + b"\xff\xff\xff")
    session = dropin._door.session.Session(dropin._door.transport.link.Link(ours), None, 0)
    with pytest.raises(dropin.cuda.runtime.CUDARuntimeError, match="makes no sense"):
        session.greet("0")
    session.close()
    theirs.close()


def test_the_dropin_imports_nothing_but_numpy_and_the_standard_library() -> None:
    source = """
import sys
import cupy, cupyx
names = {name.split('.')[0] for name in sys.modules}
print(sorted(n for n in names if n not in sys.stdlib_module_names and not n.startswith('_')))
"""
    known = set(eval(door_kit.output(None, source)))
    assert {"cupy", "cupyx", "numpy"} <= known
    assert not known & {"gpupool", "cbor2", "trio", "click", "cryptography"}
