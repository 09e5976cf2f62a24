"""Fuzzed HTTP: all input is answered or refused, and no error comes through."""

import re

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.monitoring.http.test_http_connection import echo
from tests.properties import examples

from gpupool.monitoring.http.http_connection import serve_http

WORDS = (
    b"GET / HTTP/1.1\r\n",
    b"POST /api/v1/login HTTP/1.1\r\n",
    b"HEAD /metrics HTTP/1.0\r\n",
    b"GET /%00%ff..%2f\xff HTTP/1.1\r\n",
    b"host: x\r\n",
    b"host: \xff\x00\r\n",
    b"content-length: 5\r\n",
    b"content-length: 99999999999999999999\r\n",
    b"transfer-encoding: chunked\r\n",
    b"transfer-encoding: gzip, chunked\r\n",
    b"expect: 100-continue\r\n",
    b"connection: close\r\n",
    b"connection: upgrade\r\nupgrade: h2c\r\n",
    b"authorization: Bearer gpupool-\r\n",
    b" folded: x\r\n",
    b"\r\n",
    b"\n",
    b"5\r\nhello\r\n",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"a" * 20_000,
    b"hello",
)
PIECES = st.lists(st.one_of(st.sampled_from(WORDS), st.binary(max_size=40)), max_size=12)
STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")


async def sent(pieces: list[bytes]) -> bytes:
    """Send the pieces one after the other, hang up, and return all that came back."""
    stream, theirs = trio.testing.memory_stream_pair()
    heard = bytearray()

    async def hear() -> None:
        async for data in stream:
            heard.extend(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hear)

        async def serve() -> None:
            await serve_http(theirs, echo, client="10.0.0.7", number=3)

        nursery.start_soon(serve)
        for piece in pieces:
            try:
                await stream.send_all(piece)
            except trio.BrokenResourceError:
                break
        await stream.send_stream.aclose()
    return bytes(heard)


def check(pieces: list[bytes]) -> None:
    answer = trio.run(lambda: sent(pieces), clock=trio.testing.MockClock(autojump_threshold=0))
    assert not answer or STATUS.match(answer), answer
    # What the application echoes may look like a status line: only the first one is surely ours.
    found = STATUS.match(answer)
    assert found is None or int(found[1]) in (100, 200, 400, 413, 431, 501, 505), answer


@settings(max_examples=examples(40), deadline=None)
@given(PIECES)
def test_fuzzed_requests_are_answered_or_refused(pieces: list[bytes]) -> None:
    check(pieces)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=100_000, deadline=None)
@given(PIECES)
def test_very_many_fuzzed_requests_are_answered_or_refused(pieces: list[bytes]) -> None:
    check(pieces)
