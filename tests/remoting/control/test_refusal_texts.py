"""A client's texts on servers that could not serve a request, and on silent ones."""

import pytest

from gpupool.pool.model.ids import RequestId, ServerId
from gpupool.pool.model.results import RefusalKind
from gpupool.pool.model.state import Request
from gpupool.pool.scheduling.offers import NoOffer
from gpupool.remoting.client.refusals import Refusals


def refusals(*whys: str, never_here: bool = False) -> Refusals:
    busy = RefusalKind.BUSY.value
    return Refusals(
        [
            NoOffer(ServerId(f"id-{name}"), name, busy, why, never_here=never_here)
            for name, why in zip("abc", whys, strict=False)
        ]
    )


@pytest.mark.parametrize(("servers", "text"), [(("d",), "d does"), (("d", "id-e"), "d, id-e do")])
def test_a_server_that_does_not_answer_is_named_and_not_those_that_do(
    servers: tuple[str, ...], text: str
) -> None:
    """A stranger had stopped the only server that was asked for, and read of another one."""
    request = Request(RequestId(bytes(16)), 1, 1.0, servers=servers)
    others = refusals("not among the servers asked for", never_here=True)
    assert others.waiting_text(request, connected=True) == f"waiting for 1 GPU: {text} not answer"
    assert others.final_error(request, 0.0).why == f"{text} not answer"


def test_a_server_that_answers_says_why_though_another_is_silent() -> None:
    request = Request(RequestId(bytes(16)), 1, 1.0, servers=("a", "d"))
    found = refusals("0 of 2 GPUs have room").waiting_text(request, connected=True)
    assert found == "waiting for 1 GPU, 0 ahead (a: 0 of 2 GPUs have room)"


def test_what_all_servers_say_is_said_once() -> None:
    request = Request(RequestId(bytes(16)), 1, 1.0)
    limit = "ada may hold 1 GPU; ada holds 1, this takes 1"
    alike = refusals(limit, limit, limit).waiting_text(request, connected=True)
    assert alike == f"waiting for 1 GPU, 0 ahead (3 servers: {limit})"
    others = refusals("0 of 2 GPUs have room", "a user waits longer")
    text = others.waiting_text(request, connected=True)
    assert text == "waiting for 1 GPU, 0 ahead (b: a user waits longer; 1 more busy)"
