"""The stored login follows the pool's servers, and never undoes concurrent changes."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from gpupool.pool.errors import AuthenticationError, NotNowError
from gpupool.pool.model.ids import TokenId
from gpupool.remoting.client import pool_client
from gpupool.remoting.client.credentials import (
    Credentials,
    keep_former,
    load_credentials,
    save_credentials,
)
from gpupool.remoting.local import logins as connecting
from gpupool.remoting.protocol.addresses import Address

OLD = Credentials(
    cluster_id="c0ffee",
    pool="lab",
    user="ada",
    token=TokenId("a1b2c3d4e5f6"),
    secret=bytes(32),
    ca_pem="-----BEGIN CERTIFICATE-----",
    addresses=(Address("10.0.0.4"),),
)
MOVED = (Address("10.0.0.5"), Address("10.0.0.6"))


def remember(path: Path, ca_pem: str = OLD.ca_pem) -> None:
    known = str(path), OLD, MOVED, ca_pem
    connecting._remember_pool(*known)  # pyright: ignore[reportPrivateUsage]


def test_new_addresses_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    save_credentials(path, OLD)
    remember(path)
    assert load_credentials(path) == OLD.at(MOVED)


def test_other_cas_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    save_credentials(path, OLD)
    remember(path, "two CAs")
    assert load_credentials(path) == OLD.at(MOVED).trusting("two CAs")


class FakePool:
    """A pool that has exchanged its CA, and moved."""

    def addresses(self) -> tuple[Address, ...]:
        return MOVED

    def ca_pem(self) -> str:
        return "two CAs"

    def expires_at(self) -> int:
        return 0


async def test_a_command_that_fails_renews_its_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that got no GPU had reached a server, and its user was locked out afterwards."""

    @asynccontextmanager
    async def fake_connect(*_: object, **__: object) -> AsyncGenerator[FakePool]:
        yield FakePool()

    monkeypatch.setattr(pool_client, "connect_pool", fake_connect)
    path = tmp_path / "credentials.json"
    save_credentials(path, OLD)
    with pytest.raises(NotNowError):
        async with connecting.connected(str(path)):
            raise NotNowError("no GPU is free")
    assert load_credentials(path) == OLD.at(MOVED).trusting("two CAs")


async def test_a_command_that_waits_for_a_server_says_whom_it_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @asynccontextmanager
    async def slow_connect(*_: object, **__: object) -> AsyncGenerator[FakePool]:
        if slow_s:
            await trio.sleep(slow_s)
        yield FakePool()

    monkeypatch.setattr(pool_client, "connect_pool", slow_connect)
    monkeypatch.setattr(connecting, "SLOW_S", 0.02)
    for slow_s, said in ((0.2, "gpupool: asking 10.0.0.4:7470 ...\n"), (0.0, "")):
        path = tmp_path / f"{slow_s}.json"
        save_credentials(path, OLD)
        async with connecting.connected(str(path)):
            await trio.sleep(0.1)
        assert capsys.readouterr().err == said


def test_a_newer_login_is_not_undone(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    newer = replace(OLD, token=TokenId("ffffffffffff"), cluster_id="another")
    save_credentials(path, newer)
    remember(path)
    assert load_credentials(path) == newer


def test_a_logout_is_not_undone(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    remember(path)
    assert not path.exists()
    with pytest.raises(AuthenticationError):
        connecting.stored_credentials(str(path))


def test_a_login_by_another_token_is_kept(tmp_path: Path) -> None:
    path, new = tmp_path / "credentials.json", TokenId("ffffffffffff")
    assert keep_former(path, new) is None
    save_credentials(path, OLD)
    assert keep_former(path, OLD.token) is None
    assert path.exists()
    kept = tmp_path / "credentials-a1b2c3d4e5f6.json"
    assert keep_former(path, new) == kept
    assert load_credentials(kept) == OLD
    assert not path.exists()
