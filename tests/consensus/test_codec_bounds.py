"""Bounds of the consensus codecs: written, read and refused data."""

import pytest

from gpupool.consensus.protocol import closed_cbor
from gpupool.consensus.protocol.cbor_pieces import PieceReader, map_head
from gpupool.consensus.protocol.closed_cbor import DEPTH_MAX
from gpupool.consensus.protocol.raft_messages import (
    FrameReader,
    FrameWriter,
    decode_message,
    encode_message,
)
from gpupool.consensus.protocol.raft_settings import FRAME_BYTES_MAX
from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.ids import Plain
from gpupool.pool.model.pieces import ROW_COUNT

INTEGER_BOUNDS = (-(1 << 63), (1 << 64) - 1)


def lists(depth: int) -> Plain:
    """Return a number inside so many lists."""
    value: Plain = 1
    for _ in range(depth):
        value = [value]
    return value


def maps(depth: int) -> Plain:
    """Return a number inside so many maps."""
    value: Plain = 1
    for _ in range(depth):
        value = {"key": value}
    return value


# --- whole values ----------------------------------------------------------------------------


def test_a_value_is_nested_24_deep_at_most() -> None:
    assert DEPTH_MAX == 24
    for value in (lists(24), maps(24)):
        assert closed_cbor.decode(closed_cbor.encode(value)) == value
    for value in (lists(25), maps(25), lists(60), maps(60)):
        with pytest.raises(TypeError, match="nested too deeply"):
            closed_cbor.encode(value)
    for data in (b"\x81" * 25 + b"\x01", b"\xa1\x61k" * 25 + b"\x01", b"\x81" * 5000 + b"\x01"):
        with pytest.raises(RemoteProtocolError):
            closed_cbor.decode(data)


@pytest.mark.parametrize("number", [*INTEGER_BOUNDS, 0, -1, -(1 << 62), 1 << 63])
def test_integers_of_64_bits_travel(number: int) -> None:
    assert closed_cbor.decode(closed_cbor.encode(number)) == number


@pytest.mark.parametrize("number", [INTEGER_BOUNDS[0] - 1, INTEGER_BOUNDS[1] + 1, 1 << 80])
def test_no_larger_integer_is_written(number: int) -> None:
    values: list[Plain] = [number, [number], {"key": [1, number]}]
    for value in values:
        with pytest.raises(TypeError, match="64 bits"):
            closed_cbor.encode(value)


def test_a_smaller_integer_is_not_read() -> None:
    """CBOR has negative numbers of 65 bits."""
    least = b"\x3b\x7f" + b"\xff" * 7
    assert closed_cbor.decode(least) == INTEGER_BOUNDS[0]
    for data in (b"\x3b\x80" + b"\0" * 7, b"\x3b" + b"\xff" * 8):
        for prefix in (b"", b"\x81", b"\xa1\x61k", b"\x81\xa1\x61k"):
            with pytest.raises(RemoteProtocolError, match="64 bits"):
                closed_cbor.decode(prefix + data)


@pytest.mark.parametrize("wrong", [{1}, (1, 2), object(), 1j, {1: 2}, {b"k": 1}])
def test_what_is_not_plain_is_refused_wherever_it_stands(wrong: Plain) -> None:
    values: list[Plain] = [wrong, [1, wrong], {"a": 1, "b": wrong}, [{"k": [wrong]}]]
    for value in values:
        with pytest.raises(TypeError):
            closed_cbor.encode(value)


@pytest.mark.parametrize("wrong", [b"\xf7", b"\xe0", b"\xa1\x01\x02", b"\xa1\x41k\x02"])
def test_what_is_not_plain_is_not_read_wherever_it_stands(wrong: bytes) -> None:
    """Undefined, a simple value, and keys that are not text."""
    for prefix in (b"", b"\x81", b"\x82\x01", b"\xa1\x61k", b"\x81\x81", b"\x81\xa1\x61k"):
        with pytest.raises(RemoteProtocolError):
            closed_cbor.decode(prefix + wrong)


@pytest.mark.parametrize("data", [b"\x01\x01", b"\x80\x00", b"\x61a\xf6"])
def test_nothing_may_follow_the_value(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="followed by other bytes"):
        closed_cbor.decode(data)


