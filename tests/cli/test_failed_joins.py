"""A server that cannot be one leaves nothing behind, here or in the pool."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from gpupool.cli.server import enter_pool
from gpupool.cli.server.compose import serve
from gpupool.cli.server.join_options import JoinOptions
from gpupool.cli.server.separate import Separated, separate
from gpupool.pool.errors import AuthenticationError, GpupoolError, StorageError, UsageError
from gpupool.pool.model.ids import TokenId
from gpupool.pool.model.state import TokenKind
from gpupool.remoting.client.enrolment import login
from gpupool.remoting.devices.nvml import NvmlError
from gpupool.remoting.protocol.addresses import Address
from gpupool.remoting.protocol.token_text import TokenText, format_token

HERE = Address("127.0.0.1", 9)


def token(kind: TokenKind) -> str:
    return format_token(
        TokenText("c0ffee", kind, TokenId("a1b2c3d4e5f6"), bytes(32), bytes(32), (HERE,))
    )


@pytest.fixture
def options(tmp_path: Path) -> JoinOptions:
    return JoinOptions(
        token="", address=None, listen=Address("127.0.0.1", 0), advertise=None,
        state_dir=tmp_path / "state", name="a", pool_name="lab", witness=False, emulate=None,
        faults=(),
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
