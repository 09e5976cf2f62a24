"""Filters: how they are written, what they mean, and that nothing makes them fail."""

import operator as operators
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pool.pool_strategies import GIB, filters, gpus_of

from gpupool.pool.model.codec import decode, encode
from gpupool.pool.model.ids import GpuId, ServerId
from gpupool.pool.model.sizes import exact_size_text, parse_size
from gpupool.pool.model.state import Filter, Gpu, Operator, Server
from gpupool.pool.scheduling.filters import (
    KEYS,
    LABELS,
    check_filters,
    filter_text,
    first_mismatch,
    glob_matches,
    matches,
    parse_filter,
    well_formed,
)

SERVER = Server(
    ServerId("a" * 12),
    "gpu-a.lab",
    "10.1.2.3:7470",
    voter=True,
    driver_version="550.54.15",
    cuda_version="12.10",
    labels={"rack": "r3", "floor": "10", "owner": "physics"},
    link_speed=25_000,
    rdma=True,
)
GPU = Gpu(GpuId("GPU-8f0c"), 0, "NVIDIA H200", 141 * GIB, compute_capability="9.0")
UNKNOWN = Server(ServerId("b" * 12), "b", "gpu-b.lab:7470", voter=True)
EMULATED = Gpu(GpuId("EMU-1"), 0, "Emulated GPU", 16 * GIB, emulated=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server.name=gpu-a.lab", True),
        ("server.name = GPU-*", True),
        ("server.name==aaaaaaaaaaaa", True),
        ("server.name = x, gpu-?.lab", True),
        ("server.name != x,y", True),
        ("server.name != x,gpu-*", False),
        ("server.addr = 10.0.0.0/8", True),
        ("server.addr = 192.168.0.0/16", False),
        ("server.addr != 192.168.0.0/16,10.1.2.3", False),
        ("server.addr >= 10.1.2.0", True),
        ("server.addr < 10.1.2.3", False),
        ("server.addr < ::1", True),  # every IPv4 address comes before IPv6
        ("server.labels.rack = r3", True),
        ("server.labels.rack != r3", False),
        ("server.labels.room != 7", True),  # what is not said differs from everything
        ("server.labels.room = *", False),
        ("server.labels.floor > 9", True),
        ("server.labels.owner > 9", False),  # no number
        ("gpu.name = h200", True),
        ("gpu.name = NVIDIA H*", True),
        ("gpu.name = H100,A100", False),
        ("gpu.memory >= 140GiB", True),
        ("gpu.memory > 141G", False),
        ("gpu.memory = 141GiB", True),
        ("gpu.memory < 152GB", True),  # 141 GiB are 151.4 GB
        ("gpu.memory < 151GB", False),
        ("gpu.compute_capability >= 8.10", True),
        ("gpu.compute_capability = 9", True),
        ("gpu.compute_capability = 8.*,9.*", True),
        ("gpu.uuid = GPU-8f*", True),
        ("driver.version >= 550.9", True),
        ("driver.version < 550.54.15.1", True),
        ("cuda.version > 12.9", True),
        ("cuda.version = 12", False),
        ("cuda.version = 12.*", True),
        ("link.speed >= 25G", True),
        ("link.speed > 25000", False),
        ("link.speed = 25Gbit/s", True),
        ("rdma = yes", True),
        ("rdma != true", False),
    ],
)
def test_what_a_filter_means(text: str, expected: bool) -> None:
    assert matches(parse_filter(text), SERVER, GPU) is expected


AROUND = {
    "server.name": ("", "gpu-a.lab", "gpu-b.lab"),
    "server.addr": ("10.1.2.2", "10.1.2.3", "10.1.3.1"),
    "server.labels.floor": ("9", "10", "11"),
    "gpu.name": ("", "NVIDIA H200", "NVIDIA H100"),
    "gpu.memory": ("140GiB", "141GiB", "152GB"),
    "gpu.compute_capability": ("8.10", "9.0", "10.0"),
    "gpu.uuid": ("", "GPU-8f0c", "GPU-8f0d"),
    "driver.version": ("550.54.9", "550.54.15", "560"),
    "cuda.version": ("12.9", "12.10", "13.0"),
    "link.speed": ("24999", "25G", "1T"),
    "rdma": ("", "yes", "no"),
}
"""Of each key a value below that of ``SERVER``, the same, and one above; no below: no order."""


@pytest.mark.parametrize("operator", Operator)
@pytest.mark.parametrize("key", AROUND)
def test_every_key_with_every_operator(key: str, operator: Operator) -> None:
    assert {*AROUND} == {*KEYS, f"{LABELS}floor"}
    less, same, more = AROUND[key]
    compare = {
        Operator.EQUAL: operators.eq,
        Operator.DIFFERENT: operators.ne,
        Operator.LESS: operators.lt,
        Operator.AT_MOST: operators.le,
        Operator.MORE: operators.gt,
        Operator.AT_LEAST: operators.ge,
    }[operator]
    for rank, value in enumerate((less, same, more)):
        text = f"{key} {operator.value} {value}"
        if not less and operator not in (Operator.EQUAL, Operator.DIFFERENT):
            with pytest.raises(ValueError, match="has no order: use = or !="):
                parse_filter(f"{key} {operator.value} {same}")
        elif value:
            assert matches(parse_filter(text), SERVER, GPU) is compare(1, rank), text


@pytest.mark.parametrize("key", ["cuda.version", "gpu.compute_capability", "link.speed"])
def test_what_is_unknown_equals_nothing_and_has_no_order(key: str) -> None:
    for operator in Operator:
        found = matches(parse_filter(f"{key} {operator.value} 1"), UNKNOWN, EMULATED)
        assert found is (operator is Operator.DIFFERENT)


