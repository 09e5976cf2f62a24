"""Filters: how they are written, their meaning, and that nothing makes them fail."""

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
    FILTER_COUNT_MAX,
    KEYS,
    LABELS,
    TEXT_LENGTH_MAX,
    VALUE_COUNT_MAX,
    VALUE_LENGTH_MAX,
    ascii_lower,
    check_filters,
    filter_text,
    first_mismatch,
    glob_matches,
    label_refusal,
    matches,
    parse_filter,
    short_model,
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


# --- what no person writes ------------------------------------------------------------------------


def test_filters_are_well_formed_when_each_of_them_is() -> None:
    good = parse_filter("gpu.memory >= 40GiB")
    bad = Filter("gpu.memory", Operator.AT_LEAST, ("4e10",))
    assert well_formed([])
    assert well_formed([good, parse_filter("rdma = yes")])
    for some in ([bad], [good, bad], [bad, good], [good, good, bad]):
        assert not well_formed(some)
        with pytest.raises(ValueError, match="at most 4096 bytes"):
            check_filters(some)


@pytest.mark.parametrize(
    ("key", "operator", "values"),
    [
        ("gpu.memory", Operator.EQUAL, ("*",)),
        ("gpu.memory", Operator.EQUAL, (f"{141 * GIB // 10}?",)),
        ("gpu.memory", Operator.AT_LEAST, ("1e3",)),
        ("gpu.memory", Operator.AT_LEAST, ("-1",)),
        ("link.speed", Operator.EQUAL, ("25*",)),
        ("link.speed", Operator.LESS, ("many",)),
        ("gpu.name", Operator.EQUAL, ()),
        ("gpu.name", Operator.DIFFERENT, ()),
        ("gpu.age", Operator.EQUAL, ("*",)),
        ("gpu.age", Operator.DIFFERENT, ("1",)),
        ("server.labels.", Operator.DIFFERENT, ("1",)),
    ],
)
def test_a_malformed_filter_matches_nothing(
    key: str, operator: Operator, values: tuple[str, ...]
) -> None:
    wanted = Filter(key, operator, values)
    assert not well_formed([wanted])
    assert not matches(wanted, SERVER, GPU)
    assert first_mismatch([parse_filter("rdma = yes"), wanted], SERVER, GPU) is wanted


def test_a_malformed_filter_is_shown_as_it_is() -> None:
    for values in (("many",), ("1e3",), ("",), (str(GIB), "many")):
        wanted = Filter("gpu.memory", Operator.AT_LEAST, values)
        shown = ",".join("1GiB" if value == str(GIB) else value for value in values)
        assert filter_text(wanted) == f"gpu.memory >= {shown}"


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("extra", "fits"), [(0, True), (1, False)])
def test_all_filters_together_have_a_bounded_number_of_bytes(extra: int, fits: bool) -> None:
    """A letter that is no ASCII has two of them."""
    text = "\u00e9" * 60
    names = Filter("gpu.name", Operator.EQUAL, (text,) * 32)
    ids = Filter("gpu.uuid", Operator.EQUAL, (text, "x" * (120 + extra)))
    wanted = [names, ids]
    texts = [text for each in wanted for text in (each.key, *each.values)]
    assert len("".join(texts).encode()) == TEXT_LENGTH_MAX + extra
    assert well_formed(wanted) is fits


@pytest.mark.parametrize(
    ("count", "fits"), [(FILTER_COUNT_MAX, True), (FILTER_COUNT_MAX + 1, False)]
)
def test_a_request_has_so_many_filters_and_no_more(count: int, fits: bool) -> None:
    some = [parse_filter(f"gpu.name = {n}") for n in range(count)]
    assert well_formed(some) is fits
    if fits:
        check_filters(some)
    else:
        with pytest.raises(ValueError, match="at most 16 filters"):
            check_filters(some)


