"""Messages to frames and back. A frame's body is the CBOR array ``[call number, fields]``."""

from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.model.codec import CodecError, decode, encode
from gpupool.remoting.protocol.framing import dump, frame_bytes, load
from gpupool.remoting.protocol.messages.declaration import BY_NUMBER, NUMBERS, Call, Message

CALL_NUMBER_MAX = 2**32 - 1


def to_frame(call: int, message: Message, *, size_max: int) -> bytes:
    """Return ``message`` as one frame, as call number ``call`` or an answer to it."""
    return frame_bytes(NUMBERS[type(message)], dump([call, encode(message)]), size_max=size_max)


def from_body(kind: int, body: bytes) -> tuple[int, Message]:
    """Return the call number and the message of a frame.

    Raises:
        RemoteProtocolError: for an unknown kind, or a body that is not exactly its message.
    """
    expected = BY_NUMBER.get(kind)
    if expected is None:
        raise RemoteProtocolError("unknown message", why=f"kind {kind}")
    plain = load(body)
    if not isinstance(plain, list) or len(plain) != 2:
        raise RemoteProtocolError("malformed message", why="not a pair of number and fields")
    call, fields = plain
    if type(call) is not int or not 0 <= call <= CALL_NUMBER_MAX:
        raise RemoteProtocolError("malformed message", why="call number out of range")
    try:
        return call, decode(expected, fields, unknown_fields=not issubclass(expected, Call))
    except CodecError as error:
        raise RemoteProtocolError("malformed message", why=str(error)[:200]) from error
