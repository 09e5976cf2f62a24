"""Why a server offers nothing: limits, places and reservations against a request."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import GIB, A, B, Pool

from gpupool.pool.model import commands as c
from gpupool.pool.model.ids import GpuId, ServerId, TokenId
from gpupool.pool.model.state import Gpu, Request
from gpupool.pool.scheduling.filters import parse_filter
from gpupool.pool.scheduling.offers import NoOffer, Offer
from gpupool.pool.scheduling.placement import has_room_together, make_offer, never_reason

MIB = 1 << 20


def with_gpus(
    pool: Pool, server: ServerId, *gpus: tuple[str, int], parts: tuple[int, ...] = ()
) -> Pool:
    """Set a server's GPUs, each a model and its bytes; ``parts`` are of one card."""
    card = GpuId(f"{server}+card")
    found = {
        GpuId(f"{server}+{n}"): Gpu(
            GpuId(f"{server}+{n}"), n, name, size, parent=card if n in parts else None
        )
        for n, (name, size) in enumerate(gpus)
    }
    servers = pool.state.servers
    changed = servers.set(server, replace(servers[server], gpus=found))
    pool.machine.state = replace(pool.state, servers=changed)
    return pool


def uneven(policy: str = "") -> Pool:
    """Return a pool of a server with two GPUs of 80 GiB and one with two of 160 GiB."""
    small, large = ("A100", 80 * GIB), ("B200", 160 * GIB)
    return with_gpus(with_gpus(Pool(policy), A, small, small), B, large, large)


def answer(pool: Pool, user: str, request: Request, server: ServerId = A) -> Offer | NoOffer:
    return make_offer(pool.state, pool.state.servers[server], request, user)


def refused(pool: Pool, user: str, request: Request, server: ServerId = A) -> NoOffer:
    found = answer(pool, user, request, server)
    assert isinstance(found, NoOffer)
    return found


# --- limits that count shares of GPUs -------------------------------------------------------------

HALF = "[user.ada]\nmax_gpus = 0.5\n"
TAKES_ONE = "ada may hold 0.5 GPUs (policy v1, line 2: [user.ada] max_gpus), and this takes "


def test_a_request_that_counts_less_on_another_server_is_not_denied() -> None:
    pool = uneven(HALF)
    request = pool.request(memory=80 * GIB)
    found = refused(pool, "ada", request)
    assert (found.kind, found.why) == ("busy", f"{TAKES_ONE}1")
    assert isinstance(answer(pool, "ada", request, B), Offer)
    both = replace(request, across=True)
    assert isinstance(answer(pool, "ada", both), Offer), "which servers is not known yet"


@pytest.mark.parametrize("asked", [{"servers": ("a",)}, {"filters": ("gpu.name = A100",)}])
def test_a_request_that_asks_for_the_small_ones_counts_as_on_them(
    asked: dict[str, tuple[str, ...]],
) -> None:
    pool = uneven(HALF)
    filters = tuple(parse_filter(each) for each in asked.get("filters", ()))
    request = replace(
        pool.request(memory=80 * GIB), filters=filters, servers=asked.get("servers", ())
    )
    for server in (A, B):
        found = refused(pool, "ada", request, server)
        assert (found.kind, found.why) == ("denied", f"{TAKES_ONE}1")


def test_a_request_that_counts_too_much_everywhere_is_denied_by_all() -> None:
    pool = uneven(HALF)
    for server in (A, B):
        found = refused(pool, "ada", pool.request(memory=81 * GIB), server)
        assert found.kind == "denied"
        assert found.why.startswith(TAKES_ONE)


# --- places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "count", "across", "why"),
    [
        (("A100", "H200"), 2, False, "1"),
        (("H200", "H200"), 1, False, "none"),
        (("H200", "H200"), 2, True, "none"),
        (("A100", "H200"), 2, True, ""),
        (("A100", "A100"), 2, False, ""),
        (("A100", "H200"), 1, False, ""),
    ],
)
def test_a_server_of_which_a_user_may_use_too_few_gpus_says_how_many(
    models: tuple[str, ...], count: int, across: bool, why: str
) -> None:
    pool = uneven("[user.ada]\ngpus = ['A100', 'B200']\n")
    with_gpus(pool, A, *((model, 80 * GIB) for model in models))
    request = replace(pool.request(count), across=across)
    if not why:
        assert isinstance(answer(pool, "ada", request), Offer)
        return
    found = refused(pool, "ada", request)
    text = f"the pool's rules let ada use {why} of its GPUs; another server has more"
    assert (found.kind, found.why, found.never_here) == ("busy", text, True)
    assert isinstance(answer(pool, "bob", request), Offer)


