"""The exporter as a process that answers HTTPS; Prometheus, with the queries of the dashboard."""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from tests.monitoring.http.web_kit import get
from tests.monitoring.samples import ME, START_MS, table
from tests.monitoring.test_exporter import LOG, running
from tests.monitoring.test_metrics import everything

from gpupool.monitoring.exporter_link import ExporterLink, WebLink
from gpupool.monitoring.http.http_frames import WebSetup
from gpupool.monitoring.metric_names import METRICS
from gpupool.pool.errors import AuthenticationError, RemoteProtocolError
from gpupool.pool.model.ids import Milliseconds, TokenId
from gpupool.pool.model.state import Token, TokenKind
from gpupool.remoting.daemon.record_files import monitoring_folder
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.protocol.token_text import TokenText, format_token
from gpupool.remoting.transport.authority.ca_vault import sign_web
from gpupool.remoting.transport.pki import create_ca, create_key_and_csr

ROOT = Path(__file__).parents[3]
TEXT = format_token(
    TokenText("c", TokenKind.VIEWER, TokenId("0" * 12), bytes(32), bytes(32), (Address("a"),))
)
VIEWER = Token(TokenId("v"), TokenKind.VIEWER, "prom", b"", Milliseconds(0), Milliseconds(2**52))


class Server:
    """The parts of a server that concern its exporter, with a separate port."""

    def __init__(self, folder: Path, port: int) -> None:
        (mine,) = table().servers.values()
        mine = replace(mine, address=f"127.0.0.1:{port}")
        self.state = replace(table(), servers=table().servers.set(ME, mine))
        self.port = port
        self.authority = create_ca("cluster-1", datetime.now(UTC))
        self.web = WebLink(lambda: self.state)
        self.web.check_token = self._check
        self.exporter = ExporterLink(
            monitoring_folder(folder), lambda: self.state, LOG, web=self.web
        )
        key, csr = create_key_and_csr(ME)
        signed = sign_web(self.authority, csr, mine, datetime.now(UTC))
        self.web.set_up(WebSetup(signed, key))

    def _check(self, text: str) -> Token:
        if text != TEXT:
            raise AuthenticationError("no")
        return VIEWER

    async def accept(self, listener: trio.SocketListener) -> None:
        async def serve(stream: trio.SocketStream) -> None:
            try:
                await self.web.serve(stream, lambda: None)
            except (RemoteProtocolError, trio.TooSlowError):
                pass
            finally:
                stream.socket.close()

        await trio.serve_listeners(serve, [listener])

    async def tell(self) -> None:
        """Tell the exporter a sample in which counters grow, each quarter of a second."""
        second, whole = 0, everything()
        while True:
            second += 1
            sessions = tuple(
                replace(
                    each, busy=dict.fromkeys(each.busy, second % 2 / 4), calls=each.calls + second
                )
                for each in whole.telemetry.sessions
            )
            telemetry = replace(whole.telemetry, sessions=sessions)
            at = Milliseconds(START_MS + 1000 * second)
            self.exporter.add_sample(replace(whole, telemetry=telemetry, at=at))
            await trio.sleep(0.25)

    async def get(self, path: str) -> tuple[int, bytes]:
        context = ssl.create_default_context(cadata=self.authority.certificate_pem.decode())
        stream = await trio.open_ssl_over_tcp_stream(
            "127.0.0.1", self.port, ssl_context=context, https_compatible=True
        )
        async with stream:
            return await get(stream, path, TEXT, {"connection": "close"})

    async def until_it_answers(self) -> bytes:
        with trio.fail_after(30):
            while True:
                try:
                    status, body = await self.get("/metrics")
                except (trio.BrokenResourceError, OSError):
                    status, body = 0, b""
                if status == 200:
                    return body
                await trio.sleep(0.05)


