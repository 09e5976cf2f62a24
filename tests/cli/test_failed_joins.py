"""A server that cannot be one leaves nothing behind, here or in the pool."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from gpupool.pool.errors import AuthenticationError, GpupoolError, StorageError, UsageError
from gpupool.pool.model.ids import ServerId, TokenId
from gpupool.pool.model.state import TokenKind
from gpupool.remoting.client.enrolment import login
from gpupool.remoting.daemon import enter_pool
from gpupool.remoting.daemon.compose import serve
from gpupool.remoting.daemon.join_options import JoinOptions, WebOptions
from gpupool.remoting.daemon.separate import Separated, separate
from gpupool.remoting.daemon.server_identity import ServerIdentity
from gpupool.remoting.daemon.state_dir import open_state_dir
from gpupool.remoting.host.measuring.nvml import NvmlError
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.protocol.token_text import TokenText, format_token
from gpupool.remoting.transport.authority.web_certificate import SiteFiles

HERE = Address("127.0.0.1", 9)


def token(kind: TokenKind, pool: str = "c0ffee") -> str:
    return format_token(
        TokenText(pool, kind, TokenId("a1b2c3d4e5f6"), bytes(32), bytes(32), (HERE,))
    )


@pytest.fixture
def options(tmp_path: Path) -> JoinOptions:
    return JoinOptions(
        token="", address=None, listen=Address("127.0.0.1", 0), advertise=None,
        state_dir=tmp_path / "state", name="a", pool_name="lab", witness=False, emulate=None,
        gpm="auto",
        gpus=(), data_encryption="tls", ca=None, operator_token=False,
        client_timeout_s=10, drain_timeout_s=0, labels=(),
    )  # fmt: skip


class NoDriver:
    """Stands for NVML on a machine that has none."""

    def open(self) -> None:
        raise NvmlError("Driver Not Loaded")


@pytest.mark.parametrize("given", ["", token(TokenKind.SERVER)])
async def test_without_a_gpu_nothing_is_created(
    options: JoinOptions, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setattr(enter_pool, "PynvmlNvml", NoDriver)
    with pytest.raises(GpupoolError, match="this machine has no GPU to offer: no NVIDIA driver"):
        await serve(Separated(replace(options, token=given)), logging.getLogger("test"))
    assert not options.state_dir.exists()


async def test_a_token_of_another_kind_creates_nothing(options: JoinOptions) -> None:
    log = logging.getLogger("test")
    witness = replace(options, witness=True)
    with pytest.raises(UsageError, match="lets a user log in, and no server join"):
        await serve(Separated(replace(witness, token=token(TokenKind.OPERATOR))), log)
    with pytest.raises(AuthenticationError, match="not a gpupool token"):
        await serve(Separated(replace(witness, token="garbage")), log)
    with pytest.raises(StorageError, match="cannot read the CA in"):
        separate(replace(witness, ca=options.state_dir), log)
    assert not options.state_dir.exists()
    with pytest.raises(UsageError, match="lets a server join, and nobody log in"):
        await login(token(TokenKind.SERVER))


async def test_a_file_that_cannot_be_used_is_refused_before_the_pool_hears_of_it(
    options: JoinOptions, tmp_path: Path
) -> None:
    log = logging.getLogger("test")
    witness = replace(options, witness=True, token=token(TokenKind.SERVER))
    with pytest.raises(GpupoolError, match="no memory of suspended programs can go to"):
        await serve(Separated(replace(witness, suspend_spill=tmp_path / "none")), log)
    text = tmp_path / "text"
    text.write_text("no certificate")
    web = WebOptions(site=SiteFiles(text, text))
    with pytest.raises(UsageError, match="text are not a certificate for the web and its key"):
        await serve(Separated(replace(witness, web=web)), log)
    assert not options.state_dir.exists()


async def test_a_token_of_another_pool_starts_no_server_of_this_one(
    options: JoinOptions, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("test")
    state = open_state_dir(options.state_dir)
    identity = ServerIdentity(
        server=ServerId("a1b2c3d4e5f6"), cluster_id="c0ffee", pool="lab", name="a",
        witness=True, founder=True, members=(),
    )  # fmt: skip
    state.begin(identity)
    state.finish(identity)
    given = replace(options, token=token(TokenKind.SERVER), name="b")
    with caplog.at_level(logging.INFO):
        await enter_pool.enter_pool(state, given, "10.0.0.4:7470", cast("Any", None), log)
    assert "already in pool lab; the token is not used" in caplog.text
    assert "this server is a already; --name is not used" in caplog.text
    other = replace(options, token=token(TokenKind.SERVER, "decaf"))
    with pytest.raises(UsageError, match="is in pool lab, and this token is of another pool"):
        await enter_pool.enter_pool(state, other, "10.0.0.4:7470", cast("Any", None), log)
    state.close()
