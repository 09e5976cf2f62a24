"""``gpupool web`` before a real pool: its address, its key, its messages, and its end."""

import contextlib
import http.client
import json
import re
import shlex
import signal
import ssl
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
import trio.testing
from tests.cli.conftest import LivePool

from gpupool.cli.lib.web_invitation import STARTING_S, patiently
from gpupool.pool.errors import UnreachableError


async def test_a_page_that_is_not_there_yet_is_asked_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    asked_count = 0

    async def ask(answer_at: int = 1000, *, certificate: bool = False) -> str:
        nonlocal asked_count
        asked_count += 1
        if asked_count < answer_at:
            cause = OSError("certificate") if certificate else ConnectionResetError()
            raise UnreachableError("it does not answer") from cause
        return "key"

    assert await patiently(lambda: ask(3)) == "key" and asked_count == 3
    with pytest.raises(UnreachableError):  # by a server without a page
        await patiently(ask)
    assert STARTING_S <= trio.current_time() < 2 * STARTING_S
    asked_count = 0
    with pytest.raises(UnreachableError):  # by another server than that of the pool
        await patiently(lambda: ask(certificate=True))
    assert asked_count == 1


def test_the_page_tells_of_the_pool_to_who_has_the_key(live_pool: LivePool) -> None:
    process = live_pool.spawn("web", "--no-browser", "--port", "0")
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.search(r"http://127\.0\.0\.1:(\d+)/#key=(\S+)", line)
    assert found is not None, line
    address = urlsplit(found[0])
    connection = http.client.HTTPConnection("127.0.0.1", address.port or 0, timeout=10)

    def ask(method: str, path: str, body: str = "", **headers: str) -> http.client.HTTPResponse:
        connection.request(method, path, body=body or None, headers=headers)
        return connection.getresponse()

    answer = ask("GET", "/")
    assert answer.status == 200 and b"gpupool" in answer.read()
    answer = ask("GET", "/api/v1/live")
    assert answer.status == 401 and answer.read()
    answer = ask("POST", "/api/v1/login", json.dumps({"key": found[2]}))
    cookie = (answer.headers["set-cookie"] or "").partition(";")[0]
    assert answer.status == 200 and answer.read()
    answer = ask("GET", "/api/v1/live", cookie=cookie)
    told = json.loads(answer.read())
    servers = told["tables"]["servers"]["cols"]
    assert sorted(servers["name"]) == sorted(each["name"] for each in live_pool.view()["servers"])
    assert told["values"]["viewer"]["operator"] is True
    answer = ask("GET", "/api/v1/live", host="evil.example", cookie=cookie)
    assert answer.status == 421 and answer.read()
    connection.close()
    process.send_signal(signal.SIGINT)
    _, last_words = process.communicate(timeout=10)
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    assert "Traceback" not in last_words and "wrong" not in last_words


def test_a_servers_own_page_is_opened_by_the_stored_token(live_pool: LivePool) -> None:
    server = live_pool.view()["servers"][0]["name"]
    done = live_pool.run("web", "--on", server, "--no-browser")
    found = re.search(r"https://(\S+):(\d+)/#key=(\S+)", done.stderr)
    log = live_pool.servers[server].log.read_text()
    assert found is not None, f"{done.stderr}\n{log[-6000:]}"
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(found[1], int(found[2]), timeout=20, context=context)
    with contextlib.closing(connection):
        body = json.dumps({"key": found[3]})
        connection.request("POST", "/api/v1/login", body=body, headers={"x-gpupool": ""})
        answer = connection.getresponse()
        cookie = (answer.headers["set-cookie"] or "").partition(";")[0]
        assert answer.status == 200 and answer.read()
        deadline = time.monotonic() + 20
        tables: dict[str, Any] = {}
        while "servers" not in tables and time.monotonic() < deadline:  # The page looks first.
            connection.request("GET", "/api/v1/live", headers={"cookie": cookie})
            tables = json.loads(connection.getresponse().read())["tables"]
            time.sleep(0.05)
    names = sorted(tables["servers"]["cols"]["name"])
    assert names == sorted(each["name"] for each in live_pool.view()["servers"])


BROWSER = """
import json, os, sys, urllib.parse
page = urllib.parse.unquote(urllib.parse.urlsplit(sys.argv[1]).path)
modes = [os.stat(each).st_mode & 0o777 for each in (page, os.path.dirname(page))]
with open(os.environ["SEEN_BY"] + ".new", "w") as file:
    json.dump({"words": sys.argv[1:], "modes": modes, "text": open(page).read()}, file)
os.rename(os.environ["SEEN_BY"] + ".new", os.environ["SEEN_BY"])
"""


@pytest.mark.parametrize("on", [[], ["--on"]], ids=["here", "on"])
def test_no_browser_has_the_key_among_its_arguments(
    live_pool: LivePool, tmp_path: Path, on: list[str]
) -> None:
    """Others of this machine read them, and could be faster than the browser."""
    browser, seen = tmp_path / "browser.py", tmp_path / "seen"
    browser.write_text(BROWSER)
    server = live_pool.view()["servers"][0]["name"]
    words = ["--on", server] if on else ["--port", "0"]
    env = {
        "BROWSER": f"{shlex.quote(sys.executable)} {browser} %s",
        "SEEN_BY": str(seen),
        "TMPDIR": str(tmp_path),
    }
    process = live_pool.spawn("web", *words, env=env)
    assert process.stderr is not None
    found = re.search(r"https?://\S+/#key=(\S+)", process.stderr.readline())
    assert found is not None
    end = time.monotonic() + 30
    while not seen.exists():
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)
    told = json.loads(seen.read_text())
    [page] = told["words"]
    assert page.startswith(f"file://{tmp_path}/gpupool-web-") and found[1] not in page
    assert told["modes"] == [0o600, 0o700]
    assert found[0] in told["text"]
    process.send_signal(signal.SIGINT)
    _, last_words = process.communicate(timeout=10)
    assert "Traceback" not in last_words
    assert list(tmp_path.glob("gpupool-web-*")) == []
