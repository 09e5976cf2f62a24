"""HTTPS on the one port: access, answers by token, and limits of unauthenticated peers."""

import json
import socket
import ssl
import zlib
from itertools import count
from pathlib import Path

import pytest
import trio
import trio.testing
from tests.monitoring.http.web_kit import Web, a_sample, descriptor_count, eventually, get, served
from tests.remoting.control.control_cluster import request, token_id
from tests.remoting.control.test_control_trust import start_lab

from gpupool.monitoring import exporter_link
from gpupool.monitoring.http import token_checks
from gpupool.monitoring.http.http_door import HttpDoor
from gpupool.monitoring.http.http_frames import PACKET, TokenAsked, WebSetup
from gpupool.pool.errors import RemoteProtocolError
from gpupool.pool.fair_access import UserBound
from gpupool.pool.model import commands
from gpupool.pool.model.ids import Milliseconds, TokenId
from gpupool.pool.model.state import PoolState, Token, TokenKind
from gpupool.remoting.client.pool_client import connect_pool
from gpupool.remoting.server.listener.preauth_limits import KNOWN_FACTOR
from gpupool.remoting.server.listener.router import HTTPS_ONLY, ToPlainHttp, ToWeb, route
from gpupool.remoting.server.server_settings import ServerSettings
from gpupool.remoting.transport.client_tls import client_context


async def until_ended(stream: trio.abc.Stream, within_s: float = 5.0) -> None:
    with trio.fail_after(within_s):
        try:
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass


async def test_a_viewer_reads_the_metrics_and_finds_the_servers(tmp_path: Path) -> None:
    async with served(tmp_path) as web:
        token = web.viewer()
        assert await web.get("/healthz") == (503, b"not ready\n")
        assert (await web.get("/metrics", token))[0] == 503
        web.http.sampled(a_sample())
        assert await web.get("/healthz") == (200, b"ok\n")
        status, body = await web.get("/metrics", token)
        assert status == 200
        assert b'gpupool_server_state{state="mix"} 1.0\n' in body
        status, packed = await web.get("/metrics", token, {"accept-encoding": "gzip"})
        assert zlib.decompress(packed, wbits=31) == body
        status, body = await web.get("/sd", token)
        address = f"127.0.0.1:{web.lab.ports[0]}"
        assert json.loads(body) == [
            {"targets": [address], "labels": {"server": "gpu-1", "pool": "lab"}}
        ]
        assert (await web.get("/elsewhere", token))[0] == 404


@pytest.mark.parametrize("path", ["/metrics", "/sd"])
async def test_without_a_good_token_nobody_reads_anything(tmp_path: Path, path: str) -> None:
    async with served(tmp_path) as web:
        web.http.sampled(a_sample())
        lab = web.lab
        good = lab.text("ada", TokenKind.USER)
        assert (await web.get(path, good))[0] == 200
        old = lab.token("old", TokenKind.VIEWER, Milliseconds(1000))
        server = lab.token("rack", TokenKind.SERVER)
        unknown = lab.text("nobody", TokenKind.VIEWER)
        for token in ("", "gpupool-", "x" * 5000, good[:-2] + "aa", old, server, unknown):
            status, body = await web.get(path, token)
            assert (status, good.encode() in body) == (401, False), token
        basic = {"authorization": "Basic eDp5"}
        assert (await web.get(path, headers=basic))[0] == 401


async def test_a_revoked_token_is_refused_within_two_seconds(tmp_path: Path) -> None:
    async with served(tmp_path) as web:
        token = web.viewer()
        async with await web.open() as stream:
            assert (await get(stream, "/sd", token))[0] == 200
            web.lab.commit(commands.RevokeToken(token_id("grafana"), "root"))

            async def is_refused() -> bool:
                return (await get(stream, "/sd", token))[0] == 401

            await eventually(is_refused, within_s=2)


