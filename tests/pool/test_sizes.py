"""Sizes as people write them, and as gpupool writes them."""

import pytest

from gpupool.pool.model.sizes import exact_size_text, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("7B", 7),
        ("7iB", 7),
        ("1K", 1024),
        ("1M", 1_048_576),
        ("1G", 1_073_741_824),
        ("1T", 1_099_511_627_776),
        ("3KiB", 3 * 1024),
        ("3MiB", 3 * 1_048_576),
        ("3GiB", 3 * 1_073_741_824),
        ("3TiB", 3 * 1_099_511_627_776),
        ("2KB", 2_000),
        ("2MB", 2_000_000),
        ("2GB", 2_000_000_000),
        ("2TB", 2_000_000_000_000),
        ("0G", 0),
        ("8g", 8 * 1_073_741_824),
        ("8gb", 8_000_000_000),
        ("8 GiB", 8 * 1_073_741_824),
        ("1.5G", 1_610_612_736),
        ("0.25KB", 250),
        ("1.999999KB", 1_999),
        ("1048575.999999T", 1_152_921_504_605_747_464),
    ],
)
def test_a_size_is_a_number_and_its_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "8", "8.5", "G", "8X", "-8G", "8.G", ".5G", "8.1234567G", "8G B", "8GiBs"]
)
def test_what_is_no_size_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size: write a number and its unit") as refused:
        parse_size(text)
    assert str(refused.value) == (
        f"{text!r} is not a size: write a number and its unit, as 8G or 512M"
    )


def test_a_size_is_below_an_exbibyte() -> None:
    assert parse_size("1152921504606846975B") == (1 << 60) - 1
    for text in ("1152921504606846976B", "1048576T", "9999999999999999999T"):
        with pytest.raises(ValueError, match=f"{text} is not a usable size: it is larger than any"):
            parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0B"),
        (7, "7B"),
        (1023, "1023B"),
        (1024, "1KiB"),
        (1025, "1025B"),
        (1536, "1536B"),
        (5 << 20, "5MiB"),
        (40 << 30, "40GiB"),
        (1025 << 30, "1025GiB"),
        (2 << 40, "2TiB"),
    ],
)
def test_a_size_is_written_in_the_largest_unit_that_says_it_exactly(size: int, text: str) -> None:
    assert exact_size_text(size) == text
    assert parse_size(text) == size
