"""The size of a partition, the cards that could hold it, and servers that may have room now."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import GIB, A, B

from gpupool.pool.model.ids import GpuId, RequestId
from gpupool.pool.model.state import Gpu, PoolState, Request, Server, ServerStatus
from gpupool.pool.model.tables import PersistentMap
from gpupool.pool.scheduling.filters import (
    any_could_ever_fit,
    fitting_cards,
    parse_filter,
    partition_size,
    wanted_size,
)
from gpupool.pool.scheduling.placement import may_have_room

MIB = 1 << 20
CARD = GpuId("card")


def gpu(index: int = 0, size: int = 100 * MIB, *, taken: int = 0, foreign: int = 0) -> Gpu:
    return Gpu(
        GpuId(f"GPU-{index}"), index, "G", size, memory_granted=taken, memory_foreign=foreign
    )


def part(index: int, size: int) -> Gpu:
    """Return an instance of a card that is cut into several."""
    return replace(gpu(index, size), parent=CARD)


def wanted(count: int = 1, fraction: float = 0.0, memory: int = 0, **more: object) -> Request:
    request = Request(RequestId(bytes(16)), count, fraction, memory)
    return replace(request, **more)  # pyright: ignore[reportArgumentType]


def server(*gpus: Gpu) -> Server:
    return Server(
        A, "a", "x:1", voter=True, status=ServerStatus.UP, gpus={each.id: each for each in gpus}
    )


# --- the size -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capacity", "fraction", "size"),
    [
        (100 * MIB, 0.5, 50 * MIB),
        (100 * MIB, 0.509, 50 * MIB),
        (2 * MIB - 1, 1.0, MIB),
        (MIB, 1.0, MIB),
        (MIB - 1, 1.0, 0),
    ],
)
def test_a_fraction_is_rounded_down_to_whole_mib(capacity: int, fraction: float, size: int) -> None:
    assert partition_size(capacity, fraction) == size
    assert wanted_size(gpu(size=capacity), wanted(fraction=fraction)) == size


@pytest.mark.parametrize(
    ("foreign", "size"),
    [
        (0, 100 * MIB),
        (1, 99 * MIB),
        (5 * MIB, 95 * MIB),  # the most that others may have of a whole one
        (5 * MIB + 1, 100 * MIB),
        (200 * MIB, 100 * MIB),
    ],
)
def test_a_whole_gpu_may_lack_a_twentieth_that_strangers_have(foreign: int, size: int) -> None:
    found = gpu(foreign=foreign)
    assert wanted_size(found, wanted(fraction=1.0)) == size
    assert wanted_size(found, wanted(fraction=0.98)) == 98 * MIB, "less than all is exact"
    assert wanted_size(found, wanted(memory=100 * MIB)) == 100 * MIB


# --- what could ever hold it ----------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(30, 20, 10), (10, 20, 30), (20, 30, 10)])
def test_a_card_in_parts_counts_once_as_its_largest_part(sizes: tuple[int, ...]) -> None:
    parts = [part(n, size * MIB) for n, size in enumerate(sizes)]
    assert fitting_cards(parts, wanted(memory=10 * MIB)) == {CARD: 30 * MIB}
    assert fitting_cards([*parts, gpu(9)], wanted(memory=MIB)) == {
        CARD: 30 * MIB,
        GpuId("GPU-9"): 100 * MIB,
    }


@pytest.mark.parametrize("size", [1, MIB, 100 * MIB])
def test_a_card_holds_what_it_has_and_not_a_byte_more(size: int) -> None:
    cards = [gpu(size=size)]
    assert fitting_cards(cards, wanted(memory=size)) == {GpuId("GPU-0"): size}
    assert fitting_cards(cards, wanted(memory=size + 1)) == {}


def test_a_share_below_the_smallest_partition_fits_nowhere() -> None:
    assert fitting_cards([gpu()], wanted(fraction=0.01)) == {GpuId("GPU-0"): 100 * MIB}
    assert fitting_cards([gpu()], wanted(fraction=0.0099)) == {}


def test_what_is_taken_now_could_hold_it_and_what_another_server_offers_could_not() -> None:
    full = gpu(taken=100 * MIB)
    faulty = replace(full, fault="no longer present")
    assert fitting_cards([full], wanted(fraction=1.0)) == {full.id: full.capacity}
    assert fitting_cards([faulty], wanted(fraction=1.0)) == {full.id: full.capacity}
    assert fitting_cards([replace(full, clash="b")], wanted(fraction=1.0)) == {}


@pytest.mark.parametrize(
    ("count", "across", "fits"),
    [(2, False, True), (3, False, False), (3, True, True), (4, True, False)],
)
def test_servers_count_together_only_when_asked_across(
    count: int, across: bool, fits: bool
) -> None:
    one, two = server(gpu()), replace(server(gpu(), gpu(1)), id=B, name="b")
    for servers in ((one, two), (two, one)):
        state = PoolState(servers=PersistentMap((each.id, each) for each in servers))
        assert any_could_ever_fit(state, wanted(count, 0.5, across=across)) is fits
        named = wanted(count, 0.5, across=across, servers=("b",))
        assert any_could_ever_fit(state, named) is (count <= 2)
        other = wanted(count, 0.5, across=across, filters=(parse_filter("gpu.name = H200"),))
        assert not any_could_ever_fit(state, other)
        assert any_could_ever_fit(state, wanted(1, 0.5), lambda _server, gpu: gpu.index == 1)
        assert not any_could_ever_fit(state, wanted(1, 0.5), lambda _server, gpu: gpu.index == 2)


# --- what may have room now -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taken", "count", "across", "room"),
    [
        ((0, 60, 100), 1, False, True),
        ((0, 60, 100), 2, False, False),
        ((0, 50, 100), 2, False, True),
        ((60, 60, 100), 1, False, False),
        ((51, 100, 100), 1, True, False),
        ((50, 100, 100), 3, True, True),
        ((100, 100, 0), 3, True, True),
        ((100, 100, 100), 1, True, False),
        ((0, 0, 60), 3, False, False),
        ((0, 0, 50), 3, False, True),
    ],
)
def test_a_server_may_have_room_when_so_many_gpus_have_it(
    taken: tuple[int, ...], count: int, across: bool, room: bool
) -> None:
    found = server(*(gpu(n, taken=each * MIB) for n, each in enumerate(taken)))
    assert may_have_room(found, wanted(count, 0.5, across=across)) is room
    assert may_have_room(found, wanted(count, memory=50 * MIB, across=across)) is room


def test_a_gpu_with_nothing_free_has_no_room_for_the_smallest_share() -> None:
    full = server(gpu(size=GIB, taken=GIB))
    assert not may_have_room(full, wanted(fraction=0.0001))