def test_a_list_has_so_many_values_of_so_many_characters() -> None:
    values = [str(n).rjust(VALUE_LENGTH_MAX, "x") for n in range(VALUE_COUNT_MAX)]
    assert parse_filter(f"gpu.name = {','.join(values)}").values == tuple(values)
    with pytest.raises(ValueError, match="a list has at most 32 values"):
        parse_filter(f"gpu.name = {','.join([*values, 'x'])}")
    with pytest.raises(ValueError, match="1 to 128 printable"):
        parse_filter(f"gpu.name = {values[0]}x")
    with pytest.raises(ValueError, match="lacks its value"):
        parse_filter("gpu.name =   ")


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("gpu.memory>=40GiB", "gpu.memory >= 40GiB"),
        ("  gpu.memory   ==  40 GiB  ", "gpu.memory = 40GiB"),
        ("gpu.memory < 1", None),
        ("gpu.memory != 1GiB , 2GiB", "gpu.memory != 1GiB,2GiB"),
        ("link.speed = 25", "link.speed = 25"),
        ("link.speed = 25M", "link.speed = 25"),
        ("link.speed = 25g", "link.speed = 25000"),
        ("link.speed = 2Tbit/s", "link.speed = 2000000"),
        ("link.speed = 2bit", "link.speed = 2"),
        ("link.speed = 25Gb", None),
        ("rdma = TRUE", "rdma = yes"),
        ("rdma = 1", "rdma = yes"),
        ("rdma = 0", "rdma = no"),
        ("rdma = False", "rdma = no"),
        ("driver.version = 550.*", "driver.version = 550.*"),
        ("driver.version = ?", "driver.version = ?"),
        ("driver.version >= 550.*", None),
        ("driver.version = 1.2.3.4.5.6.7.8", "driver.version = 1.2.3.4.5.6.7.8"),
        ("driver.version = 1.2.3.4.5.6.7.8.9", None),
        ("server.labels.a/b = any text", "server.labels.a/b = any text"),
        ("server.labels.a >= 3.1", "server.labels.a >= 3.1"),
        ("server.labels.-a = 3", None),
        ("server.addr = gpu-*", "server.addr = gpu-*"),
        ("server.addr = 10.0.0.1/8", "server.addr = 10.0.0.1/8"),
        ("server.addr = 10.0.0.0/33", None),
        ("server.addr >= fd00::1", "server.addr >= fd00::1"),
        ("server.addr >= 10.0.0.0/8", None),
    ],
)
def test_values_have_one_normal_form(text: str, normal: str | None) -> None:
    if normal is None:
        with pytest.raises(ValueError, match=r"."):
            parse_filter(text)
    else:
        assert filter_text(parse_filter(text)) == normal


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("server.labels", "server.labels needs the name of a label, as server.labels.rack"),
        ("server.label", "server.labels needs the name of a label, as server.labels.rack"),
        ("server.labels.", "server.labels needs the name of a label, as server.labels.rack"),
        ("GPU.Memory", "there is no key 'GPU.Memory'; did you mean gpu.memory?"),
        ("server.labels.-", "there is no key 'server.labels.-'; did you mean server.labels.NAME?"),
        (
            "z" * 99,
            f"there is no key {'z' * 60!r}; the keys are {', '.join(KEYS)}, server.labels.NAME",
        ),
    ],
)
def test_an_unknown_key_is_told_what_could_be_meant(key: str, why: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        parse_filter(f"{key} = 1")
    assert str(raised.value) == why


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({}, ""),
        ({"a": ""}, ""),
        ({"a" * 63: "b" * 63, "x/y.z-1": "a b:c"}, ""),
        (
            {"a" * 64: ""},
            f"{'a' * 64!r} cannot be a label's name: letters, digits and ._/- , 63 at most",
        ),
        (
            {"fine": "", "not fine" * 20: ""},
            f"{'not fine' * 10!r} cannot be a label's name: letters, digits and ._/- , 63 at most",
        ),
        ({"a": "b" * 64}, f"{'b' * 64!r} cannot be a label's value: 63 simple characters at most"),
        (
            {"a": "," * 90},
            f"{',' * 80!r} cannot be a label's value: 63 simple characters at most",
        ),
    ],
)
def test_what_can_be_a_label(labels: dict[str, str], why: str) -> None:
    assert label_refusal(labels) == why


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA Tesla V100", "V100"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("H200 NVIDIA ", "H200 NVIDIA "),
        ("NVIDIA ", "GPU"),
        ("", "GPU"),
    ],
)
def test_a_model_is_named_without_its_vendor(name: str, model: str) -> None:
    assert short_model(name) == model


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("12", "12.0", True),
        ("12.0.0", "12", True),
        ("0", "0.0", True),
        ("12.0.1", "12", False),
        ("12.10", "12.1", False),
    ],
)
def test_zeros_at_the_end_of_a_version_do_not_count(one: str, other: str, equal: bool) -> None:
    server = replace(SERVER, cuda_version=one)
    for sign, expected in (("=", equal), ("!=", not equal), (">", not equal), ("<=", equal)):
        wanted = parse_filter(f"cuda.version {sign} {other}")
        assert matches(wanted, server, GPU) is expected, sign


def test_only_ascii_letters_are_the_same_in_either_case() -> None:
    assert ascii_lower("Ab\u00c4") == "ab\u00c4"
    gpu = replace(GPU, name="Gr\u00dcn")
    assert matches(parse_filter("gpu.name = gR\u00dcN"), SERVER, gpu)
    assert not matches(parse_filter("gpu.name = gr\u00fcn"), SERVER, gpu)


@pytest.mark.parametrize("key", ["driver.version", "cuda.version", "gpu.compute_capability"])
def test_what_is_unknown_matches_no_pattern_and_no_rdma_is_said_with_no(key: str) -> None:
    assert not matches(parse_filter(f"{key} = *"), UNKNOWN, EMULATED)
    assert matches(parse_filter(f"{key} = *"), SERVER, GPU)
    for word, expected in (("no", True), ("yes", False)):
        assert matches(parse_filter(f"rdma = {word}"), UNKNOWN, EMULATED) is expected
