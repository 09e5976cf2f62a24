"""The exchange of the CA on real processes: a program runs through all of it, the old key ends."""

import json
import shutil
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.ca_keys import read_authority
from tests.cli.conftest import LivePool, LiveServer, running
from tests.pools import view_of

from gpupool.pool.errors import AuthenticationError
from gpupool.pool.model.ids import ServerId
from gpupool.pool.model.state import TokenKind
from gpupool.remoting.client.credentials import save_credentials
from gpupool.remoting.client.enrolment import login
from gpupool.remoting.local.logins import connected
from gpupool.remoting.transport.authority.ca_bundle import certificates_of, keys_of
from gpupool.remoting.transport.client_tls import CONTROL_NAME, client_context
from gpupool.remoting.transport.pki import (
    Authority,
    create_key_and_csr,
    newest_server_name,
    server_name,
    sign_server,
)

PROGRAM = """
import pathlib, sys, time
import cupy
numbers = cupy.arange(10)
pathlib.Path(sys.argv[1]).touch()
while not pathlib.Path(sys.argv[2]).exists():
    assert int(numbers.sum()) == 45
    time.sleep(0.05)
print("sum", int((numbers + 1).sum()))
"""


@pytest.fixture
def live() -> Iterator[LivePool]:
    """Run a separate pool: its CA is another one afterwards."""
    with running() as pool:
        yield pool


class Lab:
    """A pool, and files of its users and of a thief.

    Only orders are commands of their own: a process for each look takes most of a second.
    """

    def __init__(self, pool: LivePool) -> None:
        self.pool = pool

    def file(self, who: str) -> Path:
        return self.pool.folder / f"{who}.json"

    def ordered(self, *arguments: str) -> tuple[int, str]:
        """Give an order as the operator, and return the exit code and the output."""
        ended = self.pool.run(*arguments)
        return ended.returncode, ended.stdout + ended.stderr

    def token(self, user: str) -> str:
        async def make() -> str:
            async with connected(str(self.file("operator"))) as pool:
                return await pool.create_token(TokenKind.USER, user, 3600.0)

        return trio.run(make)

    def log_in(self, who: str, token: str) -> None:
        save_credentials(self.file(who), trio.run(login, token))

    def look(self, who: str) -> None:
        """View the pool, like any command of a user."""
        view_of(str(self.file(who)))

    def trusted_by(self, who: str) -> tuple[bytes, ...]:
        saved = json.loads(self.file(who).read_text())
        return certificates_of(saved["ca_pem"].encode())

    def authorities(self) -> list[list[str]]:
        return [each["servers"] for each in self.pool.view().get("authorities", [])]