@pytest.mark.parametrize("across", [False, True])
def test_a_server_without_such_gpus_says_that_another_has_some(across: bool) -> None:
    pool = uneven()
    request = replace(pool.request(2, memory=100 * GIB), across=across)
    found = refused(pool, "ada", request)
    assert (found.kind, found.why) == ("busy", "has no such GPUs; another server does")
    assert (found.never_here, found.ahead) == (True, 0)
    assert isinstance(answer(pool, "ada", request, B), Offer)


def test_a_server_with_some_of_them_offers_them_to_a_request_across() -> None:
    pool = with_gpus(uneven(), A, ("A100", 80 * GIB), ("B200", 160 * GIB))
    request = pool.request(2, memory=100 * GIB)
    assert refused(pool, "ada", request).why == "has no such GPUs; another server does"
    found = answer(pool, "ada", replace(request, across=True))
    assert isinstance(found, Offer)
    assert [gpu.index for gpu in found.gpus] == [1]


# --- what is said with it -------------------------------------------------------------------------

RESERVED = """
[class.course]
users = ["cy"]
[class.exam]
users = ["dee"]
"""
ONE_RESERVATION = """
[[reservation]]
name = "{name}"
class = "{group}"
count = {count}
gpus = ["{model}"]
from = 2026-11-23T08:00:00
to = 2026-11-23T12:00:00
"""


def reserving(*kept: tuple[str, str, int]) -> Pool:
    """Return a pool in which classes have so many GPUs of these models reserved."""
    text = RESERVED + "".join(
        ONE_RESERVATION.format(name=f"r{n}", group=group, model=model, count=count)
        for n, (group, model, count) in enumerate(kept)
    )
    pool = Pool(text)
    pool.go_to("2026-11-23 08:00")
    return pool


def test_a_server_tells_what_is_kept_on_it_for_other_classes() -> None:
    pool = reserving(("course", "*H200*", 3), ("exam", "*H200*", 1), ("course", "*A100*", 2))
    kept = "0 of 4 GPUs have room (4 idle); 4 kept for class course, exam"
    assert refused(pool, "ada", pool.request()).why == kept
    four = pool.request(4)
    assert refused(pool, "cy", four).why == (
        "3 of 4 GPUs have room (4 idle); 1 kept for class exam"
    )
    assert refused(pool, "dee", four).why == (
        "1 of 4 GPUs have room (4 idle); 3 kept for class course"
    )
    assert refused(pool, "ada", pool.request(3), B).why == (
        "2 of 4 GPUs have room (4 idle); 2 kept for class course"
    )


def test_those_before_in_the_line_are_counted_where_waiting_helps() -> None:
    pool = Pool("[user.cy]\nmax_gpus = 3\n")
    pool.grant("dee", 4)
    pool.grant("dee", 4)
    mine = pool.request()
    for user, request in (("ada", mine), ("bob", pool.request())):
        assert pool.do(c.Wait(request, user, TokenId(user), "busy")).ok
    assert refused(pool, "ada", mine).ahead == 0
    assert refused(pool, "ada", pool.request()).ahead == 2
    never = refused(pool, "ada", pool.request(99))
    assert (never.kind, never.ahead, never.never_here) == ("never", 0, False)
    assert pool.do(c.DrainServer(A, "new fan", "root")).ok
    drained = refused(pool, "ada", mine)
    assert (drained.why, drained.ahead) == ("grants nothing now: new fan", 0)
    denied = refused(pool, "cy", pool.request(4))
    assert (denied.kind, denied.ahead) == ("denied", 2)


# --- the nearest possible request -----------------------------------------------------------------


@pytest.mark.parametrize("across", [False, True])
def test_nothing_is_said_of_memory_where_a_share_of_gpus_is_asked_for(across: bool) -> None:
    """One of the GPUs is so small that the share of it is less than the smallest partition."""
    pool = uneven()
    with_gpus(pool, A, ("A100", 80 * GIB), ("Tiny", 5 * MIB))
    with_gpus(pool, B)
    request = replace(pool.request(2, fraction=0.1), across=across)
    all_of_it = "all servers together have 1 GPU"
    assert never_reason(pool.state, request) == (
        all_of_it if across else "the largest server, a, has 1 GPU"
    )