@asynccontextmanager
async def served(folder: Path) -> AsyncGenerator[Server]:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    server = Server(folder, listener.socket.getsockname()[1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.exporter.run)
        nursery.start_soon(server.accept, listener)
        nursery.start_soon(server.tell)
        yield server
        nursery.cancel_scope.cancel()


@pytest.mark.slow
def test_it_answers_again_after_its_death(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            body = await server.until_it_answers()
            granted = f'gpupool_gpu_memory_granted_bytes{{gpu="0",uuid="{"GPU-00000000"}'.encode()
            assert granted in body
            process = server.exporter.process
            assert process is not None
            # What it holds of the door is no file: a thief of the disk finds no key.
            assert not list(monitoring_folder(tmp_path).glob("*.pem"))
            os.kill(process.pid, signal.SIGKILL)
            await running(server.exporter, running=False)
            with pytest.raises(trio.BrokenResourceError):
                await server.get("/metrics")
            await server.until_it_answers()

    trio.run(main)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _prometheus(
    folder: Path, server: Server, prometheus: str, port: int
) -> "subprocess.Popen[str]":
    """Start Prometheus on the scrape file that is shipped, with this server in it."""
    (folder / "token").write_text(TEXT)
    (folder / "ca.pem").write_bytes(server.authority.certificate_pem)
    text = (ROOT / "packaging/prometheus/scrape.yml").read_text()
    text = text.replace("gpu-1.example:7470", f"127.0.0.1:{server.port}")
    text = text.replace("/etc/prometheus/gpupool.token", str(folder / "token"))
    text = text.replace("/etc/prometheus/gpupool-ca.pem", str(folder / "ca.pem"))
    text = text.replace("15s", "1s")
    rules = ROOT / "packaging/prometheus/rules.yml"
    config = folder / "prometheus.yml"
    config.write_text(
        f"global:\n  evaluation_interval: 1s\nrule_files: [{rules}]\n{text}", encoding="utf-8"
    )
    with (folder / "log").open("w") as log:
        return subprocess.Popen(
            [
                *(prometheus, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
                *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
            ],
            stderr=log,
            text=True,
        )


async def _asked(port: int, query: str) -> list[object]:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        quoted = "".join(f"%{byte:02x}" for byte in query.encode())
        status, body = await get(stream, f"/api/v1/query?query={quoted}")
    answer = json.loads(body)
    assert (status, answer["status"]) == (200, "success"), (query, answer)
    return answer["data"]["result"]


def dashboard_queries() -> dict[str, str]:
    """Return the queries of all panels, for all pools and servers."""
    board = json.loads((ROOT / "packaging/grafana/gpupool.json").read_text())
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        .replace("$pool", ".*")
        .replace("$server", ".*")
        for panel in board["panels"]
        for target in panel["targets"]
    }


@pytest.mark.slow
def test_prometheus_finds_it_and_each_panel_has_data(tmp_path: Path) -> None:
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("Prometheus is not installed: apt-get install prometheus")
    port = _free_port()

    async def main(server: Server) -> None:
        records = {
            "rules": "gpupool:pool_granted:ratio",
            "busy": "gpupool:gpu_busy:avg",
            "p99": "gpupool:grant_duration_seconds:p99_5m",
        }
        lacking = {**dashboard_queries(), **records}
        without = {"Leases ended, by reason A"}  # none has ended here
        with trio.move_on_after(40):
            while set(lacking) - without:
                await trio.sleep(1)
                for title, query in list(lacking.items()):
                    try:
                        if await _asked(port, query):
                            del lacking[title]
                    except OSError:
                        break  # it does not listen yet
        log = (tmp_path / "log").read_text()
        assert set(lacking) <= without, log[-2000:]
        found = await _asked(port, "gpupool_server_info")
        labels = [cast("Any", each)["metric"] for each in found]
        assert {(each["server"], each["pool"]) for each in labels} == {("gpu-a", "lab")}

    async def whole() -> None:
        async with served(tmp_path) as server:
            await server.until_it_answers()
            process = _prometheus(tmp_path, server, prometheus, port)
            try:
                await main(server)
            finally:
                process.kill()
                process.wait()

    trio.run(whole)


@pytest.mark.parametrize("what", [["check", "rules"], ["test", "rules"]])
def test_rules_are_those_that_promtool_takes(what: list[str]) -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    file = "tests.yml" if what[0] == "test" else "rules.yml"
    done = subprocess.run(
        [promtool, *what, file],
        cwd=ROOT / "packaging/prometheus",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_panels_name_only_metrics_that_are_declared() -> None:
    texts = [(ROOT / "packaging/prometheus/rules.yml").read_text(), *dashboard_queries().values()]
    named = {name for text in texts for name in re.findall(r"\bgpupool_([a-z_0-9]+)", text)}
    assert len(named) > 20
    unknown = {
        name
        for name in named
        if name not in METRICS and re.sub(r"_(bucket|sum|count)$", "", name) not in METRICS
    }
    assert unknown == set()