@pytest.mark.long
def test_the_ca_is_exchanged_while_a_program_runs(live: LivePool, tmp_path: Path) -> None:
    lab = Lab(live)
    a, b, c = live.servers.values()
    early, old_token = lab.token("ada"), lab.token("bob")
    lab.log_in("ada", early)
    shutil.copy(lab.file("ada"), lab.file("sleeper"))
    stolen = read_authority(a.state_dir)
    started, stop = tmp_path / "started", tmp_path / "stop"
    program = live.spawn(
        *("run", "-n", "1", "--server", "a", "--"),
        *(sys.executable, "-c", PROGRAM, str(started), str(stop)),
        env={"GPUPOOL_CREDENTIALS": str(lab.file("ada"))},
    )
    live.wait_until(lambda _view: started.exists() or program.poll() is not None, within_s=20)
    assert program.poll() is None, program.communicate()
    assert c.end(signal.SIGKILL) == -signal.SIGKILL
    code, said = lab.ordered("ca", "rotate", "--yes")
    assert code == 0, (said, live.logs())
    assert "get its key when they are back: c" in said
    live.wait_until(lambda _view: lab.authorities() == [["c"], ["a", "b"]])
    code, said = lab.ordered("ca", "retire", "--yes")
    assert code != 0
    assert "certificates of the older CA are still used by c" in said
    code, said = lab.ordered("ca", "status")
    assert (code, "not moved yet: c" in said) == (3, True), said
    # Clients of before and of now, all while two are trusted.
    assert len(lab.trusted_by("sleeper")) == 1
    lab.look("ada")
    assert lab.trusted_by("ada")[:1] == lab.trusted_by("sleeper")
    assert len(lab.trusted_by("ada")) == 2
    lab.log_in("bob", old_token)
    lab.log_in("eve", lab.token("eve"))
    assert lab.trusted_by("bob") == lab.trusted_by("eve") == lab.trusted_by("ada")
    c.start()
    live.wait_until(lambda _view: lab.authorities() == [[], ["a", "b", "c"]])
    code, said = lab.ordered("ca", "status")
    assert (code, "every server has moved: gpupool ca retire" in said) == (0, True), said
    late_token = lab.token("late")
    code, said = lab.ordered("ca", "retire", "--yes")
    assert code == 0, (said, live.logs())
    live.wait_until(lambda view: lab.authorities() == [["a", "b", "c"]] and is_whole(view))
    for server in live.servers.values():
        left = {path.name for path in server.state_dir.iterdir()}
        assert not {"ca-next.pem", "server-next.pem"} & left
        assert len(certificates_of((server.state_dir / "ca.pem").read_bytes())) == 1
        assert keys_of((server.state_dir / "ca.key").read_bytes()) != keys_of(stolen.key_pem)
    # Whoever has learned of the new CA goes on; who slept logs in again, with a token of now.
    lab.look("ada")
    lab.look("eve")
    assert len(lab.trusted_by("ada")) == 1
    with pytest.raises(BaseException, match="the pool has exchanged its CA since") as refused:
        trio.run(looks, lab.file("sleeper"))
    assert isinstance(refused.value, AuthenticationError)
    assert "ask an operator for a new token" in refused.value.hint
    with pytest.raises(AuthenticationError, match="does not belong to the pool of this token"):
        lab.log_in("sleeper", early)
    lab.log_in("sleeper", late_token)
    lab.look("sleeper")
    # The thief.
    ports = {each["id"]: int(each["address"].rpartition(":")[2]) for each in live.view()["servers"]}
    forged = forge(stolen, ServerId(next(iter(ports))), tmp_path)
    for server, port in ports.items():
        for name in (server_name(ServerId(server)), newest_server_name(ServerId(server))):
            assert not is_greeted(port, name, forged)
    assert not is_believed(forged, lab.trusted_by("ada")[0])
    # A server that starts anew has only the new CA on its disk.
    assert b.end(signal.SIGKILL) == -signal.SIGKILL, live.logs()
    b.start()
    live.wait_until(is_whole)
    stop.touch()
    assert program.wait(30) == 0
    assert program.stdout is not None
    assert "sum 55" in program.stdout.read()


@pytest.mark.long
def test_a_pool_that_has_lost_its_key_gets_another_one(live: LivePool) -> None:
    """As docs/operations.md says it, and nobody could join before."""
    lab = Lab(live)
    for server in live.servers.values():
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
        (server.state_dir / "ca.key").unlink()
        server.log.write_bytes(b"")
    for server in live.servers.values():
        server.start()
    for server in live.servers.values():
        server.wait_for_log("is listening")
    # A server that was killed counts as up, with its key, until its next process has reported.
    live.wait_until(lambda view: not any(each["has_keys"] for each in view["servers"]))
    live.wait_until(live.is_whole)
    late = LiveServer("d", live.folder, live.env)
    code, said = lab.ordered("ca", "status")
    assert (code, "no server can join before gpupool ca rotate" in said) == (0, True), said
    _, said = lab.ordered("doctor")
    assert "no server has the key of the pool's CA" in said
    early = LiveServer("e", live.folder, live.env)
    early.start("--token", live.token("--server"))
    assert early.process is not None
    assert early.process.wait(20) == 1
    said = early.log.read_text().replace("\\", "")
    assert '"gpupool ca status" lists the servers that have it' in said
    code, said = lab.ordered("ca", "rotate", "--yes")
    assert code == 0, (said, live.logs())
    live.wait_until(lambda _view: lab.authorities() == [[], ["a", "b", "c"]])
    code, said = lab.ordered("ca", "retire", "--yes")
    assert code == 0, (said, live.logs())
    live.servers["d"] = late
    late.start("--token", live.token("--server"))
    late.wait_for_log("is listening")
    live.wait_until(lambda view: len(view["servers"]) == 4 and is_whole(view))
    live.wait_until(lambda _view: (late.state_dir / "ca.key").exists())
    live.wait_until(lambda view: all(each["has_keys"] for each in view["servers"]))
    _, said = lab.ordered("ca", "status", "--json")
    assert json.loads(said)["keys"] == ["a", "b", "c", "d"]
    code, said = lab.ordered("leave", "a", "--yes")
    assert code == 0, (said, live.logs())


