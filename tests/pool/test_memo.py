"""Answers that are kept beside the table."""

from gpupool.pool.model.tables import Memo


def test_an_answer_is_found_by_the_very_same_objects_only() -> None:
    memo: Memo[str] = Memo(2)
    one, equal = {"a": 1}, {"a": 1}
    assert memo.get(one, "x") is None
    assert memo.put("answer", one, "x") == "answer"
    assert memo.get(one, "x") == "answer"
    assert memo.get(equal, "x") is None
    assert memo.get(one) is None


def test_the_oldest_answer_is_forgotten() -> None:
    memo: Memo[int] = Memo(2)
    parts = [[number] for number in range(3)]
    for number, part in enumerate(parts):
        memo.put(number, part)
    assert [memo.get(part) for part in parts] == [None, 1, 2]


def test_the_parts_are_kept_so_that_no_other_object_can_pass_for_them() -> None:
    memo: Memo[int] = Memo(1)
    memo.put(7, ["gone", "soon"])
    # The list above would be freed by now, and one of these take its place.
    assert all(memo.get(["gone", "soon"]) is None for _ in range(100))
