"""The stored login follows the pool's servers, and never undoes what was done meanwhile."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpupool.cli.lib import connect
from gpupool.pool.errors import AuthenticationError
from gpupool.pool.model.ids import TokenId
from gpupool.remoting.client.credentials import (
    Credentials,
    keep_former,
    load_credentials,
    save_credentials,
)
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
    connect._remember_pool(*known)  # pyright: ignore[reportPrivateUsage]


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
        connect.stored_credentials(str(path))


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
