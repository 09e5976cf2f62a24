"""Parsing before authentication takes no more than linear work, for any input."""

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest
from starlette.requests import Request
from tests.layout_rules import imports_of

import gpupool
from gpupool.monitoring.http.http_app import is_in
from gpupool.monitoring.web.gate import LocalGate, NoEntry, cookie_of, equal
from gpupool.monitoring.web.pool_source import PoolSource
from gpupool.pool.errors import GpupoolError
from gpupool.remoting.protocol.framing import HEADER, FrameReader, load
from gpupool.remoting.protocol.token_text import PREFIX, parse_token
from gpupool.remoting.server.listener.router import Opening

ROOT = Path(gpupool.__file__).resolve().parent


def request(*cookies: str) -> Request:
    headers = [(b"cookie", each.encode("latin-1")) for each in cookies]
    return Request({"type": "http", "headers": headers})


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("mine=abc", "abc"),
        ("a=1; mine=abc; b=2", "abc"),
        ("a=1;mine=abc", "abc"),
        ("  mine = abc ", "abc"),
        ("mine=a=b", "a=b"),
        ("mine=first; mine=second", "first"),
        ("not-mine=abc", ""),
        ("mine", ""),
        ("", ""),
        (";;;=;", ""),
        ('a="x; mine=abc"', 'abc"'),  # a quote is a letter as any other
        ('a="' + "\\" * 15_000 + '"', ""),
    ],
)
def test_our_cookie_is_found_by_its_name(header: str, value: str) -> None:
    assert cookie_of(request(header), "mine") == value
    assert cookie_of(request(), "mine") == ""


SLOW = {"http.cookies", "http.cookiejar", "email", "cgi", "html.parser", "xml", "tomllib"}
"""Parsers that take more than linear time in some Python that we run on, or may."""

HEARS_STRANGERS = (
    *("monitoring/http", "monitoring/web/gate.py", "monitoring/web/server_gate.py"),
    *("monitoring/web/page_app.py", "monitoring/web/page_api.py", "remoting/server/listener"),
    *("remoting/protocol/framing.py", "remoting/protocol/token_text.py"),
    *("remoting/protocol/addresses.py", "remoting/protocol/handshake.py"),
    "remoting/protocol/connection.py",
)
PATTERNS = {"[0-9a-f]{32}", "[0-9a-z]{1,32}"}
"""The regular expressions that judge strangers' texts: none of them has two ways to go."""


def test_no_parser_of_strangers_texts_is_slow() -> None:
    paths = [
        path
        for each in HEARS_STRANGERS
        for path in ([ROOT / each] if each.endswith(".py") else (ROOT / each).rglob("*.py"))
    ]
    assert len(paths) > 15
    patterns: set[str] = set()
    for path in paths:
        source = path.read_text()
        modules = {name for name, _ in imports_of(source)}
        assert not modules & SLOW, path
        for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
            if ast.unparse(call.func).startswith("re."):
                patterns.add(ast.literal_eval(call.args[0]))
    assert patterns == PATTERNS


def lines_of(work: Callable[[], object]) -> int:
    """Return how many lines of Python ran."""
    count = 0

    def trace(_frame: FrameType, event: str, _given: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def refused(work: Callable[[], object]) -> None:
    try:
        work()
    except GpupoolError:
        return


def feed(size: int) -> None:
    reader = FrameReader(4096)
    for byte in HEADER.pack(4096, 1) + bytes(size):
        reader.feed(bytes([byte]))
        assert reader.next() is None


def log_in(size: int) -> None:
    gate = LocalGate(cast(PoolSource, None), 1)
    gate.new_key()
    answers: list[object] = []

    async def enter() -> None:
        answers.append(await gate.enter(request(), {"key": "\ud800" * size}))

    coroutine = enter()
    with pytest.raises(StopIteration):
        coroutine.send(None)
    assert isinstance(answers[0], NoEntry)


PARSERS: dict[str, Callable[[int], object]] = {
    "cookie": lambda n: cookie_of(request('a="' + "\\" * n + '"'), "mine"),
    "cookies": lambda n: cookie_of(request("a=;" * n), "mine"),
    "token": lambda n: refused(lambda: parse_token(PREFIX + "a" * n)),
    "words for a token": lambda n: refused(lambda: parse_token("gpupool- " * n)),
    "frame": feed,
    "CBOR": lambda n: refused(lambda: load(b"\x9f" * n)),
    "lists": lambda n: refused(lambda: load(b"\x81" * n)),
    "opening": lambda n: refused(lambda: Opening().route(b"\x16\x03\x01\xff\xff" + bytes(n))),
    "address": lambda n: is_in("1." * n, ["10.0.0.0/8"]),
    "key": log_in,
}


@pytest.mark.parametrize("name", PARSERS)
def test_work_grows_no_faster_than_the_text(name: str) -> None:
    parse = PARSERS[name]
    parse(100)  # what is imported or made once
    small, large = (lines_of(lambda n=n: parse(n)) for n in (500, 2000))
    assert large <= 4.5 * small + 50


# --- texts that no UTF-8 has ----------------------------------------------------------------------


def test_a_lone_surrogate_is_no_key() -> None:
    log_in(1)
    assert not equal("\ud800", "?")
    assert not equal("?", "\ud800")
    assert equal("\ud800", "\ud800")
    assert equal("same", "same")


def test_what_a_stranger_said_is_answered_whatever_it_is() -> None:
    from gpupool.monitoring.web.page_api import _json  # pyright: ignore[reportPrivateUsage]

    answer = _json(request(), {"error": json.loads('"\\ud800"')})
    assert json.loads(bytes(answer.body)) == {"error": "?"}