def test_addresses_that_are_names_match_as_text() -> None:
    assert matches(parse_filter("server.addr = *.lab"), UNKNOWN, EMULATED)
    assert not matches(parse_filter("server.addr = 0.0.0.0/0"), UNKNOWN, EMULATED)
    six = replace(UNKNOWN, address="[fd00::7]:7470")
    assert matches(parse_filter("server.addr = fd00::/8"), six, EMULATED)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu.nmae = H200", "did you mean gpu.name?"),
        ("memory >= 3G", "did you mean gpu.memory?"),
        ("label.rack = 3", "did you mean server.labels.NAME?"),
        ("weather = fine", "the keys are server.name, "),
        ("server.labels = 3", "needs the name of a label"),
        ("gpu.memory", "the shell takes < and > for itself"),
        ("gibberish", "is not a filter"),
        ("", "is not a filter"),
        ("gpu.memory >=", "lacks its value"),
        ("gpu.memory >= 40", "'40' is not a size"),
        ("gpu.memory >= 4G,5G", "takes one value"),
        ("gpu.name < H200", "has no order"),
        ("rdma = maybe", "is yes or no"),
        ("cuda.version >= 12.x", "is not a version"),
        ("server.labels.rack < r1", "is not a number, and only those have an order"),
        ("cuda.version = new", "is not a version"),
        ("server.addr = 10.0.0.0/99", "is not a network"),
        ("server.addr > gpu-a", "is not an IP address"),
        ("link.speed > fast", "is not a speed"),
        ("gpu.name = a,,b", "1 to 128 printable"),
        (f"gpu.name = {'x' * 200}", "1 to 128 printable"),
        ("gpu.name = a\tb", "1 to 128 printable"),
        ("gpu.name = " + ",".join("abcdefgh" * 5), "at most 32"),
    ],
)
def test_what_cannot_be_a_filter_is_explained(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        parse_filter(text)
    assert words in str(raised.value)


def test_a_request_has_a_limited_number_of_filters() -> None:
    check_filters([parse_filter("rdma = yes")] * 20)  # the same one again is one
    with pytest.raises(ValueError, match="at most 16 filters"):
        check_filters([parse_filter(f"gpu.name = {n}") for n in range(17)])
    long = [parse_filter(f"gpu.name = {n}{','.join(['x' * 100] * 5)}") for n in range(16)]
    with pytest.raises(ValueError, match="at most 4096 bytes"):
        check_filters(long)


@given(filters)
def test_text_and_filter_are_one(wanted: Filter) -> None:
    assert well_formed([wanted])
    assert parse_filter(filter_text(wanted)) == wanted
    assert decode(Filter, encode(wanted)) == wanted


@given(st.text(max_size=40))
def test_any_text_is_a_filter_or_a_sentence(text: str) -> None:
    for prefix in ("", *(f"{key} =" for key in KEYS), f"{LABELS}x >="):
        try:
            wanted = parse_filter(prefix + text)
        except ValueError as error:
            assert str(error)  # noqa: PT017
        else:
            assert parse_filter(filter_text(wanted)) == wanted


@given(
    st.builds(
        Filter,
        key=st.sampled_from([*KEYS, f"{LABELS}rack", "nonsense"]) | st.text(max_size=9),
        operator=st.sampled_from(Operator),
        values=st.lists(st.text(max_size=9) | st.from_regex(r"\d{1,30}"), max_size=3).map(tuple),
    ),
    st.sampled_from([SERVER, UNKNOWN]),
)
def test_evaluation_never_fails_whoever_made_the_filter(wanted: Filter, server: Server) -> None:
    for gpu in (GPU, EMULATED, *gpus_of(server.id)):
        assert matches(wanted, server, gpu) in (True, False)
        assert first_mismatch([wanted], server, gpu) in (None, wanted)
    filter_text(wanted)
    if well_formed([wanted]):
        assert parse_filter(filter_text(wanted)) == wanted


@given(filters)
def test_a_filter_and_its_opposite_part_the_world(wanted: Filter) -> None:
    opposite = {Operator.EQUAL: Operator.DIFFERENT, Operator.DIFFERENT: Operator.EQUAL}
    other = opposite.get(wanted.operator)
    if other is not None:
        for server, gpu in ((SERVER, GPU), (UNKNOWN, EMULATED)):
            against = matches(replace(wanted, operator=other), server, gpu)
            assert matches(wanted, server, gpu) is not against


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_patterns_match_as_by_their_definition(pattern: str, text: str) -> None:
    def slow(p: str, t: str) -> bool:
        if not p:
            return not t
        if p[0] == "*":
            return slow(p[1:], t) or (bool(t) and slow(p, t[1:]))
        return bool(t) and p[0] in ("?", t[0]) and slow(p[1:], t[1:])

    assert glob_matches(pattern, text) is slow(pattern, text)


def test_no_pattern_takes_for_ever() -> None:
    # Backtracking would take longer than the universe has existed.
    assert not glob_matches("*a" * 60 + "b", "a" * 10_000)


@given(st.integers(0, 2**60 - 1))
def test_sizes_are_exact(size: int) -> None:
    assert parse_size(exact_size_text(size)) == size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 << 30),
        ("8G", 8 << 30),
        ("8GB", 8 * 10**9),
        ("1.5kB", 1500),
        ("1.5KiB", 1536),
        ("0.5 TB", 5 * 10**11),
        ("2MIB", 2 << 20),
        ("3MB", 3_000_000),
        ("7B", 7),
    ],
)
def test_units_of_1000_and_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size
