"""The web page on a server's port: tokens, cookies, rights, revocation, one-time keys."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import h11
import pytest
import trio
import trio.testing
from starlette.requests import Request
from tests.fake_web_pool import FakePool
from tests.monitoring.http.web_kit import Web, eventually, served, some
from tests.remoting.control.test_control_trust import make_authority, token_id

from gpupool.cli.lib.web_invitation import ask_key, token_text
from gpupool.monitoring.http.token_checks import Judgement
from gpupool.monitoring.web.gate import Entry, NoEntry
from gpupool.monitoring.web.lent_source import UNSEEN_S, LentSource
from gpupool.monitoring.web.server_gate import (
    IDLE_S,
    KEY_BOUND,
    KEY_S,
    KEYS_MAX,
    SESSION_BOUND,
    SESSION_S,
    SESSIONS_MAX,
    ServerGate,
)
from gpupool.pool.errors import AuthenticationError, UnreachableError
from gpupool.pool.model import commands
from gpupool.pool.model.state import TokenKind
from gpupool.pool.read_model.pool_watch import PoolUpdate
from gpupool.remoting.client.pool_client import Pool
from gpupool.remoting.protocol.addresses import Address

HOST = "gpu-1:7470"


class Browser:
    """Speaks HTTPS by h11, with a cookie and the orders' secret; a connection for each request."""

    def __init__(self, web: Web) -> None:
        self.web = web
        self.cookie = self.secret = ""
        self.headers: dict[str, str] = {}

    async def ask(
        self, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Get ``path``, or post ``body`` to it as the page's own script does."""
        data = b"" if body is None else json.dumps(body).encode()
        sent = {"host": HOST, "connection": "close", "content-length": str(len(data))}
        if body is not None:
            sent |= {"origin": f"https://{HOST}", "x-gpupool": self.secret}
        if self.cookie:
            sent["cookie"] = self.cookie
        sent |= headers or {}
        http = h11.Connection(h11.CLIENT)
        method = "GET" if body is None else "POST"
        request = h11.Request(method=method, target=path, headers=list(sent.items()))
        async with await self.web.open() as stream:
            for event in (request, h11.Data(data=data), h11.EndOfMessage()):
                await stream.send_all(http.send(event) or b"")
            status, answer = 0, b""
            while True:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    http.receive_data(await some(stream))
                elif isinstance(event, h11.Response):
                    status = event.status_code
                    self.headers = {k.decode(): v.decode() for k, v in event.headers}
                elif isinstance(event, h11.Data):
                    answer += bytes(event.data)
                else:
                    return status, answer

    async def log_in(self, **given: str) -> int:
        status, body = await self.ask("/api/v1/login", given)
        if status == 200:
            self.cookie = self.headers["set-cookie"].partition(";")[0]
            self.secret = json.loads(body)["secret"]
        return status

    async def live(self) -> dict[str, dict[str, object]]:
        """Return the values of the first document, as soon as there are any."""
        found: dict[str, dict[str, object]] = {}

        async def told() -> bool:
            status, body = await self.ask("/api/v1/live")
            assert status == 200, body
            found.update(json.loads(body)["values"])
            return bool(found)

        await eventually(told)
        return found


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncGenerator[Browser]:
    async with served(tmp_path) as web:
        yield Browser(web)


async def test_a_viewer_logs_in_and_only_looks(browser: Browser) -> None:
    status, page = await browser.ask("/servers/node-1")
    assert status == 200 and b"<script" in page
    assert "default-src 'none'" in browser.headers["content-security-policy"]
    status, body = await browser.ask("/api/v1/live")
    assert status == 401 and json.loads(body)["error"]["entry"] == "token"
    assert (await browser.ask("/static/main.js"))[0] == 200
    assert (await browser.ask("/healthz"))[0] == 503  # the paths of before are there

    assert await browser.log_in(token=browser.web.viewer()) == 200
    name, *rules = browser.headers["set-cookie"].split("; ")
    assert name.startswith("__Host-")
    assert {"Secure", "HttpOnly", "SameSite=Strict", "Path=/"} == set(rules)
    found = await browser.live()
    viewer = found["viewer"]
    assert (viewer["user"], viewer["operator"], viewer["readonly"]) == ("grafana", False, True)
    server = next(iter(browser.web.lab.state.servers.values())).name
    status, body = await browser.ask("/api/v1/drain", {"server": server, "reason": "because"})
    assert status == 403, body
    assert not any(each.drain_reason for each in browser.web.lab.state.servers.values())


async def test_an_operators_order_is_audited_and_a_revoked_token_ends_it(browser: Browser) -> None:
    lab = browser.web.lab
    assert await browser.log_in(token=lab.token("olga", TokenKind.OPERATOR)) == 200
    assert (await browser.live())["viewer"]["operator"] is True
    server = next(iter(lab.state.servers.values())).name
    order = {"server": server, "reason": "new fans"}
    for wrong in ({"x-gpupool": "guessed"}, {"origin": "https://evil.example"}):
        assert (await browser.ask("/api/v1/drain", order, wrong))[0] == 401
    status, body = await browser.ask("/api/v1/drain", order)
    assert status == 200, body
    (drained,) = lab.state.servers.values()
    assert drained.drain_reason == "new fans (web)"

    lab.commit(commands.RevokeToken(token_id("olga"), "root"))

    async def is_out() -> bool:
        return (await browser.ask("/api/v1/live"))[0] == 401

    await eventually(is_out, within_s=2.0)


async def test_a_key_for_one_browser_by_a_token(browser: Browser) -> None:
    bearer = {"authorization": f"Bearer {browser.web.viewer()}"}
    status, body = await browser.ask("/api/v1/invitation", {}, bearer)
    assert status == 200, body
    key = json.loads(body)["key"]
    assert await browser.log_in(key=key) == 200
    assert (await browser.live())["viewer"]["user"] == "grafana"
    assert await browser.log_in(key=key) == 401
    assert (await browser.ask("/api/v1/logout", {}))[0] == 200
    assert "Max-Age=0" in browser.headers["set-cookie"]
    assert (await browser.ask("/api/v1/live"))[0] == 401


# --- the gate alone, in virtual time --------------------------------------------------------------


class Bench:
    """A gate with a separate clock, and a server that knows these tokens."""

    def __init__(self) -> None:
        self.time_s = 1000.0
        self.good = {"ada", "grace"}
        self.down = False
        self.gate = ServerGate(self._judge, self._lend, lambda: self.time_s)

    async def _judge(self, text: str, _connection: int) -> Judgement:
        if self.down:
            return Judgement(why="it is away", status=503)
        user = text.partition("/")[0]
        return Judgement(user, "user") if user in self.good else Judgement(why="no")

    def _lend(self, text: str, _judgement: Judgement) -> LentSource:
        source = LentSource(text, "user", _nobody, lambda _task: None)
        source.look = _looked  # type: ignore[method-assign]
        return source

    async def log_in(self, text: str, address: str = "10.0.0.1", **headers: str) -> Entry | NoEntry:
        given = request(address, headers={"x-gpupool": "", **headers})
        return await self.gate.enter(given, {"token": text})

    async def invite(self, text: str) -> str | NoEntry:
        given = request("10.0.0.1", headers={"authorization": f"Bearer {text}"})
        return await self.gate.invite(given)

    async def is_good(self, key: str | NoEntry) -> bool:
        given = request("10.0.0.1", headers={"x-gpupool": ""})
        return isinstance(await self.gate.enter(given, {"key": key}), Entry)

    async def is_in(self, entry: Entry | NoEntry) -> bool:
        assert isinstance(entry, Entry)
        cookie = entry.cookie.partition(";")[0]
        return await self.gate.source(request("10.0.0.1", headers={"cookie": cookie})) is not None


@asynccontextmanager
async def _nobody() -> AsyncGenerator[Pool]:
    raise UnreachableError("nobody is there")
    yield


async def _looked() -> None:
    return


def request(address: str, headers: Mapping[str, str]) -> Request:
    given = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    return Request(
        {
            "type": "http",
            "headers": [(b"host", HOST.encode()), *given],
            "client": (address, 1),
            "state": {"connection": 1},
        }
    )


async def test_sessions_end() -> None:
    bench = Bench()
    entry = await bench.log_in("ada")
    assert await bench.is_in(entry)
    bench.time_s += IDLE_S + 1
    assert not await bench.is_in(entry)
    entry = await bench.log_in("ada")
    for _ in range(int(SESSION_S / IDLE_S)):
        assert await bench.is_in(entry)
        bench.time_s += IDLE_S - 1
    bench.time_s += SESSION_S / IDLE_S
    assert not await bench.is_in(entry)
    entry = await bench.log_in("ada")
    bench.down = True
    with pytest.raises(UnreachableError):
        await bench.is_in(entry)
    bench.down, bench.good = False, {"grace"}
    assert not await bench.is_in(entry)


async def test_sessions_are_bounded_by_user_and_in_all() -> None:
    bench = Bench()
    graces = await bench.log_in("grace")
    adas = [await bench.log_in("ada") for _ in range(SESSION_BOUND.token + 1)]
    assert [await bench.is_in(each) for each in (graces, *adas[:2])] == [True, False, True]
    left = SESSION_BOUND.user - SESSION_BOUND.token
    others = [await bench.log_in("ada/2") for _ in range(left + 1)]
    found = [await bench.is_in(each) for each in (*adas[1:3], *others)]
    assert found == [True, False] + [True] * (left + 1)  # adas[1] was used just now
    bench.good |= {f"user {number}" for number in range(SESSIONS_MAX)}
    for number in range(SESSIONS_MAX):
        await bench.log_in(f"user {number}")
    assert not await bench.is_in(graces)


async def test_wrong_log_ins_keep_nobody_with_a_token_out() -> None:
    """60 wrong ones in a minute, of anybody, kept everybody out; five kept an address out."""
    bench = Bench()
    for number in range(200):
        for text in ("wrong", ""):
            answer = await bench.log_in(text, f"10.1.0.{number % 2}")
            assert isinstance(answer, NoEntry) and answer.status == 401
            assert isinstance(await bench.invite("wrong"), NoEntry)
    for address in ("10.1.0.0", "10.0.0.2"):
        assert isinstance(await bench.log_in("ada", address), Entry)
    assert isinstance(await bench.invite("ada"), str)


async def test_pages_of_others_log_nobody_in() -> None:
    bench = Bench()
    foreign = await bench.log_in("ada", origin="https://evil.example")
    assert isinstance(foreign, NoEntry) and foreign.status == 403
    bare = await bench.gate.enter(request("10.0.0.1", headers={}), {"token": "ada"})
    assert isinstance(bare, NoEntry) and bare.status == 403


async def test_a_key_is_good_for_a_minute() -> None:
    bench = Bench()
    key = await bench.invite("ada")
    assert isinstance(key, str)
    bench.time_s += KEY_S + 1
    assert not await bench.is_good(key)
    wrong = await bench.invite("eve")
    assert isinstance(wrong, NoEntry) and wrong.status == 401


async def test_one_user_cannot_take_all_keys_of_a_page() -> None:
    """With more than one may have, or than there may be, the oldest of the busiest user go."""
    bench = Bench()
    users = [f"user {number}" for number in range(KEYS_MAX - KEY_BOUND.user)]
    bench.good |= set(users)
    graces = await bench.invite("grace")
    adas = [await bench.invite("ada") for _ in range(KEY_BOUND.token + 1)]
    others = [await bench.invite("ada/2") for _ in range(KEY_BOUND.user - KEY_BOUND.token)]
    many = [await bench.invite(user) for user in users]
    for key in (adas[0], adas[1]):
        assert not await bench.is_good(key)
    for key in (graces, adas[2], others[-1], *many):
        assert await bench.is_good(key)


async def test_connections_end_a_minute_after_the_last_look(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    connected: list[str] = []
    pool = FakePool(servers=1, gpus=1, leases=0, waiting=0)

    class Client:
        """A connected client with the methods that ``LentSource`` needs."""

        def user(self) -> str:
            return "ada"

        def is_operator(self) -> bool:
            return False

        @asynccontextmanager
        async def subscribe(
            self, _interval_s: float
        ) -> AsyncGenerator[trio.MemoryReceiveChannel[object]]:
            send, receive = trio.open_memory_channel[object](1)
            snapshot = pool.latest()
            assert snapshot is not None
            update = PoolUpdate(snapshot.view, dict(snapshot.telemetry), 0.0, ())
            send.send_nowait(update)
            yield receive

    @asynccontextmanager
    async def connect() -> AsyncGenerator[Pool]:
        connected.append("in")
        try:
            yield Client()  # type: ignore[misc]
        finally:
            connected.append("out")

    async with trio.open_nursery() as nursery:
        source = LentSource("ada", "user", connect, nursery.start_soon)
        await source.look()
        assert source.latest() is not None
        await trio.sleep(UNSEEN_S - 1)
        await source.look()
        await trio.sleep(UNSEEN_S - 1)
        assert connected == ["in"]
        await trio.sleep(2)
        assert connected == ["in", "out"]
        assert source.latest() is not None  # with its age
        with pytest.raises(UnreachableError):
            await source.audit()
        await source.look()
        await trio.sleep(0.1)
        assert connected == ["in", "out", "in"]
        nursery.cancel_scope.cancel()


async def test_the_command_gets_an_address_by_stored_credentials(browser: Browser) -> None:
    lab = browser.web.lab
    lab.token("ada", TokenKind.USER)
    pem, port = lab.authority.certificate_pem.decode(), lab.ports[0]
    address = Address("127.0.0.1", port)
    text = token_text(lab.credentials("ada"), pem, address)
    key = await trio.to_thread.run_sync(ask_key, address, text, pem)
    assert await browser.log_in(key=key) == 200
    assert (await browser.live())["viewer"]["user"] == "ada"
    stranger = replace(lab.credentials("ada"), secret=bytes(32))
    text = token_text(stranger, pem, address)
    with pytest.raises(AuthenticationError):
        await trio.to_thread.run_sync(ask_key, address, text, pem)
    other = make_authority().certificate_pem.decode()
    with pytest.raises(UnreachableError, match="certificate"):
        await trio.to_thread.run_sync(ask_key, address, text, other)