@pytest.mark.parametrize(
    "data", [b"\x9f\x01\xff", b"\xbf\x61a\x01\xff", b"\x7f\x61a\xff", b"\xa2\x61a\x01\x61a\x02"]
)
def test_no_indefinite_length_and_no_key_twice(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        closed_cbor.decode(data)


# --- values in pieces ------------------------------------------------------------------------


HEADS = [
    (0, b"\xa0"),
    (1, b"\xa1"),
    (23, b"\xb7"),
    (24, b"\xb8\x18"),
    (25, b"\xb8\x19"),
    (255, b"\xb8\xff"),
    (256, b"\xb9\x01\x00"),
    (65_535, b"\xb9\xff\xff"),
    (65_536, b"\xba\x00\x01\x00\x00"),
    ((1 << 32) - 1, b"\xba\xff\xff\xff\xff"),
    (1 << 32, b"\xbb\x00\x00\x00\x01\x00\x00\x00\x00"),
    ((1 << 64) - 1, b"\xbb" + b"\xff" * 8),
]


@pytest.mark.parametrize(("count", "head"), HEADS)
def test_a_map_begins_with_its_length_in_the_fewest_bytes(count: int, head: bytes) -> None:
    assert map_head(count) == head


@pytest.mark.parametrize(("count", "head"), HEADS[:9])
def test_the_length_of_a_map_or_a_list_is_read_back(count: int, head: bytes) -> None:
    assert PieceReader(head + bytes(count)).map_length() == count
    as_list = bytes([head[0] - 0x20]) + head[1:]
    assert PieceReader(as_list + bytes(count)).list_length() == count


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_a_length_may_have_more_bytes_than_it_needs(size: int) -> None:
    code = {1: 24, 2: 25, 4: 26, 8: 27}[size]
    reader = PieceReader(bytes([4 << 5 | code]) + (2).to_bytes(size, "big") + b"\x07\x08")
    assert reader.list_length() == 2
    assert reader.values(2) == [7, 8]
    reader.finish()


@pytest.mark.parametrize("data", [b"", b"\x98", b"\x99\x00", b"\x9a\0\0\0", b"\x9b" + bytes(7)])
def test_a_length_that_is_cut_short_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        PieceReader(data).list_length()
    assert "cut short" in str(refused.value)


@pytest.mark.parametrize(
    ("data", "length"), [(b"\x81", 1), (b"\x82", None), (b"\x82\x01", 2), (b"\x83\x01", None)]
)
def test_no_length_exceeds_the_number_of_bytes(data: bytes, length: int | None) -> None:
    reader = PieceReader(data)
    if length is None:
        with pytest.raises(RemoteProtocolError) as refused:
            reader.list_length()
        assert "cut short" in str(refused.value)
        return
    assert reader.list_length() == length
    with pytest.raises(RemoteProtocolError):
        reader.values(length)


@pytest.mark.parametrize("code", [28, 29, 30, 31])
@pytest.mark.parametrize("major", [4, 5])
def test_a_length_that_cbor_does_not_know_is_refused(major: int, code: int) -> None:
    reader = PieceReader(bytes([major << 5 | code]) + bytes(40))
    with pytest.raises(RemoteProtocolError) as refused:
        reader.list_length() if major == 4 else reader.map_length()
    assert "its length is unknown" in str(refused.value)


def test_what_is_no_list_is_left_to_be_read_as_a_value() -> None:
    reader = PieceReader(b"\xa1\x61k\x07\x61t\x82\x01\x02")
    assert reader.list_length() is None
    assert reader.value() == {"k": 7}
    assert reader.list_length() is None
    assert reader.text() == "t"
    assert reader.list_length() == 2
    assert reader.value() == 1
    with pytest.raises(RemoteProtocolError, match="followed by other bytes"):
        reader.finish()
    with pytest.raises(RemoteProtocolError, match="key is not text"):
        reader.text()
    reader.finish()


@pytest.mark.parametrize("data", [b"\x80", b"\x01", b"\x61k"])
def test_what_is_no_map_is_refused_where_one_is_expected(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        PieceReader(data).map_length()
    assert "a map is expected" in str(refused.value)


@pytest.mark.parametrize("count", [0, 1, ROW_COUNT - 1, ROW_COUNT, ROW_COUNT + 1, 2 * ROW_COUNT])
def test_rows_are_read_in_pieces_and_none_is_left_out(count: int) -> None:
    rows: list[Plain] = list(range(count))
    reader = PieceReader(closed_cbor.encode(rows))
    assert reader.list_length() == count
    pieces = list(reader.rows(count))
    assert [row for piece in pieces for row in piece] == rows
    assert all(len(piece) == ROW_COUNT for piece in pieces[:-1])
    reader.finish()


# --- messages --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [None, 7, {}, [], [None], ["1"], [1.0], [True], [[1]], [{"k": 1}], [[]], [b"\x01"]]
)
def test_a_message_without_a_number_is_refused(value: Plain) -> None:
    with pytest.raises(RemoteProtocolError, match="has no kind"):
        decode_message(closed_cbor.encode(value))


@pytest.mark.parametrize("number", [0, -1, 26, 1000])
def test_a_message_of_an_unknown_kind_is_refused(number: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"unknown kind {number}$"):
        decode_message(closed_cbor.encode([number, 1]))


@pytest.mark.parametrize("fields", [[], [1, 2], [1, None, 3]])
def test_a_message_with_another_number_of_fields_is_refused(fields: list[Plain]) -> None:
    with pytest.raises(RemoteProtocolError, match=f"timeout_now has {len(fields)} fields"):
        decode_message(closed_cbor.encode([11, *fields]))


@pytest.mark.parametrize("value", [None, True, "1", b"1", 1.0, [1]])
def test_a_field_of_another_type_is_refused(value: Plain) -> None:
    with pytest.raises(RemoteProtocolError, match="timeout_now has the wrong type"):
        decode_message(closed_cbor.encode([11, value]))


@pytest.mark.parametrize("number", [-1, 0, (1 << 62) - 1])
def test_a_number_in_a_message_has_62_bits_or_is_minus_one(number: int) -> None:
    message = {"type": "commit", "term": 3, "commit_index": number}
    assert decode_message(encode_message(message)) == message
    message = {"type": "commit", "term": number, "commit_index": 3}
    assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize("number", [-2, 1 << 62])
def test_a_number_out_of_range_is_refused(number: int) -> None:
    for fields in ([3, number], [number, 3]):
        with pytest.raises(RemoteProtocolError, match="commit is out of range"):
            decode_message(closed_cbor.encode([7, *fields]))


def test_a_large_message_is_not_kept_after_it_was_read() -> None:
    """Sixty-four of them might have a gigabyte."""
    fields = {"term": 5, "leading": True, "index": 9, "total": 1 << 20, "offset": 0}
    large = encode_message({"type": "snapshot", "data": bytes(1 << 20), **fields})
    first, again = decode_message(large), decode_message(large)
    assert first == again
    assert first is not again


# --- frames ----------------------------------------------------------------------------------


def test_each_frame_is_read_once_and_none_behind_a_newer_one() -> None:
    writer, reader = FrameWriter(0), FrameReader()
    first, second, third = (writer.frame(body) for body in (b"1", b"2", b"3"))
    assert reader.body(first) == b"1"
    assert reader.body(first) is None
    assert reader.body(third) == b"3"
    assert reader.body(second) is None
    assert reader.body(third) is None
    assert reader.body(writer.frame(b"4")) == b"4"


def test_frames_of_a_connection_that_is_gone_are_dropped() -> None:
    old, new, reader = FrameWriter(7), FrameWriter(8), FrameReader()
    assert reader.body(old.frame(b"1")) == b"1"
    reader.begin_connection()
    assert reader.body(old.frame(b"2")) is None
    assert reader.body(new.frame(b"3")) == b"3"
    assert reader.body(old.frame(b"4")) is None
    assert reader.body(new.frame(b"5")) == b"5"


def test_what_is_no_frame_is_refused() -> None:
    frame = FrameWriter(1).frame(b"x")
    assert frame == b"\x01" + (1).to_bytes(8, "little") * 2 + b"x"
    for size in (0, 1, 16, 17):
        with pytest.raises(RemoteProtocolError, match=f"frame has {size} bytes"):
            FrameReader().body(frame[:size])
    longest = frame[:17] + bytes(FRAME_BYTES_MAX - 17)
    assert FrameReader().body(longest) == longest[17:]
    with pytest.raises(RemoteProtocolError, match=f"frame has {FRAME_BYTES_MAX + 1} bytes"):
        FrameReader().body(longest + b"x")
    for version in (0, 2, 255):
        with pytest.raises(RemoteProtocolError, match=f"frame has version {version}"):
            FrameReader().body(bytes([version]) + frame[1:])
