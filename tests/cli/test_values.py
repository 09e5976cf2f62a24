"""Typed values are parsed strictly; displayed values are short."""

import pytest

from gpupool.pool.errors import UsageError
from gpupool.pool.model.policy import Zone
from gpupool.pool.policy.policy_document import parse_policy
from gpupool.pool.values import (
    Emulation,
    duration_text,
    parse_count,
    parse_duration,
    parse_emulation,
    parse_filter,
    parse_fraction,
    parse_label,
    parse_name,
    parse_pair,
    parse_partition,
    parse_share,
    parse_size,
    size_text,
)
from gpupool.remoting.protocol.addresses import Address, parse_listen


def test_counts() -> None:
    assert parse_count("1") == 1
    assert parse_count("256") == 256


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "257", "two", "", "1e3", "٣", "9" * 5000])
def test_counts_refused(text: str) -> None:
    with pytest.raises(ValueError, match="GPUs"):
        parse_count(text)


def test_fractions() -> None:
    assert parse_fraction("0.25") == 0.25
    assert parse_fraction("1") == 1.0
    assert parse_fraction("50%") == 0.5


@pytest.mark.parametrize(
    "text", ["0", "1.5", "-0.5", "nan", "inf", "half", "", "1.0000001", "150%", "%"]
)
def test_fractions_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"0\.25"):
        parse_fraction(text)


def test_shares_of_time_have_a_smallest() -> None:
    assert [parse_share(text) for text in ("0.01", "1%", "0.5", "100%")] == [0.01, 0.01, 0.5, 1.0]
    for text in ("1e-9", "0.009", "0.5%"):
        with pytest.raises(ValueError, match=r"at least 0\.01"):
            parse_share(text)
    with pytest.raises(ValueError, match="nan is no share of a GPU"):
        parse_share("nan")


@pytest.mark.parametrize(
    ("text", "size"),
    [("8G", 8 << 30), ("8GiB", 8 << 30), ("1.5g", 3 << 29), ("512M", 512 << 20), ("1T", 1 << 40)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("3" + unit + "B", 3 * 1000**power) for power, unit in enumerate("KMGT", 1)),
        *(("3" + unit + "iB", 3 * 1024**power) for power, unit in enumerate("KMGT", 1)),
        *(("3" + unit, 3 * 1024**power) for power, unit in enumerate("KMGT", 1)),
    ],
)
def test_a_unit_means_the_same_everywhere(text: str, size: int) -> None:
    assert parse_filter(f"gpu.memory >= {text}").values == (str(size),)
    policy = parse_policy(f"[pool]\nmax_memory = '{text}'", lambda name: Zone(name, (), (0,)))
    assert policy.rules[0].number == size
    if size >= 1 << 20:
        assert parse_size(text) == size
        assert parse_emulation(f"1:{text}") == Emulation(1, size)


@pytest.mark.parametrize("text", ["8", "0G", "-1G", "G", "8X", "", "1e3G", "0.1K", "99999999999T"])
def test_sizes_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("1y", 31_536_000), ("0", 0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "10 m", "-5s", "1h30", "soon", "nan", "999999d"])
def test_durations_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|hundred years"):
        parse_duration(text)


def test_listen_addresses() -> None:
    assert parse_listen("10.0.0.4") == Address("10.0.0.4", 7470)
    assert parse_listen(":8000") == Address("0.0.0.0", 8000)
    assert parse_listen("[::1]:0") == Address("::1", 0)
    assert parse_listen("localhost:0") == Address("localhost", 0)


@pytest.mark.parametrize("text", ["", "host:port", "host:99999", "[::1", "a b:1"])
def test_listen_addresses_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not an address"):
        parse_listen(text)


def test_emulation() -> None:
    assert parse_emulation("4") == Emulation(4, 16 << 30)
    assert parse_emulation("2:1G") == Emulation(2, 1 << 30)
    for text in ("0", "65", "x", "2:", "2:1", "-1:1G"):
        with pytest.raises(ValueError, match=r"emulated|size"):
            parse_emulation(text)


def test_pairs_and_names() -> None:
    assert parse_pair("A=b=c") == ("A", "b=c")
    assert parse_pair("A=") == ("A", "")
    for text in ("A", "=b", "A=\0"):
        with pytest.raises(ValueError, match="NAME=VALUE"):
            parse_pair(text)
    assert parse_name("gpu-a.example_1") == "gpu-a.example_1"
    for text in ("", "-a", "a b", "a" * 64, "ä"):
        with pytest.raises(ValueError, match="usable name"):
            parse_name(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0B"), (512, "512B"), (1 << 30, "1G"), (75_698_798_592, "70.5G"), (999 << 20, "999M")],
)
def test_size_text(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.44, "0.4s"), (42.4, "42s"), (125, "2m05s"), (3900, "1h05m"), (200_000, "2d07h")],
)
def test_duration_text(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("text", "mib"), [("8GiB", 8192), ("8G", 8192), ("8GB", 7630), ("1.5MiB", 2), ("2MB", 2)]
)
def test_a_partition_is_whole_mib_and_no_less_than_asked(text: str, mib: int) -> None:
    assert parse_partition(text) == mib << 20


def test_a_megabyte_is_less_than_the_smallest_partition() -> None:
    with pytest.raises(ValueError, match="the smallest is 1MiB"):
        parse_partition("1MB")


@pytest.mark.parametrize("text", ["rack", "=x", "a b=c", "name=tab\t", f"{'x' * 70}=1"])
def test_labels_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"label|NAME=VALUE"):
        parse_label(text)
