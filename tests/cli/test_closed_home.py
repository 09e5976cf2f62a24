"""A service's home may be closed to it, as by systemd's ``ProtectHome``: no settings lie there."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from gpupool.pool.model.state import TokenKind
from gpupool.remoting.client.credentials import Credentials
from gpupool.remoting.daemon import bootstrap
from gpupool.remoting.daemon.bootstrap import PoolBootstrap
from gpupool.remoting.protocol.addresses import parse_address
from gpupool.remoting.protocol.token_text import SHORT_SIZE, new_token

SCRIPT = """
import ctypes, os, sys

from gpupool.cli.main import run
from gpupool.remoting.daemon.login_writer import save_login
from gpupool.pool.errors import StorageError
from gpupool.pool.model.ids import TokenId
from gpupool.remoting.client.credentials import Credentials
from gpupool.remoting.protocol.addresses import parse_address

login = Credentials("c", "lab", "ada", TokenId("t1"), bytes(16), "PEM", (parse_address("a:1"),))
run(["config"])
print(save_login(login))  # what is imported late is there by now
if os.geteuid() == 0:
    ctypes.CDLL(None).setfsuid(65534)  # no folder is closed to root
os.environ["HOME"] = sys.argv[1]
assert run(["config"]) == 0
try:
    save_login(login)
except StorageError as error:
    print(error)
"""


def test_a_closed_home_has_no_settings_and_takes_no_login(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GPUPOOL_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(closed)],
        env=environment | {"HOME": str(tmp_path)},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "You (ada) are logged in as its operator." in done.stdout
    assert f"cannot write {closed}/.config/gpupool/credentials.json" in done.stdout


@pytest.mark.parametrize("is_logged_in", [True, False])
def test_a_creator_that_could_not_be_logged_in_gets_the_operators_token(
    monkeypatch: pytest.MonkeyPatch, is_logged_in: bool
) -> None:
    shown: list[str] = []

    def show(text: str, _state: object, **_more: object) -> None:
        shown.append(text)

    monkeypatch.setattr(bootstrap, "show_secrets", show)
    founder = PoolBootstrap(cast(Any, Identity), "a:1", "tls", cast(Any, None))
    founder.tokens = {kind: f"token-of-{kind.value}" for kind in TokenKind}
    founder.is_logged_in = is_logged_in
    founder.print_welcome(cast(Any, None))
    assert ("echo token-of-operator | gpupool login -" in shown[0]) is not is_logged_in


@pytest.mark.parametrize("is_service", [True, False])
def test_the_user_of_a_service_is_not_logged_in(
    monkeypatch: pytest.MonkeyPatch, is_service: bool
) -> None:
    """The package's user has its home in the state directory: nobody got the operator's token."""
    saved: list[Credentials] = []

    def save(credentials: Credentials) -> str:
        saved.append(credentials)
        return "You are logged in."

    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    if is_service:
        monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/gpupool")
    founder = PoolBootstrap(cast(Any, Identity), "a:1", "tls", cast(Any, None), save_login=save)
    token = new_token(TokenKind.OPERATOR, bytes(SHORT_SIZE), bytes(32), (parse_address("a:1"),))
    bootstrap._log_in(founder, token, b"PEM")  # pyright: ignore[reportPrivateUsage]
    assert founder.is_logged_in is not is_service
    assert len(saved) == int(not is_service)
    assert ("is the user of a service" in founder.logged_in) is is_service


class Identity:
    """A server's, as far as it is printed."""

    cluster_id = "c"

    pool = "lab"