# --- what is offered ------------------------------------------------------------------------------


def test_an_offer_tells_which_share_of_the_server_is_granted() -> None:
    pool = with_gpus(Pool(), A, ("A100", 60 * GIB), ("A100", 20 * GIB))
    small = replace(pool.request(memory=5 * GIB), servers=("a",))
    for granted_gib, load in ((0, 0.0), (5, 1 / 16), (10, 1 / 8)):
        found = answer(pool, "ada", replace(small, id=pool.request().id))
        assert isinstance(found, Offer)
        assert found.load == load, granted_gib
        assert pool.do(pool.claim("ada", replace(small, id=pool.request().id))).ok


def test_servers_that_grant_nothing_have_no_room_together() -> None:
    pool = Pool()
    request = replace(pool.request(5), across=True)

    def room() -> bool:
        return has_room_together(pool.state, pool.state.servers.values(), request, "ada")

    assert room()
    assert pool.do(c.DrainServer(A, "new fan", "root")).ok
    assert not room()
    assert pool.do(c.DrainServer(A, None, "root")).ok
    assert room()


def test_servers_without_gpus_have_none_for_anybody() -> None:
    pool = with_gpus(Pool(), A)
    request = pool.request(5)
    assert never_reason(pool.state, request) == "the largest server, b, has 4 GPUs"
    assert never_reason(pool.state, replace(request, servers=("a",))) == "these servers have none"
    with_gpus(pool, B)
    assert never_reason(pool.state, request) == "no server of the pool has any GPU"


@pytest.mark.parametrize(("count", "more"), [(8, "; with --across there are 8"), (9, "")])
def test_several_servers_are_named_where_they_have_enough(count: int, more: str) -> None:
    pool = Pool()
    expected = f"the largest server, a, has 4 GPUs{more}"
    assert never_reason(pool.state, pool.request(count)) == expected


@pytest.mark.parametrize("count", [7, 8, 9])
def test_eight_of_the_known_values_are_told(count: int) -> None:
    pool = with_gpus(Pool(), A, *((f"M{n}", 80 * GIB) for n in range(count)))
    with_gpus(pool, B)
    request = replace(pool.request(), filters=(parse_filter("gpu.name = X"),))
    told = ", ".join(f"M{n}" for n in range(min(count, 8))) + (", ..." if count > 8 else "")
    assert never_reason(pool.state, request) == (
        f"no GPU of the pool has gpu.name = X; known values: {told}"
    )


# --- what is no lease's doing ---------------------------------------------------------------------


def with_readings(pool: Pool, **readings: object) -> Pool:
    """Set these values on the GPUs of ``A``."""
    server = pool.state.servers[A]
    gpus = {key: replace(gpu, **readings) for key, gpu in server.gpus.items()}  # type: ignore[arg-type]
    servers = pool.state.servers.set(A, replace(server, gpus=gpus))
    pool.machine.state = replace(pool.state, servers=servers)
    return pool


def test_a_wait_says_which_programs_or_faults_it_is_for() -> None:
    """And does not stand for minutes at "0 of 1 GPUs have room (1 idle)"."""
    one = ("H200", 100 * GIB)
    half = with_gpus(Pool(), A, one).request(fraction=0.5)
    taken = with_readings(with_gpus(Pool(), A, one), memory_foreign=60 * GIB)
    assert refused(taken, "ada", half).why == (
        "0 of 1 GPUs have room (1 idle); "
        "programs outside of the pool hold 60% of the memory of GPU 0"
    )
    fault = "another gpupool server on this machine offers it"
    broken = with_readings(with_gpus(Pool(), A, one), fault=fault)
    assert refused(broken, "ada", half).why == (f"0 of 1 GPUs have room (1 idle); GPU 0: {fault}")
    many = with_readings(with_gpus(Pool(), A, *[one] * 4), fault="lost")
    assert refused(many, "ada", half).why == (
        "0 of 4 GPUs have room (4 idle); GPU 0: lost; GPU 1: lost; and 2 GPUs more"
    )
    # What leases hold is no foreign program's fault, even where there is one.
    small = with_readings(with_gpus(Pool(), A, one), memory_foreign=GIB, memory_granted=90 * GIB)
    assert refused(small, "ada", half).why == "0 of 1 GPUs have room (0 idle)"
