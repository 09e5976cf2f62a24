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
from tests.cli.conftest import LivePool, running

from gpupool.pool.model.ids import ServerId
from gpupool.remoting.transport.ca_bundle import certificates_of, keys_of
from gpupool.remoting.transport.pki import (
    CONTROL_NAME,
    Authority,
    client_context,
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
    """Run a pool of its own: its CA is another one afterwards."""
    with running() as pool:
        yield pool


class Lab:
    """A pool, and files of its users and of a thief."""

    def __init__(self, pool: LivePool) -> None:
        self.pool = pool
        self.folder = pool.folder

    def done(self, *arguments: str, who: str = "operator") -> str:
        """Run a command that succeeds."""
        ended = self.tried(*arguments, who=who)
        assert ended[0] == 0, f"{arguments}: {ended}\n{self.pool.logs()}"
        return ended[1]

    def tried(self, *arguments: str, who: str = "operator") -> tuple[int, str, str]:
        file = self.folder / f"{who}.json"
        ended = self.pool.run(*arguments, env={"GPUPOOL_CREDENTIALS": str(file)})
        return ended.returncode, ended.stdout, ended.stderr

    def token(self, user: str) -> str:
        made: str = json.loads(self.done("token", "create", "--user", user, "--json"))["token"]
        return made

    def trusted_by(self, who: str) -> tuple[bytes, ...]:
        saved = json.loads((self.folder / f"{who}.json").read_text())
        return certificates_of(saved["ca_pem"].encode())

    def authorities(self) -> list[list[str]]:
        found = self.pool.view().get("authorities", [])
        return [each["servers"] for each in found]


def test_the_ca_is_exchanged_while_a_program_runs(live: LivePool, tmp_path: Path) -> None:
    lab = Lab(live)
    a, b, c = live.servers.values()
    early, old_token = lab.token("ada"), lab.token("bob")
    lab.done("login", early, who="ada")
    shutil.copy(lab.folder / "ada.json", lab.folder / "sleeper.json")
    stolen = Authority((a.state_dir / "ca.pem").read_bytes(), (a.state_dir / "ca.key").read_bytes())
    started, stop = tmp_path / "started", tmp_path / "stop"
    program = live.spawn(
        *("run", "-n", "1", "--server", "a", "--"),
        *(sys.executable, "-c", PROGRAM, str(started), str(stop)),
        env={"GPUPOOL_CREDENTIALS": str(lab.folder / "ada.json")},
    )
    live.wait_until(lambda _view: started.exists() or program.poll() is not None, within_s=20)
    assert program.poll() is None, program.communicate()
    assert c.end(signal.SIGKILL) == -signal.SIGKILL
    said = lab.tried("ca", "rotate", "--yes")
    assert said[0] == 0, (said, live.logs())
    assert "get its key when they are back: c" in said[2]
    live.wait_until(lambda _view: lab.authorities() == [["c"], ["a", "b"]])
    refused = lab.tried("ca", "retire", "--yes")
    assert refused[0] != 0
    assert "certificates of the older CA are still used by c" in refused[2]
    assert lab.tried("ca", "rotate", "--yes")[0] != 0
    assert lab.tried("ca", "status")[0] == 3
    # Clients of before and of now, all while two are trusted.
    assert len(lab.trusted_by("sleeper")) == 1
    lab.done("leases", who="ada")
    assert lab.trusted_by("ada")[:1] == lab.trusted_by("sleeper")
    assert len(lab.trusted_by("ada")) == 2
    lab.done("login", old_token, who="bob")
    lab.done("login", lab.token("eve"), who="eve")
    assert lab.trusted_by("bob") == lab.trusted_by("eve") == lab.trusted_by("ada")
    c.start()
    live.wait_until(lambda _view: lab.authorities() == [[], ["a", "b", "c"]])
    late_token = lab.token("late")
    said = lab.tried("ca", "retire", "--yes")
    assert said[0] == 0, (said, live.logs())
    live.wait_until(lambda view: lab.authorities() == [["a", "b", "c"]] and is_whole(view))
    for server in live.servers.values():
        left = {path.name for path in server.state_dir.iterdir()}
        assert not {"ca-next.pem", "server-next.pem"} & left
        assert len(certificates_of((server.state_dir / "ca.pem").read_bytes())) == 1
        assert keys_of((server.state_dir / "ca.key").read_bytes()) != keys_of(stolen.key_pem)
    # Whoever has learned of the new CA goes on; who slept logs in again, with a token of now.
    lab.done("leases", who="ada")
    lab.done("leases", who="eve")
    assert len(lab.trusted_by("ada")) == 1
    slept = lab.tried("status", who="sleeper")
    assert slept[0] != 0
    assert "is not a server of this pool" in slept[2]
    assert lab.tried("login", early, who="sleeper")[0] != 0
    lab.done("login", late_token, who="sleeper")
    lab.done("leases", who="sleeper")
    # The thief.
    ports = {each["id"]: int(each["address"].rpartition(":")[2]) for each in live.view()["servers"]}
    forged = forge(stolen, ServerId(next(iter(ports))), tmp_path)
    for server, port in ports.items():
        for name in (server_name(ServerId(server)), newest_server_name(ServerId(server))):
            assert not is_greeted(port, name, forged)
    assert not is_believed(forged, lab.trusted_by("ada")[0])
    # A server that starts anew has only the new CA on its disk.
    assert b.end(signal.SIGKILL) == -signal.SIGKILL
    b.start()
    live.wait_until(is_whole)
    stop.touch()
    assert program.wait(30) == 0
    assert program.stdout is not None
    assert "sum 55" in program.stdout.read()


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