async def test_a_known_scraper_does_not_wait_for_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_checks, "KEPT_S", 0.0)
    monkeypatch.setattr(exporter_link, "TOKENS_EVERY_S", 0.01)
    async with served(tmp_path) as web:
        token = web.viewer()
        async with await web.open() as stream:
            assert (await get(stream, "/sd", token))[0] == 200
            await web.tokens_seen()
            web.answers = False  # as while its loop is busy
            for _ in range(3):
                assert (await get(stream, "/sd", token))[0] == 200
            assert web.asked_count == 1
            web.answers = True
            web.lab.commit(commands.RevokeToken(token_id("grafana"), "root"))

            async def is_refused() -> bool:
                return (await get(stream, "/sd", token))[0] == 401

            await eventually(is_refused, within_s=2)


async def test_whole_networks_may_scrape_when_told_so(tmp_path: Path) -> None:
    async with served(tmp_path, open_networks=("10.0.0.0/8", "127.0.0.0/8")) as web:
        assert (await web.get("/sd"))[0] == 200
    async with served(tmp_path / "2", open_networks=("10.0.0.0/8",)) as web:
        assert (await web.get("/sd"))[0] == 401


async def test_a_server_that_comes_or_goes_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exporter_link.TARGETS_EVERY_S < 5.0, "by then it must be found"
    monkeypatch.setattr(exporter_link, "TARGETS_EVERY_S", 0.02)
    async with served(tmp_path) as web:
        token = web.viewer()

        async def names() -> set[str]:
            found = json.loads((await web.get("/sd", token))[1])
            return {each["labels"]["server"] for each in found}

        async def until_they_are(wanted: set[str]) -> None:
            async def they_are() -> bool:
                return await names() == wanted

            await eventually(they_are)

        await until_they_are({"gpu-1"})
        web.lab.token("rack", TokenKind.SERVER)
        ident = next(iter(web.lab.state.servers)).replace("1", "7")
        join = commands.JoinServer(ident, "gpu-7", "gpu-7:7470", False, token_id("rack"))  # type: ignore[arg-type]
        web.lab.commit(join)
        await until_they_are({"gpu-1", "gpu-7"})
        web.lab.commit(commands.RemoveServer(ident, "root"))  # type: ignore[arg-type]
        await until_they_are({"gpu-1"})


async def test_plain_http_is_told_to_speak_https(tmp_path: Path) -> None:
    async with served(tmp_path) as web:
        for opening in (b"GET / HTTP/1.0\r\n\r\n", b"POST /metrics HTTP/1.1\r\nhost: x\r\n\r\n"):
            stream = await web.lab.tcp()
            await stream.send_all(opening)
            answer = b""
            with trio.fail_after(2):
                while data := await stream.receive_some():
                    answer += bytes(data)
            assert answer == HTTPS_ONLY
            assert b"https" in answer


def test_the_answer_to_plain_http_is_whole() -> None:
    head, _, body = HTTPS_ONLY.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head


def test_first_bytes_say_who_speaks_http() -> None:
    assert route(b"GET / HTTP/1.1\r\n") == ToPlainHttp(b"GET / HT")
    for beginning in (b"G", b"OPTION", b"gpupool"):
        assert route(beginning) is None
    for other in (b"GETX", b"get / HTTP", b"SSH-2.0"):
        with pytest.raises(RemoteProtocolError, match="not a gpupool connection"):
            route(other)


@pytest.mark.parametrize("name", ["", "gpu-1.example.org", "gpupool.example.org", "127.0.0.1"])
def test_names_of_others_go_to_the_web(name: str) -> None:
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context.check_hostname = bool(name)
    client = context.wrap_bio(incoming, outgoing, server_hostname=name or None)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    shown = "" if name in ("", "127.0.0.1") else name
    assert route(outgoing.read()) == ToWeb(shown)


