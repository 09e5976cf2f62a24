"""``gpupool web`` before a real pool: its address, its key, what it tells, and its end."""

import http.client
import json
import re
import signal
from urllib.parse import urlsplit

from tests.cli.conftest import LivePool


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
