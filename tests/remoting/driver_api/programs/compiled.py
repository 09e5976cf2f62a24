"""NVRTC's question to the library before it compiles: compiled.py LIBRARY, without a server."""

import ctypes
import sys
import threading
from typing import Any

BINARY, TEXT = 1, 2
REFUSED, MISSED, INVALID = 801, 500, 1
WORD, INT = ctypes.c_uint64, ctypes.c_uint32

library = ctypes.CDLL(sys.argv[1])
table = ctypes.c_void_p()
name = bytes.fromhex("da9151d33ae6cc41a5c04f26d533e328")
status = library.cuGetExportTable(ctypes.byref(table), name)
if status != 0 or table.value is None:
    sys.exit(f"the table is refused: {status}")
slots = (WORD * 32).from_address(table.value)
assert slots[0] == 32 * 8


def function(slot: int, *kinds: Any) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(slots[slot])


pointer, text = ctypes.c_void_p, ctypes.c_char_p
start = function(1, pointer, INT, text, WORD, text, text, text, INT, WORD)
end = function(2, pointer)
look = function(3, pointer, WORD, pointer, pointer)
keep = function(4, pointer, WORD, text, INT)
release = ctypes.CFUNCTYPE(None, pointer)(slots[6])


def search(kind: int, code: bytes, options: bytes, compiler: bytes = b"of today") -> Any:
    """Return a search, or the status that refuses it."""
    made = pointer()
    status = start(ctypes.byref(made), kind, code, len(code), options, b"HOST64", compiler, 90, 0)
    return status or made


def compiled(kind: int, code: bytes, options: bytes, result: bytes, **more: bytes) -> bytes | int:
    """Return the result found, or keep ``result`` and return the status of the miss."""
    made = search(kind, code, options, **more)
    if isinstance(made, int):
        return made
    found, size = pointer(), INT()
    status = look(made, 0, ctypes.byref(found), ctypes.byref(size))
    if status == 0:
        got = ctypes.string_at(found, size.value)
        release(found)
    else:
        got = status
        assert keep(made, 0, result, len(result)) == 0
    assert end(made) == 0
    return got


def twice() -> None:
    """Find the same, and not the same with another word."""
    assert compiled(TEXT, b"code", b"-ftz=0", b"slow\0text") == MISSED
    assert compiled(TEXT, b"code", b"-ftz=0", b"") == b"slow\0text"
    assert compiled(TEXT, b"codes", b"-ftz=0", b"") == MISSED
    assert compiled(TEXT, b"code", b"-ftz=0", b"", compiler=b"of tomorrow") == MISSED
    assert compiled(TEXT, b"code", b"-ftz=1", b"fast text") == MISSED


def binaries() -> None:
    """Machine code belongs to the text before it; its options do not tell the text's options."""
    assert compiled(BINARY, b"code", b"-arch", b"fast") == MISSED  # of -ftz=1
    assert compiled(BINARY, b"code", b"-arch", b"") == REFUSED  # of no text
    assert compiled(TEXT, b"code", b"-ftz=0", b"") == b"slow\0text"
    assert compiled(BINARY, b"code", b"-arch", b"slow") == MISSED
    for options, result in ((b"-ftz=1", b"fast"), (b"-ftz=0", b"slow")):
        compiled(TEXT, b"code", options, b"")
        assert compiled(BINARY, b"code", b"-arch", b"") == result
    compiled(TEXT, b"code", b"-ftz=0", b"")
    assert compiled(BINARY, b"other code", b"-arch", b"") == REFUSED
    compiled(TEXT, b"code", b"-ftz=0", b"")
    others: list[Any] = []
    thread = threading.Thread(target=lambda: others.append(search(BINARY, b"code", b"-arch")))
    thread.start()
    thread.join()
    assert others == [REFUSED]


def wrong() -> None:
    """Unknown kinds, and missing arguments."""
    assert search(3, b"code", b"") == REFUSED
    assert start(None, TEXT, b"code", 4, b"", b"", b"", 90, 0) == INVALID
    assert start(ctypes.byref(pointer()), TEXT, None, 4, b"", b"", b"", 90, 0) == INVALID
    assert start(ctypes.byref(pointer()), TEXT, b"code", 4, None, b"", b"", 90, 0) == INVALID
    assert look(None, 0, None, None) == INVALID
    assert keep(None, 0, b"", 0) == INVALID


def bounds() -> None:
    """256 results of 64 MiB in all are kept, and the oldest goes first."""
    for number in range(256):
        assert compiled(TEXT, b"%d" % number, b"", b"%d" % number) == MISSED
    assert compiled(TEXT, b"code", b"-ftz=0", b"") == MISSED  # the 257th: 0 goes
    assert compiled(TEXT, b"1", b"", b"") == b"1"
    assert compiled(TEXT, b"0", b"", b"") == MISSED
    big = b"x" * (30 << 20)
    for code in (b"a", b"b", b"c"):
        assert compiled(TEXT, code, b"", big) == MISSED
    assert compiled(TEXT, b"255", b"", b"") == MISSED
    assert compiled(TEXT, b"c", b"", b"") == big
    assert compiled(TEXT, b"a", b"", b"") == MISSED
    made = search(TEXT, b"huge", b"")
    assert keep(made, 0, big, (64 << 20) + 1) == INVALID
    end(made)


def crowd() -> None:
    """Threads that keep and find at once."""

    def work(number: int) -> None:
        for turn in range(200):
            code = b"%d" % ((number + turn) % 50)
            assert compiled(TEXT, code, b"crowd", code * 500) in (code * 500, MISSED)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


twice()
binaries()
wrong()
bounds()
crowd()
print("right")