async def test_the_certificate_is_good_for_nothing_of_the_pool(tmp_path: Path) -> None:
    async with served(tmp_path) as web:
        context = client_context(web.lab.authority.certificate_pem)
        for name in ("control.gpupool", f"{next(iter(web.lab.state.servers))}.server.gpupool"):
            context.set_alpn_protocols(["http/1.1"])
            # Asked for by such a name, the control server answers, and not the exporter.
            stream = await web.lab.tls(context, name)
            if name.startswith("control"):
                await stream.do_handshake()
                assert stream.selected_alpn_protocol() is None
        shown = ssl.PEM_cert_to_DER_cert(web.setup.certificate_pem.decode())
        assert b".gpupool" not in shown
        assert b"gpu-1" in shown


async def test_strangers_have_no_more_places_than_without_http(tmp_path: Path) -> None:
    settings = ServerSettings(unauthenticated_per_address_max=2)
    async with served(tmp_path, settings) as web:
        token = web.viewer()
        strangers = [await web.open() for _ in range(3)]
        await until_ended(strangers[0])  # the oldest one goes for the newest
        proven = strangers[2]
        assert (await get(proven, "/sd", token))[0] == 200  # it takes no place any more
        more = [await web.open() for _ in range(2 * KNOWN_FACTOR + 1)]
        await until_ended(strangers[1])
        assert (await get(proven, "/sd", token))[0] == 200
        async with connect_pool(web.lab.credentials()) as pool:  # and programs get their leases
            hold = await pool.allocate(request(pool), wait_s=0)
            await hold.release()
        for stream in (*strangers, *more):
            await trio.aclose_forcefully(stream)


async def test_a_stranger_goes_after_a_while_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter_link, "UNPROVEN_S", 0.3)
    async with served(tmp_path) as web:
        token = web.viewer()
        assert (await web.get("/healthz"))[0] == 503
        before = descriptor_count()
        stranger, known = await web.open(), await web.open()
        assert (await get(known, "/sd", token))[0] == 200
        assert (await get(stranger, "/healthz"))[0] == 503
        await until_ended(stranger, 2)
        await trio.sleep(0.3)
        assert (await get(known, "/sd", token))[0] == 200
        for stream in (stranger, known):
            await trio.aclose_forcefully(stream)

        async def all_are_closed() -> bool:
            return descriptor_count() <= before

        await eventually(all_are_closed)


async def test_when_nobody_takes_them_connections_are_refused(tmp_path: Path) -> None:
    web = Web(tmp_path)
    async with start_lab(tmp_path, 1, None, web.link) as lab:
        web.lab = lab
        with pytest.raises(trio.BrokenResourceError):
            await web.open()
        async with connect_pool(lab.credentials()) as pool:
            assert len((await pool.view()).servers) == 1


async def test_an_exporter_that_is_slow_ends_nothing_but_the_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two unauthenticated peers that waited for a full socket raised an error: the server ended."""
    monkeypatch.setattr(exporter_link, "HAND_OVER_S", 0.05)
    link = exporter_link.WebLink(PoolState)
    link.set_up(WebSetup(b"", b""))
    door, exporters = link.pair()
    door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    refused = trio.Event()

    async def connect() -> None:
        ours, theirs = socket.socketpair()
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
        with ours, stream.socket:
            try:
                await link.serve(stream, lambda: None)
            except trio.TooSlowError:
                refused.set()

    def say(_message: object) -> bool:
        return True

    with exporters, trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run, door, say)
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as strangers:
                for _ in range(64):
                    strangers.start_soon(connect)
                await refused.wait()
                strangers.cancel_scope.cancel()
            nursery.cancel_scope.cancel()


async def test_each_end_of_a_connection_is_told_to_a_server_that_is_slow(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Two ends that waited for a full socket ended the exporter, and one that waited was lost.

    The server keeps the place and a descriptor of a connection until it hears of its end.
    """
    ours, theirs = exporter_link.WebLink(PoolState).pair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    door = HttpDoor(theirs, tmp_path, ask=lambda _asked: None, say=lambda _text: None)
    count, told = 64, set[int]()
    with ours:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(door.run)
            for number in range(count):
                near, far = socket.socketpair()
                with near, far:  # without a certificate, each ends at once
                    socket.send_fds(ours, [PACKET.pack(number)], [far.fileno()])
                await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(5)
            while len(told) < count:
                await trio.lowlevel.wait_readable(ours)
                told.add(*PACKET.unpack(ours.recv(PACKET.size)))
            nursery.cancel_scope.cancel()
    assert told == set(range(count))


