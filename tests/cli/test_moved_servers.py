"""Servers, and clients, after all servers have come back with other addresses; and names."""

import json
import logging
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.cli.conftest import running

from gpupool.cli.commands.join import command as join
from gpupool.pool.errors import UsageError
from gpupool.pool.model.ids import TokenId
from gpupool.remoting.client.credentials import Credentials, load_credentials
from gpupool.remoting.daemon import listen_address
from gpupool.remoting.daemon.compose import serve
from gpupool.remoting.daemon.join_options import JoinOptions
from gpupool.remoting.daemon.listen_address import hosts_of, own_names
from gpupool.remoting.daemon.separate import Separated
from gpupool.remoting.daemon.state_dir import may_be_new
from gpupool.remoting.protocol.addresses import Address

NOWHERE = "gpu-9.invalid"


@pytest.mark.slow
def test_a_pool_whose_servers_have_all_moved_is_found_again() -> None:
    """Each is told of one other; a client is told of one, and needs no token."""
    with running() as pool:
        former = {each["name"]: each["address"] for each in pool.view()["servers"]}
        for server in pool.servers.values():
            server.end(signal.SIGTERM)
            server.log.write_text("")
        first, second, third = pool.servers.values()
        first.start("--listen", "127.0.0.1:0")
        first.wait_for_log("is listening")
        first.wait_for_log("no link to server b at")  # by its name, before the table is known
        for server, other in ((second, first), (third, second)):
            server.start("--listen", "127.0.0.1:0", listened(other.log))
            server.wait_for_log("is listening")

        lost = pool.run("status")
        assert lost.returncode != 0
        assert "gpupool login --at HOST:PORT" in lost.stderr
        found = pool.run("login", "--at", listened(third.log))
        assert (found.returncode, "pool lab" in found.stderr) == (0, True), found.stderr
        view = pool.wait_until(pool.is_whole)
        now = {each["name"]: each["address"] for each in view["servers"]}
        assert now.keys() == former.keys()
        assert not set(now.values()) & set(former.values())
        stored = load_credentials(Path(pool.env["GPUPOOL_CREDENTIALS"]))
        assert set(map(str, stored.addresses)) <= set(now.values())


def listened(log: Path) -> str:
    """Return where the server of this log listens."""
    lines = [json.loads(line)["message"] for line in log.read_text().splitlines()]
    return next(line for line in lines if "is listening on" in line).split()[4].rstrip(",")


@pytest.mark.slow
def test_a_lone_server_says_who_does_not_answer_and_what_to_type() -> None:
    with running() as pool:
        first, second, third = pool.servers.values()
        former = {each["name"]: each["address"] for each in pool.view()["servers"]}
        only = pool.only(first)
        for server in (second, third):
            server.end(signal.SIGKILL)
        lone = pool.run("status", env=only)
        assert f"b does not answer at {former['b']}, its last known address" in lone.stdout
        assert 'if it moved: "gpupool join HOST:PORT"' in " ".join(lone.stdout.split())
        assert "quorum 1/3" in lone.stdout
        first.end(signal.SIGKILL)
        first.log.write_text("")
        first.start()
        first.wait_for_log("is listening")
        refused = pool.run("run", "--no-wait", "--", "true", env=only)
        assert f"does not answer at {former['b']}" in refused.stderr
        assert '"gpupool join HOST:PORT"' in refused.stderr


# --- names --------------------------------------------------------------------------------------


def named(monkeypatch: pytest.MonkeyPatch, name: str, *hosts: str) -> None:
    """Let this machine have a name that stands for these addresses."""

    def answer(host: str, *_: Any, **__: Any) -> list[Any]:
        if host != name or not hosts:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in hosts]

    monkeypatch.setattr(listen_address.socket, "getfqdn", lambda: name)
    monkeypatch.setattr(listen_address.socket, "getaddrinfo", answer)


@pytest.mark.parametrize(
    ("name", "hosts", "address", "names"),
    [
        ("gpu-1.lab.example", ["10.0.0.4"], "10.0.0.4:7470", ("gpu-1.lab.example:7470",)),
        ("gpu-1.lab.example", ["10.0.0.9", "fd00::4"], "[fd00::4]:9", ("gpu-1.lab.example:9",)),
        ("gpu-1.lab.example", ["10.0.0.9"], "10.0.0.4:7470", ()),
        ("gpu-1.lab.example", [], "10.0.0.4:7470", ()),
        ("gpu-1", ["10.0.0.4"], "10.0.0.4:7470", ()),
        ("gpu-1.lab.example", ["127.0.1.1"], "127.0.1.1:7470", ()),
        ("gpu-1.lab.example", ["10.0.0.4"], "gpu-1.lab.example:7470", ()),
        ("10.0.0.4", ["10.0.0.4"], "10.0.0.4:7470", ()),
    ],
    ids=["own", "of IPv6", "of another", "unknown", "short", "loopback", "given", "no name"],
)
def test_a_name_of_this_machine_is_told_if_it_stands_for_its_address(
    monkeypatch: pytest.MonkeyPatch, name: str, hosts: list[str], address: str, names: tuple[str]
) -> None:
    named(monkeypatch, name, *hosts)
    assert own_names(address) == names


@pytest.fixture
def options(tmp_path: Path) -> JoinOptions:
    return JoinOptions(
        token="", address=None, listen=Address("127.0.0.1", 0), advertise=None,
        state_dir=tmp_path / "state", name="a", pool_name="lab", witness=True, emulate=None,
        gpm="auto", gpus=(), data_encryption="tls", ca=None, operator_token=False,
        client_timeout_s=10, drain_timeout_s=0, labels=(),
    )  # fmt: skip


@pytest.mark.parametrize("field", ["advertise", "address"])
async def test_a_name_that_stands_for_nothing_is_refused_before_the_pool_hears_of_it(
    options: JoinOptions, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    named(monkeypatch, "gpu-1.lab.example", "10.0.0.4")
    given = replace(options, **{field: Address(NOWHERE)})
    with pytest.raises(UsageError, match=f"{NOWHERE} is not known here: neither DNS"):
        await serve(Separated(given), logging.getLogger("test"))
    assert may_be_new(options.state_dir)
    assert not options.state_dir.exists()
    assert hosts_of("x" * 70) == set()


def test_a_server_that_lives_nowhere_yet_needs_a_token(tmp_path: Path) -> None:
    done = CliRunner().invoke(join, ["10.0.0.4", "--state-dir", str(tmp_path / "new")])
    assert isinstance(done.exception, UsageError)
    assert "joining a pool needs a token" in str(done.exception)
    assert "no server lives in" in str(done.exception)


def test_a_client_tries_names_once_no_number_leads_anywhere() -> None:
    """A server has one connection of a client, though its name may stand beside its number."""
    number, name = Address("10.0.0.4"), Address("gpu-1.lab.example")
    stored = Credentials("c", "lab", "ada", TokenId("t"), b"", "", (number, name))
    assert stored.likely == (number,)
    assert stored.at((name,)).likely == (name,)
    assert Address("fd00::4").is_numeric
    assert not Address("10.lab.example").is_numeric
