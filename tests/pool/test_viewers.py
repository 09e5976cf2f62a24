"""A viewer's token in the table: it gets no lease and no place in the queue."""

import dataclasses

import pytest
from tests.pool.policy_kit import Pool

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import Milliseconds, TokenId
from gpupool.pool.model.results import RefusalKind
from gpupool.pool.model.state import TokenKind

FAR = Milliseconds(2**52)


@pytest.mark.parametrize("kind", [TokenKind.VIEWER, TokenKind.USER])
def test_a_viewer_is_neither_granted_nor_waits(kind: TokenKind) -> None:
    pool, name = Pool(), "grafana"
    assert pool.do(c.CreateToken(TokenId(name), kind, name, bytes(32), FAR, "root")).ok
    claim = pool.claim("ada", pool.request())
    granted = pool.do(dataclasses.replace(claim, user=name, token=TokenId(name)))
    waits = pool.do(c.Wait(pool.request(), name, TokenId(name), "busy"))
    if kind is TokenKind.USER:
        assert granted.ok
        assert waits.ok
        return
    for refused in (granted, waits):
        assert refused.kind == RefusalKind.DENIED.value
        assert refused.why == "a viewer's token is good for looking only"
    assert not pool.state.leases
    assert not pool.state.waiting