async def test_a_flood_of_wrong_tokens_keeps_no_scraper_out(tmp_path: Path) -> None:
    """Neither a scraper with a known token, nor one that comes for the first time."""
    async with served(tmp_path) as web:
        token = web.viewer()
        assert (await web.get("/sd", token))[0] == 200
        async with await web.open() as stream:
            for number in range(2 * int(token_checks.BURST)):
                text = web.lab.text(f"stranger-{number}", TokenKind.VIEWER)
                assert (await get(stream, "/sd", text))[0] == 401
        assert (await web.get("/sd", token))[0] == 200
        assert (await web.get("/sd", web.lab.text("ada", TokenKind.USER)))[0] == 200


class Viewers:
    """A server's side of HTTPS, and connections that send tokens ``USER/TOKEN``."""

    def __init__(self, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exporter_link, "PROVEN_BOUND", UserBound(user=3, token=2))
        monkeypatch.setattr(exporter_link, "PROVEN_MAX", 5)
        self._nursery = nursery
        self._numbers = count(1)
        self.ended: set[int] = set()
        self.link = exporter_link.WebLink(PoolState)
        self.link.check_token = self._checked
        self.link.set_up(WebSetup(b"", b""))

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        ours, exporters = self.link.pair()
        with exporters:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.link.run, ours, self._say)
                await trio.testing.wait_all_tasks_blocked()
                task_status.started()

    def _say(self, _message: object) -> bool:
        return True

    def _checked(self, text: str) -> Token:
        user, _, ident = text.partition("/")
        return Token(TokenId(ident), TokenKind.VIEWER, user, b"", Milliseconds(0), Milliseconds(1))

    async def _serve(self, number: int) -> None:
        near, far = socket.socketpair()
        with near, far:
            await self.link.serve(
                trio.SocketStream(trio.socket.from_stdlib_socket(far)), lambda: None
            )
        self.ended.add(number)

    async def open(self, text: str) -> int:
        """Open a connection that sends a token, and return its number."""
        number = next(self._numbers)
        self._nursery.start_soon(self._serve, number)
        await trio.testing.wait_all_tasks_blocked()
        self.link.asked(TokenAsked(number, number, text))
        await trio.testing.wait_all_tasks_blocked()
        return number


async def test_one_user_cannot_take_all_connections_of_a_page(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    """One viewer's token held all of them, and every other scraper was hung up on."""
    viewers = Viewers(nursery, monkeypatch)
    await nursery.start(viewers.run)
    for _ in range(10):
        await viewers.open("ada/1")
    assert viewers.ended == set(range(3, 11))
    other = await viewers.open("ada/2")
    assert await viewers.open("ada/2") in viewers.ended  # the third of hers was the last one
    bobs, coras = await viewers.open("bob/1"), await viewers.open("cora/1")
    assert viewers.ended.isdisjoint({1, 2, other, bobs, coras})
    doras = await viewers.open("dora/1")  # all are taken: the user with the most loses one
    assert 1 in viewers.ended
    assert viewers.ended.isdisjoint({2, other, bobs, coras, doras})


async def test_a_certificate_that_changes_is_shown_to_the_next(tmp_path: Path) -> None:
    async with served(tmp_path) as web:
        first = web.setup.certificate_pem
        web.http.set_up(web.setup.__class__(b"nonsense", b"nonsense"))
        assert web.said
        assert "cannot be used" in web.said[0]
        async with await web.open() as stream:
            shown = stream.getpeercert(binary_form=True)
        assert shown == ssl.PEM_cert_to_DER_cert(first.decode())
