"""A client's choice of offers: separate cards, nothing over the free memory, always the same."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pool.pool_strategies import GIB

from gpupool.pool.model.ids import GpuId, Incarnation, RequestId, ServerId
from gpupool.pool.model.state import Placement, Request
from gpupool.pool.scheduling.offers import NoOffer, Offer, OfferedGpu
from gpupool.pool.scheduling.ranking import Choice, choose, explain, rank


def offer(name: str, *gpus: OfferedGpu, load: float = 0.0) -> Offer:
    named = tuple(
        replace(gpu, gpu=GpuId(f"{name}-{gpu.gpu}"), physical=GpuId(f"{name}-{gpu.physical}"))
        for gpu in gpus
    )
    return Offer(ServerId(name), f"gpu-{name}", Incarnation(1), named, load)


def card(index: int, memory: int, free: int, *, whole: int = 80, of: str = "") -> OfferedGpu:
    """Return an offered GPU; sizes in GiB."""
    physical = GpuId(of or str(index))
    return OfferedGpu(
        GpuId(str(index)), index, "G", memory * GIB, free * GIB, physical, whole * GIB
    )


PACK = Placement.PACK


def wanted(count: int = 1, placement: Placement = PACK, *, across: bool = False) -> Request:
    return Request(RequestId(bytes(16)), count, 0.5, across=across, placement=placement)


def gpus_of(choice: Choice | None) -> list[str]:
    assert choice is not None
    return [partition.gpu for partition in choice.partitions]


def servers_of(choices: list[Choice]) -> list[str]:
    return [choice.server for choice in choices]


# --- properties -----------------------------------------------------------------------------------


@st.composite
def cards(draw: st.DrawFn, index: int) -> OfferedGpu:
    memory = draw(st.sampled_from([1, 8, 12, 40, 40]))
    free = memory + draw(st.sampled_from([0, 0, 1, 4, 40]))
    physical = draw(st.sampled_from([str(index), str(index), "shared"]))
    return card(index, memory, free, whole=2 * memory, of=physical)


@st.composite
def offer_lists(draw: st.DrawFn) -> list[Offer]:
    return [
        offer(
            name,
            *(draw(cards(index)) for index in range(draw(st.integers(0, 4)))),
            load=draw(st.sampled_from([0.0, 0.25, 0.5])),
        )
        for name in "abcd"[: draw(st.integers(0, 4))]
    ]


requests = st.builds(
    Request,
    id=st.just(RequestId(bytes(16))),
    count=st.integers(1, 6),
    fraction=st.just(0.5),
    across=st.booleans(),
    placement=st.sampled_from(Placement),
)
latencies = st.dictionaries(
    st.sampled_from("abcd").map(ServerId), st.sampled_from([0.0001, 0.002, 0.03]), max_size=4
)


@given(offer_lists(), requests, latencies)
def test_choices_are_sound(
    offers: list[Offer], request: Request, latency_s: dict[ServerId, float]
) -> None:
    by_gpu = {(o.server, g.gpu): g for o in offers for g in o.gpus}
    together = choose(offers, request, latency_s)
    for choice in [*rank(offers, request, latency_s), *([together] if together else [])]:
        gpus = [by_gpu[(part.server, part.gpu)] for part in choice.partitions]
        assert len(gpus) == request.count
        pairs = list(zip(choice.partitions, gpus, strict=True))
        assert len({(part.server, gpu.physical) for part, gpu in pairs}) == request.count
        [memory] = {part.memory for part in choice.partitions}
        assert memory == min(gpu.memory for gpu in gpus)
        assert memory > 0
        assert all(gpu.memory <= gpu.memory_free for gpu in gpus)
        assert choice.left_over == sum(g.memory_free for g in gpus) - request.count * memory
        assert {part.server for part in choice.partitions} == set(choice.incarnations)
        assert request.across or choice is together or len(choice.offers) == 1
    # None is given up that some set of cards could serve.
    widths = [len({gpu.physical for gpu in each.gpus}) for each in offers]
    assert (together is not None) == (sum(widths) >= request.count)
    found = rank(offers, request, latency_s)
    assert bool(found) == (
        (sum(widths) if request.across else max(widths, default=0)) >= request.count
    )


@given(offer_lists(), requests, latencies, st.randoms(use_true_random=False))
def test_the_order_of_offers_does_not_matter(
    offers: list[Offer], request: Request, latency_s: dict[ServerId, float], draw: Random
) -> None:
    shuffled: list[Offer] = []
    for each in offers:
        gpus = list(each.gpus)
        draw.shuffle(gpus)
        shuffled.append(replace(each, gpus=tuple(gpus)))
    draw.shuffle(shuffled)

    def bare(choices: list[Choice]) -> list[object]:
        return [(choice.partitions, choice.left_over) for choice in choices]

    assert bare(rank(shuffled, request, latency_s)) == bare(rank(offers, request, latency_s))
    first, second = choose(shuffled, request, latency_s), choose(offers, request, latency_s)
    assert bare([first] if first else []) == bare([second] if second else [])


@given(offer_lists(), requests)
def test_a_request_across_takes_no_server_too_many(offers: list[Offer], request: Request) -> None:
    """With GPUs of one size; others are worth a further server."""
    same = [
        replace(o, gpus=tuple(replace(g, memory=GIB, memory_free=GIB) for g in o.gpus))
        for o in offers
    ]
    request = replace(request, placement=Placement.PACK)
    choice = choose(same, request)
    widths = sorted((len({gpu.physical for gpu in o.gpus}) for o in same), reverse=True)
    if choice is not None:
        assert sum(widths[: len(choice.offers) - 1]) < request.count


# --- by example -----------------------------------------------------------------------------------


def test_equal_gpus_are_preferred_to_a_mixture() -> None:
    # Best fit alone would take the small one and waste 28 of the 40 GiB of a large one.
    mixed = offer("a", card(0, 12, 12, whole=24), card(1, 40, 80), card(2, 40, 80))
    choice = choose([mixed], wanted(2))
    assert gpus_of(choice) == ["a-1", "a-2"]
    assert choice is not None
    assert choice.wasted == 0
    # With nothing else, a mixture is better than nothing, and says what it costs.
    [choice, *_] = rank([offer("a", card(0, 12, 12, whole=24), card(1, 40, 80))], wanted(2))
    assert {part.memory for part in choice.partitions} == {12 * GIB}
    assert choice.wasted == 28 * GIB
    [taken, *_] = explain([choice], offers=(), request=wanted(2), refusals=())
    assert "28.0 GiB less than asked" in taken


def test_a_further_server_is_better_than_a_waste() -> None:
    offers = [
        offer("a", card(0, 40, 80), card(1, 12, 24, whole=24), card(2, 40, 80)),
        offer("b", card(0, 40, 80)),
    ]
    assert gpus_of(choose(offers, wanted(3, across=True))) == ["a-0", "a-2", "b-0"]


def test_what_strangers_use_of_whole_gpus_makes_no_mixture() -> None:
    offered = offer("a", card(0, 80, 80), card(1, 79, 79), card(2, 80, 80))
    choice = choose([offered], wanted(3))
    assert choice is not None
    assert (choice.wasted, choice.partitions[0].memory) == (0, 79 * GIB)


def test_pack_takes_the_fullest_server_of_equal_fits() -> None:
    offers = [offer("a", card(0, 40, 40)), offer("b", card(0, 40, 40), load=0.5)]
    assert servers_of(rank(offers, wanted())) == ["b", "a"]


def test_a_useless_remainder_is_avoided() -> None:
    # 2 of 80 GiB are less than anybody asks for.
    offered = offer("a", card(0, 40, 42), card(1, 40, 50))
    assert gpus_of(choose([offered], wanted())) == ["a-1"]
    offered = offer("a", card(0, 40, 42), card(1, 40, 50), card(2, 40, 41))
    assert gpus_of(choose([offered], wanted())) == ["a-2"]  # next to nothing is lost


def test_spread_takes_what_is_free_most() -> None:
    offers = [
        offer("a", card(0, 40, 40), card(1, 40, 80), load=0.2),
        offer("b", card(0, 40, 80), load=0.1),
        offer("c", card(0, 40, 60), load=0.0),
    ]
    [first, *others] = rank(offers, wanted(1, Placement.SPREAD))
    assert gpus_of(first) == ["b-0"]  # of the two with all memory free the less loaded server's
    assert servers_of(others) == ["a", "c"]


def test_near_takes_the_server_that_answers_soonest() -> None:
    offers = [offer("a", card(0, 40, 40)), offer("b", card(0, 40, 80)), offer("c", card(0, 40, 80))]
    far = {ServerId("a"): 0.020, ServerId("b"): 0.0031, ServerId("c"): 0.0029}
    # b and c are equally near: a fraction of a millisecond is noise.
    assert servers_of(rank(offers, wanted(1, Placement.NEAR), far)) == ["b", "c", "a"]
    assert servers_of(rank(offers, wanted(), far)) == ["a", "b", "c"]


def test_near_takes_the_nearest_servers_together() -> None:
    offers = [
        offer("a", *(card(n, 40, 80) for n in range(3))),
        offer("b", card(0, 40, 80)),
        offer("c", card(0, 40, 80)),
    ]
    latency_s = {ServerId("a"): 0.020, ServerId("b"): 0.003, ServerId("c"): 0.001}
    near = choose(offers, wanted(4, Placement.NEAR, across=True), latency_s)
    assert gpus_of(near) == ["c-0", "b-0", "a-0", "a-1"]
    packed = choose(offers, wanted(4, across=True), latency_s)
    assert gpus_of(packed) == ["a-0", "a-1", "a-2", "c-0"]


def test_the_last_server_of_several_is_just_wide_enough() -> None:
    offers = [
        offer("a", *(card(n, 40, 80) for n in range(4))),
        offer("b", *(card(n, 40, 80) for n in range(3))),
        offer("c", card(0, 40, 80)),
    ]
    assert gpus_of(choose(offers, wanted(5, across=True)))[-1] == "c-0"


@pytest.mark.parametrize("across", [False, True])
def test_a_report_says_why_each_server_was_chosen_or_not(across: bool) -> None:
    request = wanted(2, across=across)
    wide = offer("a", card(0, 40, 40), card(1, 40, 60), load=0.5)
    also = offer("b", card(0, 40, 80), card(1, 40, 80))
    part = offer("c", card(0, 40, 80))
    refusal = NoOffer(ServerId("d"), "gpu-d", "busy", "0 of 4 GPUs have room (0 idle)")
    offers = [part, also, wide] if not across else [part, offer("e", card(0, 40, 40))]
    choices = rank(offers, request)
    report = explain(choices, offers, [refusal], request, {ServerId("a"): 0.0012})
    if across:
        assert report == (
            "gpu-c: chosen for 1 of 2 GPUs: 40.0 GiB left over, 0% of the server granted",
            "gpu-e: chosen for 1 of 2 GPUs: 0.0 GiB left over, 0% of the server granted",
            "gpu-d: busy: 0 of 4 GPUs have room (0 idle)",
        )
    else:
        assert report == (
            "gpu-a: chosen: 20.0 GiB left over, 50% of the server granted, answered in 1.2 ms",
            "gpu-b: could do it, comes after: 80.0 GiB left over, 0% of the server granted",
            "gpu-c: has room on 1 of the 2 GPUs, not needed",
            "gpu-d: busy: 0 of 4 GPUs have room (0 idle)",
        )


@pytest.mark.parametrize(("placement", "first"), [(PACK, "full"), (Placement.SPREAD, "idle")])
def test_of_servers_as_wide_the_load_decides_which_gives_more(
    placement: Placement, first: str
) -> None:
    two = (card(0, 40, 40), card(1, 40, 40))
    offers = [offer("idle", *two, load=0.2), offer("full", *two, load=0.8)]
    [choice] = rank(offers, wanted(3, placement, across=True))
    assert [gpu.split("-")[0] for gpu in gpus_of(choice)].count(first) == 2


def test_a_report_counts_the_gpus_that_each_of_several_servers_gives() -> None:
    offers = [offer("a", card(0, 40, 40), card(1, 40, 40)), offer("b", card(0, 40, 40))]
    request = wanted(3, across=True)
    report = explain(rank(offers, request), offers, (), request)
    assert [line.partition(": 0.0 GiB")[0] for line in report] == [
        "gpu-a: chosen for 2 of 3 GPUs",
        "gpu-b: chosen for 1 of 3 GPUs",
    ]


def test_a_report_without_a_choice_says_why_there_is_none() -> None:
    refusal = NoOffer(ServerId("d"), "gpu-d", "busy", "0 of 4 GPUs have room (0 idle)")
    offers = [offer("c", card(0, 40, 80))]
    assert explain((), offers, [refusal], wanted(2)) == (
        "gpu-c: has room on 1 of the 2 GPUs, not needed",
        "gpu-d: busy: 0 of 4 GPUs have room (0 idle)",
    )
    assert explain((), (), (), wanted(2)) == ()


@pytest.mark.parametrize(("placement", "fuller_first"), [(PACK, True), (Placement.SPREAD, False)])
def test_loads_that_differ_by_less_than_a_thousandth_decide_nothing(
    placement: Placement, fuller_first: bool
) -> None:
    """Then the nearer server does; here that is the server with the higher load."""
    for difference, decides in ((0.004, True), (0.0004, False)):
        full = offer("full", card(0, 40, 40), load=0.5 + difference)
        idle = offer("idle", card(0, 40, 40), load=0.5)
        far, near = ("full", "idle") if fuller_first else ("idle", "full")
        latency_s = {ServerId(far): 0.02, ServerId(near): 0.001}
        choices = rank([full, idle], wanted(1, placement), latency_s)
        assert servers_of(choices) == ([far, near] if decides else [near, far])


def test_a_report_tells_what_is_left_on_the_chosen_gpus_and_first_what_is_wasted() -> None:
    gpus = (card(0, 12, 14, whole=24), card(1, 40, 50), card(2, 12, 99, whole=24))
    wide = offer("a", *gpus, load=0.25)
    [choice] = rank([wide], wanted(2))
    assert gpus_of(choice) == ["a-0", "a-2"], "of one size"
    thin = replace(wide, gpus=wide.gpus[:2])
    [choice] = rank([thin], wanted(2))
    assert explain([choice], (), (), wanted(2), {ServerId("a"): 0.0}) == (
        "gpu-a: chosen: 28.0 GiB less than asked, as GPUs differ, 40.0 GiB left over, "
        "25% of the server granted, answered in 0.0 ms",
    )
    [choice] = rank([offer("b", card(0, 40, 40), card(1, 40, 80))], wanted())
    assert explain([choice], (), (), wanted()) == (
        "gpu-b: chosen: 0.0 GiB left over, 0% of the server granted",
    )


def test_the_first_of_several_servers_is_asked_to_grant_it() -> None:
    offers = [offer("a", card(0, 40, 40)), offer("b", card(0, 40, 40), card(1, 40, 40))]
    [choice] = rank(offers, wanted(3, across=True))
    assert [each.server for each in choice.offers] == ["b", "a"]
    assert choice.server == "b"
    assert gpus_of(choice) == ["b-0", "b-1", "a-0"]


# --- latencies ------------------------------------------------------------------------------------

NEAR = Placement.NEAR


@pytest.mark.parametrize("known_s", [0.0, 0.0001, 0.0005])
@pytest.mark.parametrize("wide_is_known", [False, True])
def test_a_server_of_unknown_latency_is_as_near_as_one_that_answers_at_once(
    known_s: float, wide_is_known: bool
) -> None:
    """Then the wider one is first."""
    wide = offer("wide", card(0, 40, 40), card(1, 40, 40))
    thin = offer("a", card(0, 40, 40))
    latency_s = {ServerId("wide" if wide_is_known else "a"): known_s}
    together = choose([thin, wide], wanted(3, NEAR, across=True), latency_s)
    assert gpus_of(together) == ["wide-0", "wide-1", "a-0"]


@pytest.mark.parametrize("known_s", [0.0, 0.0001, 0.0005])
@pytest.mark.parametrize("known", ["a", "b"])
def test_between_servers_that_are_as_near_what_is_left_over_decides(
    known_s: float, known: str
) -> None:
    offers = [offer("a", card(0, 40, 80)), offer("b", card(0, 40, 60))]
    assert servers_of(rank(offers, wanted(1, NEAR), {ServerId(known): known_s})) == ["b", "a"]


@pytest.mark.parametrize(
    ("wide_ms", "thin_ms", "first"),
    [
        (2.499, 1.501, "wide"),  # both are 2 ms
        (1.501, 2.499, "wide"),
        (2.501, 1.501, "a"),
        (1.499, 1.501, "wide"),
        (1.501, 1.499, "a"),
    ],
)
def test_latencies_count_in_whole_milliseconds(wide_ms: float, thin_ms: float, first: str) -> None:
    wide = offer("wide", card(0, 40, 40), card(1, 40, 40))
    thin = offer("a", card(0, 40, 40))
    latency_s = {ServerId("wide"): wide_ms / 1000, ServerId("a"): thin_ms / 1000}
    together = choose([thin, wide], wanted(3, NEAR, across=True), latency_s)
    assert together is not None
    assert together.offers[0].server == first
    alone = [replace(wide, gpus=wide.gpus[:1]), offer("a", card(0, 40, 80))]
    assert servers_of(rank(alone, wanted(1, NEAR), latency_s))[0] == first


@pytest.mark.parametrize("placement", [PACK, Placement.SPREAD])
def test_of_servers_as_wide_and_as_full_the_nearer_one_gives_more(placement: Placement) -> None:
    two = (card(0, 40, 40), card(1, 40, 40))
    offers = [offer("a", *two, load=0.5), offer("b", *two, load=0.5)]
    for near in ("a", "b"):
        latency_s = {ServerId(each): 0.001 if each == near else 0.002 for each in ("a", "b")}
        choice = choose(offers, wanted(3, placement, across=True), latency_s)
        assert [gpu.split("-")[0] for gpu in gpus_of(choice)].count(near) == 2
    choice = choose(offers, wanted(3, placement, across=True))
    assert gpus_of(choice) == ["a-0", "a-1", "b-0"], "then it goes by the id"


def test_a_server_without_such_gpus_is_none_of_several() -> None:
    offers = [
        offer("a", card(0, 10, 10)),
        offer("b", card(0, 40, 40)),
        offer("c", card(0, 40, 40)),
    ]
    latency_s = {ServerId("a"): 0.001, ServerId("b"): 0.002, ServerId("c"): 0.003}
    for placement in Placement:
        choice = choose(offers, wanted(2, placement, across=True), latency_s)
        assert choice is not None
        assert [each.server for each in choice.offers] == ["b", "c"]
        assert set(choice.incarnations) == {"b", "c"}


# --- remainders and mixtures ----------------------------------------------------------------------

MIB = GIB >> 10


@pytest.mark.parametrize(
    ("rest_mib", "is_sliver"),
    [
        (0, False),
        (1280 - 1, False),
        (1280, True),  # a sixty-fourth of 80 GiB
        (5120 - 1, True),
        (5120, False),  # a sixteenth
    ],
)
def test_a_remainder_is_useless_between_two_parts_of_a_gpu(rest_mib: int, is_sliver: bool) -> None:
    found = replace(card(0, 40, 40), memory_free=40 * GIB + rest_mib * MIB)
    choice = choose([offer("a", found)], wanted())
    assert choice is not None
    assert (choice.sliver_count, choice.left_over) == (int(is_sliver), rest_mib * MIB)


@pytest.mark.parametrize(("small", "wasted"), [(95, 0), (94, 6), (96, 0), (100, 0)])
def test_gpus_that_differ_by_a_twentieth_or_less_are_no_mixture(small: int, wasted: int) -> None:
    choice = choose([offer("a", card(0, 100, 100), card(1, small, small))], wanted(2))
    assert choice is not None
    assert choice.wasted == wasted * GIB
    assert choice.partitions[0].memory == small * GIB


def test_spread_takes_the_emptiest_gpus_of_a_server_and_pack_the_fullest() -> None:
    frees = (60, 80, 40, 70)
    offered = offer("a", *(card(n, 40, free) for n, free in enumerate(frees)))
    assert gpus_of(choose([offered], wanted(2, Placement.SPREAD))) == ["a-1", "a-3"]
    assert gpus_of(choose([offered], wanted(2))) == ["a-0", "a-2"]
    equal = offer("a", *(card(n, 40, 40) for n in range(3)))
    for placement in Placement:
        assert gpus_of(choose([equal], wanted(2, placement))) == ["a-0", "a-1"]
