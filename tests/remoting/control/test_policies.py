"""What a server says of a policy that is not there, and of a request that makes no sense."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import Pool

from gpupool.pool.errors import UsageError
from gpupool.pool.model.ids import RequestId
from gpupool.pool.model.state import Request
from gpupool.remoting.server import policy_service
from gpupool.remoting.server.client_checks import check_request


def test_a_version_that_is_not_kept() -> None:
    with pytest.raises(UsageError) as none:
        policy_service.policy_is(Pool().state, 5)
    assert none.value.why == "the pool has no policy yet"
    with pytest.raises(UsageError) as other:
        policy_service.policy_is(Pool("[pool]\nmax_leases = 1\n").state, 5)
    assert other.value.why == "kept are 1"


@pytest.mark.parametrize(
    ("policy", "base", "why"),
    [
        ("", 7, "it was made from version 7, and the pool has no policy yet"),
        ("[pool]", 7, "it was made from version 7, and root has applied version 1"),
        ("[pool]", 0, "root has applied version 1"),
    ],
)
def test_a_policy_made_from_another_version(policy: str, base: int, why: str) -> None:
    error = policy_service._conflict(Pool(policy).state, base)  # pyright: ignore[reportPrivateUsage]
    assert error.why == why


@pytest.mark.parametrize(
    ("servers", "what"),
    [
        (tuple(f"gpu-{n}" for n in range(65)), "a request names at most 64 servers"),
        (("x" * 65,), "a server's name has at most 64 characters"),
    ],
)
def test_a_request_that_names_too_much_is_told_what(servers: tuple[str, ...], what: str) -> None:
    fine = Request(RequestId(bytes(16)), 1, 0.5, 0)
    check_request(replace(fine, servers=("x" * 64,) * 64))
    with pytest.raises(UsageError, match=what):
        check_request(replace(fine, servers=servers))


def test_a_share_of_time_has_a_smallest() -> None:
    fine = Request(RequestId(bytes(16)), 1, 0.5, 0)
    for share in (0.0, 0.01, 1.0):
        check_request(replace(fine, share=share))
    for share in (1e-9, 0.0099, 1.01, -1.0, float("nan")):
        with pytest.raises(UsageError, match=r"a share of a GPU's time is 0\.01 to 1"):
            check_request(replace(fine, share=share))