@pytest.mark.long
def test_a_server_that_is_shut_out_joins_anew(live: LivePool) -> None:
    """``gpupool rejoin`` refused it: it may start as the member that it is, it said."""
    lab = Lab(live)
    c = live.servers["c"]
    here = ["--state-dir", str(c.state_dir)]
    nothing = live.run("rejoin", *here, "--token", live.token("--server"))
    assert (nothing.returncode, "the server in" in nothing.stderr) == (1, True), nothing.stderr
    assert "stop it first" in nothing.stderr
    assert c.end(signal.SIGKILL) == -signal.SIGKILL
    code, said = lab.ordered("ca", "rotate", "--yes")
    assert code == 0, (said, live.logs())
    # While two are trusted it comes back by the older one.
    nothing = live.run("rejoin", *here, "--token", live.token("--server"))
    assert (nothing.returncode, "nothing seems to be wrong" in nothing.stderr) == (2, True)
    live.wait_until(lambda _view: lab.authorities() == [["c"], ["a", "b"]])
    code, said = lab.ordered("ca", "retire", "--yes", "--force")
    assert (code, "c must join anew (gpupool rejoin)" in said) == (0, True), said
    c.start()
    c.wait_for_log("let it join anew (gpupool rejoin)")
    assert c.end(signal.SIGKILL) == -signal.SIGKILL
    token = live.token("--server")
    taken = live.run("rejoin", *here, "--token", token)
    assert (taken.returncode, "gpupool leave c" in taken.stderr) == (1, True), taken.stderr
    code, said = lab.ordered("leave", "c", "--yes")
    assert code == 0, (said, live.logs())
    done = live.run("rejoin", *here, "--token", token)
    assert done.returncode == 0, done.stderr
    c.start()
    live.wait_until(live.is_whole)


@pytest.mark.long
def test_a_server_that_was_removed_while_it_was_off_joins_anew(live: LivePool) -> None:
    lab = Lab(live)
    c = live.servers["c"]
    assert c.end(signal.SIGKILL) == -signal.SIGKILL
    token = live.token("--server")
    code, said = lab.ordered("leave", "c", "--yes")
    assert code == 0, (said, live.logs())
    done = live.run("rejoin", "--state-dir", str(c.state_dir), "--token", token)
    assert done.returncode == 0, done.stderr
    c.start()
    live.wait_until(live.is_whole)


async def looks(file: Path) -> None:
    async with connected(str(file)) as pool:
        await pool.view()


def is_whole(view: dict[str, Any]) -> bool:
    return all(each["state"] in ("idle", "mix") for each in view["servers"])


def forge(stolen: Authority, server: ServerId, folder: Path) -> Path:
    """Return a file with a key and a certificate of ``server`` that the stolen key has signed."""
    key, csr = create_key_and_csr(server)
    path = folder / "forged.pem"
    path.write_bytes(sign_server(stolen, csr, server, datetime.now(UTC)) + key)
    return path


def is_greeted(port: int, name: str, certificate: Path) -> bool:
    """Return whether a server greets a peer that shows ``certificate``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(certificate)
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5) as tcp,
            context.wrap_socket(tcp, server_hostname=name) as tls,
        ):
            return bool(tls.recv(1))
    except (ssl.SSLError, ConnectionError):
        return False


def is_believed(certificate: Path, ca_pem: bytes) -> bool:
    """Return whether a client that trusts a CA talks to a server that shows ``certificate``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            stream, _ = listener.accept()
            try:
                context.wrap_socket(stream, server_side=True).close()
            except (ssl.SSLError, ConnectionError):
                stream.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listener.getsockname()) as tcp,
                client_context(ca_pem).wrap_socket(tcp, server_hostname=CONTROL_NAME),
            ):
                return True
        except ssl.SSLCertVerificationError:
            return False
        finally:
            thread.join()
