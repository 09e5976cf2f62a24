"""Documents in parts."""

from gpupool.pool.transitions.uploads import PART_SIZE_MAX, parts_of


def test_a_document_is_its_parts_and_nothing_is_one_part() -> None:
    assert parts_of(b"") == [b""]
    assert parts_of(b"x" * PART_SIZE_MAX) == [b"x" * PART_SIZE_MAX]
    assert parts_of(b"x" * PART_SIZE_MAX + b"y") == [b"x" * PART_SIZE_MAX, b"y"]
